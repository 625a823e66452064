"""Statements on what a database contains: tables and columns, also of earlier versions, tags and cursors.

An entry of a kept version names immutable objects only, and each of its files says which deletes are applied to it. So
the same entry in a later version shows the same rows: restores and clones copy no byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct, field

from dolmen.base.records import replace
from dolmen.commit.draft import ColumnsChangedError, DatabaseStatement, Draft
from dolmen.commit.statements.erasures import delete_remembered
from dolmen.commit.statements.row_changes import count_files, without_index
from dolmen.commit.uploads import PendingUploads, record_predicate
from dolmen.entries.segments.erasures_in_force import (
    RememberedKeys,
    with_deletes,
    with_erasures,
)
from dolmen.entries.segments.live import check_days_of_table
from dolmen.errors import ConflictError, InputError, LimitError, TableExistsError, TagExistsError, TagNotFoundError
from dolmen.format.column_history import is_date_to_timestamp, record_names
from dolmen.format.column_terms import sort_texts
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.evolution import SchemaChange, SetSortKey, WidenColumn, needed_features
from dolmen.format.layout import Cursor, Tag, check_table_name, memory_name
from dolmen.format.manifest import (
    ADOPTED_FILES,
    CONSTANT_COLUMNS,
    TAGS,
    Counts,
    ErasedTable,
    Erasure,
    TableEffect,
    TableEntry,
)
from dolmen.format.schema import MappedColumn, Schema, SortKey
from dolmen.predicate.ast import Predicate


class CreateTable(Struct, frozen=True):
    """Creates a table. Raises TableExistsError when the name is taken."""

    name: str
    entry: TableEntry
    request: str | None = None

    @property
    def uuid(self) -> str:
        return self.entry.uuid

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table with this version as its epoch."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        draft.require(self.entry.needed_features)
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version)

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "create")


class DropTable(Struct, frozen=True):
    """Drops a table, with the memory of its changes (CDC). Its name becomes free, and older versions still read it."""

    name: str
    uuid: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        for name, entry in _with_memory(draft, self.name, self.uuid).items():
            draft.release_all_of(entry)
            draft.counts += Counts(files_removed=count_files(entry))
            del draft.tables[name]
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "drop")


def _with_memory(draft: Draft, name: str, uuid: str) -> dict[str, TableEntry]:
    """The whole entries of a table and, if it has one, of the memory of its changes, by name."""
    entries = {name: draft.table(name, uuid)}
    memory, sequences = draft.tables.get(memory_name(name)), entries[name].sequences
    if memory and sequences and memory.uuid == sequences.memory:
        entries[memory_name(name)] = draft.segments.whole(memory)
    return entries


class RenameTable(Struct, frozen=True):
    """Gives a table another name; its uuid and rows stay. The memory of its changes is renamed with it.

    Raises TableExistsError when a name is taken, InvalidNameError when the memory's name is too long.
    """

    name: str
    uuid: str
    to: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Moves the whole entries to their new names. Checks everything before it changes anything."""
        entries = _with_memory(draft, self.name, self.uuid)
        moves = {self.name: (self.to, entries[self.name])}
        for memory in entries.keys() - {self.name}:
            moves[memory] = check_table_name(memory_name(self.to)), entries[memory]
        for name, _ in moves.values():
            if name in draft.tables and name not in moves:
                why = "" if name == self.to else f", and would remember the deleted keys of {self.to!r}"
                raise TableExistsError(f"table {name!r} exists already{why}")
        for name in moves:
            del draft.tables[name]
        draft.tables.update(moves.values())
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "rename", (self.to,))


