"""Ingests the dropped files that one event announces: the work of the ingest function.

ARCHITECTURE.md ("Walk 1") follows the calls from event to commit. If drops are handed over to jobs
(``dolmen.service.handover``), their message is acknowledged as soon as the records for the job are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from dolmen.commit.head import context_of
from dolmen.errors import Error
from dolmen.ingest.announcements import Drop, read_drops
from dolmen.ingest.batch import MAX_TABLE_TRIES, Message
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.redaction import error_fields
from dolmen.service.functions.deliveries import BatchResponse, Deliveries, HalfTimeDeadline
from dolmen.service.functions.function_settings import FunctionResources, Invocation
from dolmen.service.handover.emr_serverless import load_job, log_record, metric_name, request_job
from dolmen.service.handover.handover_records import hand_over

START_SECONDS = 45  # the time that starting a job may take: three requests of 15 seconds each

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


def ingest_event(resources: FunctionResources, batch: Sequence[Message], invocation: Invocation) -> BatchResponse:
    """Ingests the drops that the messages of an event announce; returns the messages to deliver again.

    Raises RuntimeError if not all is done and the event came from no queue, which would deliver it again.
    """
    return _IngestEvent(resources, batch, invocation).run()


class _IngestEvent:
    """One event, while it is handled."""

    def __init__(self, resources: FunctionResources, batch: Sequence[Message], invocation: Invocation) -> None:
        self._resources, self._invocation, self._logger = resources, invocation, invocation.logger
        self._settings, self._database = resources.settings, resources.database
        self._lags: list[float] = []
        self._deliveries = Deliveries(batch, resources.queues, self._database, invocation)
        self._counts = self._deliveries.counts

    def run(self) -> BatchResponse:
        has_backlog = self._has_backlog()
        deadline = HalfTimeDeadline(self._invocation.remaining_ms)  # after the requests that may be slow
        for group in self._deliveries.groups():
            self._ingest_group(group, deadline, has_backlog=has_backlog)
        response = self._deliveries.finish()
        if self._counts["FilesHanded"]:
            self._start_job()
        self._deliveries.report("ingested", lags=self._lags)
        return response

    def _ingest_group(self, group: list[Message], deadline: HalfTimeDeadline, *, has_backlog: bool) -> None:
        """Ingests the drops of a group in one commit, except for those that are handed over or sent back."""
        drops, messages = self._read_group(group)
        outcomes: dict[int, DropOutcome] = {}
        if (jobs := self._settings.jobs) is not None:
            outcomes = hand_over(
                self._database,
                self._resources.landing,
                self._resources.handover_records,
                drops,
                larger_than=jobs.drop_bytes,
                has_backlog=has_backlog,
                auto_create=self._settings.auto_create,
            )
        indexes = [index for index in range(len(drops)) if index not in outcomes]
        # Handed-over drops take no time here, so only the others can be too much.
        sizes = [(messages[index], drops[index].size) for index in indexes]
        sent_back = set(map(id, self._deliveries.send_back_excess(sizes, deadline.seconds)))
        outcomes |= {i: DropOutcome(drops[i], "postponed") for i in indexes if id(messages[i]) in sent_back}
        indexes = [index for index in indexes if index not in outcomes]
        result = ingest_drops(
            self._database,
            self._resources.landing,
            [drops[index] for index in indexes],
            auto_create=self._settings.auto_create,
            may_wait={drops[index] for index in indexes if messages[index].may_wait},
            max_bytes=self._settings.max_file_bytes,
            deadline=deadline,
            time_left=self._invocation.remaining_seconds,
        )
        outcomes |= zip(indexes, result.outcomes, strict=True)
        for index, message in enumerate(messages):
            self._report(message, outcomes[index])
        if commit := result.commit:
            rows = commit.counts.rows_added
            self._logger.info("committed", version=commit.version, rows=rows, attempts=commit.attempts)
            self._counts["CommitAttempts"] += commit.attempts

    def _read_group(self, group: list[Message]) -> tuple[list[Drop], list[Message]]:
        """Reads the drops of a group, each with its message. Refuses malformed messages."""
        drops: list[Drop] = []
        messages: list[Message] = []
        for message in group:
            announced, error = read_drops(message.body)
            drops += announced
            messages += [message] * len(announced)
            if error is not None:
                fields = error_fields(error)
                self._deliveries.note_refusal(message, fields)
                self._counts["MessagesMalformed"] += 1
                self._logger.error("message malformed", message_id=message.id, final=True, **fields)
        return drops, messages

    def _has_backlog(self) -> bool:
        """Whether so many messages wait that all drops go to a job; False if their number is not known."""
        jobs, queue = self._settings.jobs, self._resources.backlog_queue
        try:
            return jobs is not None and queue is not None and queue.count_waiting() > (jobs.backlog or 0)
        except Error as error:
            self._counts["QueueErrors"] += 1
            self._logger.error("backlog unknown", **error_fields(error))
            return False

    def _start_job(self) -> None:
        """Starts a job for the drops that were handed over. If that fails, the next round of compact starts it."""
        if self._invocation.remaining_seconds() < START_SECONDS:
            self._counts["JobStartsFailed"] += 1
            self._logger.error("job not started", reason="too little time is left; the next round of compact starts it")
            return
        job = load_job(self._database.url, self._resources.handover_records.url)
        attempt = request_job(self._resources.job_service, job, context_of(self._database).runtime.clock_us())
        if name := metric_name(attempt):
            self._counts[name] += 1
        level, text, fields = log_record(attempt)
        getattr(self._logger, level)(text, **fields)

    def _report(self, message: Message, outcome: DropOutcome) -> None:
        """Logs and counts an outcome, and decides about its message."""
        self._log_outcome(message, outcome)
        self._counts.update(_count_outcome(outcome))
        created_us = outcome.drop.created_us
        if outcome.status == "ingested" and created_us is not None:
            self._lags.append(max(0, context_of(self._database).runtime.clock_us() - created_us) / 1e6)
        if outcome.status == "postponed":
            self._deliveries.note_postponed(message)
        elif outcome.status in ("waiting", "failed"):
            assert outcome.error is not None
            decide = self._deliveries.note_wait if outcome.status == "waiting" else self._deliveries.note_failure
            decide(message, error_fields(outcome.error))

    def _log_outcome(self, message: Message, outcome: DropOutcome) -> None:
        """Logs an outcome: names and numbers, never values of the data."""
        error, drop = outcome.error, outcome.drop
        source = {"message_id": message.id, "source": drop.source, "object_version": drop.version}
        fields: dict[str, Any] = {
            **source,
            "bytes": drop.size,
            "version": outcome.version,
            "rejected_to": outcome.reject.url if outcome.reject else None,
        }
        if outcome.status == "ingested":
            counts = {f"rows_{name}": count for name, count in structs.asdict(outcome.counts).items() if count}
            fields |= {"rows": outcome.counts.ingested, **counts}
            new = ("columns_added", "columns_widened", "inferred")
            fields |= {name: getattr(outcome, name) or None for name in new}
        if outcome.status == "waiting":
            fields["tries_left"] = MAX_TABLE_TRIES - message.tries - message.waits
        if error is not None:
            fields |= {"column": outcome.column, **error_fields(error)}
        log = getattr(self._logger, _LOG_LEVELS.get(outcome.status, "info"))
        log(f"drop {outcome.status}", **{name: value for name, value in fields.items() if value is not None})
        if outcome.landing_error is not None:
            self._logger.error("landing not tagged", **source, **error_fields(outcome.landing_error))


def _count_outcome(outcome: DropOutcome) -> Counter[str]:
    """The metrics of an outcome, with their counts."""
    counts = Counter({_METRIC_NAMES[outcome.status]: 1, "LandingTagsFailed": int(outcome.landing_error is not None)})
    if outcome.status == "ingested":
        counts["BytesIngested"] = outcome.drop.size
        counts["RowsIngested"] = outcome.counts.ingested
        for name in ("upserted", "deleted", "quarantined", "erased"):
            counts[f"Rows{name.capitalize()}"] = getattr(outcome.counts, name)
        counts["ColumnsAdded"], counts["ColumnsWidened"] = outcome.columns_added, outcome.columns_widened
    return counts
