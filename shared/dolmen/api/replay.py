"""Read-modify-write: runs a function in transactions on ever newer versions until nothing it read has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dolmen.commit.context import Context
from dolmen.errors import ConflictError, Error, VersionExpiredError
from dolmen.store.backoff import attempts
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction

T = TypeVar("T")

_REPLAYS = 100


@dataclass(frozen=True)
class Replayed(Generic[T]):
    """The result of a function, and the commit of the run that succeeded."""

    value: T
    commit: Commit


def replay(
    context: Context,
    function: Callable[[Transaction], T],
    operation: str = "transaction",
    *,
    message: str | None = None,
) -> Replayed[T]:
    """Runs ``function`` in transactions on ever newer versions until one commits."""
    conflict: Error
    for _ in attempts(context.runtime, _REPLAYS):
        transaction = Transaction(context, operation, message=message)
        transaction.refresh()
        try:
            value = function(transaction)
        except VersionExpiredError as error:
            if transaction.base.version >= context.head.refresh().manifest.horizon:
                raise  # of another version, which the function chose to read
            conflict = error
            continue
        try:
            return Replayed(value, transaction.commit())
        except ConflictError as error:
            conflict = error
    raise conflict