class AlterTable(Struct, frozen=True):
    """Changes columns in order, or the sort key. Raises ConflictError if they are not as the writer saw them
    (``seen``, ``seen_sort_key``)."""

    name: str
    uuid: str
    seen: Schema
    seen_sort_key: SortKey
    changes: tuple[SchemaChange, ...]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        entry = draft.table(self.name, self.uuid)
        is_unchanged = (entry.schema.fields, entry.schema.next_id, entry.sort_key) == (
            self.seen.fields,
            self.seen.next_id,
            self.seen_sort_key,
        )
        if not is_unchanged and self._is_first(draft, entry.schema):
            raise ColumnsChangedError(
                f"table {self.name!r}: another commit changed its columns, in version {draft.base.version} or one "
                "before it: look at them again"
            )
        for change in self.changes:
            if isinstance(change, WidenColumn):
                name = change.name.lower()
                field = next((field for field in entry.schema.fields if field.name.lower() == name), None)
                if field is not None and is_date_to_timestamp(field.arrow_type, change.type):
                    check_days_of_table(entry, field, draft.segments)
            changed = change.apply(entry, ts)
            schema = record_names(entry.schema, changed.schema, ts)
            entry = msgspec.structs.replace(changed, schema=schema)
            draft.require(getattr(change, "needs", ()))
        draft.require([*needed_features(entry.schema), *entry.needed_features])
        draft.tables[self.name] = entry
        draft.data_change = True

    def _is_first(self, draft: Draft, schema: Schema) -> bool:
        """Whether no earlier statement of this commit has changed the columns, or made the table."""
        own = draft.base.name_of(self.uuid)
        return own is not None and draft.segments.whole(draft.base.tables[own]).schema == schema

    def effect(self, draft: Draft) -> TableEffect:
        entry, names = draft.tables[self.name], list[str]()
        for change in self.changes:
            names += sort_texts(entry.sort_key, entry.schema) if isinstance(change, SetSortKey) else change.columns
        return TableEffect(self.name, "alter", tuple(names))


class AdoptTable(CreateTable, Struct, frozen=True):
    """Creates a table with existing files. A column whose type differs in some files has a ``widened_ts`` above 0."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table. Its files may lack columns, or have them under other names: hence ``altered_ts``."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        before = self.entry.schema
        fields = tuple(
            msgspec.structs.replace(field, widened_ts=ts) if field.widened_ts else field for field in before.fields
        )
        schema = msgspec.structs.replace(before, fields=fields, altered_ts=ts)
        files = tuple(file.stamp(ts) for file in self.entry.files)
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version, schema=schema, files=files)
        draft.require([*_features_of(files), *needed_features(schema), *self.entry.needed_features])
        draft.counts += Counts(rows_added=sum(file.live_rows for file in files), files_added=len(files))
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "adopt")


class AdoptFiles(Struct, frozen=True):
    """Adds existing files to a table, whose columns and epoch must be as the writer saw them."""

    name: str
    uuid: str
    epoch: int
    files: tuple[DataFile, ...]
    seen: Schema
    # mapping, next_id: of the schema that the files need
    mapping: tuple[MappedColumn, ...]
    next_id: int
    # ids of columns that some of the files have in a narrower type, or with other fields
    narrower: frozenset[int] = frozenset()
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        entry = draft.table(self.name, self.uuid)
        now = entry.schema
        is_unchanged = _columns_and_mapping(now) == _columns_and_mapping(self.seen) and entry.epoch == self.epoch
        if not is_unchanged or now.checks or entry.primary_key:  # rows of the files were compared with neither
            raise ConflictError(
                f"table {self.name!r}: its columns, checks or key were changed, or all its rows replaced, by version "
                f"{draft.base.version} or one before it: call adopt again"
            )
        fields = tuple(
            msgspec.structs.replace(each, widened_ts=ts) if each.id in self.narrower else each for each in now.fields
        )
        schema = msgspec.structs.replace(now, fields=fields, mapping=self.mapping, next_id=self.next_id, altered_ts=ts)
        files = tuple(file.stamp(ts) for file in self.files)
        draft.tables[self.name] = msgspec.structs.replace(entry, schema=schema, files=(*entry.files, *files))
        draft.require([*_features_of(files), *needed_features(schema)])
        draft.counts += Counts(rows_added=sum(file.rows for file in files), files_added=len(files))
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "adopt")


def _features_of(files: Iterable[DataFile]) -> list[str]:
    return [ADOPTED_FILES, *([CONSTANT_COLUMNS] if any(file.constants for file in files) else ())]


def _columns_and_mapping(schema: Schema) -> tuple[Any, ...]:
    return [(each.id, each.name, each.type, each.nullable) for each in schema.fields], schema.next_id, schema.mapping


MAX_NAMES = 1_000  # the most tags, and the most cursors, of a database: every manifest holds them all


class PutTag(DatabaseStatement, Struct, frozen=True):
    """Gives a name to a version, which keeps the version; ``may_move`` allows moving the name from another version."""

    tag: str
    value: Tag
    may_move: bool = False
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises TagExistsError, and VersionExpiredError if objects of the version may be deleted already."""
        old = draft.tags.get(self.tag)
        if old is not None and not self.may_move:
            raise TagExistsError(f"tag {self.tag!r} names version {old.version}: move=True moves it")
        if old is None and len(draft.tags) >= MAX_NAMES:
            raise LimitError(f"the database has {MAX_NAMES:,} tags, the most allowed: drop some")
        draft.base.check_kept(self.value.version)
        draft.require([TAGS])
        draft.put_tag(self.tag, self.value)

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect("", "tag", (self.tag, f"version {self.value.version}"))


