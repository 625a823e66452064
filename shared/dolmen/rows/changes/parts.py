"""Parts of a change feed, each of which any process can read by itself: small descriptions, planned from metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import with_erasures
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.manifest import EMPTY, Manifest, TableEntry
from dolmen.predicate import Predicate
from dolmen.rows.changes.changed_files import ChangedFiles, ChangePlanner
from dolmen.rows.changes.feed import ChangeFeed, erasures_reaching, feed_schema, tag
from dolmen.rows.scan.plan import output_fields


@dataclass(frozen=True)
class VersionKey:
    """A version and the key of its manifest; version 0 is the database before its first commit."""

    version: int
    manifest: str

    @classmethod
    def of(cls, manifest: Manifest) -> VersionKey:
        """The key of a version."""
        return cls(manifest.version, manifest.key if manifest.version else "")

    def read(self, context: Context) -> Manifest:
        """Reads the manifest.

        Raises:
            VersionExpiredError: the version has expired.
        """
        if not self.version:
            return EMPTY
        try:
            return context.head.read_manifest(self.manifest)
        except ObjectNotFoundError:
            context.head.check_kept(self.version)
            raise CorruptionError(self.manifest, "the manifest is missing") from None


@dataclass(frozen=True)
class FeedPart:
    """Changes of one commit, or between two versions.

    Args:
        before, after: these versions.
        lost, new: paths of the files of which the rows that were lost, or are new, are read. None if rows of one file
            may have to be paired with rows of another: then all files of the change are read together.
        size: bytes of the files.
        erased: whether the files are read for rows that were erased since.
    """

    before: VersionKey
    after: VersionKey
    lost: frozenset[str] | None
    new: frozenset[str] | None
    size: int
    erased: bool = False

    def __add__(self, other: FeedPart) -> FeedPart:
        """The files of two parts of the same change."""
        assert self.is_same_change(other)
        return FeedPart(
            self.before,
            self.after,
            (self.lost or frozenset()) | (other.lost or frozenset()),
            (self.new or frozenset()) | (other.new or frozenset()),
            self.size + other.size,
            self.erased,
        )

    def is_same_change(self, other: FeedPart) -> bool:
        """Whether both are parts of one change."""
        return (self.before, self.after, self.erased) == (other.before, other.after, other.erased)


def parts_of(feed: ChangeFeed) -> Iterator[FeedPart]:
    """Yields the smallest parts of a feed, in the order of versions. Reads manifests and segments, and no data.

    Raises:
        VersionExpiredError: a version that is needed has expired.
    """
    for step, files, erased in feed.plan():
        before, after = VersionKey.of(step.before), VersionKey.of(step.after)
        if files is None:  # what the commits did is paired, all of it
            yield FeedPart(before, after, None, None, 0)
            continue
        lost, new = files.sizes
        if files.is_paired:
            yield FeedPart(before, after, None, None, sum(size for _, size in (*lost, *new)))
            continue
        nothing = frozenset[str]()
        yield from (FeedPart(before, after, frozenset((path,)), nothing, size, erased) for path, size in lost)
        yield from (FeedPart(before, after, nothing, frozenset((path,)), size) for path, size in new)


class PartReader:
    """Reads parts of one feed.

    Args:
        newest, table, entry, columns, where, net: of the feed, as for ``ChangeFeed``.
    """

    def __init__(
        self,
        context: Context,
        newest: Manifest,
        table: str,
        entry: TableEntry,
        columns: tuple[str, ...],
        where: Predicate | None,
        *,
        net: bool,
    ) -> None:
        with context.reading(newest.version):
            erasures = erasures_reaching(context, newest, entry, after=EMPTY)
        entry = with_erasures(entry, erasures, context.segments)  # as ChangeFeed does
        self._context, self._newest, self._table, self._entry = context, newest, table, entry
        self._columns, self._where, self._net = columns, where, net
        self._output = output_fields(entry, columns, with_commit_ts=False)
        self._planner = ChangePlanner(context, entry, self._output, where, erasures)
        self._manifests: dict[VersionKey, Manifest] = {}
        self.schema = feed_schema(self._output, () if erasures else entry.primary_key)

    def read(self, part: FeedPart) -> Iterator[pa.RecordBatch]:
        """Streams the changes of one part, in bounded memory.

        Raises:
            VersionExpiredError: a version of it has expired.
        """
        before, after = self._manifest(part.before), self._manifest(part.after)
        self._manifests = {part.before: before, part.after: after}
        with self._context.reading(max(part.before.version, 1), part.after.version):
            files = self._files(part, before, after)
            if files is None:
                if part.erased:
                    return
                feed = ChangeFeed(
                    self._context,
                    self._newest,
                    before,
                    after,
                    self._table,
                    self._entry,
                    self._columns,
                    self._where,
                    net=True,
                )
                changes = feed.net_of_commits()
                yield from (tag(change, after, self._output, self.schema) for change in changes)
                return
            if part.lost is not None and part.new is not None:
                files = files.only(part.lost, part.new)
            yield from (tag(change, after, self._output, self.schema) for change in files.match())

    def _files(self, part: FeedPart, before: Manifest, after: Manifest) -> ChangedFiles | None:
        if part.erased:
            return self._planner.erased(before, after, net=self._net)
        return self._planner.net(before, after) if self._net else self._planner.of_commit(before, after)

    def _manifest(self, key: VersionKey) -> Manifest:
        """A version's manifest; those of the last part are kept, as the next one often begins where it ended."""
        return self._manifests[key] if key in self._manifests else key.read(self._context)
