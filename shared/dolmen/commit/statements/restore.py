"""Statements that bring back what tables were, or make a second table of one, without copying a byte.

An entry of a kept version names immutable objects only, and each of its files says which deletes it has already taken.
So the same entry, in a later version, shows the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from dolmen.commit.draft import Draft
from dolmen.commit.statements.background import without_index
from dolmen.commit.statements.erasures import delete_remembered
from dolmen.commit.statements.row_changes import _file_count
from dolmen.commit.uploads import PendingUploads, record_predicate
from dolmen.entries.segments.erasures_in_force import (
    RememberedKeys,
    deletes_of,
    reaches,
    tables_of,
    with_deletes,
    with_erasures,
)
from dolmen.errors import TableExistsError
from dolmen.format.column_history import record_names
from dolmen.format.entries import Tombstone
from dolmen.format.layout import check_table_name, memory_name
from dolmen.format.manifest import Counts, ErasedTable, Erasure, TableEntry
from dolmen.predicate import Predicate


@dataclass(frozen=True)
class SubjectDeletes:
    """Deletes of rows that were erased since an earlier version, in its tables that the erasures do not name.

    Args:
        made: tombstones of who was forgotten, that are recorded for this commit, by uuid of the table and id of the
            erasure; None where no row can match.
        keys: deletes from memories of deleted keys (CDC), which may differ from the present ones; likewise.
        prepared_on: key of the base that they were made for.
    """

    made: Mapping[tuple[str, str], Tombstone | None]
    keys: Mapping[tuple[str, str], tuple[ErasedTable, ...]] = field(default_factory=dict)
    prepared_on: str = ""

    def prepare(
        self, tables: Mapping[str, TableEntry], then_ts: int, draft: Draft, uploads: PendingUploads
    ) -> SubjectDeletes:
        """Records what another base needs beside those that there are.

        Args:
            tables: whole entries of that version, by the name that each gets.
            then_ts: commit timestamp of that version.
        """
        made, keys = dict(self.made), dict(self.keys)

        def record(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone | None:
            place = entry.uuid, erasure.id
            if place not in made:
                name = next(name for name, known in tables.items() if known.uuid == entry.uuid)
                made[place] = record_predicate(partial(uploads.shared_object, name), entry.schema, predicate)
            return made[place]

        erasures = draft.erasures_after(then_ts)
        for entry in tables.values() if erasures else ():
            with_erasures(entry, erasures, draft.segments, record)
        for memory in RememberedKeys.each(tables) if erasures else ():
            for erasure in erasures:
                place = memory.entry.uuid, erasure.id
                if place not in keys and reaches(erasure, memory.owner) and not tables_of(erasure, memory.entry):
                    deletes = deletes_of(erasure, memory.owner, record)
                    keys[place] = tuple(
                        delete_remembered(memory, each, uploads) for each in deletes if memory.may_hold(each)
                    )
        return SubjectDeletes(made, keys, draft.base.key)

    def hide(self, tables: Mapping[str, TableEntry], then_ts: int, draft: Draft) -> dict[str, TableEntry]:
        """The entries of that version with the deletes of all erasures since."""
        assert self.prepared_on == draft.base.key, "deletes were made for another version"
        erasures = draft.erasures_after(then_ts)

        def recorded(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone | None:
            return self.made[entry.uuid, erasure.id]

        hidden = {name: with_erasures(entry, erasures, draft.segments, recorded) for name, entry in tables.items()}
        found = {name: self._without_keys(entry, erasures) for name, entry in hidden.items()}
        return found | {memory.name: memory.with_types_of_owner() for memory in RememberedKeys.each(found)}

    def _without_keys(self, entry: TableEntry, erasures: Iterable[Erasure]) -> TableEntry:
        deletes = [
            msgspec.structs.replace(each, tombstone=each.tombstone.stamped(erasure.ts))
            for erasure in erasures
            for each in self.keys.get((entry.uuid, erasure.id), ())
        ]
        if not deletes:
            return entry
        entry = with_deletes(entry, deletes)
        by_time = tuple(sorted(entry.tombstones, key=lambda tombstone: tombstone.ts))
        return msgspec.structs.replace(entry, tombstones=by_time)


_UNPREPARED = SubjectDeletes({})


@dataclass(frozen=True)
class Restore:
    """Makes tables what they were in an earlier version: rows, columns and settings.

    A table that was dropped since comes back. The memory of a table's changes (CDC) comes back with it, or goes.

    Args:
        name: the table; None for all tables of the database.
        uuid: its uuid; "" for all.
        version: the earlier version.
        then_ts: its commit timestamp.
        tables: whole entries of that version, by the name that each gets.
        present: whether the table must still be there under its name, and not have been dropped.
        erased: hides what was erased since.
    """

    name: str | None
    uuid: str
    version: int
    then_ts: int
    tables: Mapping[str, TableEntry]
    present: bool = False
    request: str | None = None
    erased: SubjectDeletes = _UNPREPARED

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Restore:
        """Hides what was erased since."""
        return replace(self, erased=self.erased.prepare(self.tables, self.then_ts, draft, uploads))

    def apply(self, draft: Draft, ts: int) -> None:
        """Puts the entries of that version under a new epoch.

        Raises:
            VersionExpiredError: the version has expired.
            TableExistsError: another table has a name that is needed.
            TableNotFoundError, ConflictError: the table is not ``present``.
        """
        tables = self.erased.hide(self.tables, self.then_ts, draft)
        draft.check_kept(self.version)
        if self.name is not None and self.present:
            draft.table(self.name, self.uuid)
        was = {name: draft.segments.whole(draft.tables[name]) for name in self._replaced(draft)}
        for name in tables:
            if name in draft.tables and name not in was:
                raise TableExistsError(
                    f"table {name!r} is another one than in version {self.version}: rename or drop it first"
                )
        for name, entry in was.items():
            del draft.tables[name]
            draft.release_all_of(entry)
            draft.counts += Counts(files_removed=_file_count(entry))
        now = {entry.uuid: entry for entry in was.values()}
        for name, entry in tables.items():
            draft.tables[name] = _under_new_epoch(_since_then(entry, now.get(entry.uuid), ts), draft, ts)
            draft.counts += Counts(files_added=_file_count(entry))
        draft.data_change = True

    def _replaced(self, draft: Draft) -> list[str]:
        """Names of the present tables that are deleted or replaced."""
        if self.name is None:
            return list(draft.tables)
        uuids = {entry.uuid for entry in self.tables.values()}
        for name, stub in draft.tables.items():
            if stub.uuid == self.uuid and (sequences := draft.segments.whole(draft.tables[name]).sequences):
                uuids.add(sequences.memory)
        return [name for name, stub in draft.tables.items() if stub.uuid in uuids]


@dataclass(frozen=True)
class CloneTable:
    """Makes a second table of a table as it was in some version. Both have the same files from then on.

    Args:
        name: the new table's name.
        uuid: the new table's uuid.
        version: the version whose entry it is.
        then_ts: its commit timestamp.
        entry: the whole entry in that version.
        memory: the whole entry of its memory of changes, if it had one, and the uuid for the copy of it.
        erased: hides what was erased since.
    """

    name: str
    uuid: str
    version: int
    then_ts: int
    entry: TableEntry
    memory: tuple[TableEntry, str] | None = None
    request: str | None = None
    erased: SubjectDeletes = _UNPREPARED

    def prepare(self, draft: Draft, uploads: PendingUploads) -> CloneTable:
        """Hides what was erased since."""
        return replace(self, erased=self.erased.prepare(self._clones(), self.then_ts, draft, uploads))

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table.

        Raises:
            VersionExpiredError: the version has expired.
            TableExistsError: the name is taken.
        """
        clones = self.erased.hide(self._clones(), self.then_ts, draft)
        draft.check_kept(self.version)
        for name in clones:
            if name in draft.tables:
                raise TableExistsError(f"table {name!r} exists already")
        for name, entry in clones.items():
            draft.tables[name] = _under_new_epoch(entry, draft, ts)
            draft.counts += Counts(files_added=_file_count(entry))
        draft.data_change = True

    def _clones(self) -> dict[str, TableEntry]:
        clones = {self.name: _cloned(self.entry, self.uuid)}
        if self.memory is not None and self.entry.sequences is not None:
            memory, uuid = self.memory
            sequences = msgspec.structs.replace(self.entry.sequences, memory=uuid)
            clones[self.name] = msgspec.structs.replace(clones[self.name], sequences=sequences)
            name = check_table_name(memory_name(self.name))
            clones[name] = _cloned(memory, uuid)
        return clones


