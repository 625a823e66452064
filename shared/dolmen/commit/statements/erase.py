"""The statement that erases rows: a delete that also holds for older versions, late drops, clones and the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from dolmen.commit.delete_records import record_predicate
from dolmen.commit.draft import Draft
from dolmen.commit.statements.index_parts import without_index
from dolmen.commit.statements.remembered_keys import delete_remembered
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.erasures import SUBJECT, fitting_values, subject_predicate, tables_of, with_deletes
from dolmen.entries.segments.remembered_keys import RememberedKeys
from dolmen.errors import ConflictError, InputError
from dolmen.format.entries import Tombstone
from dolmen.format.erasures import ErasedTable, Erasure
from dolmen.format.evolution import same_column
from dolmen.format.manifest import ERASURES, Counts, TableEntry
from dolmen.format.properties import erase_within_us
from dolmen.format.schema import Field, Schema
from dolmen.format.values import Json


@dataclass(frozen=True)
class Erase:
    """Erases rows of one table, or all rows about some subjects, with the same rows of clones.

    Args:
        name: the table; None for all tables with a subject.
        uuid: its uuid; "" for all.
        erasure: id of the erasure.
        requested_at: when it was asked for, in microseconds by the server's clock.
        tombstone: names the rows of the one table.
        schema: the table's columns when the tombstone was made.
        subject: JSON forms of the values that stand for who is forgotten.
        dropped: whether it may be that no table of now can have these values.
        digest: digest of the request's content, if there is a request.
        within_us: the time within which its rows leave the disk, in microseconds; None = as the database is set.
        tables: the deletes, as ``prepare`` has made them.
    """

    name: str | None
    uuid: str
    erasure: str
    requested_at: int
    tombstone: Tombstone | None = None
    schema: Schema | None = None
    subject: tuple[Json, ...] = ()
    dropped: bool = False
    digest: str = ""
    within_us: int | None = None
    request: str | None = None
    tables: tuple[ErasedTable, ...] = ()
    prepared_on: str = ""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Erase:
        """Makes the deletes for the tables that there are now. What was made before for a table is taken again.

        Raises:
            ConflictError: a column of the delete was dropped meanwhile.
            InputError: a table's subject can have none of the values, or a value is none of any table's.
        """
        made = {erased.uuid: erased for erased in self.tables}
        tables = [*(self._of_table(draft) if self.name is not None else self._of_subject(draft, uploads, made))]
        for erased in list(tables):
            memories = _memories(draft, erased)
            tables += (made.get(memory.entry.uuid) or delete_remembered(memory, erased, uploads) for memory in memories)
        return replace(self, tables=tuple(tables), prepared_on=draft.base.key)

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the tombstones to all tables that they reach, and the erasure to the list."""
        assert self.prepared_on == draft.base.key, "deletes were made for another version"
        if any(known.id == self.erasure for known in draft.erasures):
            raise InputError(f"request {self.request!r} has an erasure already: give each a request id of its own")
        erasure = Erasure(
            id=self.erasure,
            ts=ts,
            version=draft.version,
            requested_at=self.requested_at,
            due_at=self.requested_at + self._within_us(draft),
            tables=tuple(_as_it_lands(erased, draft, ts) for erased in self.tables),
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

    def _within_us(self, draft: Draft) -> int:
        return erase_within_us(draft.properties) if self.within_us is None else self.within_us

    def _of_table(self, draft: Draft) -> Iterator[ErasedTable]:
        assert self.name is not None
        assert self.tombstone is not None
        assert self.schema is not None
        entry = draft.table(self.name, self.uuid)
        bound, base_ts = self.schema.fields, draft.base.commit_ts
        there = {field.id for field in bound if same_column(entry.schema, field, base_ts)}
        if gone := set(self.tombstone.columns) - there:
            names = ", ".join(repr(field.name) for field in bound if field.id in gone)
            raise ConflictError(f"table {self.name!r}: columns of the delete were dropped meanwhile: {names}")
        yield ErasedTable(self.uuid, self.tombstone, _fields(entry, self.tombstone.columns))

    def _of_subject(self, draft: Draft, uploads: PendingUploads, made: dict[str, ErasedTable]) -> Iterator[ErasedTable]:
        known: list[Json] = []
        tables = _tables_with_subject(draft)
        fields = {entry.uuid: field for _, entry, field in tables}
        for name, entry, field in tables:
            fitting = fitting_values(entry, self.subject)
            if not fitting:
                if self.dropped:
                    continue
                raise InputError(
                    f"table {name!r}: its subject, column {field.name!r}, has another type than the values that are "
                    "to be forgotten: give them in its type, too"
                )
            known += fitting
            if any(fields.get(uuid) == field for uuid in entry.lineage[1:]):
                continue  # what is erased in the table that it was cloned from is erased here
            before = made.get(entry.uuid)
            if before is not None and before.columns == (field,):
                yield before
                continue
            predicate = subject_predicate(entry, fitting)
            assert predicate is not None
            tombstone = record_predicate(partial(uploads.shared_object, name), entry.schema, predicate)
            if tombstone is not None:
                yield ErasedTable(entry.uuid, tombstone, (field,))
        if (lost := sum(value not in known for value in self.subject)) and not self.dropped:
            raise InputError(
                f"{lost} of {len(self.subject)} values can be no subject of any table: set the property subject of the "
                "tables that name whom a row is about (dolmen set TABLE subject=COLUMN), or say `dropped` if only "
                "tables that were dropped since have rows about them"
            )


def _as_it_lands(erased: ErasedTable, draft: Draft, ts: int) -> ErasedTable:
    """The delete with its timestamp, and with its columns as this commit makes them."""
    columns = erased.columns
    name = next((name for name, entry in draft.tables.items() if entry.uuid == erased.uuid), None)
    if name is not None:
        columns = _fields(draft.segments.whole(draft.tables[name]), erased.tombstone.columns)
    return ErasedTable(erased.uuid, erased.tombstone.stamped(ts), columns)


def _fields(entry: TableEntry, ids: Sequence[int]) -> tuple[Field, ...]:
    return tuple(entry.schema.by_id[id_] for id_ in ids)


def _tables_with_subject(draft: Draft) -> list[tuple[str, TableEntry, Field]]:
    """The tables whose rows are about somebody, by name, with the column that says about whom."""
    found = []
    for name in sorted(draft.tables):
        if draft.tables[name].properties.get(SUBJECT) is not None:
            entry = draft.segments.whole(draft.tables[name])
            found.append((name, entry, entry.schema.field(str(entry.properties[SUBJECT]).strip())))
    return found


def _memories(draft: Draft, erased: ErasedTable) -> Iterator[RememberedKeys]:
    """The tables that remember the deleted keys of tables whose rows are erased by their key."""
    names = {entry.uuid: name for name, entry in draft.tables.items()}
    seen: set[str] = set()
    owners = [stub for stub in draft.tables.values() if erased.uuid in stub.lineage]
    for stub in sorted(owners, key=lambda stub: len(stub.lineage)):
        owner = draft.segments.whole(stub)
        name = names.get(owner.sequences.memory) if owner.sequences is not None else None
        if name is None:
            continue
        memory = RememberedKeys(name, draft.segments.whole(draft.tables[name]), owner)
        if memory.may_hold(erased) and not seen & set(memory.entry.lineage):  # else the delete reaches it as a clone
            seen.add(memory.entry.uuid)
            yield memory
