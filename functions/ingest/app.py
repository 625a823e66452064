"""Ingests files that are dropped into a landing bucket: S3 event -> queue -> one commit per batch.

It takes SQS batches of S3 notifications or EventBridge events, and reports partial batch failures. It also takes one
notification without a queue, and then raises when a file fails, so that Lambda tries again. The settings are in
``dolmen.service.functions.function_settings``. The calls, from event to commit::

    lambda_handler
      announcements.read_messages       the event as messages
      Deliveries.groups                 messages that may have killed a function are handled apart
        _read_group
          announcements.read_drops      the dropped objects that a message announces
        handover.drops.hand_over        large or very many drops: writes a record for a job instead
        Deliveries.send_back_excess     drops that there is no time for go back to the queue at once
        ingest_drops                    the others, in one commit
          Landing.place                 the table, from the key
          batch.apply_together          one transaction for all drops; skips those applied before
            Ingestion.add_to            reads one file and adds its rows
              formats.read              the file as record batches of the table's schema
            Transaction.commit          uploads the rows, then commits; also commits which files are rejected
          report.reject_drop            a file that cannot be read: copies it, writes a report
          disposal.dispose              tags, keeps or expires the file
      Deliveries.settle                 sends messages that are not done again, gives hopeless ones up
      handover.jobs.ask_for_job         starts a job for the records, if none is running

Where there is an application for jobs (``dolmen.service.handover.job_settings``), a message is acknowledged once the
record of its drops is written.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.api.database import Database
from dolmen.commit.context import context_of
from dolmen.errors import Error
from dolmen.ingest.announcements import MAX_TABLE_TRIES, Drop, Message, read_drops, read_messages
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.ingest.queues.open_queue import open_queue
from dolmen.ingest.queues.queue import Queue
from dolmen.ingest.redaction import facts_for_log
from dolmen.service.functions.deliveries import Deliveries, DeliveryQueues, HalfTimeDeadline, open_queues
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.service.handover.emr_serverless import EmrServerless
from dolmen.service.handover.handover_records import HandoverRecords, hand_over
from dolmen.service.handover.jobs import ask_for_job, load_job, log_record, metric_name
from dolmen.store.url import open_store
from dolmen.transactions.results import Commit

if TYPE_CHECKING:  # all of Powertools' batches and the event sources would come with it
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

logger = Logger(service="ingest")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="ingest")

START_SECONDS = 45
"""A job is only attempt for when this much time is left: that takes up to three requests of 15 seconds each."""

_LOG_LEVELS = {"rejected": "warning", "superseded": "warning", "waiting": "warning", "failed": "error"}
"""Log levels of outcomes that may need attention; all others are logged as info."""
_METRIC_NAMES = {
    "ingested": "FilesIngested",
    "duplicate": "FilesDuplicate",
    "rejected": "FilesRejected",
    "superseded": "FilesSuperseded",
    "ignored": "FilesIgnored",
    "handed": "FilesHanded",
    "waiting": "FilesWaiting",
    "postponed": "FilesPostponed",
    "failed": "FilesFailed",
}


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Ingests the drops that an event announces; returns the messages that Lambda is to deliver again."""
    batch = read_messages(event)
    counts = Counter({"Messages": len(batch), "QueueErrors": 0})
    settings = FunctionSettings.of(os.environ)
    database, landing = _open(settings)
    deliveries = Deliveries(
        batch,
        _open_queues(settings),
        context_of(database).runtime.clock_us(),
        lambda: context.get_remaining_time_in_millis() / 1000,
    )
    backlog = _backlog_is_large(settings, counts)
    deadline = HalfTimeDeadline(context.get_remaining_time_in_millis)  # once all that may be slow has answered
    lags: list[float] = []
    for group in deliveries.groups():
        drops, announced_by = _read_group(group, deliveries, counts)
        handed_over = _hand_over_drops(settings, database, landing, drops, backlog)
        kept = [place for place in range(len(drops)) if place not in handed_over]
        sizes = [(announced_by[place], drops[place].size) for place in kept]
        sent = set(map(id, deliveries.send_back_excess(sizes, deadline.seconds)))
        away = {place: DropOutcome(drops[place], "postponed") for place in kept if id(announced_by[place]) in sent}
        kept = [place for place in kept if place not in away]
        ingested = ingest_drops(
            database,
            landing,
            [drops[place] for place in kept],
            auto_create=settings.auto_create,
            may_wait={drops[place] for place in kept if announced_by[place].may_wait},
            max_bytes=settings.max_file_bytes,
            deadline=deadline,
            time_left=lambda: context.get_remaining_time_in_millis() / 1000,
        )
        outcomes = handed_over | away | dict(zip(kept, ingested.outcomes, strict=True))
        for place, message in enumerate(announced_by):
            outcome = outcomes[place]
            _log_outcome(message, outcome)
            counts.update(_count_outcome(outcome))
            lags += _lag_seconds(database, outcome)
            if outcome.status == "postponed":
                deliveries.postpone(message)
            elif outcome.status == "waiting":
                assert outcome.error is not None
                deliveries.wait(message, facts_for_log(outcome.error))
            elif outcome.status == "failed":
                assert outcome.error is not None
                deliveries.fail(message, facts_for_log(outcome.error))
        if ingested.commit is not None:
            _log_commit(ingested.commit)
            counts["CommitAttempts"] += ingested.commit.attempts
    answer = deliveries.settle()
    _log_deliveries(deliveries)
    counts.update(deliveries.counts)
    if counts["FilesHanded"]:
        _start_job(settings, database, counts, context.get_remaining_time_in_millis() / 1000)
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Bytes if name.startswith("Bytes") else MetricUnit.Count, count)
    if lags:
        metrics.add_metric("IngestLagSeconds", MetricUnit.Seconds, max(lags))
    if deliveries.oldest_seconds is not None:
        metrics.add_metric("OldestUndoneSeconds", MetricUnit.Seconds, deliveries.oldest_seconds)
    metrics.add_metric("ManifestBytes", MetricUnit.Bytes, context_of(database).head.manifest_bytes)
    if deliveries.unanswerable is not None:
        raise RuntimeError(f"not ingested: {deliveries.unanswerable}")
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in answer]}


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # else not even imported, as that would take a start's time
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="ingest", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> tuple[Database, Landing]:
    """One database for the life of the container: what it has cached makes the next commit cheaper."""
    return settings.open()


