"""The background work that keeps a database fast: expire, resolve, compact, merge. Called by a schedule.

Goes on until all is done or the time is nearly over; the next call goes on from there. What it can be asked is in
``dolmen.maintenance.schedule``, the settings in ``dolmen.functions.settings``. A table that fails does not stop the
others; the invocation fails in the end, and names them all.

Where there is an application for jobs (``dolmen.handover.settings``), what is too large for a function is started
there: the compaction of a table, and the ingest of drops that were handed over, should no job be at it any more.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.database import Database
from dolmen.errors import Error
from dolmen.functions.settings import FunctionSettings
from dolmen.handover.emr_serverless import EmrServerless
from dolmen.handover.jobs import JobAttempt, log_record, metric_name
from dolmen.handover.records import HandoverRecords
from dolmen.handover.round import job_round
from dolmen.ingest.redaction import facts_for_log, reason_for_log
from dolmen.maintenance.deadline import Deadline
from dolmen.maintenance.measures import changed_anything, facts_of, measures_of_debt, measures_of_round
from dolmen.maintenance.run import Done, Failure
from dolmen.maintenance.schedule import CompactRequest
from dolmen.store.url import open_store

logger = Logger(service="compact")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="compact")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Does a round of maintenance; answers what it did."""
    request = CompactRequest.of(event)
    settings = FunctionSettings.of(os.environ)
    database = _opened(settings)
    deadline = Deadline(database.runtime, lambda: context.get_remaining_time_in_millis() / 1000)
    elsewhere = _hand_over(settings, database, request)
    done = database.maintain(
        request.tables, steps=request.steps, compacted_elsewhere=elsewhere, deadline=deadline, tell=_tell
    )
    measured = measures_of_round(done)
    try:
        measured |= measures_of_debt(database.stats())
    except Error as error:
        logger.error("debt unknown", **facts_for_log(error))
    for name, (unit, value) in measured.items():
        metrics.add_metric(name, MetricUnit[unit], value)
    if not done.finished:
        logger.info("to be continued", remaining_ms=context.get_remaining_time_in_millis())
    if done.failures:
        raise RuntimeError("; ".join(map(_said, done.failures)))
    return {"finished": done.finished, "version": database.version}


@cache
def _opened(settings: FunctionSettings) -> Database:
    """One database for the life of the container: what it has cached makes the next round cheaper."""
    return settings.open()[0]


@cache
def _jobs(settings: FunctionSettings) -> tuple[EmrServerless, HandoverRecords]:
    """Where jobs run, and what they are to ingest; made once, as connections are slow to make."""
    assert settings.jobs is not None
    runtime = _opened(settings).runtime
    return EmrServerless(settings.jobs, runtime), HandoverRecords(open_store(settings.jobs.handover_url, runtime))


def _hand_over(settings: FunctionSettings, database: Database, request: CompactRequest) -> tuple[str, ...]:
    """Starts the jobs that are due; returns the tables that are compacted by one."""
    if settings.jobs is None:
        return ()
    service, records = _jobs(settings)
    did = job_round(
        database,
        settings.jobs,
        service,
        records,
        tables=request.tables,
        compacting="compact" in request.steps,
        tell=_tell_job,
    )
    for error in did.errors:
        logger.error("jobs unknown", **facts_for_log(error))
    counts = Counter({"JobsStarted": 0, "JobStartsFailed": len(did.errors), "JobsHeld": 0})
    counts.update(name for name in map(metric_name, did.asked) if name)
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Count, count)
    if did.waiting is not None:
        metrics.add_metric("HandedPending", MetricUnit.Count, did.waiting.records)
        metrics.add_metric("HandedAgeSeconds", MetricUnit.Seconds, did.waiting.age_seconds)
    return did.compacted_elsewhere


def _said(failure: Failure) -> str:
    about = failure.table or "the database"
    return f"{failure.step} {about}: {type(failure.error).__name__}: {reason_for_log(failure.error)}"


def _tell_job(asked: JobAttempt) -> None:
    level, text, facts = log_record(asked)
    getattr(logger, level)(text, **facts)


def _tell(ended: Done | Failure) -> None:
    """Logs a step: names and numbers, never values of the data."""
    if isinstance(ended, Failure):
        logger.error(f"{ended.step} failed", table=ended.table, **facts_for_log(ended.error))
        return
    about: dict[str, Any] = {"table": ended.table} if ended.table else {}
    log = logger.info if changed_anything(ended.result) else logger.debug
    log(ended.step, **about, seconds=round(ended.seconds, 3), **facts_of(ended.result))