class DropTag(DatabaseStatement, Struct, frozen=True):
    """Takes a name from its version, which may expire from now on."""

    tag: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the tag. Raises TagNotFoundError if there is none."""
        if self.tag not in draft.tags:
            raise TagNotFoundError(f"no tag {self.tag!r}; tags: {', '.join(sorted(draft.tags)) or 'none'}")
        draft.put_tag(self.tag, None)

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect("", "drop tag", (self.tag,))


class PutCursor(DatabaseStatement, Struct, frozen=True):
    """Makes a cursor, moves it, or removes it: replaces the one that its reader saw (None: there was none)."""

    cursor: str
    seen: Cursor | None
    value: Cursor | None

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if another reader moved it, VersionExpiredError if changes after it may be unknown."""
        current = draft.cursors.get(self.cursor)
        if current != self.seen:
            state = "was removed" if current is None else f"is at version {current.version}"
            raise ConflictError(f"cursor {self.cursor!r} {state}, because another reader uses it: open it again")
        others = {name: each for name, each in draft.cursors.items() if name != self.cursor}
        if self.value is None:
            draft.cursors = others
            return
        if current is None and len(others) >= MAX_NAMES:
            raise LimitError(f"the database has {MAX_NAMES:,} cursors, the most allowed: remove some")
        draft.base.check_kept(self.value.version, by_tag=False)  # a tag keeps no version after its own
        if self.value.version > draft.base.version:
            raise InputError(f"cursor {self.cursor!r}: no version {self.value.version} yet")
        draft.require([TAGS])
        draft.cursors = {**others, self.cursor: self.value}

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect("", "cursor", (self.cursor,))


