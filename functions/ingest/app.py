"""Files dropped into a landing bucket become rows: S3 event -> queue -> one commit per batch.

Takes SQS batches of S3 notifications or EventBridge events (reporting partial batch failures), and either of them
without a queue (raising when one fails, so that Lambda tries again). Settings: see ``dolmen.ingest.settings``.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.database import Database
from dolmen.errors import Error
from dolmen.ingest.drops import DropOutcome, ingest_drops
from dolmen.ingest.events import Drop, Message, drops_of, isolate, messages
from dolmen.ingest.landing import Landing
from dolmen.ingest.settings import Settings
from dolmen.results import Commit

logger = Logger(service="ingest")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="ingest")

_LEVELS = {"ingested": "info", "duplicate": "info", "ignored": "info", "failed": "error"}
_COUNTED = {
    "ingested": "FilesIngested",
    "duplicate": "FilesDuplicate",
    "rejected": "FilesRejected",
    "superseded": "FilesSuperseded",
    "ignored": "FilesIgnored",
    "failed": "FilesFailed",
}


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Ingests what an event announces; answers which messages are to be delivered again."""
    batch = messages(event)
    counts = Counter({"Messages": len(batch)})
    settings = Settings.of(os.environ)
    database, landing = _opened(settings)
    half_ms = context.get_remaining_time_in_millis() / 2
    failed: dict[str | None, str] = {}
    for group in isolate(batch):
        drops, announced_by = _announced(group, failed, counts)
        ingested = ingest_drops(
            database,
            landing,
            drops,
            auto_create=settings.auto_create,
            out_of_time=lambda: context.get_remaining_time_in_millis() < half_ms,
        )
        for message, outcome in zip(announced_by, ingested.outcomes, strict=True):
            _tell(message, outcome)
            counts[_COUNTED[outcome.status]] += 1
            counts["RowsIngested"] += outcome.rows
            if outcome.status == "failed":
                failed[message.id] = f"{outcome.drop.source}: {outcome.error}"
        if ingested.commit is not None:
            _tell_commit(ingested.commit)
            counts["CommitAttempts"] += ingested.commit.attempts
    for name, count in counts.items():
        metrics.add_metric(name, MetricUnit.Count, count)
    metrics.add_metric("ManifestBytes", MetricUnit.Bytes, database.manifest_bytes)
    if None in failed:
        raise RuntimeError(f"not ingested: {failed[None]}")
    return {"batchItemFailures": [{"itemIdentifier": str(message_id)} for message_id in failed]}


@cache
def _opened(settings: Settings) -> tuple[Database, Landing]:
    """One database for the life of the container: what it has cached makes the next commit cheaper."""
    return settings.open()


def _announced(
    group: list[Message], failed: dict[str | None, str], counts: Counter[str]
) -> tuple[list[Drop], list[Message]]:
    """All drops of a group, and beside each the message that announced it. Malformed messages fail."""
    drops: list[Drop] = []
    announced_by: list[Message] = []
    for message in group:
        found, error = drops_of(message)
        drops += found
        announced_by += [message] * len(found)
        if error is not None:
            failed[message.id] = str(error)
            counts["MessagesMalformed"] += 1
            logger.error("message malformed", message_id=message.id, reason=str(error))
    return drops, announced_by


def _tell(message: Message, outcome: DropOutcome) -> None:
    """Logs an outcome: places, never values of the data."""
    error, drop = outcome.error, outcome.drop
    about: dict[str, Any] = {
        "message_id": message.id,
        "source": drop.source,
        "object_version": drop.version,
        "bytes": drop.size,
        "rows": outcome.rows if outcome.status == "ingested" else None,
        "version": outcome.version,
        "rejected_to": outcome.reject.url if outcome.reject else None,
        "error": type(error).__name__ if error else None,
        "line": getattr(error, "line", None),
        "column": getattr(error, "column", None),
        "reason": str(error) if outcome.status == "failed" else None,
    }
    bug = error if outcome.status == "failed" and not isinstance(error, Error) else None
    log = getattr(logger, _LEVELS.get(outcome.status, "warning"))
    log(f"drop {outcome.status}", exc_info=bug, **{name: value for name, value in about.items() if value is not None})


def _tell_commit(commit: Commit) -> None:
    logger.info("committed", version=commit.version, rows=commit.counts.rows_added, attempts=commit.attempts)