@cache
def _open_queues(settings: FunctionSettings) -> DeliveryQueues | None:
    return open_queues(settings.queue, settings.dead_letters, context_of(_open(settings)[0]).runtime)


@cache
def _open_jobs(settings: FunctionSettings) -> tuple[EmrServerless, HandoverRecords, Queue | None]:
    """The job service, the records for jobs, and the queue whose backlog counts; made once, as connecting is slow."""
    assert settings.jobs is not None
    runtime = context_of(_open(settings)[0]).runtime
    queue = open_queue(settings.queue, runtime, hurried=True) if settings.queue else None
    return (
        EmrServerless(settings.jobs, runtime),
        HandoverRecords(open_store(settings.jobs.handover_url, runtime)),
        queue,
    )


def _backlog_is_large(settings: FunctionSettings, counts: Counter[str]) -> bool:
    """Whether so many messages wait that all drops go to a job; False if the number is not known."""
    if settings.jobs is None or settings.jobs.backlog is None:
        return False
    _, _, queue = _open_jobs(settings)
    try:
        return queue is not None and queue.waiting() > settings.jobs.backlog
    except Error as error:
        counts["QueueErrors"] += 1
        logger.error("backlog unknown", **facts_for_log(error))
        return False


def _hand_over_drops(
    settings: FunctionSettings, database: Database, landing: Landing, drops: list[Drop], backlog: bool
) -> dict[int, DropOutcome]:
    """Writes a record of the drops that a job is to ingest; returns their outcomes, by their places."""
    if settings.jobs is None:
        return {}
    _, records, _ = _open_jobs(settings)
    return hand_over(
        database,
        landing,
        records,
        drops,
        larger_than=settings.jobs.drop_bytes,
        backlog=backlog,
        auto_create=settings.auto_create,
    )


