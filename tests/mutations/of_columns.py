"""Mutations of changes of columns."""

# ruff: noqa: E501  # quotes lines that are as long as lines may be

from __future__ import annotations

from mutations.mutation import Mutation, mutation

COLUMNS: tuple[Mutation, ...] = (
    mutation(
        "rows from before a column have NULL in it",
        "rows that are older than a column have its initial default",
        "format/evolution.py",
        "            field, comment=self.comment, added_ts=ts, initial_default=self.default, write_default=self.default\n",
        "            field, comment=self.comment, added_ts=ts, initial_default=None, write_default=self.default\n",
    ),
    mutation(
        "a delete by a column that was dropped meanwhile is committed",
        "a tombstone lands on a version that has its columns",
        "commit/statements/rows.py",
        "                if gone := set(tombstone.columns) - there:\n",
        "                if gone := set(tombstone.columns) - there - set(tombstone.columns):\n",
    ),
)
