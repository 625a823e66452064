"""Statements that add, replace and delete rows, and claims about rows that were read.

The statement that adds rows whose keys the table must not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec
from pyroaring import BitMap

from dolmen.commit.draft import Draft
from dolmen.commit.statements.statement import with_pairs
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.live import LiveFiles, check_days, rounds_otherwise
from dolmen.errors import ConflictError, SchemaError
from dolmen.format.column_history import changed_forms, widen_files
from dolmen.format.entries import DataFile, Tombstone, Vector
from dolmen.format.evolution import check_written_under, same_column
from dolmen.format.layout import uuid_of
from dolmen.format.manifest import Counts, Segment, TableEntry
from dolmen.format.schema import Schema


@dataclass(frozen=True)
class Write:
    """Adds rows (files), hides rows (tombstones), or does both at once (an upsert).

    Commutes with everything, except the loss of its table or of a column that a tombstone names.

    Args:
        requests: the requests whose rows are mixed in the files, so that none of them can be removed alone.
        schema: the table's columns when the files were written, or the tombstones bound.
    """

    name: str
    uuid: str
    files: tuple[DataFile, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    request: str | None = None
    requests: frozenset[str] = frozenset()
    schema: Schema | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Appends the entries, stamped with ``ts``."""
        entry = draft.table(self.name, self.uuid)
        if self.tombstones:
            self._check_tombstones(entry, draft.base.commit_ts)
        files = self.files
        if files:
            entry, files = with_older_columns(draft, self.name, entry, files, self.schema, ts)
        draft.require(need for tombstone in self.tombstones for need in getattr(tombstone, "needs", ()))
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            files=(*entry.files, *(file.stamped(ts) for file in files)),
            tombstones=(*entry.tombstones, *(tombstone.stamped(ts) for tombstone in self.tombstones)),
            last_delete_ts=ts if self.tombstones else entry.last_delete_ts,
        )
        draft.counts += Counts(
            rows_added=sum(file.rows for file in self.files),
            files_added=len(self.files),
            tombstones_added=len(self.tombstones),
        )
        draft.data_change |= bool(self.files or self.tombstones)

    def _check_tombstones(self, entry: TableEntry, base_ts: int) -> None:
        """Raises ConflictError unless the tombstones mean the same rows as under the columns of their schema."""
        bound, now = (self.schema or entry.schema).fields, entry.schema
        there = {field.id for field in bound if same_column(now, field, base_ts)}
        for tombstone in self.tombstones:
            if gone := set(tombstone.columns) - there:
                raise ConflictError(
                    f"table {self.name!r}: columns {sorted(gone)} of the delete were dropped, or got another type, "
                    "meanwhile"
                )
        for field in bound:
            named = any(field.id in tombstone.columns for tombstone in self.tombstones)
            if named and rounds_otherwise(field.arrow_type, now.by_id[field.id].arrow_type):
                raise ConflictError(
                    f"table {self.name!r}: column {field.name!r} of the delete became {now.by_id[field.id].type} "
                    "meanwhile, so its predicate may mean other rows: repeat the delete"
                )


