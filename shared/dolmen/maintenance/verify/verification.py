"""``verify``: a complete check of a database, from the pointer to the last byte of data, while others use it.

It checks, in this order:

1. pointer, manifests and the chain of versions back to the horizon;
2. the checked version's entries of tables, files, deletes and segments;
3. that all objects exist with their sizes, by one listing merged with all references;
4. tombstones and deletion vectors: each ``.del`` object is read once;
5. footers of a sample of the data files; with ``deep`` all bytes of all data files;
6. erasures and their receipts, and publications.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from dolmen.base.units import MIB
from dolmen.commit.head import Context, Head
from dolmen.entries.index.table_index import OpenPart
from dolmen.entries.segments.segment_reader import FileTable
from dolmen.errors import (
    CorruptionError,
    DatabaseNotFoundError,
    ObjectNotFoundError,
    VersionExpiredError,
    VersionNotFoundError,
)
from dolmen.format.entries import DataFile, Vector
from dolmen.format.layout import POINTER, file_label
from dolmen.format.manifest import HistoryEntry, Manifest, Segment, SegmentKind, TableEntry, references
from dolmen.iceberg.publication_upkeep import check_publications
from dolmen.maintenance.erasures.erasure_checks import check_erasures
from dolmen.maintenance.gc.deletion import Amount
from dolmen.maintenance.gc.mark import manifest_keys
from dolmen.maintenance.verify.chain import (
    KeptContents,
    check_chain,
    check_intents,
    last_manifest,
    newest_manifest,
    read_manifest,
)
from dolmen.maintenance.verify.contents import DataCheck, DeleteObjects, check_deletes, is_first
from dolmen.maintenance.verify.entries import (
    TableCheck,
    TableContents,
    check_applied,
    check_manifest,
    check_segment_bounds,
    read_segment,
)
from dolmen.maintenance.verify.findings import FindingLog, Progress, VerifyReport
from dolmen.maintenance.verify.objects import MissingObject, Need, References, check_objects, check_repeated_files
from dolmen.store.cache import ObjectCache

SAMPLED_FOOTERS = 256  # the number of data files per table that are opened, evenly spread, unless all are read

CACHE_BYTES = 64 * MIB  # the size of segments that are kept in memory between the steps of a check

_UNREADABLE_KINDS = frozenset(("file-size", "file-entry", "delete-short"))
"""An object with such a finding is not read: its bytes would only lead to a second finding."""

_CheckedTable: TypeAlias = tuple[TableContents, TableEntry, list[DataFile]]
"""A table whose entries are checked, and the files to open."""


def verify(
    context: Context,
    *,
    version: int | None = None,
    deep: bool = False,
    all_versions: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Checks a database, and reports problems, their cost and what to do. See ``Database.verify``.

    Without ``all_versions``, for older versions only the objects in the newest version's list of released objects are
    checked.

    Raises:
        DatabaseNotFoundError: there is no pointer, and there was never a commit.
        VersionNotFoundError, VersionExpiredError: the version does not exist, or expired before or during the check.
        StoreUnavailableError, AccessDeniedError: the store failed.
    """
    # A memory cache of its own, because only the present objects of the store count.
    head = Head(context.store, context.runtime, cache=ObjectCache(CACHE_BYTES))
    fresh = Context(context.store, context.runtime, head)
    return _Verification(fresh, FindingLog(progress), deep, all_versions).run(version)


