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
        "an insert is not compared with changes of its group",
        "an insert compares its keys with rows of the changes of its group",
        "commit/statements/row_changes.py",
        "        unchanged = draft.tables.get(self.name) is committed.tables.get(self.name)\n",
        "        unchanged = draft.tables.get(self.name) is draft.base.tables.get(self.name)\n",
    ),
    mutation(
        "after a restore, an insert compares only with new rows",
        "when the epoch has changed, an insert compares its keys with all rows",
        "commit/statements/row_changes.py",
        "        is_same_epoch = self.checked is not None and self.checked[0] == epoch\n",
        "        is_same_epoch = self.checked is not None\n",
    ),
    mutation(
        "an insert ignores its transaction",
        "an insert sees the results of the earlier statements of its change",
        "transactions/row_statements.py",
        "        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))\n",
        "        manifest = draft.base\n",
    ),
    mutation(
        "a hidden key counts as existing",
        "an insert compares its keys only with visible rows",
        "rows/scan/rows_by_key.py",
        "            keep = row_mask(group, columns.read(group.tested_ids))\n",
        "            keep = None\n",
    ),
    Mutation(
        "an insert trusts the index for files that it does not cover",
        "files that the index does not cover are searched",
        (
            Edit(
                "rows/scan/rows_by_key.py",
                "(each for each in scan.files if not found.has_none_of(each))",
                "(each for each in scan.files if not found.covered or each.file.uuid in found.rows)",
            ),
        ),
    ),
)