@dataclass(frozen=True)
class DeletePositions:
    """Hides rows by position, with deletion vectors that replace those of their files.

    Args:
        positions: the positions to delete, by path of the data file; empty if no row was found.
        vectors: by path, the file's effective entry when the vector was made, and the vector. ``prepare`` makes them,
            and makes them again for files whose vector others replaced (vectors merge by OR).
        columns: ids of the columns by which rows were looked up, for the history.
        epoch: the table's epoch in the version in which rows were looked up; 0 = it did not exist there.
    """

    name: str
    uuid: str
    positions: Mapping[str, BitMap]
    vectors: Mapping[str, tuple[DataFile, Vector]]
    request: str | None = None
    columns: tuple[int, ...] = ()
    epoch: int = 0
    prepared_on: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        uuid: str,
        positions: Mapping[str, BitMap],
        request: str | None = None,
        columns: tuple[int, ...] = (),
        epoch: int = 0,
    ) -> DeletePositions:
        """Makes the statement before it is prepared."""
        return cls(name, uuid, positions, {}, request, columns, epoch)

    def prepare(self, draft: Draft, uploads: PendingUploads) -> DeletePositions:
        """Merges the positions with the files' present vectors.

        Raises:
            ConflictError: some files were replaced since the delete was planned, or the table was restored, so that it
                may have files that were not looked at.
        """
        entry = draft.table(self.name, self.uuid)
        there = next((each for each in draft.base.tables.values() if each.uuid == self.uuid), None)
        if self.epoch and self.positions and there is not None and there.epoch != self.epoch:
            raise ConflictError(
                f"table {self.name!r}: version {there.epoch} overwrote or restored it since the delete was planned"
            )
        live = LiveFiles.of(entry, draft.segments).find([uuid_of(path) for path in self.positions])
        files = {file.path: file for file in live.values()}
        if gone := self.positions.keys() - files.keys():
            raise ConflictError(
                f"table {self.name!r}: {len(gone)} files, {min(gone)} first, were replaced since the delete was planned"
            )
        vectors: dict[str, tuple[DataFile, Vector]] = {}
        for path, positions in self.positions.items():
            file = files[path]
            if path in self.vectors and self.vectors[path][0].vector == file.vector:
                vectors[path] = file, self.vectors[path][1]
                continue
            merged = positions | uploads.read_vector(file.vector, file.rows) if file.vector else positions
            vectors[path] = file, uploads.tombstone_object(self.name, self.uuid).add_vector(file.uuid, merged)
        return replace(self, vectors=vectors, prepared_on=draft.base.key)

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the vectors that were merged."""
        assert self.prepared_on == draft.base.key, "vectors were merged with those of another version"
        if not self.vectors:
            return
        entry = draft.table(self.name, self.uuid)
        deleted = 0
        changed: list[DataFile] = []
        for file, vector in self.vectors.values():
            deleted += vector.cardinality - (file.vector.cardinality if file.vector else 0)
            if file.vector:
                draft.release([file.vector.object])
            if file.newer_pair(file.applied_through, vector):
                changed.append(msgspec.structs.replace(file, vector=vector))
        draft.tables[self.name] = msgspec.structs.replace(
            with_pairs(entry, changed), last_delete_ts=ts, unseen_delete_ts=ts
        )
        draft.counts += Counts(rows_deleted=deleted)
        draft.data_change = True


@dataclass(frozen=True)
class Overwrite:
    """Replaces all rows of a table. What the table held before this version is never looked at again.

    Args:
        epoch: the table's epoch in the version that this was made on.
        base_ts: ``commit_ts`` of that version: rows added or deleted since then are a conflict.
        force: overwrite those rows too.
        schema: the table's columns when the files were written.
    """

    name: str
    uuid: str
    epoch: int
    base_ts: int
    files: tuple[DataFile, ...]
    force: bool = False
    request: str | None = None
    schema: Schema | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes all entries and adds the new files."""
        entry = draft.table(self.name, self.uuid)
        entry, files = with_older_columns(draft, self.name, entry, self.files, self.schema, ts)
        self._check(draft)
        draft.release_all_of(entry)
        draft.counts += Counts(
            rows_added=sum(file.rows for file in self.files),
            files_added=len(self.files),
            files_removed=_file_count(entry),
        )
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            epoch=draft.version,
            files=tuple(file.stamped(ts) for file in files),
            tombstones=(),
            segments=(),
            overlays=(),
            removed=(),
            last_delete_ts=ts,
            unseen_delete_ts=ts,
        )
        draft.data_change = True

    def _check(self, draft: Draft) -> None:
        """Compares with the base version, not with earlier effects of this commit."""
        name = draft.base.name_of(self.uuid)  # this commit may have renamed it
        if name is None or draft.base.commit_ts == self.base_ts:
            return
        entry = draft.segments.whole(draft.base.tables[name])
        where = f"table {self.name!r}, overwritten on commit_ts {self.base_ts}: "
        if entry.epoch != self.epoch:
            raise ConflictError(where + f"version {entry.epoch} has overwritten or restored it; repeat the overwrite")
        if self.force:
            return
        newest = max(
            *(file.greatest_row_ts for file in entry.files),
            *(segment.greatest for segment in entry.segments_of("files")),
            0,
            0,
        )
        for what, newer in (("added rows", newest), ("deleted rows", entry.last_delete_ts)):
            if newer > self.base_ts:
                raise ConflictError(
                    where + f"a commit up to version {draft.base.version} {what} at {newer}; look at the table again, "
                    "or overwrite with force=True"
                )


def with_older_columns(
    draft: Draft, name: str, entry: TableEntry, files: tuple[DataFile, ...], schema: Schema | None, ts: int
) -> tuple[TableEntry, tuple[DataFile, ...]]:
    """The table's entry when it takes files at ``ts`` that were written under other columns, and theirs.

    Args:
        schema: the columns at that time; None for files that have all present columns.

    Raises:
        ConflictError: the files' content does not fit the present columns.
    """
    now = entry.schema
    if schema is None or schema is now or (schema.fields, schema.next_id) == (now.fields, now.next_id):
        return entry, files
    try:
        check_written_under(schema, entry, draft.base.commit_ts)
        for id_ in changed_forms(schema, now):
            check_days(files, schema.by_id[id_])
    except SchemaError as error:
        raise ConflictError(f"table {name!r}: {error}; write the rows again") from None
    changed = msgspec.structs.replace(entry, schema=msgspec.structs.replace(now, altered_ts=ts))
    return changed, widen_files(files, schema, now)


