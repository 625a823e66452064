"""Mutations of inserts, and of the index that they ask."""

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

INSERTS: tuple[Mutation, ...] = (
    mutation(
        "an insert is compared once",
        "an insert compares its keys with every version that it may land on",
        "commit/statements/row_changes.py",
        "        if self.checked_on == committed.key and unchanged:\n            return self\n",
        "        if self.checked is not None:\n            return replace(self, checked_on=committed.key)\n",
    ),
    mutation(
        "an insert is not compared with what is committed together with it",
        "an insert compares its keys with rows of the changes that are committed together with it",
        "commit/statements/row_changes.py",
        "        unchanged = draft.tables.get(self.name) is committed.tables.get(self.name)\n",
        "        unchanged = draft.tables.get(self.name) is draft.base.tables.get(self.name)\n",
    ),
    mutation(
        "an insert compares with new rows alone after a restore",
        "when the epoch has changed, an insert compares its keys with all rows",
        "commit/statements/row_changes.py",
        "        known = self.checked is not None and self.checked[0] == epoch\n",
        "        known = self.checked is not None\n",
    ),
    mutation(
        "an insert takes no part in its transaction",
        "an insert sees what the earlier statements of its change do",
        "transactions/insertion.py",
        "        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))\n",
        "        manifest = draft.base\n",
    ),
    mutation(
        "a key that was hidden is taken for one that is there",
        "an insert compares its keys with visible rows alone",
        "rows/scan/by_key/lookup.py",
        "            keep = row_mask(group, columns.read(group.tests))\n",
        "            keep = None\n",
    ),
    Mutation(
        "an insert trusts the index for files that it does not cover",
        "files without a part of the index are searched",
        (
            Edit(
                "rows/scan/by_key/lookup.py",
                "tuple(each for each in scan.files if not found.has_none_of(each))",
                "tuple(each for each in scan.files if not found.covered or each.file.uuid in found.rows)",
            ),
        ),
    ),
)
