"""A batch of messages of a queue: reads them, and applies their requests in one commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from dolmen.api.database import Database
from dolmen.base.runtime import INGEST_BATCH, attempts
from dolmen.commit.change import reuse_error
from dolmen.commit.head import context_of
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    InputError,
    NotFoundError,
    StaleWriterError,
    TableNotFoundError,
)
from dolmen.ingest.redaction import MessageError
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit

MAX_TRIES_TOGETHER = 2  # a message that was delivered more often than this is handled alone
MAX_TABLE_TRIES = 4
"""Deliveries of a drop. If its table does not exist at the last of them, the drop becomes a reject.

Less than the ``maxReceiveCount`` of the queue (template.yaml) and the tries of the local pipeline: the last try comes
before the message is given up."""
# attributes of a message that was sent again
ID_ATTRIBUTE = "dolmen.id"
SENT_ATTRIBUTE = "dolmen.sent"
FAILURES_ATTRIBUTE = "dolmen.failures"
WAITS_ATTRIBUTE = "dolmen.waits"
CRASHES_ATTRIBUTE = "dolmen.crashes"
_COUNT = re.compile(r"[0-9]{1,17}")
_ATTRIBUTE = re.compile(r"[0-9A-Za-z_-]{1,100}")

Decision = Literal["apply", "reject", "finish"]
"""The decision on a request: apply its statements, reject it permanently, or finish it without a commit."""
RequestOutcomeStatus = Literal["applied", "duplicate", "rejected", "finished", "refused", "postponed", "failed"]


class Message(Struct, frozen=True):
    """A message of a queue, or an event without one: acknowledged or delivered again as a whole.

    A message that was sent again (``deliveries``) keeps its id, its time and its counts in attributes: SQS gives the
    copy an id of its own, and counts from 1.
    """

    id: str | None  # the SQS message id of the first copy; None for an event without a queue
    # the text of an SQS record, or the event itself; None for a record without one
    body: str | Mapping[str, Any] | None
    tries: int = 1  # how often it was delivered so far and not postponed, from 1
    delivery: str | None = None  # the SQS message id of this copy, for the response; None if it is ``id``
    failures: int = 0  # how often it was sent again after an error
    crashes: int = 0  # how often it was delivered without a response, because the function died
    sent_us: int | None = None  # when it was first sent, microseconds since the epoch, if known
    receipt: str | None = None  # the SQS receipt handle of this copy, by which it is deleted
    waits: int = 0  # how often it was sent again because the table of one of its drops did not exist

    @property
    def may_wait(self) -> bool:
        """Whether its drops may wait for their tables: a queue will deliver it again, and this is not the last try."""
        return self.id is not None and self.tries + self.waits < MAX_TABLE_TRIES

    @property
    def answer_id(self) -> str | None:
        """The id by which the response to Lambda names this copy."""
        return self.id if self.delivery is None else self.delivery


def read_messages(event: Any) -> list[Message]:
    """Reads the messages of an invocation: the records of an SQS event, else the event itself as the only one.

    A malformed record becomes a message without a body. Raises InputError if the event is not a JSON object.
    """
    if not isinstance(event, Mapping):
        raise MessageError(f"an event is a JSON object, not {type(event).__name__}")
    records = event.get("Records")
    if not isinstance(records, list) or not any(_is_sqs(record) for record in records):
        return [Message(None, event)]
    return [_sqs_message(record) for record in records]


def isolate(batch: list[Message]) -> Iterator[list[Message]]:
    """Splits a batch into groups that are handled one after the other.

    Messages that were delivered several times, perhaps because they kill the process, come last, each by itself.
    """
    if fresh := [message for message in batch if message.tries <= MAX_TRIES_TOGETHER]:
        yield fresh
    yield from ([message] for message in batch if message.tries > MAX_TRIES_TOGETHER)


def _is_sqs(record: Any) -> bool:
    return isinstance(record, Mapping) and record.get("eventSource") == "aws:sqs"


def _sqs_message(record: Any) -> Message:
    if not isinstance(record, Mapping):
        return Message(None, None)
    id_, body, receipt = record.get("messageId"), record.get("body"), record.get("receiptHandle")
    delivery = id_ if isinstance(id_, str) and id_ else None
    is_valid = _is_sqs(record) and isinstance(body, str)
    unanswered = max(0, _number(record, "attributes", "ApproximateReceiveCount", 1) - 1)
    failures = _number(record, "messageAttributes", FAILURES_ATTRIBUTE)
    crashes = _number(record, "messageAttributes", CRASHES_ATTRIBUTE) + unanswered
    sent_ms = _number(record, "attributes", "SentTimestamp")
    return Message(
        _attribute(record, "messageAttributes", ID_ATTRIBUTE) or delivery,
        body if is_valid else None,
        1 + failures + crashes,
        delivery,
        failures,
        crashes,
        _number(record, "messageAttributes", SENT_ATTRIBUTE) or sent_ms * 1000 or None,
        receipt if isinstance(receipt, str) and receipt else None,
        _number(record, "messageAttributes", WAITS_ATTRIBUTE),
    )


def _attribute(record: Mapping[str, Any], kind: str, name: str) -> str:
    """An attribute of a record, one of SQS or of the sender; empty if there is none."""
    attributes = record.get(kind)
    value = attributes.get(name) if isinstance(attributes, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("stringValue")
    return value if isinstance(value, str) and _ATTRIBUTE.fullmatch(value) else ""


def _number(record: Mapping[str, Any], kind: str, name: str, default: int = 0) -> int:
    text = _attribute(record, kind, name)
    return int(text) if _COUNT.fullmatch(text) else default


class BatchRequest(Struct, frozen=True):
    """One request of a batch, which is applied exactly once under its id."""

    id: str
    digest: str  # the digest of its content
    # adds its statements to a transaction, bound to ``id``, and returns the decision. An exception fails only this
    # request. Called again if the batch is rebuilt.
    add_to: Callable[[Transaction], Decision]
    # the id under which a rejection is committed, instead of ``id``; None if it is never rejected
    rejection_id: str | None = None


class RequestOutcome(Struct, frozen=True):
    """The outcome of a request, and the version that applied or rejected it."""

    # ``applied`` by this batch's commit; a ``duplicate`` of one that was applied before or is in this batch too;
    # ``rejected``: a commit, of this batch or before, records that its file was set aside; ``finished`` without a
    # commit; ``refused``: it cannot be applied, a retry does not help, and no commit records it; ``postponed``: not
    # begun for lack of time; ``failed``: none of it is applied, as far as is known
    status: RequestOutcomeStatus
    version: int | None = None
    error: Exception | None = None


class BatchResult(Struct, frozen=True):
    """The outcomes of the requests, in order, the commit, if there was one, and the transaction of the batch."""

    outcomes: list[RequestOutcome]
    commit: Commit | None
    transaction: Transaction | None = None


AddAll = Callable[[Transaction, Sequence[BatchRequest]], Mapping[str, Decision]]
"""Adds requests to a transaction at once; returns the decisions by id."""


def apply_together(
    database: Database,
    operation: str,
    requests: Sequence[BatchRequest],
    *,
    deadline: Callable[[], bool] = lambda: False,
    add_all: AddAll | None = None,
) -> BatchResult:
    """Applies requests in ONE commit.

    Duplicates in the batch are merged first. A request that fails, or that was applied before, does not affect the
    others. If the commit itself fails, all its requests fail; delivered again, each is still applied once.

    Args:
        deadline: once it is true, requests not begun yet are postponed, so that the others are committed in time.
        add_all: adds the requests instead of their ``add_to``, all at once. Returns the decisions, by id; requests
            without one are postponed. An exception fails all of them.
    """
    first_by_id: dict[str, BatchRequest] = {}
    for request in requests:
        first_by_id.setdefault(request.id, request)
    outcomes: dict[str, RequestOutcome] = {}
    commit = transaction = None
    for attempt in attempts(context_of(database).runtime, INGEST_BATCH):
        waiting = [request for request in first_by_id.values() if request.id not in outcomes]
        added: dict[str, Decision] = {}
        try:
            transaction = database.transaction(operation)
            fresh = _finish_applied(transaction, waiting, outcomes)
            if add_all is None:
                added = _add_requests(transaction, fresh, outcomes, deadline)
            else:
                added = _add_together(transaction, fresh, outcomes, add_all)
            if added:
                commit = transaction.commit()
        except Exception as error:  # noqa: BLE001 - reported with every request of the commit
            if attempt.is_last or not isinstance(error, BASE_CHANGED):
                failed = RequestOutcome("failed", error=error)
                outcomes = {**{request.id: failed for request in waiting}, **outcomes}
                break
            continue  # rebuild on the newest version, where each request meets the changes on its own
        for request in waiting:
            if decision := added.get(request.id):
                assert commit is not None
                outcomes[request.id] = _committed_outcome(request, decision, commit)
        break
    results = [_outcome_in_batch(request, first_by_id[request.id], outcomes[request.id]) for request in requests]
    return BatchResult(results, commit if commit and commit.commit_id else None, transaction)


BASE_CHANGED = (InputError, NotFoundError, ConflictError, StaleWriterError)
"""Errors of a commit whose base is no longer the newest version."""


def _finish_applied(
    transaction: Transaction, waiting: Sequence[BatchRequest], outcomes: dict[str, RequestOutcome]
) -> list[BatchRequest]:
    """Finishes requests that were applied or rejected before; returns the others."""
    ids = {id_ for request in waiting for id_ in (request.id, request.rejection_id) if id_ is not None}
    applied = unit_of(transaction).find_applied(ids)
    fresh: list[BatchRequest] = []
    for request in waiting:
        before, rejected = applied.get(request.id), applied.get(request.rejection_id or "")
        if before is not None:
            error = reuse_error(before, request.digest)
            duplicate = RequestOutcome("duplicate", before.version)
            outcomes[request.id] = RequestOutcome("refused", error=error) if error else duplicate
        elif rejected is not None:
            outcomes[request.id] = RequestOutcome("rejected", rejected.version)
        else:
            fresh.append(request)
    return fresh


def _add_together(
    transaction: Transaction, fresh: Sequence[BatchRequest], outcomes: dict[str, RequestOutcome], add_all: AddAll
) -> dict[str, Decision]:
    """Adds requests to a transaction at once; finishes the requests that need no commit."""
    decisions = add_all(transaction, fresh) if fresh else {}
    added: dict[str, Decision] = {}
    for request in fresh:
        decision = decisions.get(request.id)
        if decision is None or decision == "finish":
            outcomes[request.id] = RequestOutcome("postponed" if decision is None else "finished")
        else:
            _bind(transaction, request, decision)
            added[request.id] = decision
    return added


def _add_requests(
    transaction: Transaction,
    fresh: Sequence[BatchRequest],
    outcomes: dict[str, RequestOutcome],
    deadline: Callable[[], bool],
) -> dict[str, Decision]:
    """Adds requests to a transaction, one after the other; finishes the requests that need no commit."""
    added: dict[str, Decision] = {}
    for request in fresh:
        try:
            if deadline():
                outcomes[request.id] = RequestOutcome("postponed")
            else:
                with unit_of(transaction).savepoint(request.id):
                    decision = request.add_to(transaction)
                if decision == "finish":
                    outcomes[request.id] = RequestOutcome("finished")
                else:
                    _bind(transaction, request, decision)
                    added[request.id] = decision
        except (InputError, TableNotFoundError) as error:
            outcomes[request.id] = RequestOutcome("refused", error=error)
        except Exception as error:  # noqa: BLE001 - one bad request must not block its batch
            outcomes[request.id] = RequestOutcome("failed", error=error)
    return added


def _bind(transaction: Transaction, request: BatchRequest, decision: Decision) -> None:
    """Binds the transaction to the id for this decision, so that no commit can have the request's other id."""
    ids = [request.id, request.rejection_id]
    own_id, other_id = reversed(ids) if decision == "reject" else ids
    assert own_id is not None
    transaction.bind(own_id, request.digest)
    if other_id is not None:
        transaction.exclude(other_id)


def _committed_outcome(request: BatchRequest, decision: Decision, commit: Commit) -> RequestOutcome:
    """The outcome of a request that is in a commit."""
    if decision == "reject":
        return RequestOutcome("rejected", commit.already.get(request.rejection_id or "", commit.version))
    before = commit.already.get(request.id)
    return RequestOutcome("applied", commit.version) if before is None else RequestOutcome("duplicate", before)


def _outcome_in_batch(request: BatchRequest, first: BatchRequest, outcome: RequestOutcome) -> RequestOutcome:
    """The outcome of a request, from that of the first request of the batch with the same id."""
    if request is first or outcome.status in ("failed", "postponed"):
        return outcome
    if request.digest != first.digest:
        reason = f"id {request.id!r} is in one batch twice with different content: use a new id"
        return RequestOutcome("refused", error=AppliedIdError(reason))
    if outcome.status in ("refused", "rejected"):
        return outcome
    return RequestOutcome("duplicate", outcome.version)
