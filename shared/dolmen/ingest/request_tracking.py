"""Composes delete requests, checks them before they are sent, and looks up their states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.errors import AppliedIdError, InputError, LimitError
from dolmen.ingest.delete_requests import DeleteRequest, add_request, parse_request
from dolmen.ingest.queues import DirectoryQueue, Queue
from dolmen.transactions.transaction import unit_of

RequestState = Literal["applied", "waiting", "failed", "unknown"]


def compose(
    tables: Sequence[str],
    *,
    where: str | None = None,
    keys: pa.Table | list[Any] | None = None,
    on: Sequence[str] | None = None,
    mode: str = "tombstone",
    request_id: str,
) -> str:
    """Composes the message of a delete request, and checks it like the function does. Raises InputError.

    ``keys`` are values, or lists of them for a key of several columns, or a table of the columns that ``on`` names.
    """
    members: dict[str, Any] = {"table": tables[0]} if len(tables) == 1 else {"tables": list(tables)}
    if where is not None:
        members["where"] = where
    if keys is not None:
        members["keys"] = _values(keys) if isinstance(keys, pa.Table) else keys
    if on is not None:
        members["on"] = list(on)
    if mode != "tombstone":
        members["mode"] = mode
    body = json.dumps({**members, "request_id": request_id}, separators=(",", ":"))
    parse_request(body, None)
    return body


def check(database: Database, request: DeleteRequest) -> int:
    """Checks that a request can be applied to the newest version, without changing anything; returns the version.

    Raises AppliedIdError if another request was applied under this id; InputError, NotFoundError.
    """
    transaction = database.transaction()
    unit = unit_of(transaction)
    applied = unit.find_applied([request.id]).get(request.id)
    if applied is not None and applied.digest != request.digest:
        raise AppliedIdError(f"version {applied.version} has applied another request under the id {request.id!r}")
    deletes = tuple(replace(delete, mode="tombstone") for delete in request.deletes)  # without looking rows up
    add_request(transaction, replace(request, deletes=deletes))
    return unit.base.version  # the transaction ends here: nothing of it is uploaded


def check_size(body: str, queue: Queue) -> None:
    """Raises LimitError if a message is too large for a queue. The error says what to do instead."""
    size = len(body.encode())
    if size <= queue.max_bytes:
        return
    keys = sum(len(delete.keys or ()) for delete in parse_request(body, None).deletes)
    most = max(1, keys * queue.max_bytes // size * 9 // 10)
    raise LimitError(
        f"the request has {size:,} bytes, and {queue.url} takes messages of {queue.max_bytes:,}: "
        + (f"send at most about {most:,} keys in a request, each under an id of its own, " if keys else "shorten it, ")
        + "say with --where what they have in common, or apply it directly with 'dolmen delete'"
    )


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The state of a request: applied by ``version``, waiting in the queue, or given up for ``reason``.

    It is unknown if it is not applied, or so old that its id is forgotten. SQS queues cannot be searched.
    """

    id: str
    state: RequestState
    version: int | None = None
    reason: str | None = None


def status_of(database: Database, ids: Sequence[str], queue: Queue | None = None) -> list[RequestStatus]:
    """Looks up the states of requests, in their order: two requests for all of them, more only for old ids."""
    letters = dict(_letters(queue, frozenset(ids))) if isinstance(queue, DirectoryQueue) else {}
    # After the queue: a request on its way between them is in both.
    applied = unit_of(database.transaction()).find_applied(ids)
    statuses = []
    for id_ in ids:
        if id_ in applied:
            statuses.append(RequestStatus(id_, "applied", applied[id_].version))
        else:
            state, reason = letters.get(id_, ("unknown", None))
            statuses.append(RequestStatus(id_, state, reason=reason))
    return statuses


def _letters(queue: DirectoryQueue, ids: frozenset[str]) -> Iterator[tuple[str, tuple[RequestState, str | None]]]:
    """Finds requests in a directory's queue, dead letters first, so that a request that was sent again is waiting."""
    for letter in queue.find_dead_letters():
        id_ = _id_in(letter.get("body")) or letter.get("message_id")
        if id_ in ids:
            yield str(id_), ("failed", str(letter.get("reason")))
    for message in queue.find_messages():
        id_ = message.get("request_id")
        if id_ in ids:
            yield str(id_), ("waiting", None)


def _id_in(body: Any) -> Any:
    try:
        document = json.loads(body) if isinstance(body, str) else body
    except (ValueError, RecursionError):
        return None
    return document.get("request_id") if isinstance(document, dict) else None


def _values(keys: pa.Table) -> list[Any]:
    """Converts keys to JSON. Raises InputError for types that JSON does not have."""
    for field in keys.schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_string(field.type) or pa.types.is_boolean(field.type)):
            raise InputError(
                f"keys of column {field.name!r} are {field.type}, which a message cannot hold: "
                "say the same with --where, or use 'dolmen delete'"
            )
    columns = [column.to_pylist() for column in keys.columns]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]
