"""Mutations of checks, NOT NULL and primary keys that are added to tables with rows."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

CONSTRAINTS: tuple[Mutation, ...] = (
    mutation(
        "rows land without a check that came before them",
        "rows that were written before a check meet it, or are written again",
        "commit/statements/row_changes.py",
        "        if check not in before.checks:\n",
        "        if False:\n",
    ),
    mutation(
        "rows land with NULL in a column that forbids it since",
        "rows that were written before NOT NULL meet it, or are written again",
        "commit/statements/row_changes.py",
        "        may_be_null = not column.nullable and before.by_id.get(column.id, column).nullable\n",
        "        may_be_null = False\n",
    ),
    mutation(
        "a check is added without a look at the rows",
        "a check is FALSE for no row that exists when it is added",
        "transactions/constraints.py",
        "        rows = self._count(view, newer_than)\n",
        "        rows = 0\n",
    ),
    mutation(
        "a check reads the rows of the version that it was made on alone",
        "a check reads the rows that land before it",
        "transactions/constraints.py",
        "        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))\n        view",
        "        if newer_than >= 0:\n            return\n"
        "        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))\n        view",
    ),
    mutation(
        "rows are written without a look at the checks",
        "every row that is written meets the checks",
        "rows/write/conform.py",
        "    if refused := [found for check in checks if (found := check.find(batch))]:\n",
        "    if refused := []:\n",
    ),
)
