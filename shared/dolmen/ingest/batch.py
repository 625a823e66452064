"""A batch of requests as one commit: each of them applied once, none in another's way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dolmen.database import Database
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    InputError,
    NotFoundError,
    StaleWriterError,
    TableNotFoundError,
)
from dolmen.results import Commit
from dolmen.transaction import Transaction

MAX_ROUNDS = 5
"""How often a batch is made anew because what it was made on has changed under it."""

RequestOutcomeStatus = Literal["applied", "duplicate", "settled", "refused", "postponed", "failed"]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch.

    Args:
        id: under which it is applied exactly once.
        digest: of its content.
        state: adds its statements to a transaction, bound to ``id``, and returns whether it is to be applied; False
            settles it without. What it raises fails this request alone. Called again when the batch is made anew.
    """

    id: str
    digest: str
    state: Callable[[Transaction], bool]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request.

    Args:
        status: ``applied`` by this batch's commit; a ``duplicate`` of one that was applied before or stands in this
            batch too; ``settled`` without a commit; ``refused``: by itself it cannot be applied, and will not be when
            it is tried again; ``postponed``: not begun, as time was running out; ``failed``: nothing of it is applied,
            or that is not known.
        version: the version that applied it.
        error: why it was refused, or failed.
    """

    status: RequestOutcomeStatus
    version: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch: an outcome for each request, in their order, and the commit, if there was one.

    ``seen`` is the transaction it was made in, for looking at the tables as they were, without a request.
    """

    outcomes: list[RequestOutcome]
    commit: Commit | None
    seen: Transaction | None = None


def apply_together(
    database: Database,
    operation: str,
    requests: Sequence[BatchRequest],
    *,
    deadline: Callable[[], bool] = lambda: False,
) -> BatchResult:
    """Applies requests in ONE commit.

    Duplicates are folded first. One that fails, or that was applied before (even while this runs), leaves the others
    as they are. When the commit itself fails, all that stood in it fail together: delivered again, in whatever
    batches, each is still applied once.

    Args:
        operation: a word for ``history``.
        deadline: once it is true, requests not begun yet are postponed, so that the others are committed in time.
    """
    leaders: dict[str, BatchRequest] = {}
    for request in requests:
        leaders.setdefault(request.id, request)
    settled: dict[str, RequestOutcome] = {}
    commit = transaction = None
    for last_round in (*[False] * (MAX_ROUNDS - 1), True):
        waiting = [request for request in leaders.values() if request.id not in settled]
        stated: list[BatchRequest] = []
        try:
            transaction = database.transaction(operation)
            stated = _state(transaction, waiting, settled, deadline)
            if stated:
                commit = transaction.commit()
        except Exception as error:  # noqa: BLE001 - reported with every request that stood in the commit
            if last_round or not isinstance(error, _CHANGED):
                failed = RequestOutcome("failed", error=error)
                settled = {**{request.id: failed for request in waiting}, **settled}
                break
            continue  # made anew on the newest version, each request finds out for itself what has changed
        for request in stated:
            assert commit is not None
            before = commit.already.get(request.id)
            settled[request.id] = (
                RequestOutcome("applied", commit.version) if before is None else RequestOutcome("duplicate", before)
            )
        break
    outcomes = [_outcome(request, leaders[request.id], settled[request.id]) for request in requests]
    return BatchResult(outcomes, commit if commit and commit.commit_id else None, transaction)


_CHANGED = (InputError, NotFoundError, ConflictError, StaleWriterError)
"""What a commit raises when the base that its statements were made on is no longer the newest version."""


def _state(
    transaction: Transaction,
    waiting: Sequence[BatchRequest],
    settled: dict[str, RequestOutcome],
    deadline: Callable[[], bool],
) -> list[BatchRequest]:
    """Adds requests to a transaction; settles those that are not to be applied by it. Returns the others."""
    known = transaction.applied_before({request.id for request in waiting})
    stated = []
    for request in waiting:
        before = known.get(request.id)
        try:
            if before is not None:
                settled[request.id] = _applied_before(request, before.digest, before.version)
            elif deadline():
                settled[request.id] = RequestOutcome("postponed")
            else:
                with transaction.together(request.id):
                    to_apply = request.state(transaction)
                if to_apply:
                    transaction.bind(request.id, request.digest)
                    stated.append(request)
                else:
                    settled[request.id] = RequestOutcome("settled")
        except (InputError, TableNotFoundError) as error:
            settled[request.id] = RequestOutcome("refused", error=error)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one request must not block its batch
            settled[request.id] = RequestOutcome("failed", error=error)
    return stated


def _applied_before(request: BatchRequest, digest: str, version: int) -> RequestOutcome:
    if digest == request.digest:
        return RequestOutcome("duplicate", version)
    reason = f"id {request.id!r} was applied by version {version} with other content: use a new id"
    return RequestOutcome("refused", error=AppliedIdError(reason))


def _outcome(request: BatchRequest, leader: BatchRequest, outcome: RequestOutcome) -> RequestOutcome:
    """The outcome of a request, given that of the first with its id."""
    if request is leader or outcome.status in ("failed", "postponed"):
        return outcome
    if request.digest != leader.digest:
        reason = f"id {request.id!r} stands in one batch twice with different content: use a new id"
        return RequestOutcome("refused", error=AppliedIdError(reason))
    if outcome.status == "refused":
        return outcome
    return RequestOutcome("duplicate", outcome.version)
