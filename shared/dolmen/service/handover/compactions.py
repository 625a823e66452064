"""Finds the tables with more to compact than a function should do; these go to a job on Spark.

A function of 1,769 MB, which is one processor, compacts about 50 MB a second and is stopped after 15 minutes: 32 GiB
take 11 or 12 of them, and that is a round. What is larger takes several, in which other tables wait, while a job
spreads over as many processors as the application may have.
"""

from __future__ import annotations

from collections.abc import Collection

from dolmen.commit.context import Context
from dolmen.maintenance.compact.compaction import CompactionPlan, compact
from dolmen.maintenance.compact.plan import MOST_FILES, NEXT_PLAN
from dolmen.maintenance.debt import debts

FILE_BYTES = 1 << 18
"""The time of a file's requests, as bytes that could be compacted in it."""


def tables_larger_than(context: Context, limit: int, tables: Collection[str] | None = None) -> list[str]:
    """The tables that are larger than ``limit`` bytes; no other can have as much to compact. One request.

    Args:
        tables: their names; None = all.
    """
    return [
        debt.name
        for debt in debts(context).tables.values()
        if (tables is None or debt.name in tables) and debt.bytes + debt.files * FILE_BYTES > limit
    ]


def bytes_to_compact(context: Context, name: str) -> int:
    """Plans the compaction of a table, and returns the bytes that it has to read (see ``weight_of``).

    Raises:
        TableNotFoundError: no such table.
        CorruptionError: a segment is damaged or missing.
    """
    return weight_of(compact(context, name, dry_run=True).plan)


def weight_of(plan: CompactionPlan) -> int:
    """The bytes that a plan has to read, with ``FILE_BYTES`` for each file.

    For a full plan, files that it leaves to the next plans are counted as if they were like its own. Pure.
    """
    read = [group for group in plan.groups if group.bytes_out]  # others lose all their rows unread
    weight = sum(group.bytes_in + len(group.inputs) * FILE_BYTES for group in read)
    return weight + weight * plan.left.get(NEXT_PLAN, 0) // MOST_FILES
