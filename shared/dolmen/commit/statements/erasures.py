"""Statements that erase rows, and that lead erasures from hidden to gone, which changes nothing that a reader sees.

Each is applied to the version on which it lands, so it takes concurrent restores and tags into account.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.commit.draft import DatabaseStatement, Draft
from dolmen.commit.statements.row_changes import check_columns_of_delete, without_index
from dolmen.commit.uploads import PendingUploads, record_keys, record_predicate
from dolmen.entries.segments.erasures_in_force import (
    SUBJECT,
    RememberedKeys,
    fitting_values,
    last_rewritten_ts,
    rewritten_before,
    subject_predicate,
    tables_of,
    with_deletes,
)
from dolmen.entries.segments.row_bounds import recorded_predicate
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import InputError
from dolmen.format.column_history import fields_inside, keep_fields
from dolmen.format.entries import KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import (
    ERASURES,
    Counts,
    ErasedTable,
    Erasure,
    LeavingErasures,
    RewrittenErasures,
    TableEffect,
    TableEntry,
)
from dolmen.format.properties import erase_within_us
from dolmen.format.schema import Field, Schema
from dolmen.format.types import Json
from dolmen.predicate.ast import term_ids


class NoteRewritten(DatabaseStatement, Struct, frozen=True):
    """Records the last erasure whose rows no file of any table has any more; it never moves back."""

    def apply(self, draft: Draft, ts: int) -> None:
        listed = erasures_of(draft.base, draft.segments)
        through = last_rewritten_ts(draft.tables.values(), draft.segments, listed)
        if through > max((each.through for each in draft.rewritten), default=0):
            draft.rewritten = (*draft.rewritten, RewrittenErasures(draft.version, through))


class DelistErasures(DatabaseStatement, Struct, frozen=True):
    """Moves the oldest erasures from the list, which has values, to ``leaving``, once no kept version needs them."""

    through: int  # timestamp of the last erasure that may leave: receipts of all up to it are written
    now_us: int
    late_drops_us: int  # how long late drops are compared with an erasure, in microseconds
    uploads_end_at: int  # a time by the server's clock after which no process uploads data of an older manifest

    def apply(self, draft: Draft, ts: int) -> None:
        listed = erasures_of(draft.base, draft.segments)
        leaving = first_to_delist(
            listed, last_unneeded_ts(draft), through=self.through, now_us=self.now_us, late_drops_us=self.late_drops_us
        )
        if not leaving:
            return
        last = leaving[-1].ts
        kept = _unspill(draft, last)
        draft.erasures = tuple(erasure for erasure in (*kept, *draft.erasures) if erasure.ts > last)
        draft.release(erased.tombstone.blob.object for erasure in leaving for erased in erasure.tables)
        draft.rewritten = tuple(each for each in draft.rewritten if each.through > last)
        entry = LeavingErasures(
            draft.version,
            tuple(erasure.id for erasure in leaving),
            self.uploads_end_at,
            min(
                # Versions that list an erasure expire when an eighth of its time is left.
                erasure.hurried_at or erasure.due_at - (erasure.due_at - erasure.requested_at) // 8
                for erasure in leaving
            ),
            min(erasure.due_at for erasure in leaving),
            min(erasure.requested_at for erasure in leaving),
        )
        draft.leaving = (*draft.leaving, entry)


def _unspill(draft: Draft, last: int) -> list[Erasure]:
    """Removes or releases the segments that begin with erasures up to ``last``. Returns their later erasures."""
    kept: list[Erasure] = []
    segments = []
    for segment in draft.own_segments:
        if segment.kind != "erasures" or segment.least > last:
            segments.append(segment)
        elif segment.greatest <= last:
            draft.release_tree(segment)
        else:
            draft.release([segment.object])
            kept += draft.segments.erasures(segment)
    draft.own_segments = tuple(segments)
    return kept


class HurryErasure(DatabaseStatement, Struct, frozen=True):
    """Makes the rows of an erasure leave the disk as soon as they can; does nothing if it has left already."""

    id: str
    now_us: int

    def apply(self, draft: Draft, ts: int) -> None:
        draft.leaving = tuple(
            msgspec.structs.replace(each, expire_at=min(each.expire_at, self.now_us)) if self.id in each.ids else each
            for each in draft.leaving
        )
        segments = []
        for segment in draft.own_segments:
            spilled = draft.segments.erasures(segment) if segment.kind == "erasures" else ()
            if any(erasure.id == self.id for erasure in spilled):
                draft.release([segment.object])
                draft.erasures = (*spilled, *draft.erasures)
            else:
                segments.append(segment)
        draft.own_segments = tuple(segments)
        draft.erasures = tuple(
            msgspec.structs.replace(erasure, hurried_at=max(self.now_us, erasure.requested_at))
            if erasure.id == self.id and not erasure.hurried_at
            else erasure
            for erasure in draft.erasures
        )


def last_unneeded_ts(draft: Draft) -> int:
    """Timestamp of the last erasure such that no kept version needs it, or an earlier one, to hide rows; 0 if none."""
    oldest = min([draft.horizon, *(tag.version for tag in draft.tags.values())])
    return rewritten_before(draft.rewritten, oldest)


def first_to_delist(
    listed: tuple[Erasure, ...], until: int, *, through: int, now_us: int, late_drops_us: int
) -> tuple[Erasure, ...]:
    """The erasures that may leave the list (oldest first): all up to the first that may not. See ``DelistErasures``."""
    for index, erasure in enumerate(listed):
        if erasure.ts > min(until, through) or erasure.requested_at > now_us - erasure.memory_us(late_drops_us):
            return listed[:index]
    return listed


class CloseErasures(DatabaseStatement, Struct, frozen=True):
    """Removes erasures from ``leaving`` once their receipts say that their rows have left the disk."""

    ids: frozenset[str]

    def apply(self, draft: Draft, ts: int) -> None:
        remaining = ((entry, tuple(id_ for id_ in entry.ids if id_ not in self.ids)) for entry in draft.leaving)
        draft.leaving = tuple(msgspec.structs.replace(entry, ids=ids) for entry, ids in remaining if ids)


class UnspillTables(DatabaseStatement, Struct, frozen=True):
    """Moves the entries of idle tables from these sections (keys) back into the manifest. Releases the sections."""

    sections: frozenset[str]

    def apply(self, draft: Draft, ts: int) -> None:
        for name, stub in list(draft.tables.items()):
            if stub.section is not None and stub.section.object in self.sections:
                draft.tables[name] = draft.segments.whole(stub)


def delete_remembered(memory: RememberedKeys, erased: ErasedTable, uploads: PendingUploads) -> ErasedTable:
    """Records the delete of the same keys from a memory."""
    open_object, tombstone = partial(uploads.tombstone_object, memory.name, ""), erased.tombstone
    recorded: Tombstone | None
    if isinstance(tombstone, KeysTombstone):
        recorded = record_keys(open_object, memory.keys(tombstone, uploads.read_blob))
    else:
        recorded = record_predicate(open_object, memory.entry.schema, memory.predicate(tombstone, uploads.read_blob))
    assert recorded is not None, "it names rows, like the delete that it is made from"
    return ErasedTable(memory.entry.uuid, recorded, memory.columns(erased))


class Erase(Struct, frozen=True):
    """Erases rows of one table, or all rows about some subjects, with the same rows of clones.

    Unlike a delete it also holds for older versions, late drops and the disk.
    """

    # name, uuid: of the table; None and "" for all tables with a subject
    name: str | None
    uuid: str
    erasure: str  # id of the erasure
    requested_at: int  # time of the request, in microseconds by the server's clock
    tombstone: Tombstone | None = None  # names the rows of the one table
    schema: Schema | None = None
    subject: tuple[Json, ...] = ()  # JSON forms of the values that identify the subjects
    may_be_dropped: bool = False  # whether values that no present table can have are allowed
    digest: str = ""
    # the time within which its rows leave the disk, in microseconds; None = as the database is set
    within_us: int | None = None
    request: str | None = None
    tables: tuple[ErasedTable, ...] = ()  # the deletes that ``prepare`` has made
    prepared_on: str = ""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Erase:
        """Makes the deletes for the present tables. Those that an earlier attempt made are used again.

        Raises:
            ConflictError: a column of the delete was dropped in the meantime.
            InputError: a table's subject cannot have any of the values, or no table's subject can have one of them.
        """
        made = {erased.uuid: erased for erased in self.tables}
        tables = [
            *(self._subject_deletes(draft, uploads, made) if self.name is None else self._table_deletes(draft, uploads))
        ]
        for erased in list(tables):
            memories = _memories(draft, erased)
            tables += (made.get(memory.entry.uuid) or delete_remembered(memory, erased, uploads) for memory in memories)
        return replace(self, tables=tuple(tables), prepared_on=draft.base.key)

    def apply(self, draft: Draft, ts: int) -> None:
        draft.check_prepared(self.prepared_on)
        if any(listed.id == self.erasure for listed in draft.erasures):
            raise InputError(f"request {self.request!r} has an erasure already: give each a request id of its own")
        erasure = Erasure(
            id=self.erasure,
            ts=ts,
            version=draft.version,
            requested_at=self.requested_at,
            due_at=self.requested_at
            + (erase_within_us(draft.properties) if self.within_us is None else self.within_us),
            tables=tuple(_stamp_delete(erased, draft, ts) for erased in self.tables),
            subject=self.subject,
            request=self.request or "",
            digest=self.digest,
            has_own_deadline=self.within_us is not None,
        )
        for name, stub in list(draft.tables.items()):
            erased = tables_of(erasure, stub)
            if not erased:
                continue
            entry = draft.segments.whole(stub)
            draft.release(part.object for part in entry.segments_of("index"))  # which hold keys of erased rows
            changed = without_index(with_deletes(entry, erased))
            draft.tables[name] = msgspec.structs.replace(changed, last_delete_ts=ts)
            draft.counts += Counts(tombstones_added=len(changed.tombstones) - len(entry.tombstones))
        draft.erasures = (*draft.erasures, erasure)
        needs = (need for erased in self.tables for need in getattr(erased.tombstone, "needs", ()))
        draft.require([ERASURES, *needs])
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect | None:
        if self.name is None:
            return TableEffect("", "forget")
        assert self.tombstone is not None
        return TableEffect(self.name, "erase", draft.column_names(self.name, self.tombstone.columns))

    def _table_deletes(self, draft: Draft, uploads: PendingUploads) -> Iterator[ErasedTable]:
        assert self.name is not None
        assert self.tombstone is not None
        assert self.schema is not None
        entry = draft.table(self.name, self.uuid)
        ids = set(self.tombstone.columns)
        check_columns_of_delete(self.name, ids, self.schema, entry.schema, draft.base.commit_ts)
        if isinstance(self.tombstone, WhereTombstone):
            blob = self.tombstone.blob
            ids |= term_ids(recorded_predicate(uploads.read_blob(blob), blob))
        yield ErasedTable(self.uuid, self.tombstone, _fields(entry, self.tombstone.columns, ids))

    def _subject_deletes(
        self, draft: Draft, uploads: PendingUploads, made: dict[str, ErasedTable]
    ) -> Iterator[ErasedTable]:
        valid: list[Json] = []
        tables = _tables_with_subject(draft)
        fields = {entry.uuid: field for _, entry, field in tables}
        for name, entry, field in tables:
            fitting = fitting_values(entry, self.subject)
            if not fitting:
                if self.may_be_dropped:
                    continue
                raise InputError(
                    f"table {name!r}: the type of its subject, column {field.name!r}, differs from that of the values "
                    "to forget: give the values in its type, too"
                )
            valid += fitting
            if any(fields.get(uuid) == field for uuid in entry.lineage[1:]):
                continue  # erased by the delete in the table that it was cloned from
            if (before := made.get(entry.uuid)) is not None and before.columns == (field,):
                yield before
                continue
            predicate = subject_predicate(entry, fitting)
            assert predicate is not None
            tombstone = record_predicate(partial(uploads.tombstone_object, name, ""), entry.schema, predicate)
            if tombstone is not None:
                yield ErasedTable(entry.uuid, tombstone, (field,))
        if (lost := sum(value not in valid for value in self.subject)) and not self.may_be_dropped:
            raise InputError(
                f"{lost} of {len(self.subject)} values fit the subject of no table: set the property subject of the "
                "tables with rows about persons (dolmen set TABLE subject=COLUMN), or give `dropped` if only "
                "dropped tables have rows about them"
            )


def _stamp_delete(erased: ErasedTable, draft: Draft, ts: int) -> ErasedTable:
    """The delete with its timestamp, and with the columns that its table has after this commit."""
    columns = erased.columns
    name = next((name for name, entry in draft.tables.items() if entry.uuid == erased.uuid), None)
    if name is not None:
        ids = {each.id for field in columns for each in (field, *fields_inside(field.type))}
        columns = _fields(draft.segments.whole(draft.tables[name]), erased.tombstone.columns, ids)
    return ErasedTable(erased.uuid, erased.tombstone.stamp(ts), columns)


def _fields(entry: TableEntry, columns: Sequence[int], ids: Container[int]) -> tuple[Field, ...]:
    """The columns of a delete, with only those fields of structs that have one of these ids."""
    return tuple(keep_fields(entry.schema.by_id[id_], ids) for id_ in columns)


def _tables_with_subject(draft: Draft) -> list[tuple[str, TableEntry, Field]]:
    """The tables with a subject, by name, and its column."""
    names = (name for name in sorted(draft.tables) if draft.tables[name].properties.get(SUBJECT) is not None)
    entries = ((name, draft.segments.whole(draft.tables[name])) for name in names)
    return [(name, entry, entry.schema.field(str(entry.properties[SUBJECT]).strip())) for name, entry in entries]


def _memories(draft: Draft, erased: ErasedTable) -> Iterator[RememberedKeys]:
    """The tables that remember deleted keys of the tables whose rows are erased by their key."""
    seen: set[str] = set()
    stubs = sorted(
        (stub for stub in draft.tables.values() if erased.uuid in stub.lineage), key=lambda stub: len(stub.lineage)
    )
    for memory in RememberedKeys.of_owners(map(draft.segments.whole, stubs), draft.tables, draft.segments):
        if memory.may_hold(erased) and not seen & set(memory.entry.lineage):  # else the delete reaches it as a clone
            seen.add(memory.entry.uuid)
            yield memory
