"""Statements that add, replace and delete rows, and that record how far a table's changes (CDC) are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, ClassVar, Self, TypeAlias

import msgspec
from msgspec import Struct, field
from pyroaring import BitMap

from dolmen.base.records import replace
from dolmen.commit.draft import ColumnsChangedError, Draft, Statement
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.live import LiveFiles, check_days, may_round_differently
from dolmen.entries.segments.row_bounds import column_bounds, may_hold_matches
from dolmen.errors import ConflictError, SchemaError
from dolmen.format.column_history import changed_forms, widen_files
from dolmen.format.entries import DataFile, Overlay, Tombstone, Vector, bounds, column_stats
from dolmen.format.evolution import check_written_under, same_column
from dolmen.format.layout import memory_name, uuid_of
from dolmen.format.manifest import Counts, Mark, Segment, Sequences, TableEffect, TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.format.types import Json, from_json, to_json
from dolmen.predicate.ast import Not
from dolmen.predicate.bind import condition_of


class Write(Struct, frozen=True):
    """Adds rows (files), hides rows (tombstones), or does both at once (an upsert).

    Conflicts only if its table is gone, or if columns or checks that its rows or tombstones depend on have changed
    (docs/protocol.md). The rows of its ``requests`` are mixed in the files, so that none of them can be removed alone.
    ``schema`` has the columns under which the files were written; None for the present ones. ``is_overwrite`` is for
    the history.
    """

    name: str
    uuid: str
    files: tuple[DataFile, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    request: str | None = None
    requests: frozenset[str] = frozenset()
    schema: Schema | None = None
    is_overwrite: bool = False

    def apply(self, draft: Draft, ts: int) -> None:
        entry = draft.table(self.name, self.uuid)
        if self.tombstones:
            self._check_tombstones(entry, draft.base.commit_ts)
        files = self.files
        if files:
            entry, files = with_older_columns(draft, self.name, entry, files, self.schema, ts)
        draft.require(need for tombstone in self.tombstones for need in getattr(tombstone, "needs", ()))
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            files=(*entry.files, *(file.stamp(ts) for file in files)),
            tombstones=(*entry.tombstones, *(tombstone.stamp(ts) for tombstone in self.tombstones)),
            last_delete_ts=ts if self.tombstones else entry.last_delete_ts,
        )
        draft.counts += Counts(
            rows_added=sum(file.rows for file in self.files),
            files_added=len(self.files),
            tombstones_added=len(self.tombstones),
        )
        draft.data_change |= bool(self.files or self.tombstones)

    def effect(self, draft: Draft) -> TableEffect | None:
        if not self.files and not self.tombstones:
            return None
        what = ("upsert" if self.files else "delete") if self.tombstones else "append"
        what = "overwrite" if self.is_overwrite else what
        ids = dict.fromkeys(id_ for tombstone in self.tombstones for id_ in tombstone.columns)
        return TableEffect(self.name, what, draft.column_names(self.name, ids))

    def _check_tombstones(self, entry: TableEntry, base_ts: int) -> None:
        """Raises ConflictError unless the tombstones match the same rows as with the columns of their schema."""
        bound, now = self.schema or entry.schema, entry.schema
        ids = {id_ for tombstone in self.tombstones for id_ in tombstone.columns}
        check_columns_of_delete(self.name, ids, bound, now, base_ts)
        for column in bound.fields:
            if column.id in ids and may_round_differently(column.arrow_type, now.by_id[column.id].arrow_type):
                raise ConflictError(
                    f"table {self.name!r}: column {column.name!r} of the delete became {now.by_id[column.id].type} "
                    "meanwhile, so its predicate may mean other rows: repeat the delete"
                )


def check_columns_of_delete(name: str, ids: Set[int], bound: Schema, now: Schema, base_ts: int) -> None:
    """Raises ConflictError if a column that a delete names is not the one that it was when the delete was bound."""
    if missing := ids - {field.id for field in bound.fields if same_column(now, field, base_ts)}:
        names = [bound.by_id[id_].name if id_ in bound.by_id else id_ for id_ in sorted(missing)]
        raise ConflictError(
            f"table {name!r}: columns {names} of the delete were dropped or got another type meanwhile: look at the "
            "columns, and repeat the delete"
        )


class DeletePositions(Struct, frozen=True):
    """Hides rows by position, with deletion vectors that replace their files' own."""

    name: str
    uuid: str
    positions: Mapping[str, BitMap]  # the positions to delete, by path of the data file; empty if no row was found
    request: str | None = None
    columns: tuple[int, ...] = ()  # ids of the columns by which rows were looked up, for the history
    epoch: int = 0  # the table's epoch in the version in which rows were looked up; 0 = it did not exist there
    # by path, the file's effective entry when the vector was made, and the vector. ``prepare`` makes them, and makes
    # them again for files whose vector others replaced (vectors merge by OR).
    vectors: Mapping[str, tuple[DataFile, Vector]] = field(default_factory=dict)
    prepared_on: str = ""
    looks_up_rows: ClassVar[bool] = True

    def prepare(self, draft: Draft, uploads: PendingUploads) -> DeletePositions:
        """Merges the positions with the files' present vectors.

        Raises ConflictError if files were replaced since the delete was planned, or the table was restored: it may have
        files that were not looked at.
        """
        entry = draft.table(self.name, self.uuid)
        base_entry = next((each for each in draft.base.tables.values() if each.uuid == self.uuid), None)
        if self.epoch and self.positions and base_entry is not None and base_entry.epoch != self.epoch:
            raise ConflictError(
                f"table {self.name!r}: version {base_entry.epoch} overwrote or restored it since the delete was planned"
            )
        live = LiveFiles(entry, draft.segments).find([uuid_of(path) for path in self.positions])
        files = {file.path: file for file in live.values()}
        if lost := self.positions.keys() - files.keys():
            raise ConflictError(
                f"table {self.name!r}: {len(lost)} files, {min(lost)} first, were replaced since the delete was planned"
            )
        vectors: dict[str, tuple[DataFile, Vector]] = {}
        for path, positions in self.positions.items():
            file = files[path]
            if path in self.vectors and self.vectors[path][0].vector == file.vector:
                vectors[path] = file, self.vectors[path][1]
                continue
            merged = uploads.merge_positions(file, positions)
            vectors[path] = file, uploads.tombstone_object(self.name, self.uuid).add_vector(file.uuid, merged)
        return replace(self, vectors=vectors, prepared_on=draft.base.key)

    def apply(self, draft: Draft, ts: int) -> None:
        draft.check_prepared(self.prepared_on)
        if not self.vectors:
            return
        entry = draft.table(self.name, self.uuid)
        deleted = 0
        changed: list[DataFile] = []
        for file, vector in self.vectors.values():
            deleted += vector.cardinality - (file.vector.cardinality if file.vector else 0)
            if file.vector:
                draft.release([file.vector.object])
            if file.is_older_than(file.applied_through, vector):
                changed.append(msgspec.structs.replace(file, vector=vector))
        draft.tables[self.name] = msgspec.structs.replace(
            with_pairs(entry, changed), last_delete_ts=ts, unseen_delete_ts=ts
        )
        draft.counts += Counts(rows_deleted=deleted)
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect | None:
        if not self.vectors:
            return None
        return TableEffect(self.name, "delete", draft.column_names(self.name, self.columns))


