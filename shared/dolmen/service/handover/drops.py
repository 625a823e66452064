"""Hands drops over to a job, when they are large or very many.

A record is written before the message is acknowledged, so nothing is lost if the function or the job dies. A drop is
applied once, by its id, whoever ingests it. See ``records`` for the records, ``jobs`` for the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from dolmen.api.database import Database
from dolmen.errors import Error
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.outcomes import DropOutcome
from dolmen.ingest.landing import Landing
from dolmen.service.handover.records import HandoverRecords


def hand_over(
    database: Database,
    landing: Landing,
    records: HandoverRecords,
    drops: Sequence[Drop],
    *,
    larger_than: int | None,
    backlog: bool = False,
    auto_create: bool = False,
) -> dict[int, DropOutcome]:
    """Writes ONE record of the drops that a job is to ingest. All others are left to the caller.

    A drop that is not a file of a table is not handed over, and neither is one that was ingested before, or whose table
    does not exist: the caller does what is left to do about it.

    Args:
        larger_than: hand over drops of more bytes than this; None = none for their size.
        backlog: hand over all drops.
        auto_create: hand over a drop whose table does not exist too: the job creates it.

    Returns:
        By the place in ``drops``, the outcome of each that a job is to ingest: ``handed``, or ``failed`` if the record
        may not have been written.
    """
    chosen = {
        place: drop
        for place, drop in enumerate(drops)
        if (backlog or (larger_than is not None and drop.size > larger_than)) and landing.place(drop) is not None
    }
    if not chosen:
        return {}
    try:
        newest = database.transaction()
        names = {place: landing.table(drop) for place, drop in chosen.items()}
        if not auto_create and not set(names.values()).issubset(newest.tables()):
            newest.refresh()  # what a process knows may be older than the table
        done, tables = newest.find_applied({drop.id for drop in chosen.values()}), newest.tables()
        left = {
            place: drop
            for place, drop in chosen.items()
            if drop.id not in done and (auto_create or names[place] in tables)
        }
        if left:
            records.add(list(left.values()))
    except Error as error:
        return {place: DropOutcome(drop, "failed", error=error) for place, drop in chosen.items()}
    return {place: DropOutcome(drop, "handed") for place, drop in left.items()}
