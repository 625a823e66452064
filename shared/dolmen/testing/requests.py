"""Requests that are delivered at least once, in other company each time: what queues do to functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dolmen.testing.model import Effect
from dolmen.transaction import TransactionTable

_PENDING = 8
_DELIVERIES = 8
_REMEMBERED = 40


@dataclass(frozen=True)
class Request:
    """One event or delete request.

    Args:
        effect: what it does to the rows; holds its id.
        apply: the same, by production code.
        digest: what its content is known by.
    """

    effect: Effect
    apply: Callable[[TransactionTable], None]
    digest: str

    @property
    def id(self) -> str:
        """Under which it is applied once."""
        assert self.effect.request is not None
        return self.effect.request


class Queue:
    """Delivers pending requests until a batch with them is acknowledged, and now and then after that too."""

    def __init__(self) -> None:
        self._pending: dict[str, Request] = {}
        self._deliveries: dict[str, int] = {}
        self._finished: list[Request] = []

    @property
    def wants_more(self) -> bool:
        """Whether there is room for new requests."""
        return len(self._pending) < _PENDING

    def send(self, request: Request) -> None:
        """Adds a request."""
        self._pending[request.id] = request
        self._deliveries[request.id] = 0

    def receive(self, rng: random.Random) -> list[Request]:
        """A batch, its duplicates folded. What is delivered here may be under way in other batches."""
        pending = list(self._pending.values())
        batch = rng.sample(pending, min(len(pending), rng.randint(1, 4)))
        if self._finished and (not batch or rng.random() < 0.25):
            batch.insert(rng.randint(0, len(batch)), rng.choice(self._finished))
        if batch and rng.random() < 0.03:
            forged = rng.choice(batch)
            batch.remove(forged)
            batch.append(replace(forged, digest=f"{forged.digest}, altered"))
        folded = {request.id: request for request in batch}
        for id_ in folded:
            self._deliveries[id_] += 1
        return list(folded.values())

    def answered(self, batch: Sequence[Request], acknowledged: bool) -> None:
        """Takes the outcome of a batch; what fails too often goes to a dead-letter queue."""
        for request in batch:
            if acknowledged or self._deliveries[request.id] >= _DELIVERIES:
                there = self._pending.pop(request.id, None)
                if there and acknowledged:
                    self._finished = [*self._finished[-_REMEMBERED:], request]