class SubjectDeletes(Struct, frozen=True):
    """Deletes of rows that were erased since an earlier version, in its tables that the erasures do not name."""

    # tombstones of forgotten subjects, recorded for this commit, by uuid of the table and id of the erasure; None where
    # no row can match
    made: Mapping[tuple[str, str], Tombstone | None]
    # likewise, deletes from memories of deleted keys (CDC), which may differ from the present ones
    keys: Mapping[tuple[str, str], tuple[ErasedTable, ...]] = field(default_factory=dict)
    prepared_on: str = ""

    def prepare(
        self, tables: Mapping[str, TableEntry], then_ts: int, draft: Draft, uploads: PendingUploads
    ) -> SubjectDeletes:
        """Records the deletes that another base needs in addition, for whole entries of the earlier version."""
        made, keys = dict(self.made), dict(self.keys)

        def record(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone | None:
            key = entry.uuid, erasure.id
            if key not in made:
                name = next(name for name, other in tables.items() if other.uuid == entry.uuid)
                made[key] = record_predicate(partial(uploads.tombstone_object, name, ""), entry.schema, predicate)
            return made[key]

        erasures = draft.erasures_after(then_ts)
        for entry in tables.values() if erasures else ():
            with_erasures(entry, erasures, draft.segments, record)
        memories = RememberedKeys.of_owners(tables.values(), tables, draft.segments)
        for memory, erasure in product(memories, erasures):
            key = memory.entry.uuid, erasure.id
            if key not in keys:
                deletes = memory.unnamed_deletes(erasure, record)
                keys[key] = tuple(delete_remembered(memory, each, uploads) for each in deletes)
        return SubjectDeletes(made, keys, draft.base.key)

    def hide(self, tables: Mapping[str, TableEntry], then_ts: int, draft: Draft) -> dict[str, TableEntry]:
        """The entries of the earlier version with the deletes of all erasures since."""
        draft.check_prepared(self.prepared_on)
        erasures = draft.erasures_after(then_ts)

        def find_record(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone | None:
            return self.made[entry.uuid, erasure.id]

        hidden = {name: with_erasures(entry, erasures, draft.segments, find_record) for name, entry in tables.items()}
        visible = {name: self._without_keys(entry, erasures) for name, entry in hidden.items()}
        memories = RememberedKeys.of_owners(visible.values(), visible, draft.segments)
        return visible | {memory.name: memory.with_types_of_owner() for memory in memories}

    def _without_keys(self, entry: TableEntry, erasures: Iterable[Erasure]) -> TableEntry:
        deletes = [
            msgspec.structs.replace(each, tombstone=each.tombstone.stamp(erasure.ts))
            for erasure in erasures
            for each in self.keys.get((entry.uuid, erasure.id), ())
        ]
        if not deletes:
            return entry
        entry = with_deletes(entry, deletes)
        by_time = tuple(sorted(entry.tombstones, key=lambda tombstone: tombstone.ts))
        return msgspec.structs.replace(entry, tombstones=by_time)


_UNPREPARED = SubjectDeletes({})


class Restore(Struct, frozen=True):
    """Restores tables of an earlier version: rows, columns and settings.

    A table that was dropped since comes back. The memory of a table's changes (CDC) comes back with it, or goes.
    """

    # name, uuid: of the table; None and "" for all tables of the database
    name: str | None
    uuid: str
    version: int
    then_ts: int
    tables: Mapping[str, TableEntry]  # whole entries of that version, by the name that each gets
    must_exist: bool = False  # whether the table must still have its name, and not have been dropped
    request: str | None = None
    erased: SubjectDeletes = _UNPREPARED

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Restore:
        return replace(self, erased=self.erased.prepare(self.tables, self.then_ts, draft, uploads))

    def apply(self, draft: Draft, ts: int) -> None:
        """Puts the entries of that version under a new epoch.

        Raises VersionExpiredError, TableExistsError; TableNotFoundError, ConflictError if the table is not ``present``.
        """
        tables = self.erased.hide(self.tables, self.then_ts, draft)
        draft.base.check_kept(self.version)
        if self.name is not None and self.must_exist:
            draft.table(self.name, self.uuid)
        was = {name: draft.segments.whole(draft.tables[name]) for name in self._replaced_names(draft)}
        for name in tables:
            if name in draft.tables and name not in was:
                raise TableExistsError(
                    f"table {name!r} is not the one of version {self.version}: rename or drop it first"
                )
        for name, entry in was.items():
            del draft.tables[name]
            draft.release_all_of(entry)
            draft.counts += Counts(files_removed=count_files(entry))
        now = {entry.uuid: entry for entry in was.values()}
        for name, entry in tables.items():
            draft.tables[name] = _start_epoch(_with_later_columns(entry, now.get(entry.uuid), ts), draft, ts)
            draft.counts += Counts(files_added=count_files(entry))
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name or "", "restore", (f"version {self.version}",))

    def _replaced_names(self, draft: Draft) -> list[str]:
        """Names of the present tables that are removed or replaced."""
        if self.name is None:
            return list(draft.tables)
        uuids = {entry.uuid for entry in self.tables.values()}
        for stub in draft.tables.values():
            if stub.uuid == self.uuid and (sequences := draft.segments.whole(stub).sequences):
                uuids.add(sequences.memory)
        return [name for name, stub in draft.tables.items() if stub.uuid in uuids]


class CloneTable(Struct, frozen=True):
    """Clones a table of some version. Both tables have the same files from then on."""

    name: str
    uuid: str
    version: int
    then_ts: int
    entry: TableEntry  # the whole entry in that version
    # the whole entry of its memory of changes, if it had one, and the uuid for the copy of it
    memory: tuple[TableEntry, str] | None = None
    request: str | None = None
    erased: SubjectDeletes = _UNPREPARED  # hides rows that were erased since

    def prepare(self, draft: Draft, uploads: PendingUploads) -> CloneTable:
        return replace(self, erased=self.erased.prepare(self._clones(), self.then_ts, draft, uploads))

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table. Raises VersionExpiredError, and TableExistsError if the name is taken."""
        clones = self.erased.hide(self._clones(), self.then_ts, draft)
        draft.base.check_kept(self.version)
        for name in clones:
            if name in draft.tables:
                raise TableExistsError(f"table {name!r} exists already")
        for name, entry in clones.items():
            draft.tables[name] = _start_epoch(entry, draft, ts)
            draft.counts += Counts(files_added=count_files(entry))
        draft.data_change = True

    def effect(self, draft: Draft) -> TableEffect:
        return TableEffect(self.name, "clone", (f"version {self.version}",))

    def _clones(self) -> dict[str, TableEntry]:
        clones = {self.name: _clone_entry(self.entry, self.uuid)}
        if self.memory is not None and self.entry.sequences is not None:
            memory, uuid = self.memory
            sequences = msgspec.structs.replace(self.entry.sequences, memory=uuid)
            clones[self.name] = msgspec.structs.replace(clones[self.name], sequences=sequences)
            name = check_table_name(memory_name(self.name))
            clones[name] = _clone_entry(memory, uuid)
        return clones


def table_and_memory(name: str, entry: TableEntry, tables: Mapping[str, TableEntry]) -> dict[str, TableEntry]:
    """A table's entry under a name, and the memory of its changes if the same version has one."""
    entries = {name: entry}
    if entry.sequences is not None:
        memory = next((each for each in tables.values() if each.uuid == entry.sequences.memory), None)
        if memory is not None:
            entries[check_table_name(memory_name(name))] = memory
    return entries


def _clone_entry(entry: TableEntry, uuid: str) -> TableEntry:
    return msgspec.structs.replace(entry, uuid=uuid, source=entry.uuid, origins=entry.lineage[1:])


def _start_epoch(entry: TableEntry, draft: Draft, ts: int) -> TableEntry:
    """The entry in this commit. Changes that read the table before conflict with it.

    It has no index, which may have keys of rows that were erased since.
    """
    entry = without_index(entry)
    return msgspec.structs.replace(entry, epoch=draft.version, last_delete_ts=ts, unseen_delete_ts=ts)


def _with_later_columns(then: TableEntry, now: TableEntry | None, ts: int) -> TableEntry:
    """The restored entry with the ids and names that its columns had later, so that no other column gets these ids.

    If the table was dropped, the later names of its columns are not known.
    """
    if now is None:
        schema = msgspec.structs.replace(then.schema, named_since=ts)
    else:
        schema = record_names(now.schema, then.schema, ts)
        schema = msgspec.structs.replace(schema, next_id=max(schema.next_id, now.schema.next_id))
    return msgspec.structs.replace(then, schema=schema)