def _file_count(entry: TableEntry) -> int:
    """Number of live files; files removed in segments of removals still count."""
    return len(entry.files) + sum(segment.count for segment in entry.segments_of("files")) - len(entry.removed)


@dataclass(frozen=True)
class Claim:
    """A read of a transaction: its commit is valid only if the result is still the same.

    Args:
        base_ts: ``commit_ts`` of the version that was read.
        epoch: the table's epoch in that version.
        may_match: whether a data file, or any file of a segment, may hold rows that were read (by statistics).
        advice: what the error tells the reader to do.
        schema: the table's columns in that version, by which the rows were read; None if they may change.
    """

    name: str
    uuid: str
    epoch: int
    base_ts: int
    may_match: Callable[[DataFile | Segment], bool]
    advice: str = "repeat the transaction"
    schema: Schema | None = None

    def check(self, draft: Draft) -> None:
        """Raises ConflictError if the answer may differ in this base. In doubt it raises."""
        base = draft.base
        if base.commit_ts == self.base_ts:
            return
        entry = draft.table(self.name, self.uuid)
        where = f"table {self.name!r}, read at commit_ts {self.base_ts}: version {base.version} "
        if entry.epoch != self.epoch:
            raise ConflictError(where + f"has overwritten or restored it; {self.advice}")
        if entry.last_delete_ts > self.base_ts:
            raise ConflictError(where + f"or one before it deleted rows; {self.advice}")
        if any(field.widened_ts > self.base_ts for field in entry.schema.fields):
            raise ConflictError(where + f"or one before it widened a column; {self.advice}")
        if self.schema is not None and _readable(self.schema) != _readable(entry.schema):
            raise ConflictError(where + f"or one before it added, dropped, renamed or moved a column; {self.advice}")
        files = any(file.greatest_row_ts > self.base_ts and self.may_match(file) for file in entry.files)
        spilled = (segment for segment in entry.segments_of("files") if segment.greatest > self.base_ts)
        if files or any(self.may_match(segment) for segment in spilled):
            raise ConflictError(where + f"or one before it added rows that may match; {self.advice}")


def _readable(schema: Schema) -> list[tuple[int, str]]:
    """The columns as a read depends on them: it finds values by their ids and names, in their order."""
    return [(field.id, field.name) for field in schema.fields]


KeysCheck: TypeAlias = Callable[[Draft, PendingUploads, int], None]
"""Reads the table as a draft has it. Raises DuplicateKeyError if a row of a later commit timestamp than the given one
has one of the keys, and is visible."""


@dataclass(frozen=True)
class InsertRows:
    """Adds rows, provided that no visible row of the version that it lands on has one of their keys.

    Each attempt to commit it reads only what was committed since the last one: a row that was not visible then, and is
    now, has a later commit timestamp, unless the table was overwritten or restored, which changes its epoch.

    Args:
        write: the rows.
        check: compares their keys with the table's.
        checked: the table's epoch, and ``commit_ts`` of the version, in which they were compared last; None before.
            What others do in the same version, or this transaction before it, is compared in each attempt.
        checked_on: the key of that version.
    """

    write: Write
    check: KeysCheck
    checked: tuple[int, int] | None = None
    checked_on: str = ""

    @property
    def name(self) -> str:
        """The table's name."""
        return self.write.name

    @property
    def uuid(self) -> str:
        """The table's uuid."""
        return self.write.uuid

    @property
    def request(self) -> str | None:
        """The request that it belongs to."""
        return self.write.request

    def prepare(self, draft: Draft, uploads: PendingUploads) -> InsertRows:
        """Compares the keys with those of rows that are new in this draft. Raises DuplicateKeyError."""
        committed = draft.committed
        unchanged = draft.tables.get(self.name) is committed.tables.get(self.name)
        if self.checked_on == committed.key and unchanged:
            return self
        epoch = draft.table(self.name, self.uuid).epoch
        known = self.checked is not None and self.checked[0] == epoch
        self.check(draft, uploads, self.checked[1] if self.checked and known else -1)
        return replace(self, checked=(epoch, committed.commit_ts), checked_on=committed.key)

    def apply(self, draft: Draft, ts: int) -> None:
        """Appends the rows."""
        assert self.checked_on == draft.committed.key, "keys were compared with those of another version"
        self.write.apply(draft, ts)
