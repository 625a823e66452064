"""Statements on what a database contains: tables, their columns, tags and cursors."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.commit.statements.row_changes import _file_count
from dolmen.entries.segments.live import check_days_of_table
from dolmen.errors import (
    ConflictError,
    InputError,
    LimitError,
    TableExistsError,
    TagExistsError,
    TagNotFoundError,
    VersionExpiredError,
)
from dolmen.format.column_history import is_date_to_timestamp, record_names
from dolmen.format.evolution import SchemaChange, WidenColumn, needed_features
from dolmen.format.layout import Cursor, Tag, check_table_name, memory_name
from dolmen.format.manifest import ADOPTED_FILES, TAGS, Counts, TableEntry
from dolmen.format.schema import Field, Schema


@dataclass(frozen=True)
class CreateTable:
    """Creates a table. Raises TableExistsError when the name is taken."""

    name: str
    entry: TableEntry
    request: str | None = None

    @property
    def uuid(self) -> str:
        """The uuid of the new table."""
        return self.entry.uuid

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table with this version as its epoch."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version)


@dataclass(frozen=True)
class DropTable:
    """Drops a table. Its name becomes free, and older versions still read it. The memory of its changes goes with
    it."""

    name: str
    uuid: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the table and releases all that it reaches."""
        entry = draft.table(self.name, self.uuid)
        self._remove(draft, self.name, entry)
        memory = draft.tables.get(memory_name(self.name))
        if memory and entry.sequences and memory.uuid == entry.sequences.memory:
            self._remove(draft, memory_name(self.name), draft.segments.whole(memory))

    def _remove(self, draft: Draft, name: str, entry: TableEntry) -> None:
        draft.release_all_of(entry)
        draft.counts += Counts(files_removed=_file_count(entry))
        draft.data_change = True
        del draft.tables[name]


@dataclass(frozen=True)
class RenameTable:
    """Gives a table another name; its uuid and rows stay. The memory of its changes is renamed with it.

    Raises TableExistsError when a name is taken, InvalidNameError when the memory's name is too long.
    """

    name: str
    uuid: str
    to: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Moves the whole entry to its new name. Checks everything before it changes anything."""
        entry = draft.table(self.name, self.uuid)
        moves = {self.name: (self.to, entry)}
        memory = draft.tables.get(memory_name(self.name))
        if memory and entry.sequences and memory.uuid == entry.sequences.memory:
            name = check_table_name(memory_name(self.to))
            moves[memory_name(self.name)] = name, draft.segments.whole(memory)
        for name, _ in moves.values():
            if name in draft.tables and name not in moves:
                why = "" if name == self.to else f", and would remember the deleted keys of {self.to!r}"
                raise TableExistsError(f"table {name!r} exists already{why}")
        for name in moves:
            del draft.tables[name]
        draft.tables.update(moves.values())
        draft.data_change = True


@dataclass(frozen=True)
class AlterTable:
    """Changes columns, or the sort key.

    Args:
        known: the columns that its author saw; a table with other ones is a conflict.
        known_sort_key: the same for the ids of the sort key.
        changes: in order; each sees the effect of those before it.
    """

    name: str
    uuid: str
    known: Schema
    known_sort_key: tuple[int, ...]
    changes: tuple[SchemaChange, ...]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the table's entry. No file is touched."""
        entry = draft.table(self.name, self.uuid)
        if self._is_first(draft, entry.schema) and not self._is_as_known(entry):
            raise ConflictError(
                f"table {self.name!r}: somebody changed its columns meanwhile, in version {draft.base.version} or one "
                "before it: look at them again"
            )
        for change in self.changes:
            if isinstance(change, WidenColumn):
                field = next(
                    (field for field in entry.schema.fields if field.name.lower() == change.name.lower()), None
                )
                if field is not None and is_date_to_timestamp(field.arrow_type, change.type):
                    check_days_of_table(entry, field, draft.segments)
            changed = change.apply(entry, ts)
            schema = record_names(entry.schema, changed.schema, ts)
            entry = msgspec.structs.replace(changed, schema=schema)
        draft.require(needed_features(entry.schema))
        draft.tables[self.name] = entry
        draft.data_change = True

    def _is_first(self, draft: Draft, schema: Schema) -> bool:
        """Whether no earlier statement of this commit has changed the columns, or made the table."""
        own = draft.base.name_of(self.uuid)
        return own is not None and draft.segments.whole(draft.base.tables[own]).schema == schema

    def _is_as_known(self, entry: TableEntry) -> bool:
        known = self.known
        return (entry.schema.fields, entry.schema.next_id, entry.sort_key) == (
            known.fields,
            known.next_id,
            self.known_sort_key,
        )