class Overwrite(Struct, frozen=True):
    """Replaces all rows of a table, whose earlier entries are never read again.

    Rows that were added or deleted since ``base_ts`` are a conflict; with ``force``, they are replaced too.
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
        entry = draft.table(self.name, self.uuid)
        entry, files = with_older_columns(draft, self.name, entry, self.files, self.schema, ts)
        self._check(draft)
        draft.release_all_of(entry)
        draft.counts += Counts(
            rows_added=sum(file.rows for file in self.files),
            files_added=len(self.files),
            files_removed=count_files(entry),
        )
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            epoch=draft.version,
            files=tuple(file.stamp(ts) for file in files),
            tombstones=(),
            segments=(),
            overlays=(),
            removed=(),
            last_delete_ts=ts,
            unseen_delete_ts=ts,
        )
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "overwrite")

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
        files = [file.greatest_row_ts for file in entry.files]
        newest = max([0, *files, *(segment.greatest for segment in entry.segments_of("files"))])
        for what, newer in (("added rows", newest), ("deleted rows", entry.last_delete_ts)):
            if newer > self.base_ts:
                raise ConflictError(
                    where + f"a commit up to version {draft.base.version} {what} at {newer}; look at the table again, "
                    "or overwrite with force=True"
                )


RowsCheck: TypeAlias = Callable[[Draft, PendingUploads, int], None]
"""Reads a draft's table. Raises InputError if a visible row after a commit timestamp forbids the statement."""


