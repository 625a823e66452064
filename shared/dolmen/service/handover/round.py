"""Starts the jobs that are due, on a schedule, and returns what they do instead of the function.

The ingest function starts a job when it hands drops over. But a job that is already running may have listed the records
before that, or a job may have died, or could not be started. So each round starts a job if there are records and no
job is running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dolmen.api.database import Database
from dolmen.errors import Error, StoreUnavailableError
from dolmen.service.handover.compactions import bytes_to_compact, tables_larger_than
from dolmen.service.handover.jobs import JobAttempt, JobService, ask_for_job, compact_job, load_job
from dolmen.service.handover.records import HandoverRecords, PendingRecords
from dolmen.service.handover.settings import JobSettings


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
    progress: Callable[[JobAttempt], None] = lambda attempt: None,
) -> JobRound:
    """Starts the jobs that are due. Raises no error of dolmen's: failures are returned, and the next round tries again.

    Args:
        tables: tables whose compaction may be handed over; None = all.
        compacting: False hands no compaction over.
        progress: called after each job that was asked for.
    """
    attempts: list[JobAttempt] = []
    errors: list[Error] = []
    waiting = None

    def ask_for(each: JobAttempt) -> bool:
        attempts.append(each)
        progress(each)
        return each.is_running

    def is_unreachable() -> bool:
        """Whether the service did not answer: each further request of this round would wait in vain too."""
        return any(isinstance(each.error, StoreUnavailableError) for each in attempts)

    try:
        waiting = records.waiting()
    except Error as error:
        errors.append(error)
    if waiting is not None and waiting.records:
        ask_for(ask_for_job(service, load_job(database.url, records.url), database.runtime.clock_us()))
    elsewhere: list[str] = []
    try:
        # Tables are left to a job that is alive also when little is left to do: both would rewrite the same files.
        asking = compacting and not is_unreachable()
        alive = {run.name for run in service.runs() if run.alive} if asking else set()
        elsewhere += (name for name in database.tables() if alive and compact_job(database.url, name).name in alive)
        for name in tables_larger_than(database.context, settings.compact_bytes, tables) if asking else ():
            if is_unreachable():
                break
            if name in elsewhere or bytes_to_compact(database.context, name) <= settings.compact_bytes:
                continue
            if ask_for(ask_for_job(service, compact_job(database.url, name), database.runtime.clock_us(), name)):
                elsewhere.append(name)
    except Error as error:
        errors.append(error)
    return JobRound(waiting, tuple(elsewhere), tuple(attempts), tuple(errors))
