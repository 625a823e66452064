"""Queues that deliver each message at least once, each time in another batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from dolmen.base.records import replace
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable
from dolmen_simulator.judge.model import Effect

_PENDING = 8
_DELIVERIES = 8
_REMEMBERED = 40


class QueuedMessage(Protocol):
    """A message of a queue."""

    @property
    def id(self) -> str:
        """The applied id."""

    def forge(self) -> Self | None:
        """Makes a message with other content under the same id; None if that is impossible."""


AnyMessage = TypeVar("AnyMessage", bound=QueuedMessage)


@dataclass(frozen=True)
class QueuedRequest:
    """An event or a delete request.

    Args:
        effect: its effect on the rows, with its id.
        apply: applies it by production code, in a transaction, to its table.
        digest: digest of its content.
        finds_digest: whether production code computes the digest itself from the rows.
        other: makes a request with other content under the same id, whose digest production code computes itself.
    """

    effect: Effect
    apply: Callable[[Transaction, TransactionTable], None]
    digest: str
    finds_digest: bool = False
    other: Callable[[], QueuedRequest] | None = None

    @property
    def id(self) -> str:
        """The applied id."""
        assert self.effect.request is not None
        return self.effect.request

    def forge(self) -> QueuedRequest:
        """Makes another request under the same id, or the same one with another digest."""
        return self.other() if self.other else replace(self, digest=f"{self.digest}, altered", finds_digest=False)


class SimulatedQueue(Generic[AnyMessage]):
    """Delivers messages until a batch with them is acknowledged, and now and then again after that."""

    def __init__(self) -> None:
        self._pending: dict[str, AnyMessage] = {}
        self._deliveries: dict[str, int] = {}
        self._finished: list[AnyMessage] = []

    @property
    def wants_more(self) -> bool:
        """Whether there is room for new messages."""
        return len(self._pending) < _PENDING

    @property
    def pending(self) -> list[AnyMessage]:
        """The messages that no batch has acknowledged."""
        return list(self._pending.values())

    def send(self, letter: AnyMessage) -> None:
        """Adds a message."""
        self._pending[letter.id] = letter
        self._deliveries[letter.id] = 0

    def deliveries(self, letter: AnyMessage) -> int:
        """Number of deliveries of a message."""
        return self._deliveries.get(letter.id, 1)

    def receive(self, rng: random.Random) -> list[AnyMessage]:
        """Receives a batch without duplicates. Its messages may be in progress in other batches."""
        pending = self.pending
        batch = rng.sample(pending, min(len(pending), rng.randint(1, 4)))
        if self._finished and (not batch or rng.random() < 0.25):
            batch.insert(rng.randint(0, len(batch)), rng.choice(self._finished))
        if batch and rng.random() < 0.03:
            forged = rng.choice(batch)
            if other := forged.forge():
                batch.remove(forged)
                batch.append(other)
        folded = {letter.id: letter for letter in batch}
        for id_ in folded:
            self._deliveries[id_] += 1
        return list(folded.values())

    def settle(self, batch: Sequence[AnyMessage], acknowledged: bool) -> None:
        """Records the outcome of a batch. Messages that fail too often go to a dead-letter queue."""
        for letter in batch:
            if acknowledged or self._deliveries[letter.id] >= _DELIVERIES:
                there = self._pending.pop(letter.id, None)
                if there and acknowledged:
                    self._finished = [*self._finished[-_REMEMBERED:], letter]