def table_and_memory(name: str, entry: TableEntry, tables: Mapping[str, TableEntry]) -> dict[str, TableEntry]:
    """A table's entry under a name and, if it has a memory of changes in the same version, that beside it.

    Args:
        tables: all tables of the version.
    """
    found = {name: entry}
    if entry.sequences is not None:
        memory = next((each for each in tables.values() if each.uuid == entry.sequences.memory), None)
        if memory is not None:
            found[check_table_name(memory_name(name))] = memory
    return found


def _cloned(entry: TableEntry, uuid: str) -> TableEntry:
    return msgspec.structs.replace(entry, uuid=uuid, source=entry.uuid, origins=entry.lineage[1:])


def _under_new_epoch(entry: TableEntry, draft: Draft, ts: int) -> TableEntry:
    """The entry as this commit makes it. Changes that read the table before conflict with it.

    It has no index, which may hold keys of rows that were erased since.
    """
    entry = without_index(entry)
    return msgspec.structs.replace(entry, epoch=draft.version, last_delete_ts=ts, unseen_delete_ts=ts)


def _since_then(then: TableEntry, now: TableEntry | None, ts: int) -> TableEntry:
    """The restored entry with the ids and names that its columns had after it, so that no other column gets these ids.

    The names that a table's columns had between the restored version and its drop are not known.
    """
    if now is None:
        schema = msgspec.structs.replace(then.schema, named_since=ts)
    else:
        schema = record_names(now.schema, then.schema, ts)
        schema = msgspec.structs.replace(schema, next_id=max(schema.next_id, now.schema.next_id))
    return msgspec.structs.replace(then, schema=schema)
