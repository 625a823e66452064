"""Keeps a database fast: expires, resolves, compacts, merges and publishes. A schedule calls it.

It runs until all is done or its time is nearly over; the next call continues. The events that it takes are described
in ``dolmen.maintenance.round``, the settings in ``dolmen.service.functions.function_settings``. A table that fails does
not stop the others; the invocation fails in the end, and names all of them. The calls, from event to commit::

    lambda_handler
      CompactRequest.of                 the event: tables and steps
      handover.round.job_round          starts jobs: for tables too large for a function, for drops handed over
      Database.maintain                 the other tables: dolmen.maintenance.round, step by step
        expire, resolve, compact, index, merge, publish   each a commit, or several
      measures_of_round, Database.stats the metrics

Jobs are only started where there is an application for them (``dolmen.service.handover.job_settings``).
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.api.database import Database
from dolmen.commit.context import context_of
from dolmen.errors import Error
from dolmen.ingest.redaction import facts_for_log, reason_for_log
from dolmen.maintenance.deadline import Deadline
from dolmen.maintenance.measures import changed_anything, facts_of, measures_of_debt, measures_of_round
from dolmen.maintenance.round import CompactRequest, Done, StepFailure
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.service.handover.emr_serverless import EmrServerless
from dolmen.service.handover.handover_records import HandoverRecords
from dolmen.service.handover.jobs import JobAttempt, log_record, metric_name
from dolmen.service.handover.round import job_round
from dolmen.store.url import open_store

logger = Logger(service="compact")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="compact")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Does a round of maintenance; returns whether it finished, and the version."""
    request = CompactRequest.of(event)
    settings = FunctionSettings.of(os.environ)
    database = _open(settings)
    deadline = Deadline(context_of(database).runtime, lambda: context.get_remaining_time_in_millis() / 1000)
    elsewhere = _start_jobs(settings, database, request)
    done = database.maintain(
        request.tables, steps=request.steps, compacted_elsewhere=elsewhere, deadline=deadline, progress=_log_step
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
        raise RuntimeError("; ".join(map(_describe_failure, done.failures)))
    return {"finished": done.finished, "version": database.version}


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # else not even imported, as that would take a start's time
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="compact", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> Database:
    """One database for the life of the container: what it has cached makes the next round cheaper."""
    return settings.open()[0]


@cache
def _open_jobs(settings: FunctionSettings) -> tuple[EmrServerless, HandoverRecords]:
    """The job service, and the records for jobs; made once, as connecting is slow."""
    assert settings.jobs is not None
    runtime = context_of(_open(settings)).runtime
    return EmrServerless(settings.jobs, runtime), HandoverRecords(open_store(settings.jobs.handover_url, runtime))


def _start_jobs(settings: FunctionSettings, database: Database, request: CompactRequest) -> tuple[str, ...]:
    """Starts the jobs that are due; returns the tables that jobs compact."""
    if settings.jobs is None:
        return ()
    service, records = _open_jobs(settings)
    did = job_round(
        database,
        settings.jobs,
        service,
        records,
        tables=request.tables,
        compacting="compact" in request.steps,
        progress=_log_job,
    )
    for error in did.errors:
        logger.error("jobs unknown", **facts_for_log(error))
    counts = Counter({"JobsStarted": 0, "JobStartsFailed": len(did.errors), "JobsHeld": 0})
    counts.update(name for name in map(metric_name, did.attempts) if name)
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Count, count)
    if did.waiting is not None:
        metrics.add_metric("HandedPending", MetricUnit.Count, did.waiting.records)
        metrics.add_metric("HandedAgeSeconds", MetricUnit.Seconds, did.waiting.age_seconds)
    return did.compacted_elsewhere


def _describe_failure(failure: StepFailure) -> str:
    about = failure.table or "the database"
    return f"{failure.step} {about}: {type(failure.error).__name__}: {reason_for_log(failure.error)}"


def _log_job(attempt: JobAttempt) -> None:
    level, text, facts = log_record(attempt)
    getattr(logger, level)(text, **facts)


def _log_step(ended: Done | StepFailure) -> None:
    """Logs a step: names and numbers, never values of the data."""
    if isinstance(ended, StepFailure):
        logger.error(f"{ended.step} failed", table=ended.table, **facts_for_log(ended.error))
        return
    about: dict[str, Any] = {"table": ended.table} if ended.table else {}
    log = logger.info if changed_anything(ended.result) else logger.debug
    log(ended.step, **about, seconds=round(ended.seconds, 3), **facts_of(ended.result))
