"""Requests that are delivered at least once, in other company each time: what queues do to functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from dolmen.transaction_table import TransactionTable
from dolmen_simulator.judge.model import Effect

_PENDING = 8
_DELIVERIES = 8
_REMEMBERED = 40


class QueuedMessage(Protocol):
    """What a queue holds."""

    @property
    def id(self) -> str:
        """Under which it is applied once."""

    def forge(self) -> Self | None:
        """One that says something else under the same id; None if there can be none."""


AnyMessage = TypeVar("AnyMessage", bound=QueuedMessage)


@dataclass(frozen=True)
class QueuedRequest:
    """One event or delete request.

    Args:
        effect: what it does to the rows; holds its id.
        apply: the same, by production code.
        digest: what its content is known by.
        finds_digest: whether production code finds that digest in the rows, or is told it.
        other: makes a request of other content under the same id, by which production code finds that out itself.
    """

    effect: Effect
    apply: Callable[[TransactionTable], None]
    digest: str
    finds_digest: bool = False
    other: Callable[[], QueuedRequest] | None = None

    @property
    def id(self) -> str:
        """Under which it is applied once."""
        assert self.effect.request is not None
        return self.effect.request

    def forge(self) -> QueuedRequest:
        """Another one under the same id; else the same, known by another content."""
        return self.other() if self.other else replace(self, digest=f"{self.digest}, altered", finds_digest=False)


class SimulatedQueue(Generic[AnyMessage]):
    """Delivers pending letters until a batch with them is acknowledged, and now and then after that too."""

    def __init__(self) -> None:
        self._pending: dict[str, AnyMessage] = {}
        self._deliveries: dict[str, int] = {}
        self._finished: list[AnyMessage] = []

    @property
    def wants_more(self) -> bool:
        """Whether there is room for new letters."""
        return len(self._pending) < _PENDING

    def send(self, letter: AnyMessage) -> None:
        """Adds a letter."""
        self._pending[letter.id] = letter
        self._deliveries[letter.id] = 0

    def deliveries(self, letter: AnyMessage) -> int:
        """How often it has been delivered by now."""
        return self._deliveries.get(letter.id, 1)

    def receive(self, rng: random.Random) -> list[AnyMessage]:
        """A batch, its duplicates folded. What is delivered here may be under way in other batches."""
        pending = list(self._pending.values())
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
        """Takes the outcome of a batch; what fails too often goes to a dead-letter queue."""
        for letter in batch:
            if acknowledged or self._deliveries[letter.id] >= _DELIVERIES:
                there = self._pending.pop(letter.id, None)
                if there and acknowledged:
                    self._finished = [*self._finished[-_REMEMBERED:], letter]
