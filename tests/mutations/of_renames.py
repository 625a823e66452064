"""Mutations of renames, and of what a commit tells of itself."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Mutation, mutation

RENAMES: tuple[Mutation, ...] = (
    mutation(
        "a renamed table becomes a new table",
        "a rename changes only the name: uuid and epoch stay, and users of the old name get an error with the new one",
        "commit/statements/catalog.py",
        "        moves = {self.name: (self.to, entries[self.name])}\n",
        "        entry = entries[self.name]\n"
        "        moves = {self.name: (self.to, msgspec.structs.replace(entry, uuid=entry.uuid[::-1]))}\n",
    ),
    mutation(
        "a rename takes a name that another table has",
        "a rename needs a free name",
        "commit/statements/catalog.py",
        "            if name in draft.tables and name not in moves:\n",
        "            if not name:\n",
    ),
    mutation(
        "a rename leaves the memory of deleted keys behind",
        "the memory of a table of changes is renamed with it",
        "commit/statements/catalog.py",
        "            moves[memory] = check_table_name(memory_name(self.to)), entries[memory]\n",
        "            assert memory\n",
    ),
    mutation(
        "a statement with the old name of a table follows the rename",
        "a statement conflicts if its table has another name now: a writer never follows a rename by itself",
        "commit/draft.py",
        "        if now is not None:\n            raise ConflictError(\n",
        "        if now is not None:\n            return self.segments.whole(self.tables[now])\n            raise ConflictError(\n",
    ),
    mutation(
        "reads of a renamed table are not compared",
        "the reads of a transaction are compared by the table's uuid, whatever its name was",
        "transactions/unit_of_work.py",
        "        base_name = self.base.name_of(manifest.table(name).uuid)\n",
        "        base_name = name if name in self.base.tables else None\n",
    ),
    mutation(
        "an overwrite after a rename ignores rows that others added",
        "the version that an overwrite was made on is compared by the table's uuid",
        "commit/statements/row_changes.py",
        "        name = draft.base.name_of(self.uuid)  # this commit may have renamed it\n",
        "        name = self.name if self.name in draft.base.tables else None\n",
    ),
    mutation(
        "history lacks renames",
        "a commit's history lists what it did to which tables",
        "commit/statements/catalog.py",
        '    def effect(self, draft: Draft) -> TableEffect:\n        return TableEffect(self.name, "rename", (self.to,))\n',
        "    def effect(self, draft: Draft) -> TableEffect | None:\n        return None\n",
    ),
    mutation(
        "history lists the files that writes made",
        "a history entry contains names of columns, settings and tables, and nothing else",
        "commit/statements/row_changes.py",
        "        return TableEffect(self.name, what, draft.column_names(self.name, ids))\n",
        "        names = draft.column_names(self.name, ids)\n"
        "        return TableEffect(self.name, what, (*names, *(file.path for file in self.files)))\n",
    ),
    mutation(
        "another request under an applied id counts as applied",
        "an applied id with other content is refused",
        "commit/change.py",
        "    if entry.digest and digest and entry.digest != digest:\n",
        "    if not entry.id:\n",
    ),
)
