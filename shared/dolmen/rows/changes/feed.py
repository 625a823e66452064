"""The change feed of one table: a stream of the rows that each commit added and deleted, or of the net change.

A feed can be divided into parts: small descriptions, planned from metadata, that any process can read by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import reaches, with_erasures
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import SchemaError
from dolmen.format.manifest import EMPTY, Erasure, Manifest, TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate.ast import Predicate
from dolmen.rows.changes.changed_files import ChangedFiles, ChangePlanner, matcher
from dolmen.rows.changes.row_matching import Changed
from dolmen.rows.changes.table_state import CommitStep, changing_commits
from dolmen.rows.scan.plan import output_fields

CHANGE, VERSION = "_change", "_version"


FEED_FIELDS = (
    pa.field(CHANGE, pa.string(), nullable=False),
    pa.field(VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TS, pa.int64(), nullable=False),
)
"""The columns that the feed adds after the table's."""


class ChangeFeed:
    """The changes of one table after version ``since`` and up to ``until``. Nothing is read before rows are consumed.

    Args:
        newest: the newest version, with the history of ``until`` and all erasures.
        entry: the table with the columns of the feed, to which ``where`` is bound.
        net: the difference of the two versions, in place of every commit's changes.

    Raises SchemaError if there is no such column, or a column has the name of one that the feed adds.
    """

    def __init__(
        self,
        context: Context,
        newest: Manifest,
        since: Manifest,
        until: Manifest,
        table: str,
        entry: TableEntry,
        columns: Sequence[str] | None = None,
        where: Predicate | None = None,
        *,
        net: bool = False,
    ) -> None:
        self._context, self._newest, self._since, self._until, self._net = context, newest, since, until, net
        with context.reading(until.version):
            erasures = erasures_reaching(context, newest, entry, after=since)
        self._entry = entry = with_erasures(entry, erasures, context.segments)  # its columns have the deletes' types
        self._output = output_fields(entry, columns, with_commit_ts=False)
        check_names(table, self._output)
        self._planner = ChangePlanner(context, entry, self._output, where, erasures)
        is_replaced = entry.epoch > since.version  # perhaps by a restore that brought back a column
        shown = entry.primary_key if is_replaced else [field.id for field in entry.schema.fields]
        self.schema = feed_schema(self._output, () if erasures else shown)

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Streams the changes, each batch of one commit and one kind. Raises VersionExpiredError."""
        with self._context.reading(max(self._since.version, 1), self._until.version):
            for step, files, _ in self.plan():
                changes = self.net_of_commits() if files is None else files.match()
                yield from (with_feed_columns(each, step.after, self._output, self.schema) for each in changes)

    def plan(self) -> Iterator[tuple[CommitStep, ChangedFiles | None, bool]]:
        """Yields each change of the feed with its files. Reads manifests and segments, but no data.

        Yields:
            The change, its files (None if only the single commits have the change), and whether they are read for rows
            that were erased since. Deletes of such rows come first: a row added later with the same key is another one.
        """
        steps = [CommitStep(self._since, self._until)] if self._net else self._steps()
        for step in steps:
            if files := self._planner.of_erased_rows(step.before, step.after, net=self._net):
                yield step, files, True
            changes = self._planner.net if self._net else self._planner.of_commit
            yield step, changes(step.before, step.after), False

    def _steps(self) -> Iterator[CommitStep]:
        steps = changing_commits(
            self._context, self._newest, self._since, self._until, self._entry.uuid, self._planner.key_columns.inputs
        )
        return (step for step in steps if step.after.data_change)

    def net_of_commits(self) -> Iterator[Changed]:
        """The net change, from the changes of each commit, because compaction has moved rows in between."""
        columns = self._planner.key_columns

        def all_changes() -> Iterator[Changed]:
            for step in self._steps():
                files = self._planner.of_commit(step.before, step.after, columns)
                yield from (("delete", batch) for batch in files.read_deleted())
                yield from (("insert", batch) for batch in files.read_inserted())

        return matcher(columns, is_difference=True).match_mixed(all_changes())


def erasures_reaching(context: Context, newest: Manifest, entry: TableEntry, *, after: Manifest) -> tuple[Erasure, ...]:
    """The erasures after a version that may reach a table in any version, oldest first.

    An earlier version may have a subject where ``entry`` has none.
    """
    younger = erasures_of(newest, context.segments, after=after.commit_ts)
    return tuple(erasure for erasure in younger if erasure.subject or reaches(erasure, entry))


def feed_schema(output: Iterable[Field], shown: Collection[int]) -> pa.Schema:
    """The Arrow schema of a feed with these columns of the table.

    Columns that are not ``shown`` are nullable: erased rows have only the key, and older versions may lack the column.
    """
    own = [pa.field(field.name, field.arrow_type, field.nullable or field.id not in shown) for field in output]
    return pa.schema([*own, *FEED_FIELDS])


def with_feed_columns(
    change: Changed, manifest: Manifest, output: Iterable[Field], schema: pa.Schema
) -> pa.RecordBatch:
    """Changed rows with the columns that the feed adds."""
    kind, rows = change
    arrays = [rows.column(field.name) for field in output]
    for value, field in zip((kind, manifest.version, manifest.commit_ts), FEED_FIELDS, strict=True):
        arrays.append(pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_names(table: str, output: Iterable[Field]) -> None:
    """Raises SchemaError if a column of the table has the name of one that the feed adds."""
    for field in output:
        if field.name.lower() in (added.name for added in FEED_FIELDS):
            raise SchemaError(
                f"column {field.name!r} of table {table!r} has the name of a column that the feed adds: rename it, or "
                "leave it out with columns=[...]"
            )


class VersionKey(Struct, frozen=True):
    """A version and the key of its manifest; version 0 is the database before its first commit."""

    version: int
    manifest: str

    @classmethod
    def of(cls, manifest: Manifest) -> VersionKey:
        return cls(manifest.version, manifest.key if manifest.version else "")

    def read(self, context: Context) -> Manifest:
        """Reads the manifest. Raises VersionExpiredError if the version has expired."""
        return context.head.read_kept(self.manifest, self.version) if self.version else EMPTY


class FeedPart(Struct, frozen=True):
    """Changes of one commit, or between the versions ``before`` and ``after``."""

    before: VersionKey
    after: VersionKey
    # lost, new: paths of the files from which lost or new rows are read. None if all files of the change have to be
    # read together, because rows of one file may pair with rows of another.
    lost: frozenset[str] | None
    new: frozenset[str] | None
    size: int  # bytes of these files; 0 if unknown
    erased: bool = False  # whether the files are read for rows that were erased since

    def __add__(self, other: FeedPart) -> FeedPart:
        assert self.is_same_change(other)
        lost, new = (
            (self.lost or frozenset()) | (other.lost or frozenset()),
            (self.new or frozenset()) | (other.new or frozenset()),
        )
        return replace(self, lost=lost, new=new, size=self.size + other.size)

    def is_same_change(self, other: FeedPart) -> bool:
        return (self.before, self.after, self.erased) == (other.before, other.after, other.erased)


def parts_of(feed: ChangeFeed) -> Iterator[FeedPart]:
    """Yields the smallest parts of a feed, in the order of versions. Reads only manifests and segments."""
    for step, files, erased in feed.plan():
        before, after = VersionKey.of(step.before), VersionKey.of(step.after)
        if files is None:  # the changes of all commits are paired
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
    """Reads parts of a ``ChangeFeed`` with these arguments."""

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
        """Streams the changes of one part, in bounded memory. Raises VersionExpiredError."""
        before, after = self._manifest(part.before), self._manifest(part.after)
        self._manifests = {part.before: before, part.after: after}
        with self._context.reading(max(part.before.version, 1), part.after.version):
            changes = self._changes(part, before, after)
            yield from (with_feed_columns(change, after, self._output, self.schema) for change in changes)

    def _changes(self, part: FeedPart, before: Manifest, after: Manifest) -> Iterable[Changed]:
        if part.erased:
            files = self._planner.of_erased_rows(before, after, net=self._net)
        else:
            files = self._planner.net(before, after) if self._net else self._planner.of_commit(before, after)
        if files is None:
            feed = (before, after, self._table, self._entry, self._columns, self._where)
            return () if part.erased else ChangeFeed(self._context, self._newest, *feed, net=True).net_of_commits()
        if part.lost is not None and part.new is not None:
            files = files.only(part.lost, part.new)
        return files.match()

    def _manifest(self, key: VersionKey) -> Manifest:
        """A version's manifest. Keeps the last part's manifests: the next part often begins where that one ended."""
        return self._manifests[key] if key in self._manifests else key.read(self._context)