class CheckedStatement(Struct, frozen=True):
    """A statement that is valid only if no visible row of the version that it lands on forbids it.

    Each attempt to commit it reads only what was committed since the last one: a row that was not visible then, and is
    now, has a later commit timestamp, unless the table was overwritten or restored, which changes its epoch.
    """

    statement: Statement
    check: RowsCheck
    # the table's epoch and ``commit_ts`` in the version whose rows were last read; None before the first time. Each
    # attempt also reads the rows of earlier statements of its own version.
    checked: tuple[int, int] | None = None
    checked_on: str = ""  # the key of that version

    @property
    def name(self) -> str:
        assert self.statement.name is not None, "a statement about a table"
        return self.statement.name

    @property
    def uuid(self) -> str:
        return self.statement.uuid

    @property
    def request(self) -> str | None:
        return self.statement.request

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Self:
        """Reads the rows that are new in this draft. Raises InputError."""
        committed = draft.committed
        unchanged = draft.tables.get(self.name) is committed.tables.get(self.name)
        if self.checked_on == committed.key and unchanged:
            return self
        epoch = draft.table(self.name, self.uuid).epoch
        is_same_epoch = self.checked is not None and self.checked[0] == epoch
        self.check(draft, uploads, self.checked[1] if self.checked and is_same_epoch else -1)
        return replace(self, checked=(epoch, committed.commit_ts), checked_on=committed.key)

    def apply(self, draft: Draft, ts: int) -> None:
        assert self.checked_on == draft.committed.key, "the rows of another version were read"
        self.statement.apply(draft, ts)

    def effect(self, draft: Draft) -> TableEffect | None:
        effect: TableEffect | None = self.statement.effect(draft)  # type: ignore[attr-defined]  # each of them has it
        return effect


class InsertRows(CheckedStatement, Struct, frozen=True):
    """Adds rows, provided that no visible row has one of their keys. The check raises DuplicateKeyError."""

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "insert")


def with_older_columns(
    draft: Draft, name: str, entry: TableEntry, files: tuple[DataFile, ...], schema: Schema | None, ts: int
) -> tuple[TableEntry, tuple[DataFile, ...]]:
    """The table's entry and the files' entries when files that were written under other columns are added at ``ts``.

    Without ``schema`` the files have all present columns. Raises ColumnsChangedError if their content does not fit
    these, or may not meet constraints that were added since.
    """
    now = entry.schema
    if schema is None or schema is now:
        return entry, files
    if (schema.fields, schema.next_id) == (now.fields, now.next_id):
        _check_new_constraints(name, files, schema, now)
        return entry, files
    try:
        check_written_under(schema, entry, draft.base.commit_ts)
        for id_ in changed_forms(schema, now):
            check_days(files, schema.by_id[id_])
    except SchemaError as error:
        raise ColumnsChangedError(f"table {name!r}: {error}; write the rows again") from None
    changed = msgspec.structs.replace(entry, schema=msgspec.structs.replace(now, altered_ts=ts))
    files = widen_files(files, schema, now)
    _check_new_constraints(name, files, schema, now)
    return changed, files


def _check_new_constraints(name: str, files: Iterable[DataFile], before: Schema, now: Schema) -> None:
    """Raises ColumnsChangedError unless statistics prove that files meet the constraints that came after ``before``."""
    for column in now.fields:
        may_be_null = not column.nullable and before.by_id.get(column.id, column).nullable
        if may_be_null and any(column_bounds(file, column).nulls != 0 for file in files):
            raise _constraint_error(name, f"column {column.name!r} does not allow NULL any more")
    for check in now.checks:
        if check not in before.checks:
            violation = Not(condition_of(check, now))
            if any(may_hold_matches(file, violation, now) for file in files):
                raise _constraint_error(name, f"the check {check.name!r} was added")


def _constraint_error(name: str, what: str) -> ColumnsChangedError:
    return ColumnsChangedError(f"table {name!r}: {what} meanwhile, and some rows may not meet it: write the rows again")


def with_pairs(entry: TableEntry, files: Iterable[DataFile]) -> TableEntry:
    """The table's entry with the pairs (``applied_through``, vector) of files; those in segments get overlays.

    ``applied_through`` never falls: a file of this very commit may have been prepared under an earlier timestamp.
    """
    changed = {file.uuid: file for file in files}
    if not changed:
        return entry
    inline: list[DataFile] = []
    for file in entry.files:
        newer = changed.pop(file.uuid, None)
        if newer is not None:
            through = max(file.applied_through, newer.applied_through)
            file = msgspec.structs.replace(file, applied_through=through, vector=newer.vector, erasing=newer.erasing)
        inline.append(file)
    kept = tuple(overlay for overlay in entry.overlays if overlay.file not in changed)
    added = tuple(Overlay(uuid, file.applied_through, file.vector, file.erasing) for uuid, file in changed.items())
    return msgspec.structs.replace(entry, files=tuple(inline), overlays=(*kept, *added))


