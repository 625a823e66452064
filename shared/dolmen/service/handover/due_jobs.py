"""Starts the jobs that are due, on a schedule, and returns which tables they compact instead of the function.

The ingest function starts a job when it hands drops over. But a job that is already running may have listed the records
before that, or a job may have died, or could not be started. So each round starts a job if there are records and no
job is running.

Tables with more to compact than a function should do go to a job too. A function of 1,769 MB, which is one processor,
compacts about 50 MB a second and is stopped after 15 minutes: 32 GiB take 11 or 12 of them, which is a round. A larger
table would take several rounds, in which other tables wait, while a job spreads over as many processors as the
application may have.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dolmen.api.database import Database
from dolmen.commit.context import Context, context_of
from dolmen.errors import Error, StoreUnavailableError
from dolmen.maintenance.compact.compaction import CompactionPlan, compact
from dolmen.maintenance.compact.compaction_plan import MOST_FILES, NEXT_PLAN
from dolmen.maintenance.debt import debts
from dolmen.service.handover.emr_serverless import JobSettings
from dolmen.service.handover.jobs import JobAttempt, JobService, compact_job, load_job, request_job

if TYPE_CHECKING:  # it imports the readers of files, which the scheduled functions do not need
    from dolmen.service.handover.handover_records import HandoverRecords, PendingRecords

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


@dataclass(frozen=True)
class JobRound:
    """The result of a round.

    Args:
        waiting: the records of drops that were handed over; None if they could not be listed.
        compacted_elsewhere: tables that a job compacts.
        attempts: the jobs that were asked for.
        errors: errors that kept the round from finding out what is due.
    """

    waiting: PendingRecords | None
    compacted_elsewhere: tuple[str, ...]
    attempts: tuple[JobAttempt, ...]
    errors: tuple[Error, ...]


def job_round(
    database: Database,
    settings: JobSettings,
    service: JobService,
    records: HandoverRecords,
    *,
    tables: Collection[str] | None = None,
    compacting: bool = True,
) -> JobRound:
    """Starts the jobs that are due. Raises no error of dolmen's: failures are returned, and the next round tries again.

    Args:
        tables: tables whose compaction may be handed over; None = all.
        compacting: False hands no compaction over.
    """
    attempts: list[JobAttempt] = []
    errors: list[Error] = []
    waiting = None

    def ask_for(each: JobAttempt) -> bool:
        attempts.append(each)
        return each.is_running

    def is_unreachable() -> bool:
        """Whether the service did not answer: each further request of this round would wait in vain too."""
        return any(isinstance(each.error, StoreUnavailableError) for each in attempts)

    try:
        waiting = records.waiting()
    except Error as error:
        errors.append(error)
    if waiting is not None and waiting.records:
        ask_for(request_job(service, load_job(database.url, records.url), context_of(database).runtime.clock_us()))
    elsewhere: list[str] = []
    try:
        # Tables are left to a job that is alive also when little is left to do: both would rewrite the same files.
        asking = compacting and not is_unreachable()
        alive = {run.name for run in service.runs() if run.alive} if asking else set()
        elsewhere += (name for name in database.tables() if alive and compact_job(database.url, name).name in alive)
        for name in tables_larger_than(context_of(database), settings.compact_bytes, tables) if asking else ():
            if is_unreachable():
                break
            if name in elsewhere or bytes_to_compact(context_of(database), name) <= settings.compact_bytes:
                continue
            if ask_for(
                request_job(service, compact_job(database.url, name), context_of(database).runtime.clock_us(), name)
            ):
                elsewhere.append(name)
    except Error as error:
        errors.append(error)
    return JobRound(waiting, tuple(elsewhere), tuple(attempts), tuple(errors))