class _Verification:
    def __init__(self, context: Context, log: FindingLog, deep: bool, all_versions: bool) -> None:
        self._context, self._log, self._deep, self._all_versions = context, log, deep, all_versions
        self._references, self._deletes = References(), DeleteObjects()
        self._kept = KeptContents()
        self._seen: set[str | bytes] = set()

    def run(self, version: int | None) -> VerifyReport:
        context, log = self._context, self._log
        try:
            context.store.head(POINTER)
        except ObjectNotFoundError:
            if not context.head.has_been_committed_to():
                raise DatabaseNotFoundError(f"there is no database at {context.store.url}") from None
            log.add("pointer-damaged", POINTER, f"it is gone; {last_manifest(context)}")
            return self._report(version or 0, [], {})
        newest = newest_manifest(context, log)
        if newest is None:
            return self._report(version or 0, [], {})
        if self._deep and self._all_versions and version in (None, newest.version):
            for name, root in newest.tables.items():
                self._kept.exclude(TableContents(context, name, root, newest, FindingLog()))
        kept = check_chain(context, newest, log, self._references, self._reference_kept if self._all_versions else None)
        self._check_tagged(newest)
        manifest = newest if version in (None, newest.version) else self._read_version(newest, kept, version or 0)
        if manifest is None:
            self._check_kept(version or 0, newest)
            return self._report(version or 0, [], {})
        log.oldest = log.newest = manifest.version
        tables = self._check_entries(manifest)
        if manifest is not newest:
            self._reference_segments(newest, "optional")
            for name, root in newest.tables.items():
                self._reference_table(TableContents(context, name, root, newest, FindingLog()), "optional")
        self._check_released(newest)
        check_repeated_files(self._references, log)
        missing, orphans = check_objects(context.store, context.runtime, self._references, log, newest)
        skip = {one.key for one in missing}
        skip |= {finding.object for finding in log.findings if finding.kind in _UNREADABLE_KINDS}
        self._check_contents(tables, skip)
        if self._deep:
            self._kept.check(context, log, skip)
            check_intents(context, log)
        check_erasures(context, newest, log, deep=self._deep)
        for problems in check_publications(context, newest):
            log.count("publications")
            for problem in problems:
                log.add(problem.kind, problem.key, problem.reason, table=problem.table)
        newest_now = self._check_kept(manifest.version, newest)
        return self._report(manifest.version, [one for one in missing if newest_now.is_kept(one.versions[1])], orphans)

    def _check_kept(self, version: int, newest: Manifest) -> Manifest:
        """The newest version now. Raises VersionExpiredError if ``version`` has expired by then."""
        with suppress(CorruptionError):  # the pointer is damaged, which was found before
            newest = self._context.head.refresh().manifest
        if not newest.is_kept(version):
            raise VersionExpiredError(f"version {version} expired while it was checked: verify a newer one")
        return newest

    def _report(self, version: int, missing: Iterable[MissingObject], orphans: dict[str, Amount]) -> VerifyReport:
        log = self._log
        for one in missing:
            log.add(
                one.kind, file_label(one.key), "it is missing", table=one.table, rows=one.rows, versions=one.versions
            )
        url = self._context.store.url
        return VerifyReport(url, version, tuple(log.findings), dict(log.counts), dict(log.checked), orphans, self._deep)

    def _read_version(self, newest: Manifest, kept: dict[int, HistoryEntry], version: int) -> Manifest | None:
        if not 1 <= version <= newest.version:
            raise VersionNotFoundError(f"no version {version}: the newest is {newest.version}")
        newest.check_kept(version)
        if key := newest.tagged_manifest(version):
            return read_manifest(self._context, key, version, self._log)
        entry = kept.get(version)
        return read_manifest(self._context, entry.manifest, version, self._log) if entry else None

    # ---- entries

    def _check_entries(self, manifest: Manifest) -> list[_CheckedTable]:
        """Checks the version's entries, and adds references to all objects that it needs. Reads each entry once."""
        log = self._log
        check_manifest(manifest, log)
        check_applied(self._own_entries(manifest, "applied", log), manifest, log)
        for _ in self._own_entries(manifest, "history", log):
            pass
        self._reference_segments(manifest, "needed")
        tables = []
        for name, root in manifest.tables.items():
            view = TableContents(self._context, name, root, manifest, log)
            self._reference_table(view, "needed", files=False)
            if view.entry is not None:
                tables.append(self._check_table(view, view.entry))
        return tables

    def _check_table(self, view: TableContents, entry: TableEntry) -> _CheckedTable:
        check = TableCheck(view.name, entry, view.manifest, view.holder, self._log)
        check.check_schema()
        check.check_tombstones(view.tombstones)
        for tombstone in view.tombstones:
            self._deletes.add_tombstone(tombstone, view.name, entry)
        total = view.count()
        step = 1 if self._deep else max(1, -(-total // SAMPLED_FOOTERS))
        sample = []
        for index, file in enumerate(view.check_files()):
            self._log.count("data files", total=total)
            check.check_file(file)
            self._reference_file(file, view, "needed")
            self._deletes.add_vector(file, view.name, entry)
            if index % step == 0 and not self._deep:
                sample.append(file)
        view.check_index(deep=self._deep)
        return view, entry, sample

    def _own_entries(self, manifest: Manifest, kind: SegmentKind, log: FindingLog) -> Iterator[Any]:
        """The database's own entries of a kind, oldest first. Checks the segments that hold them."""
        for segment in manifest.segments_of(kind):
            entries = read_segment(self._context, segment, log)
            if entries is not None:
                log.count("segments")
                check_segment_bounds(segment, [entry.version for entry in entries], log)
                yield from entries
        yield from getattr(manifest, kind)

    # ---- references

    def _reference_segments(self, manifest: Manifest, need: Need) -> None:
        versions = (manifest.version, manifest.version)
        for segment in manifest.segments:
            self._references.add(segment.object, versions, need=need, size=segment.size)

    def _reference_table(
        self, view: TableContents, need: Need, *, files: bool = True, new: Collection[str] | None = None
    ) -> None:
        """Adds references to objects that a table needs. With ``new``, reads files only of these segments."""
        for segment in view.segments:
            if new is None or segment.object in new:
                self._references.add(
                    segment.object, view.versions, need=need, table=view.name, size=segment.size, rows=segment.rows
                )
        for tombstone in view.tombstones:
            end = tombstone.blob.offset + tombstone.blob.length
            self._references.add(tombstone.blob.object, view.versions, need=need, table=view.name, end=end)
        for file in view.files(new) if files else ():
            self._reference_file(file, view, need)
        for _, vector in view.overlay_vectors() if new is not None else ():
            self._reference_vector(vector, view, need)

    def _reference_file(self, file: DataFile, view: TableContents, need: Need) -> None:
        self._references.add(file.path, view.versions, need=need, table=view.name, size=file.size, rows=file.rows)
        if file.vector:
            self._reference_vector(file.vector, view, need)

    def _reference_vector(self, vector: Vector, view: TableContents, need: Need) -> None:
        end = vector.offset + vector.length
        rows = vector.cardinality
        self._references.add(vector.object, view.versions, need=need, table=view.name, end=end, rows=rows)

    def _check_tagged(self, newest: Manifest) -> None:
        """Adds references to expired versions that tags keep. Nothing else tells which objects they need."""
        for version, key in sorted({(tag.version, tag.manifest) for tag in newest.tags.values()}):
            if version < newest.horizon:
                self._references.add(key, (version, version), need="kept")
                if (manifest := read_manifest(self._context, key, version, self._log)) is not None:
                    self._log.count("manifests")
                    self._reference_kept(manifest)

    def _reference_kept(self, manifest: Manifest) -> None:
        """Adds references to objects that a kept version needs, unless an earlier version had the same entries."""
        self._reference_segments(manifest, "kept")
        if self._deep:
            self._kept.read_segments(self._context, manifest, self._log)
        for name, root in manifest.tables.items():
            # A digest instead of the entry, because a table is the same in most versions.
            if is_first(self._seen, hashlib.blake2b(msgspec.msgpack.encode(root), digest_size=16).digest()):
                view = TableContents(self._context, name, root, manifest, self._log)
                # Segments only lose files, so the first version that has one needs the most of them.
                new = {segment.object for segment in view.segments if is_first(self._seen, segment.object)}
                self._reference_table(view, "kept", new=new)
                if self._deep:
                    self._kept.add(view, new)

    def _check_released(self, newest: Manifest) -> None:
        """Adds references to the newest version's released objects, which older versions need."""
        log = self._log
        for released in self._own_entries(newest, "released", log):
            log.count("released objects", len(released.objects))
            kept = released.version > max(newest.horizon, 1)
            versions = (max(newest.horizon, 1), released.version - 1)
            need: Need = "released" if kept else "optional"
            for key in released.objects:
                self._references.add(key, versions, need=need)
            for tree in released.trees:
                self._references.add(tree.object, versions, need=need, size=tree.size)
                self._reference_tree(tree, versions)
            for key in released.manifests:  # of expired versions whose tags were dropped
                try:
                    for needed in manifest_keys(key, self._context.segments):
                        self._references.add(needed, versions, need="optional")
                except CorruptionError as error:
                    log.add("manifest-damaged", key, f"{error.reason}, and collection must read it", versions=versions)
        if any(released.version <= newest.freed for released in newest.released):
            reason = f"what version {newest.released[0].version} released is listed, freed is all up to {newest.freed}"
            log.add("released-untrimmed", newest.key, reason)

    def _reference_tree(self, tree: Segment, versions: tuple[int, int]) -> None:
        """Adds references to objects that a released segment names; some may be deleted already."""
        for entry in _entries(self._context, tree, self._log):
            if isinstance(entry, TableEntry):
                for segment in entry.segments:
                    self._reference_tree(segment, versions)
            for key in references(entry):
                self._references.add(key, versions, need="optional")

    # ---- contents

    def _check_contents(self, tables: list[_CheckedTable], skip: set[str]) -> None:
        objects = [one for key, one in self._deletes.by_key.items() if key not in skip]
        check_deletes(self._context, objects, len(objects), self._log)
        for view, entry, sample in tables:
            data = DataCheck(self._context, view.name, entry, self._log, skip)
            if self._deep:
                data.check_data(view.files(), view.count())
            else:
                data.check_footers(iter(sample), len(sample))


def _entries(context: Context, segment: Segment, log: FindingLog) -> Iterator[Any]:
    """The entries of a segment of any kind; a part of an index names no object."""
    contents = read_segment(context, segment, log)
    if isinstance(contents, OpenPart):
        return
    if isinstance(contents, FileTable):
        for files in contents.entries():
            yield from files
    else:
        yield from contents or ()