def without_index(entry: TableEntry) -> TableEntry:
    """A table's whole entry without the parts of its index."""
    if not entry.segments_of("index"):
        return entry
    kept = tuple(segment for segment in entry.segments if segment.kind != "index")
    return msgspec.structs.replace(entry, segments=kept)


def count_files(entry: TableEntry) -> int:
    """Number of live files; files removed in segments of removals still count."""
    return len(entry.files) + sum(segment.count for segment in entry.segments_of("files")) - len(entry.removed)


MOST_MARKS = 16  # the number of parts of a table's memory of deleted keys. The oldest part is forgotten as a whole.


def is_above_all(entry: TableEntry, field: Field, least: Any) -> bool:
    """Whether all sequences from ``least`` (a plain value) up are greater than any in the table.

    If so, changes can be applied without reading the table's rows. It compares the greatest sequence committed and, for
    rows that were written in other ways, the statistics of data files. These are cut for long texts. So a file's bound
    counts only if it is greater than the committed sequence, cut in the same way.
    """
    values: list[Any] = [] if entry.sequences is None else [from_json(entry.sequences.greatest, field.arrow_type)]
    cut = bounds(column_stats(values[0], values[0], 0), field.arrow_type).max if values else None
    parts: list[DataFile | Segment] = [*entry.files, *entry.segments_of("files")]
    for part in parts:
        own = bounds(part.stats.get(field.id), field.arrow_type)
        if own.max is None:
            if own.nulls != part.rows:
                return False  # its sequences are unknown
        elif cut is None or own.max > cut:  # type: ignore[operator]  # of one type
            values.append(own.max)
    return all(value < least for value in values)


def sequence_to_forget(sequences: Sequences | None, before_us: int) -> Json:
    """The greatest sequence committed up to a time: deletes up to it can be forgotten. None if there is none."""
    old = [mark.greatest for mark in sequences.marks if mark.ts <= before_us] if sequences else []
    return old[-1] if old else None


class Advance(Struct, frozen=True):
    """Records that changes up to a sequence are applied. It comes before the statements that apply them.

    Raises ConflictError when the memory of deleted keys is missing: it was dropped, or a removed request of the same
    batch was to create it.
    """

    name: str
    uuid: str
    column: int  # the id of the column that orders changes
    greatest: Any  # the greatest sequence of these changes, as a plain value
    # the least sequence of these changes, if they were made without reading rows. Then any sequence in the table that
    # is not less is a ConflictError. None when rows were read; dependencies guard those reads.
    above: Any
    memory: str  # the uuid of the table that remembers deleted keys for ``memory_us``
    memory_us: int
    # the sequence, in JSON form, up to which this commit deletes from that memory; None if it does not
    forget: Json = None
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Advances the greatest sequence, and the one up to which keys are forgotten. Neither moves back."""
        entry = draft.table(self.name, self.uuid)
        field = entry.schema.by_id.get(self.column)
        if field is None:
            raise ConflictError(f"table {self.name!r}: the column that orders its changes was dropped meanwhile")
        if self.above is not None and not is_above_all(entry, field, self.above):
            raise ConflictError(
                f"table {self.name!r}: version {draft.base.version} or one before it has sequences as great as those "
                "of changes that were made without reading rows: repeat them"
            )
        memory = draft.tables.get(memory_name(self.name))
        if memory is None or memory.uuid != self.memory:
            raise ConflictError(f"table {memory_name(self.name)!r}, which remembers deleted keys, no longer exists")
        draft.tables[self.name] = msgspec.structs.replace(entry, sequences=self._advance(entry.sequences, field, ts))

    def _advance(self, before: Sequences | None, field: Field, ts: int) -> Sequences:
        def later(one: Json, other: Json) -> Json:
            if one is None or other is None:
                return other if one is None else one
            first, second = (from_json(json, field.arrow_type) for json in (one, other))
            return other if first < second else one  # type: ignore[operator]  # of one type

        greatest = later(before.greatest if before else None, to_json(self.greatest))
        forgotten = later(before.forgotten_through if before else None, self.forget)
        marks = [mark for mark in (before.marks if before else ()) if later(forgotten, mark.greatest) != forgotten]
        if not marks or ts - marks[-1].ts >= self.memory_us // MOST_MARKS:
            marks.append(Mark(ts, greatest))
        return Sequences(greatest, self.memory, forgotten, tuple(marks))
