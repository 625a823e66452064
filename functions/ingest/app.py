"""Files dropped into a landing bucket become rows: S3 event -> queue -> one commit per batch.

Takes SQS batches of S3 notifications or EventBridge events (reporting partial batch failures), and either of them
without a queue (raising when one fails, so that Lambda tries again). Settings: see ``dolmen.functions.settings``.

Where there is an application for jobs (``dolmen.handover.settings``), drops that are large, or very many, are noted
for one instead, which is started if none is alive. A message is acknowledged when that note is written.
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

from dolmen.database import Database
from dolmen.errors import Error
from dolmen.functions.deliveries import Deliveries, DeliveryQueues, HalfTimeDeadline, open_queues
from dolmen.functions.settings import FunctionSettings
from dolmen.handover.drops import hand_over
from dolmen.handover.emr_serverless import EmrServerless
from dolmen.handover.jobs import ask_for_job, load_job, log_record, metric_name
from dolmen.handover.records import HandoverRecords
from dolmen.ingest.announcements import Drop, Message, read_drops, read_messages
from dolmen.ingest.drops.ingest import ingest_drops
from dolmen.ingest.drops.outcomes import DropOutcome
from dolmen.ingest.landing import Landing
from dolmen.ingest.queues.base import Queue
from dolmen.ingest.queues.url import open_queue
from dolmen.ingest.redaction import facts_for_log
from dolmen.results import Commit
from dolmen.store.url import open_store

if TYPE_CHECKING:  # all of Powertools' batches and the event sources would come with it
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

logger = Logger(service="ingest")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="ingest")

START_SECONDS = 45
"""Asking for a job takes up to three requests of 15 seconds each; with less time than that left it is not asked for."""

_NOTABLE = {"rejected": "warning", "superseded": "warning", "failed": "error"}
"""The levels of outcomes that somebody may want to look at."""
_COUNTED = {
    "ingested": "FilesIngested",
    "duplicate": "FilesDuplicate",
    "rejected": "FilesRejected",
    "superseded": "FilesSuperseded",
    "ignored": "FilesIgnored",
    "handed": "FilesHanded",
    "postponed": "FilesPostponed",
    "failed": "FilesFailed",
}


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Ingests what an event announces; answers which messages are to be delivered again."""
    batch = read_messages(event)
    counts = Counter({"Messages": len(batch), "QueueErrors": 0})
    settings = FunctionSettings.of(os.environ)
    database, landing = _opened(settings)
    deliveries = Deliveries(
        batch, _queues(settings), database.runtime.clock_us(), lambda: context.get_remaining_time_in_millis() / 1000
    )
    backlog = _backlog_is_large(settings, counts)
    deadline = HalfTimeDeadline(context.get_remaining_time_in_millis)  # once all that may be slow has answered
    lags: list[float] = []
    for group in deliveries.groups():
        drops, announced_by = _announced(group, deliveries, counts)
        handed = _handed(settings, database, landing, drops, backlog)
        kept = [place for place in range(len(drops)) if place not in handed]
        sizes = [(announced_by[place], drops[place].size) for place in kept]
        sent = set(map(id, deliveries.send_back_excess(sizes, deadline.seconds)))
        away = {place: DropOutcome(drops[place], "postponed") for place in kept if id(announced_by[place]) in sent}
        kept = [place for place in kept if place not in away]
        ingested = ingest_drops(
            database,
            landing,
            [drops[place] for place in kept],
            auto_create=settings.auto_create,
            max_bytes=settings.max_file_bytes,
            deadline=deadline,
            time_left=lambda: context.get_remaining_time_in_millis() / 1000,
        )
        outcomes = handed | away | dict(zip(kept, ingested.outcomes, strict=True))
        for place, message in enumerate(announced_by):
            outcome = outcomes[place]
            _tell(message, outcome)
            counts.update(_counted(outcome))
            lags += _lag_seconds(database, outcome)
            if outcome.status == "postponed":
                deliveries.postpone(message)
            elif outcome.status == "failed":
                assert outcome.error is not None
                deliveries.fail(message, facts_for_log(outcome.error))
        if ingested.commit is not None:
            _tell_commit(ingested.commit)
            counts["CommitAttempts"] += ingested.commit.attempts
    answer = deliveries.settle()
    _tell_deliveries(deliveries)
    counts.update(deliveries.counts)
    if counts["FilesHanded"]:
        _start_job(settings, database, counts, context.get_remaining_time_in_millis() / 1000)
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Bytes if name.startswith("Bytes") else MetricUnit.Count, count)
    if lags:
        metrics.add_metric("IngestLagSeconds", MetricUnit.Seconds, max(lags))
    if deliveries.oldest_seconds is not None:
        metrics.add_metric("OldestUndoneSeconds", MetricUnit.Seconds, deliveries.oldest_seconds)
    metrics.add_metric("ManifestBytes", MetricUnit.Bytes, database.manifest_bytes)
    if deliveries.unanswerable is not None:
        raise RuntimeError(f"not ingested: {deliveries.unanswerable}")
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in answer]}