@dataclass(frozen=True)
class AdoptTable:
    """Creates a table with files that are there already. Raises TableExistsError when the name is taken.

    Args:
        entry: with the files; columns that have a narrower type in some of them have any ``widened_ts`` but 0.
    """

    name: str
    entry: TableEntry
    request: str | None = None

    @property
    def uuid(self) -> str:
        """The uuid of the new table."""
        return self.entry.uuid

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table. Its files may lack columns, or have them under other names: ``altered_ts`` says so."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        before = self.entry.schema
        fields = tuple(_stamped(field, ts) for field in before.fields)
        schema = msgspec.structs.replace(before, fields=fields, altered_ts=ts)
        files = tuple(file.stamped(ts) for file in self.entry.files)
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version, schema=schema, files=files)
        draft.require([ADOPTED_FILES, *needed_features(schema)])
        draft.counts += Counts(rows_added=sum(file.live_rows for file in files), files_added=len(files))
        draft.data_change = True


def _stamped(field: Field, ts: int) -> Field:
    return msgspec.structs.replace(field, widened_ts=ts) if field.widened_ts else field


MAX_NAMES = 1_000
"""The most tags, and the most cursors, of a database: every manifest holds them all."""


@dataclass(frozen=True)
class PutTag:
    """Gives a name to a version.

    Args:
        move: whether the tag may name another version so far.
    """

    tag: str
    value: Tag
    move: bool = False
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Keeps the version.

        Raises:
            TagExistsError: the name is taken.
            VersionExpiredError: the version has expired, so that collection may have begun to delete its objects.
        """
        old = draft.tags.get(self.tag)
        if old is not None and not self.move:
            raise TagExistsError(f"tag {self.tag!r} names version {old.version}: move=True moves it")
        if old is None and len(draft.tags) >= MAX_NAMES:
            raise LimitError(f"there are {MAX_NAMES:,} tags, the most of a database: drop some")
        draft.check_kept(self.value.version)
        draft.require([TAGS])
        draft.put_tag(self.tag, self.value)


@dataclass(frozen=True)
class DropTag:
    """Takes a name from its version, which may expire from now on."""

    tag: str
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the tag. Raises TagNotFoundError if there is none."""
        if self.tag not in draft.tags:
            raise TagNotFoundError(f"no tag {self.tag!r}; tags: {', '.join(sorted(draft.tags)) or 'none'}")
        draft.put_tag(self.tag, None)


@dataclass(frozen=True)
class PutCursor:
    """Makes a cursor, moves it, or removes it.

    Args:
        seen: the cursor as its reader saw it; None if there was none.
        value: what it becomes; None removes it.
    """

    cursor: str
    seen: Cursor | None
    value: Cursor | None
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the cursor.

        Raises:
            ConflictError: another reader moved it.
            VersionExpiredError: the new place has expired, so that changes after it may not be known any more.
        """
        there = draft.cursors.get(self.cursor)
        if there != self.seen:
            told = "was removed" if there is None else f"is at version {there.version}"
            raise ConflictError(f"cursor {self.cursor!r} {told}, since another reader uses it: open it again")
        others = {name: each for name, each in draft.cursors.items() if name != self.cursor}
        if self.value is None:
            draft.cursors = others
            return
        if there is None and len(others) >= MAX_NAMES:
            raise LimitError(f"there are {MAX_NAMES:,} cursors, the most of a database: remove some")
        if self.value.version < draft.base.horizon:
            raise VersionExpiredError(
                f"version {self.value.version} has expired: the oldest kept is {draft.base.horizon}"
            )
        if self.value.version > draft.base.version:
            raise InputError(f"cursor {self.cursor!r}: no version {self.value.version} yet")
        draft.require([TAGS])
        draft.cursors = {**others, self.cursor: self.value}
