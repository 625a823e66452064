"""Deterministic races: writers wait for each other just before their commits, and go on in a given order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

from dolmen.format.layout import POINTER
from dolmen.store.base import ObjectStore, PutOutcome, Stored

PATIENCE_SECONDS = 300.0
"""The longest that a writer waits for the others, in seconds; only a failure makes it wait so long."""


class Meeting:
    """Writers that delay their first commits until all of them are ready to commit, or have ended.

    They all began on the same version, so that only the first can succeed.

    Args:
        order: names of the writers, in the order of their commits, each after the answer to the one before.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self._awaited, self._order = set(order), list(order)
        self._changed = Condition()
        self.refused = dict.fromkeys(order, 0)
        """How many commits of each were refused, because another one had taken the place."""

    def commit(self, name: str, put: Callable[[], PutOutcome]) -> PutOutcome:
        """Makes one attempt of a writer to commit."""
        with self._changed:
            first = name in self._awaited
            if first:
                self._awaited.remove(name)
                self._changed.notify_all()
                come = self._changed.wait_for(lambda: not self._awaited and self._order[0] == name, PATIENCE_SECONDS)
                assert come, f"{name} waits for {self._awaited}, and then {self._order}"
        try:
            outcome = put()
        finally:
            if first:
                self.leave(name)
        if not isinstance(outcome, Stored):
            self.refused[name] += 1
        return outcome

    def leave(self, name: str) -> None:
        """Removes a writer, so that the others no longer wait for it."""
        with self._changed:
            self._awaited.discard(name)
            if name in self._order:
                self._order.remove(name)
            self._changed.notify_all()


class MeetingStore:
    """A writer's store, whose commits go through the meeting."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store, self._name = store, name
        self.meeting = Meeting([])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, *args: Any, **options: Any) -> PutOutcome:
        def put() -> PutOutcome:
            return self._store.put(key, *args, **options)

        return self.meeting.commit(self._name, put) if key == POINTER else put()
