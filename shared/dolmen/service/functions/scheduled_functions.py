"""The functions that a schedule calls: a round of maintenance, and garbage collection.

The calls of a round, from event to commit::

    compact_event
      due_jobs.job_round                starts jobs: for tables too large for a function, for drops handed over
      Database.maintain                 the other tables: dolmen.maintenance.round, step by step
        expire, resolve, compact, index, merge, publish   each a commit, or several
      measures_of_round, Database.stats the metrics

Jobs are only started where there is an application for them (``dolmen.service.handover.emr_serverless``). The events
are described in ``dolmen.maintenance.round``.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from dolmen.base.units import count_text
from dolmen.commit.context import context_of
from dolmen.errors import Error
from dolmen.ingest.redaction import error_fields, reason_for_log
from dolmen.maintenance.round import (
    CompactRequest,
    Deadline,
    Done,
    GcRequest,
    StepFailure,
    changed_anything,
    facts_of,
    measures_of_collection,
    measures_of_debt,
    measures_of_round,
)
from dolmen.service.functions.function_settings import FunctionResources, Invocation
from dolmen.service.handover.due_jobs import job_round
from dolmen.service.handover.jobs import log_record, metric_name

MAX_LOGGED_FAILURES = 100
"""At most this many objects that could not be deleted are logged one by one."""


def compact_event(resources: FunctionResources, event: Any, invocation: Invocation) -> dict[str, Any]:
    """Does a round of maintenance; returns whether it finished, and the version.

    A table that fails does not stop the others.

    Raises:
        RuntimeError: names all steps that failed.
    """
    request, database, logger = CompactRequest.of(event), resources.database, invocation.logger
    deadline = Deadline(context_of(database).runtime, invocation.remaining_seconds)
    elsewhere = _start_jobs(resources, request, invocation)

    def log_step(ended: Done | StepFailure) -> None:
        """Logs a step: names and numbers, never values of the data."""
        if isinstance(ended, StepFailure):
            logger.error(f"{ended.step} failed", table=ended.table, **error_fields(ended.error))
            return
        about = {"table": ended.table} if ended.table else {}
        log = logger.info if changed_anything(ended.result) else logger.debug
        log(ended.step, **about, seconds=round(ended.seconds, 3), **facts_of(ended.result))

    done = database.maintain(
        request.tables, steps=request.steps, compacted_elsewhere=elsewhere, deadline=deadline, progress=log_step
    )
    measures = measures_of_round(done)
    try:
        measures |= measures_of_debt(database.stats())
    except Error as error:
        logger.error("debt unknown", **error_fields(error))
    invocation.report(measures)
    if not done.finished:
        logger.info("to be continued", remaining_ms=invocation.remaining_ms())
    if done.failures:
        raise RuntimeError("; ".join(map(_describe_failure, done.failures)))
    return {"finished": done.finished, "version": database.version}


def gc_event(resources: FunctionResources, event: Any, invocation: Invocation) -> dict[str, Any]:
    """Collects garbage; returns whether it finished, and the version.

    Raises:
        RuntimeError: objects could not be deleted.
    """
    request, database, logger = GcRequest.of(event), resources.database, invocation.logger
    deadline = Deadline(context_of(database).runtime, invocation.remaining_seconds)
    collected = database.gc(dry_run=request.dry_run, deadline=deadline, outside=resources.settings.outside)
    invocation.report(measures_of_collection(collected))
    logger.info("collected", dry_run=request.dry_run, **facts_of(collected))
    if collected.errors:
        for key, reason in islice(collected.errors.items(), MAX_LOGGED_FAILURES):
            logger.error("not deleted", key=key, reason=reason)
        failed = count_text(len(collected.errors), "object")
        raise RuntimeError(f"{failed} could not be deleted, {min(collected.errors)} first")
    return {"finished": collected.finished, "version": collected.version}


def _start_jobs(resources: FunctionResources, request: CompactRequest, invocation: Invocation) -> tuple[str, ...]:
    """Starts the jobs that are due; returns the tables that jobs compact."""
    settings, logger = resources.settings.jobs, invocation.logger
    if settings is None:
        return ()
    round_ = job_round(
        resources.database,
        settings,
        resources.job_service,
        resources.records,
        tables=request.tables,
        compacting="compact" in request.steps,
    )
    for attempt in round_.attempts:
        level, text, fields = log_record(attempt)
        getattr(logger, level)(text, **fields)
    for error in round_.errors:
        logger.error("jobs unknown", **error_fields(error))
    counts = Counter({"JobsStarted": 0, "JobStartsFailed": len(round_.errors), "JobsHeld": 0})
    counts.update(name for name in map(metric_name, round_.attempts) if name)
    invocation.report({name: ("Count", count) for name, count in counts.items()})
    if round_.waiting is not None:
        age_seconds = round_.waiting.age_seconds
        invocation.report(
            {"HandedPending": ("Count", round_.waiting.records), "HandedAgeSeconds": ("Seconds", age_seconds)}
        )
    return round_.compacted_elsewhere


def _describe_failure(failure: StepFailure) -> str:
    about = failure.table or "the database"
    return f"{failure.step} {about}: {type(failure.error).__name__}: {reason_for_log(failure.error)}"
