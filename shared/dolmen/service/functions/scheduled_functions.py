"""The functions that a schedule calls: a round of maintenance, and garbage collection.

The event of a scheduled function is the payload (``Input``) of an EventBridge Scheduler schedule, or the envelope that
EventBridge makes, whose ``detail`` is the payload::

    {"tables": ["events"], "steps": ["resolve", "compact"]}         to compact; both are optional
    {"dry_run": true}                                                to gc; optional

``dolmen.maintenance.round`` does the steps of a round.

Jobs are started only where there is an application for them (``dolmen.service.handover.emr_serverless``). The ingest
function starts a job when it hands drops over. But a running job may have listed the records before that, a job may
have died, or could not be started. So each round starts a job if there are records and no job is running.

Tables with more to compact than functions can do in a round go to a job too, so that other tables need not wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from dolmen.base.units import count_text
from dolmen.commit.head import Context, context_of
from dolmen.errors import Error, InputError, StoreUnavailableError
from dolmen.format.layout import check_table_name
from dolmen.ingest.redaction import error_fields, reason_for_log
from dolmen.maintenance.compact.compaction import CompactionPlan, compact
from dolmen.maintenance.compact.compaction_plan import MOST_FILES, NEXT_PLAN
from dolmen.maintenance.debt import STEPS, Step, debts
from dolmen.maintenance.round import (
    CompletedStep,
    Deadline,
    StepFailure,
    facts_of,
    has_changed_anything,
    measures_of_collection,
    measures_of_debt,
    measures_of_round,
)
from dolmen.service.functions.function_settings import FunctionResources, Invocation
from dolmen.service.handover.emr_serverless import (
    JobAttempt,
    SparkJob,
    compact_job,
    load_job,
    log_record,
    metric_name,
    request_job,
)

FILE_BYTES = 1 << 18  # the time of a file's requests, as bytes that could be compacted in it

MAX_LOGGED_FAILURES = 100  # the most objects that could not be deleted that are logged one by one


def compact_event(resources: FunctionResources, event: Any, invocation: Invocation) -> dict[str, Any]:
    """Does a round of maintenance; returns whether it finished, and the version.

    A table that fails does not stop the others: RuntimeError names all steps that failed.
    """
    request, database, logger = CompactRequest.of(event), resources.database, invocation.logger
    deadline = Deadline(context_of(database).runtime, invocation.remaining_seconds)
    elsewhere = _start_jobs(resources, request, invocation)

    def log_step(step: CompletedStep | StepFailure) -> None:
        """Logs a step: names and numbers, never values of the data."""
        if isinstance(step, StepFailure):
            logger.error(f"{step.step} failed", table=step.table, **error_fields(step.error))
            return
        about = {"table": step.table} if step.table else {}
        log = logger.info if has_changed_anything(step.result) else logger.debug
        log(step.step, **about, seconds=round(step.seconds, 3), **facts_of(step.result))

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
    """Collects garbage; returns whether it finished, and the version. Raises RuntimeError if any object remains."""
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
    """Starts the jobs that are due; returns the tables that jobs compact. The next round repeats what fails."""
    settings, logger, database = resources.settings.jobs, invocation.logger, resources.database
    if settings is None:
        return ()
    context, service, records = context_of(database), resources.job_service, resources.handover_records
    attempts: list[JobAttempt] = []
    errors: list[Error] = []
    elsewhere: list[str] = []

    def start(job: SparkJob, table: str | None = None) -> bool:
        attempts.append(request_job(service, job, context.runtime.clock_us(), table))
        return attempts[-1].is_running

    def is_unreachable() -> bool:
        """Whether the service did not answer: each further request of this round would wait in vain too."""
        return any(isinstance(each.error, StoreUnavailableError) for each in attempts)

    try:
        pending = records.count()
        invocation.report(
            {"HandedPending": ("Count", pending.records), "HandedAgeSeconds": ("Seconds", pending.age_seconds)}
        )
        if pending.records:
            start(load_job(database.url, records.url))
    except Error as error:
        errors.append(error)
    try:
        if "compact" in request.steps and not is_unreachable():
            # A running job keeps its table also when little is left to do: both would rewrite the same files.
            alive = {run.name for run in service.runs() if run.is_alive}
            elsewhere += (name for name in database.tables() if alive and compact_job(database.url, name).name in alive)
            for name in tables_larger_than(context, settings.compact_bytes, request.tables):
                if is_unreachable():
                    break
                if name in elsewhere or bytes_to_compact(context, name) <= settings.compact_bytes:
                    continue
                if start(compact_job(database.url, name), name):
                    elsewhere.append(name)
    except Error as error:
        errors.append(error)
    for attempt in attempts:
        level, text, fields = log_record(attempt)
        getattr(logger, level)(text, **fields)
    for problem in errors:
        logger.error("jobs unknown", **error_fields(problem))
    counts = Counter({"JobsStarted": 0, "JobStartsFailed": len(errors), "JobsHeld": 0})
    counts.update(name for name in map(metric_name, attempts) if name)
    invocation.report({name: ("Count", count) for name, count in counts.items()})
    return tuple(elsewhere)


def tables_larger_than(context: Context, limit: int, tables: Collection[str] | None = None) -> list[str]:
    """The tables (of these, or None = all) with more than ``limit`` bytes: others have less to compact. One request."""
    return [
        debt.name
        for debt in debts(context).tables.values()
        if (tables is None or debt.name in tables) and debt.bytes + debt.files * FILE_BYTES > limit
    ]


def bytes_to_compact(context: Context, name: str) -> int:
    """Plans the compaction of a table, and returns the bytes that it has to read (see ``weight_of``)."""
    return weight_of(compact(context, name, dry_run=True).plan)


def weight_of(plan: CompactionPlan) -> int:
    """The bytes that a plan has to read, with ``FILE_BYTES`` for each file.

    For a full plan, files that it leaves to the next plans count as if they were like its own.
    """
    read = [group for group in plan.groups if group.bytes_out]  # others lose all their rows unread
    weight = sum(group.bytes_in + len(group.inputs) * FILE_BYTES for group in read)
    return weight + weight * plan.left.get(NEXT_PLAN, 0) // MOST_FILES


def _describe_failure(failure: StepFailure) -> str:
    about = failure.table or "the database"
    return f"{failure.step} {about}: {type(failure.error).__name__}: {reason_for_log(failure.error)}"


@dataclass(frozen=True)
class CompactRequest:
    """A request for a round of maintenance: tables (None for all), and steps in the order of ``STEPS``."""

    tables: tuple[str, ...] | None = None
    steps: tuple[Step, ...] = STEPS

    @classmethod
    def of(cls, event: Any) -> CompactRequest:
        payload = _payload(event, ("tables", "steps"))
        tables, steps = _names(payload, "tables"), _names(payload, "steps")
        for name in tables or ():
            check_table_name(name)
        if unknown := set(steps or ()) - set(STEPS):
            raise InputError(f"no step {min(unknown)!r}; there are: {', '.join(STEPS)}")
        return cls(tables, STEPS if steps is None else tuple(step for step in STEPS if step in steps))


@dataclass(frozen=True)
class GcRequest:
    dry_run: bool = False

    @classmethod
    def of(cls, event: Any) -> GcRequest:
        dry_run = _payload(event, ("dry_run",)).get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise InputError(f"dry_run is {dry_run!r}: give true or false")
        return cls(dry_run)


def _payload(event: Any, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    if isinstance(event, Mapping) and "detail-type" in event:
        event = event.get("detail", {})
        if isinstance(event, str):  # in Scheduler's own envelope the detail is text
            try:
                event = msgspec.json.decode(event or "{}")
            except msgspec.DecodeError as error:
                raise InputError(f"the detail of the event is not JSON ({error}): give an object") from None
    if not isinstance(event, Mapping):
        raise InputError(f"the event is {type(event).__name__}, not an object with {', '.join(allowed)}")
    if unknown := sorted(set(event) - set(allowed)):
        raise InputError(f"the event has the unknown member {unknown[0]!r}; allowed are: {', '.join(allowed)}")
    return event


def _names(payload: Mapping[str, Any], member: str) -> tuple[str, ...] | None:
    names = payload.get(member)
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{member} is {names!r}: give a list of names, or leave it out for all")
    return tuple(dict.fromkeys(names))
