"""How many round trips an operation takes one after the other, and how long that is: counted exactly, without waiting.

A ``Timeline`` is a clock that only requests move. Work that the runtime does at once begins at the same time on it, as
far as there are threads; so what an operation takes follows from the order of its requests alone, however busy the
machine is. With requests that take 1 and bytes that take nothing, that is the depth of the operation: the number of
round trips that wait for each other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dolmen.base.runtime import Runtime
from dolmen.store.base import Object, ObjectInfo, ObjectStore
from dolmen_simulator.counting import CountingStore

T = TypeVar("T")
R = TypeVar("R")


class Sent(NamedTuple):
    """A request on the timeline: when it was sent, when it ended, its kind and key, and its bytes."""

    start: float
    end: float
    what: str
    bytes: int


@dataclass
class Timeline:
    """A clock that requests move.

    Args:
        request: how long a request takes, whatever its size.
        per_byte: how much longer each byte takes.
    """

    request: float = 1.0
    per_byte: float = 0.0
    now: float = 0.0
    sent: list[Sent] = field(default_factory=list)

    def pass_request(self, what: str, size: int) -> None:
        """Lets the time of one request pass."""
        start = self.now
        self.now += self.request + size * self.per_byte
        self.sent.append(Sent(start, self.now, what, size))


class _Task(NamedTuple):
    end: float
    result: Any
    error: BaseException | None


@dataclass(frozen=True)
class TimedRuntime(Runtime):
    """A runtime whose threads are simulated on a timeline: the calling thread does all work in order."""

    timeline: Timeline = field(default_factory=Timeline)
    _free: dict[str, list[float]] = field(default_factory=dict)

    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        ahead: int | None = None,
        size: Callable[[T], int] = lambda _: 0,
        most: int = 0,
        here: Callable[[T], bool] = lambda _: False,
    ) -> Iterator[R]:
        """Like ``Runtime.map``."""
        return self._run("requests", self.threads, function, items, ahead or self.threads, size, most)

    def compute(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        ahead: int | None = None,
        here: Callable[[T], bool] = lambda _: False,
    ) -> Iterator[R]:
        """Like ``Runtime.compute``. Work that sends no request takes no time."""
        return self._run("cores", self.cores, function, items, ahead or self.cores + 1)

    def ahead(self, items: Iterable[T]) -> Iterator[T]:
        """Like ``Runtime.ahead``."""
        iterator, end = iter(items), object()
        following = self._task("requests", self.threads, lambda _: next(iterator, end), None)
        while (item := self._result(following)) is not end:
            following = self._task("requests", self.threads, lambda _: next(iterator, end), None)
            yield item

    def _run(
        self,
        pool: str,
        threads: int,
        function: Callable[[T], R],
        items: Iterable[T],
        window: int,
        size: Callable[[T], int] = lambda _: 0,
        most: int = 0,
    ) -> Iterator[R]:
        pending: deque[tuple[_Task, int]] = deque()
        held = 0
        for item in items:
            pending.append((self._task(pool, threads, function, item), size(item)))
            held += pending[-1][1]
            while pending and (len(pending) >= window or held > most):
                task, own = pending.popleft()
                yield self._result(task)
                held -= own
        while pending:
            yield self._result(pending.popleft()[0])

    def _task(self, pool: str, threads: int, function: Callable[[T], Any], item: T) -> _Task:
        called, free = self.timeline.now, self._free.setdefault(pool, [0.0] * threads)
        self.timeline.now = max(called, heapq.heappop(free))
        result: Any = None
        caught: BaseException | None = None
        try:
            result = function(item)
        except BaseException as error:  # noqa: BLE001  # raised when the result is asked for
            caught = error
        end, self.timeline.now = self.timeline.now, called
        heapq.heappush(free, end)
        return _Task(end, result, caught)

    def _result(self, task: _Task) -> Any:
        self.timeline.now = max(self.timeline.now, task.end)
        if task.error is not None:
            raise task.error
        return task.result


class TimelineStore(CountingStore):
    """A store whose requests take their time on a timeline."""

    def __init__(self, store: ObjectStore, timeline: Timeline) -> None:
        super().__init__(store)
        self.timeline = timeline

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        found = super().get(key, byte_range, etag=etag, version=version)
        self.timeline.pass_request(f"GET {key} {byte_range or ''}".rstrip(), len(found.body))
        return found

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        self.timeline.pass_request(f"HEAD {key}", 0)
        return super().head(key, version=version)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.timeline.pass_request(f"LIST {prefix}", 0)
        return super().list(prefix, start_after)

    def count(self, **amounts: int) -> None:
        super().count(**amounts)
        if amounts.get("puts"):
            self.timeline.pass_request("PUT", amounts["bytes_up"])