@cache
def _opened(settings: FunctionSettings) -> tuple[Database, Landing]:
    """One database for the life of the container: what it has cached makes the next commit cheaper."""
    return settings.open()


@cache
def _queues(settings: FunctionSettings) -> DeliveryQueues | None:
    return open_queues(settings.queue, settings.dead_letters, _opened(settings)[0].runtime)


@cache
def _jobs(settings: FunctionSettings) -> tuple[EmrServerless, HandoverRecords, Queue | None]:
    """Where jobs run, what they are to ingest, and whose backlog counts; made once, as connections are slow to make."""
    assert settings.jobs is not None
    runtime = _opened(settings)[0].runtime
    queue = open_queue(settings.queue, runtime, hurried=True) if settings.queue else None
    return (
        EmrServerless(settings.jobs, runtime),
        HandoverRecords(open_store(settings.jobs.handover_url, runtime)),
        queue,
    )


def _backlog_is_large(settings: FunctionSettings, counts: Counter[str]) -> bool:
    """Whether so many messages wait that all drops go to a job. If that cannot be told, they do not."""
    if settings.jobs is None or settings.jobs.backlog is None:
        return False
    _, _, queue = _jobs(settings)
    try:
        return queue is not None and queue.waiting() > settings.jobs.backlog
    except Error as error:
        counts["QueueErrors"] += 1
        logger.error("backlog unknown", **facts_for_log(error))
        return False


def _handed(
    settings: FunctionSettings, database: Database, landing: Landing, drops: list[Drop], backlog: bool
) -> dict[int, DropOutcome]:
    """Notes the drops that a job is to ingest; their outcomes, by their places."""
    if settings.jobs is None:
        return {}
    _, records, _ = _jobs(settings)
    return hand_over(database, landing, records, drops, larger_than=settings.jobs.drop_bytes, backlog=backlog)


def _start_job(settings: FunctionSettings, database: Database, counts: Counter[str], remaining_seconds: float) -> None:
    """Sees to it that a job takes what was handed over. If it cannot be started the schedule tries again."""
    if remaining_seconds < START_SECONDS:
        counts["JobStartsFailed"] += 1
        logger.error("job not started", reason="too little time is left; the next round of compact starts it")
        return
    service, records, _ = _jobs(settings)
    asked = ask_for_job(service, load_job(database.url, records.url), database.runtime.clock_us())
    if name := metric_name(asked):
        counts[name] += 1
    level, text, facts = log_record(asked)
    getattr(logger, level)(text, **facts)


def _announced(group: list[Message], deliveries: Deliveries, counts: Counter[str]) -> tuple[list[Drop], list[Message]]:
    """All drops of a group, and beside each the message that announced it. Malformed messages are refused."""
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


def _counted(outcome: DropOutcome) -> Counter[str]:
    """What an outcome adds to the metrics."""
    counts = Counter({_COUNTED[outcome.status]: 1, "LandingTagsFailed": int(outcome.disposal_error is not None)})
    if outcome.status == "ingested":
        counts["BytesIngested"] = outcome.drop.size
        counts["RowsIngested"] = outcome.counts.ingested
        for name in ("upserted", "deleted", "quarantined"):
            counts[f"Rows{name.capitalize()}"] = getattr(outcome.counts, name)
    return counts


def _lag_seconds(database: Database, outcome: DropOutcome) -> list[float]:
    """How long after its creation an object's rows were committed: one number, or none."""
    created_us = outcome.drop.created_us
    if outcome.status != "ingested" or created_us is None:
        return []
    return [max(0, database.runtime.clock_us() - created_us) / 1e6]


def _tell(message: Message, outcome: DropOutcome) -> None:
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
    if error is not None:
        about |= {"column": outcome.column, **facts_for_log(error)}
    log = getattr(logger, _NOTABLE.get(outcome.status, "info"))
    log(f"drop {outcome.status}", **{name: value for name, value in about.items() if value is not None})
    if outcome.disposal_error is not None:
        place: dict[str, Any] = {"message_id": message.id, "source": drop.source, "object_version": drop.version}
        logger.error("landing not tagged", **place, **facts_for_log(outcome.disposal_error))


def _tell_deliveries(deliveries: Deliveries) -> None:
    for level, text, facts in deliveries.log_records():
        getattr(logger, level)(text, **facts)


def _tell_commit(commit: Commit) -> None:
    logger.info("committed", version=commit.version, rows=commit.counts.rows_added, attempts=commit.attempts)
