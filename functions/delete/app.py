"""Applies delete requests as tombstones: queue -> one commit per batch.

It takes SQS batches of requests, and reports partial batch failures. It also takes one request without a queue, and
then raises when it fails, so that Lambda tries again. The messages are described in
``dolmen.ingest.deletes.delete_requests``, the settings in ``dolmen.service.functions.function_settings``. The calls,
from event to commit::

    lambda_handler
      announcements.read_messages       the event as messages
      Deliveries.groups                 messages that may have killed a function are handled apart
        _read_group
          requests.parse_request        one message as a request, with its id and digest
        apply_deletes                   all of them, in one commit
          batch.apply_together          one transaction; skips requests applied before
            TransactionTable.delete     adds a tombstone, or positions, for one table
            Transaction.commit          uploads what is large, then commits
      Deliveries.settle                 sends messages that are not done again, gives hopeless ones up
      publish_erasures                  tables that are published as Iceberg, and in which rows were erased
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.api.database import Database
from dolmen.format.erasures import erasure_id
from dolmen.ingest.announcements import Message, read_messages
from dolmen.ingest.deletes.delete_requests import (
    DeleteRequest,
    apply_deletes,
    parse_request,
    request_names,
    request_tables,
    request_values,
)
from dolmen.ingest.redaction import RequestContent, facts_for_log
from dolmen.service.functions.deliveries import Deliveries, DeliveryQueues, HalfTimeDeadline, open_queues
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.transactions.results import Commit

if TYPE_CHECKING:  # all of Powertools' batches and the event sources would come with it
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

logger = Logger(service="delete")
_LOOKUP_BYTES_PER_SECOND = 32 << 20
"""Bytes of data files that are looked through for erased rows, at most, for each second of half of the time left."""
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="delete")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Applies the requests of an event; returns the messages that Lambda is to deliver again."""
    batch = read_messages(event)
    counts = Counter({"Messages": len(batch)})
    settings = FunctionSettings.of(os.environ)
    database = _open(settings)
    deliveries = Deliveries(
        batch,
        _open_queues(settings),
        database.runtime.clock_us(),
        lambda: context.get_remaining_time_in_millis() / 1000,
    )
    deadline = HalfTimeDeadline(context.get_remaining_time_in_millis)
    counts["DeletesFailed"] = 0
    erasures: list[str] = []
    for group in deliveries.groups():
        requests, sent_by = _read_group(group, context.aws_request_id, deliveries, counts)
        deleted = apply_deletes(database, requests, deadline=deadline)
        for message, request, outcome in zip(sent_by, requests, deleted.outcomes, strict=True):
            if outcome.status == "postponed":
                deliveries.postpone(message)
                logger.info("delete postponed", message_id=message.id, request_id=request.id)
                continue
            if outcome.error is not None:
                counts["DeletesFailed"] += 1
                facts = facts_for_log(
                    outcome.error, RequestContent(request_values(request), request_names(deleted.seen, request))
                )
                final = outcome.status == "refused"
                (deliveries.refuse if final else deliveries.fail)(message, facts)
                logger.error("delete failed", message_id=message.id, request_id=request.id, final=final, **facts)
                continue
            counts["DeletesDuplicate" if outcome.status == "duplicate" else "DeletesApplied"] += 1
            about: dict[str, Any] = {"tables": request_tables(deleted.seen, request)}
            if request.erases:
                about["erasure"] = erasure_id(request.id)
                if outcome.status == "applied":
                    erasures.append(erasure_id(request.id))
            logger.info(
                f"delete {outcome.status}",
                message_id=message.id,
                request_id=request.id,
                **about,
                version=outcome.version,
            )
        if deleted.commit is not None:
            _log_commit(deleted.commit)
            counts["CommitAttempts"] += deleted.commit.attempts
    answer = deliveries.settle()
    for level, text, facts in deliveries.log_records():
        getattr(logger, level)(text, **facts)
    counts.update(deliveries.counts)
    if erasures:
        _publish(database, erasures, deadline.seconds, context, counts)
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Count, count)
    if deliveries.oldest_seconds is not None:
        metrics.add_metric("OldestUndoneSeconds", MetricUnit.Seconds, deliveries.oldest_seconds)
    metrics.add_metric("ManifestBytes", MetricUnit.Bytes, database.manifest_bytes)
    if deliveries.unanswerable is not None:
        raise RuntimeError(f"not deleted: {deliveries.unanswerable}")
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in answer]}


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # else not even imported, as that would take a start's time
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="delete", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> Database:
    """One database for the life of the container: what it has cached makes the next commit cheaper."""
    return settings.open()[0]


@cache
def _open_queues(settings: FunctionSettings) -> DeliveryQueues | None:
    return open_queues(settings.delete_queue, settings.dead_letters, _open(settings).runtime)


def _read_group(
    group: list[Message], invocation_id: str, deliveries: Deliveries, counts: Counter[str]
) -> tuple[list[DeleteRequest], list[Message]]:
    """Reads the requests of a group, and for each its message. Refuses malformed messages."""
    requests: list[DeleteRequest] = []
    sent_by: list[Message] = []
    for message in group:
        try:
            # Lambda repeats an asynchronous invocation under the same id.
            requests.append(parse_request(message.body, message.id or invocation_id))
            sent_by.append(message)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one message must not block its batch
            facts = facts_for_log(error)
            deliveries.refuse(message, facts)
            counts["DeletesFailed"] += 1
            logger.error("delete failed", message_id=message.id, final=True, **facts)
    return requests, sent_by


def _publish(
    database: Database, erasures: list[str], seconds: float, context: LambdaContext, counts: Counter[str]
) -> None:
    """Publishes tables in which rows were erased, within the time. What fails is left to the next round of compact.

    The requests are applied by now, and stay so. A repeated delivery finds that and publishes nothing.

    Args:
        seconds: no publication is begun with less time left.
    """
    from dolmen.iceberg.published_versions import publish_erasures  # imports fastavro

    done = publish_erasures(
        database.context,
        erasures,
        deadline=lambda: context.get_remaining_time_in_millis() / 1000 < seconds,
        lookup_bytes=int(_LOOKUP_BYTES_PER_SECOND * seconds),
    )
    counts["TablesPublished"] = len(done.published)
    for one in done.published:
        logger.info("published", table=one.table, version=one.version)
    for name in done.postponed:
        logger.info("publication postponed", table=name)
    for name, error in done.failures.items():
        counts["PublicationsFailed"] += 1
        logger.error("publication failed", table=name, **facts_for_log(error))


def _log_commit(commit: Commit) -> None:
    logger.info(
        "committed", version=commit.version, tombstones=commit.counts.tombstones_added, attempts=commit.attempts
    )
