"""Delete requests become tombstones: a batch of them is one commit, each request is in it once and whole, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dolmen.database import Database
from dolmen.ingest.folding import Outcome, Request, apply_together
from dolmen.ingest.requests import DeleteRequest
from dolmen.results import Commit
from dolmen.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of a batch of requests: an outcome for each, in their order, and the commit, if there was one."""

    outcomes: list[Outcome]
    commit: Commit | None


def apply_deletes(
    database: Database, requests: Sequence[DeleteRequest], *, out_of_time: Callable[[], bool] = lambda: False
) -> Deleted:
    """Applies delete requests in ONE commit, each over all of its tables or not at all.

    A request that cannot be applied (no such table or column, a predicate that cannot be read) is refused, alone.

    Args:
        out_of_time: once it is true, requests not begun yet are postponed.
    """
    folded = apply_together(
        database,
        "delete",
        [Request(request.id, request.digest, _statements(request)) for request in requests],
        out_of_time=out_of_time,
    )
    return Deleted(folded.outcomes, folded.commit)


def _statements(request: DeleteRequest) -> Callable[[Transaction], bool]:
    def state(transaction: Transaction) -> bool:
        for delete in request.deletes:
            transaction.table(delete.table).delete(
                delete.where, keys=delete.keys, on=delete.on, mode=delete.mode, request=request.id
            )
        return True

    return state
