"""Statements that create, drop and rename tables."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dolmen.commit.draft import Draft
from dolmen.commit.statements.rows import _file_count
from dolmen.errors import TableExistsError
from dolmen.format.layout import check_table_name, memory_name
from dolmen.format.manifest import Counts, TableEntry


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