def _start_job(settings: FunctionSettings, database: Database, counts: Counter[str], remaining_seconds: float) -> None:
    """Starts a job for the drops that were handed over. If that fails, the next round of compact tries again."""
    if remaining_seconds < START_SECONDS:
        counts["JobStartsFailed"] += 1
        logger.error("job not started", reason="too little time is left; the next round of compact starts it")
        return
    service, records, _ = _open_jobs(settings)
    attempt = ask_for_job(service, load_job(database.url, records.url), context_of(database).runtime.clock_us())
    if name := metric_name(attempt):
        counts[name] += 1
    level, text, facts = log_record(attempt)
    getattr(logger, level)(text, **facts)


def _read_group(group: list[Message], deliveries: Deliveries, counts: Counter[str]) -> tuple[list[Drop], list[Message]]:
    """Reads all drops of a group, and for each the message that announced it. Refuses malformed messages."""
    drops: list[Drop] = []
    announced_by: list[Message] = []
    for message in group:
        found, error = read_drops(message)
        drops += found
        announced_by += [message] * len(found)
        if error is not None:
            facts = facts_for_log(error)
            deliveries.refuse(message, facts)
            counts["MessagesMalformed"] += 1
            logger.error("message malformed", message_id=message.id, final=True, **facts)
    return drops, announced_by


def _count_outcome(outcome: DropOutcome) -> Counter[str]:
    """The metrics that an outcome adds to, with their counts."""
    counts = Counter({_METRIC_NAMES[outcome.status]: 1, "LandingTagsFailed": int(outcome.disposal_error is not None)})
    if outcome.status == "ingested":
        counts["BytesIngested"] = outcome.drop.size
        counts["RowsIngested"] = outcome.counts.ingested
        for name in ("upserted", "deleted", "quarantined", "erased"):
            counts[f"Rows{name.capitalize()}"] = getattr(outcome.counts, name)
        counts["ColumnsAdded"], counts["ColumnsWidened"] = outcome.columns_added, outcome.columns_widened
    return counts


def _lag_seconds(database: Database, outcome: DropOutcome) -> list[float]:
    """Seconds between the creation of an object and the commit of its rows: a list of one, or empty if not known."""
    created_us = outcome.drop.created_us
    if outcome.status != "ingested" or created_us is None:
        return []
    return [max(0, context_of(database).runtime.clock_us() - created_us) / 1e6]


def _log_outcome(message: Message, outcome: DropOutcome) -> None:
    """Logs an outcome: places and numbers, never values of the data."""
    error, drop = outcome.error, outcome.drop
    about: dict[str, Any] = {
        "message_id": message.id,
        "source": drop.source,
        "object_version": drop.version,
        "bytes": drop.size,
        "version": outcome.version,
        "rejected_to": outcome.reject.url if outcome.reject else None,
    }
    if outcome.status == "ingested":
        counts = {f"rows_{name}": count for name, count in asdict(outcome.counts).items() if count}
        about |= {"rows": outcome.counts.ingested, **counts}
        about |= {name: getattr(outcome, name) or None for name in ("columns_added", "columns_widened")}
    if outcome.status == "waiting":
        about["tries_left"] = MAX_TABLE_TRIES - message.tries - message.waits
    if error is not None:
        about |= {"column": outcome.column, **facts_for_log(error)}
    log = getattr(logger, _LOG_LEVELS.get(outcome.status, "info"))
    log(f"drop {outcome.status}", **{name: value for name, value in about.items() if value is not None})
    if outcome.disposal_error is not None:
        place: dict[str, Any] = {"message_id": message.id, "source": drop.source, "object_version": drop.version}
        logger.error("landing not tagged", **place, **facts_for_log(outcome.disposal_error))


def _log_deliveries(deliveries: Deliveries) -> None:
    for level, text, facts in deliveries.log_records():
        getattr(logger, level)(text, **facts)


def _log_commit(commit: Commit) -> None:
    logger.info("committed", version=commit.version, rows=commit.counts.rows_added, attempts=commit.attempts)
