"""Applies the delete requests of one event as tombstones: the work of the delete function.

ARCHITECTURE.md ("Walk 2") follows the calls from event to commit. Then, if rows were erased in tables that are
published as Iceberg, the function publishes these tables again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dolmen.commit.head import context_of
from dolmen.format.receipts import erasure_id
from dolmen.ingest.batch import Message, RequestOutcome
from dolmen.ingest.delete_requests import (
    DeleteRequest,
    apply_deletes,
    parse_request,
    request_names,
    request_tables,
    request_values,
)
from dolmen.ingest.redaction import RequestContent, error_fields
from dolmen.service.functions.deliveries import BatchResponse, Deliveries, HalfTimeDeadline
from dolmen.service.functions.function_settings import FunctionResources, Invocation
from dolmen.transactions.transaction import Transaction

_LOOKUP_BYTES_PER_SECOND = 32 << 20
"""How many bytes of data files are searched for erased rows, for each second of ``HalfTimeDeadline.seconds``."""


def delete_event(resources: FunctionResources, batch: Sequence[Message], invocation: Invocation) -> BatchResponse:
    """Applies the delete requests of an event; returns the messages to deliver again.

    Raises RuntimeError if the event came without a queue, and is not done.
    """
    return _DeleteEvent(resources, batch, invocation).run()


class _DeleteEvent:
    """One event, while it is handled."""

    def __init__(self, resources: FunctionResources, batch: Sequence[Message], invocation: Invocation) -> None:
        self._database, self._invocation, self._logger = resources.database, invocation, invocation.logger
        self._erasures: list[str] = []
        self._deliveries = Deliveries(batch, resources.delete_queues, self._database, invocation)
        self._counts = self._deliveries.counts
        self._counts["DeletesFailed"] = 0

    def run(self) -> BatchResponse:
        deadline = HalfTimeDeadline(self._invocation.remaining_ms)
        for group in self._deliveries.groups():
            requests, messages = self._read_group(group)
            result = apply_deletes(self._database, requests, deadline=deadline)
            for message, request, outcome in zip(messages, requests, result.outcomes, strict=True):
                self._report(message, request, outcome, result.transaction)
            if commit := result.commit:
                added = commit.counts.tombstones_added
                self._logger.info("committed", version=commit.version, tombstones=added, attempts=commit.attempts)
                self._counts["CommitAttempts"] += commit.attempts
        response = self._deliveries.finish()
        if self._erasures:
            self._publish(deadline.seconds)
        self._deliveries.report("deleted")
        return response

    def _read_group(self, group: list[Message]) -> tuple[list[DeleteRequest], list[Message]]:
        """Reads the requests of a group, each with its message. Refuses malformed messages."""
        requests: list[DeleteRequest] = []
        messages: list[Message] = []
        for message in group:
            try:
                # Lambda repeats an asynchronous invocation under the same id.
                requests.append(parse_request(message.body, message.id or self._invocation.id))
                messages.append(message)
            except Exception as error:  # noqa: BLE001 - a bad message must never block its batch
                fields = error_fields(error)
                self._deliveries.note_refusal(message, fields)
                self._counts["DeletesFailed"] += 1
                self._logger.error("delete failed", message_id=message.id, final=True, **fields)
        return requests, messages

    def _report(
        self, message: Message, request: DeleteRequest, outcome: RequestOutcome, transaction: Transaction | None
    ) -> None:
        """Logs and counts an outcome, and decides about its message."""
        ids = {"message_id": message.id, "request_id": request.id}
        if outcome.status == "postponed":
            self._deliveries.note_postponed(message)
            self._logger.info("delete postponed", **ids)
            return
        if outcome.error is not None:
            self._counts["DeletesFailed"] += 1
            content = RequestContent(request_values(request), request_names(transaction, request))
            fields, final = error_fields(outcome.error, content), outcome.status == "refused"
            (self._deliveries.note_refusal if final else self._deliveries.note_failure)(message, fields)
            self._logger.error("delete failed", **ids, final=final, **fields)
            return
        self._counts["DeletesDuplicate" if outcome.status == "duplicate" else "DeletesApplied"] += 1
        about: dict[str, Any] = {"tables": request_tables(transaction, request)}
        if request.erases:
            about["erasure"] = erasure_id(request.id)
            if outcome.status == "applied":
                self._erasures.append(erasure_id(request.id))
        self._logger.info(f"delete {outcome.status}", **ids, **about, version=outcome.version)

    def _publish(self, seconds: float) -> None:
        """Publishes tables with erased rows while ``seconds`` are left; the next round of compact does the rest.

        The requests are applied by now, and stay so. A repeated delivery finds that and publishes nothing.
        """
        from dolmen.iceberg.publication import publish_erasures  # imports fastavro

        done = publish_erasures(
            context_of(self._database),
            self._erasures,
            deadline=lambda: self._invocation.remaining_seconds() < seconds,
            lookup_bytes=int(_LOOKUP_BYTES_PER_SECOND * seconds),
        )
        self._counts["TablesPublished"] = len(done.published)
        for one in done.published:
            self._logger.info("published", table=one.table, version=one.version)
        for name in done.postponed:
            self._logger.info("publication postponed", table=name)
        for name, error in done.failures.items():
            self._counts["PublicationsFailed"] += 1
            self._logger.error("publication failed", table=name, **error_fields(error))
