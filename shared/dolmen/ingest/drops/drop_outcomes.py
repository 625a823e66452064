"""Outcomes of dropped files, as the ingest function logs and counts them."""

from __future__ import annotations

from operator import add
from typing import Literal

from msgspec import Struct, structs

from dolmen.ingest.announcements import Drop
from dolmen.ingest.rejects import Reject
from dolmen.transactions.unit_of_work import Commit

DropStatus = Literal[
    "ingested", "duplicate", "rejected", "superseded", "ignored", "handed", "waiting", "postponed", "failed"
]


class RowCounts(Struct, frozen=True):
    """The numbers of rows of a file, by their outcome."""

    appended: int = 0
    upserted: int = 0
    deleted: int = 0
    unchanged: int = 0  # changes without effect, because their key had a newer one
    quarantined: int = 0  # rows that could not be read, and are among the rejects
    ddl: int = 0  # messages about the columns of a source of changes, which were skipped
    erased: int = 0  # rows that were left out because they were erased after the file was dropped

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(*map(add, structs.astuple(self), structs.astuple(other)))

    @property
    def ingested(self) -> int:
        return self.appended + self.upserted


NO_ROWS = RowCounts()


class DropOutcome(Struct, frozen=True):
    """The outcome of a drop."""

    drop: Drop
    # ``ingested``, with ``counts`` and ``version``; a ``duplicate`` of one that ``version`` ingested; ``rejected``,
    # with ``reject`` and the ``error``; ``superseded``: deleted, or overwritten by a newer object, which has an event
    # of its own; ``ignored``: not to be ingested; ``handed`` over to a job; ``waiting`` for its table, and to be
    # delivered again; ``postponed``: not begun for lack of time; ``failed`` temporarily, by ``error``, and to be
    # delivered again
    status: DropStatus
    counts: RowCounts = NO_ROWS
    version: int | None = None
    reject: Reject | None = None  # the rejected file or, if the file is ingested, the rows that could not be read
    error: Exception | None = None
    column: str | None = None  # the table's column that the error is about. Names of other columns are data.
    # why the file could not be tagged or removed, though its rows are in the table
    landing_error: Exception | None = None
    # names of the properties of the table that was created for the file; None if it is a plain one
    inferred: str | None = None
    columns_added: int = 0
    columns_widened: int = 0


class IngestResult(Struct, frozen=True):
    """The result of a batch of drops: an outcome for each, in their order, and the commit, if there was one."""

    outcomes: list[DropOutcome]
    commit: Commit | None
