"""Delete requests become tombstones: a batch of them is one commit, each request is in it once and whole, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dolmen.api.database import Database
from dolmen.entries.segments.erasures import SUBJECT
from dolmen.ingest.batch import BatchRequest, Decision, RequestOutcome, apply_together
from dolmen.ingest.deletes.requests import DeleteRequest
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of a batch of requests: an outcome for each, in their order, and the commit, if there was one.

    ``seen`` is the transaction of the batch.
    """

    outcomes: list[RequestOutcome]
    commit: Commit | None
    seen: Transaction | None = None


def apply_deletes(
    database: Database, requests: Sequence[DeleteRequest], *, deadline: Callable[[], bool] = lambda: False
) -> DeleteResult:
    """Applies delete requests in ONE commit, each over all of its tables or not at all.

    A request that cannot be applied (no such table or column, a predicate that cannot be read) is refused, alone.

    Args:
        deadline: once it is true, requests not begun yet are postponed.
    """
    result = apply_together(
        database,
        "delete",
        [BatchRequest(request.id, request.digest, _statements(request)) for request in requests],
        deadline=deadline,
    )
    return DeleteResult(result.outcomes, result.commit, result.seen)


def request_values(request: DeleteRequest) -> list[Any]:
    """The predicates, keys and subjects of a request, which an error about it may quote."""
    return [*([delete.where, delete.keys, delete.on] for delete in request.deletes), list(request.subjects)]


def request_names(seen: Transaction | None, request: DeleteRequest) -> frozenset[str]:
    """The names of a request's tables, and of the columns of those that exist."""
    tables = {*(delete.table for delete in request.deletes), *request_tables(seen, request)}
    there = [name for name in tables if seen is not None and name in seen.manifest.tables]
    columns = (field.name for name in there for field in seen.entry(name).schema.fields) if seen is not None else ()
    return frozenset(tables).union(columns)


def request_tables(seen: Transaction | None, request: DeleteRequest) -> list[str]:
    """The tables that a request names; if it forgets somebody, those with a subject when the batch began."""
    if request.subjects and seen is not None:
        return sorted(name for name, entry in seen.base.tables.items() if entry.properties.get(SUBJECT) is not None)
    return [delete.table for delete in request.deletes]


def add_request(transaction: Transaction, request: DeleteRequest) -> None:
    """Adds the statements of a request to a transaction. Raises InputError and NotFoundError as these do."""
    if request.subjects:
        transaction.forget(request.subjects, dropped=request.dropped, request=request.id)
    for delete in request.deletes:
        table = transaction.table(delete.table)
        if request.erases:
            table.erase(delete.where, keys=delete.keys, on=delete.on, request=request.id)
        else:
            table.delete(delete.where, keys=delete.keys, on=delete.on, mode=delete.mode, request=request.id)


def _statements(request: DeleteRequest) -> Callable[[Transaction], Decision]:
    def add_to(transaction: Transaction) -> Decision:
        add_request(transaction, request)
        return "apply"

    return add_to
