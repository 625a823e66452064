"""The only source of clock, randomness, sleep, threads and retries.

It is injected everywhere, so production code runs unchanged in a simulation that decides all of them from one seed.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FuturesTimeoutError
from dataclasses import dataclass, field
from functools import lru_cache, update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from msgspec import Struct

_FAR_SECONDS = 0.002  # opening a small file on a local disk takes less than this: 0.1 to 0.3 ms (measured)
_CLOCKS_DISAGREE_SECONDS = 1.0
"""A wall clock that NTP slews, by at most 0.5 ms a second, stays within this difference for half an hour."""
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


def _local_clock_us() -> int:
    return time.time_ns() // 1_000


def _monotonic() -> float:
    """Seconds that also pass while the machine is suspended, unlike ``time.monotonic`` on Linux and macOS."""
    if hasattr(time, "clock_gettime"):
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    return time.monotonic()


class Instant(NamedTuple):
    """A point in time by both clocks of this machine: see ``Runtime.clock_us`` and ``Runtime.monotonic``."""

    clock_us: int
    monotonic: float


class Signal(Protocol):
    """Lets one thread wait until another one sets it, once, like ``threading.Event``."""

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class cached_property(Generic[T]):  # noqa: N801 - named like functools.cached_property
    """Caches a method's result in the object, under the method's name, without a lock.

    ``functools.cached_property`` of Python 3.11 holds one lock for all objects of a class: while a computation reads
    from the store, all other threads that use the class wait. Here each may compute the value; all get the first one.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return value


@dataclass(frozen=True)
class Runtime:
    """The clock, randomness, sleep and threads of a process."""

    # this machine's wall clock in microseconds since the epoch; never orders commits
    clock_us: Callable[[], int] = _local_clock_us
    # seconds that never decrease and also pass while the machine is suspended; measures response ages
    monotonic: Callable[[], float] = _monotonic
    sleep: Callable[[float], None] = time.sleep  # waits for a number of seconds
    random: random.Random = field(default_factory=random.SystemRandom)  # the source of uuids and jitter
    threads: int = 32  # the most concurrent requests; 1 runs everything inline
    # number of threads that decode or encode; at most one per processor, because each needs memory
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    signal: Callable[[], Signal] = threading.Event  # makes a ``Signal``
    # True if requests matter more than latency: large objects are uploaded in fewer, larger parts
    few_requests: bool = False

    def instant(self) -> Instant:
        """The current instant."""
        return Instant(self.clock_us(), self.monotonic())

    def elapsed(self, since: Instant) -> float:
        """Seconds since an instant; infinite if the two clocks disagree, because then the time is unknown.

        While a virtual machine or a function is frozen, its monotonic clock may stop. Its wall clock is set afterwards.
        """
        seconds = self.monotonic() - since.monotonic
        clock_seconds = (self.clock_us() - since.clock_us) / 1_000_000
        return seconds if abs(clock_seconds - seconds) <= _CLOCKS_DISAGREE_SECONDS else float("inf")

    def uuid(self) -> str:
        """32 hexadecimal digits of a fresh random (version 4) UUID."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4).hex

    def attempt_id(self) -> str:
        """8 hexadecimal digits that identify one commit attempt."""
        return f"{self.random.getrandbits(32):08x}"

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
        """Like ``map``, in order, with up to ``ahead`` (default ``threads``) concurrent items.

        An error is raised when the result of its item is due; items that have not started by then do not start.
        ``size``: the bytes of an item's result. To bound memory, no further item starts while the results of the
        concurrent items take more than ``most`` bytes. ``here``: see ``compute``; for items that are cached.
        """
        if self.threads == 1:
            return map(function, items)
        return _map(self._pool, function, items, ahead or self.threads, size, most, here)

    def near(
        self, function: Callable[[T], R], items: Iterator[T], *, count: Callable[[T], int] = lambda _: 1
    ) -> Iterator[R]:
        """Like ``map``, but one item at a time in the caller's thread. Stops when items are slow, and leaves the rest.

        Use it before ``map`` for local files: threads help only where the disk is slow or the work is long. ``count``:
        the number of files of an item.
        """
        seconds, files = 0.0, 0
        for item in items:
            began = self.monotonic()
            result = function(item)
            seconds += self.monotonic() - began
            files += count(item)
            yield result
            if seconds > files * _FAR_SECONDS:
                return

    def compute(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        ahead: int | None = None,
        here: Callable[[T], bool] = lambda _: False,
    ) -> Iterator[R]:
        """Like ``map``, for work that keeps a processor busy: on ``cores`` threads.

        Args:
            ahead: the most concurrent items; ``cores`` + 1 by default.
            here: whether the caller's thread computes an item when its result is due: for work in short steps, in which
                threads would wait for each other.
        """
        if self.threads == 1:
            return map(function, items)
        return _map(self._processors, function, items, ahead or self.cores + 1, here=here)

    def ahead(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items in order, and prepares the next item in a thread. A caller that stops early waits for it."""
        if self.threads == 1:
            yield from items
            return
        iterator, end = iter(items), object()
        following: Future[Any] = self._pool.submit(next, iterator, end)
        try:
            while (item := following.result()) is not end:
                following = self._pool.submit(next, iterator, end)
                yield item
        finally:
            wait([following])

    def attend(self, function: Callable[[], R], seconds: float, meanwhile: Callable[[], None]) -> R:
        """Runs ``function`` in a thread, and calls ``meanwhile`` every ``seconds`` until it ends.

        An error of ``meanwhile`` is raised at once, while ``function`` continues in its thread.
        """
        if self.threads == 1:
            return function()
        future = self._pool.submit(function)
        while True:
            try:
                return future.result(seconds)
            except FuturesTimeoutError:
                if future.done():
                    raise  # the function's own error
                meanwhile()

    def start(self, function: Callable[[], None], name: str) -> None:
        """Runs a function in its own thread until it returns. The thread does not keep the process alive."""
        threading.Thread(target=function, name=name, daemon=True).start()

    def share(self, make: Callable[[Runtime], T]) -> T:
        """The object that ``make`` makes for all users of this runtime, at the first call."""
        found: T | None = self._shared.get(make)
        return found or self._shared.setdefault(make, make(self))

    @cached_property
    def _shared(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, thread_name_prefix="dolmen")

    @cached_property
    def _processors(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cores, thread_name_prefix="dolmen-core")


class PerProcess(Generic[P, T]):
    """A function that returns the same object for the same arguments, and another one in a forked process.

    Threads do not survive a fork, and processes must not share sockets. What the parent has made is kept there, unused:
    closing it could wait for such threads.
    """

    __qualname__: str

    def __init__(self, make: Callable[P, T]) -> None:
        cached = lru_cache(maxsize=16)(lambda process, *args, **kwargs: make(*args, **kwargs))
        self._cached: Callable[..., T] = cached
        self.cache_clear = cached.cache_clear
        update_wrapper(self, make)

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by reference, like the function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._cached(os.getpid(), *args, **kwargs)


@PerProcess
def shared_runtime() -> Runtime:
    """The runtime of this process, with its threads and connections, for all databases opened without a runtime."""
    return Runtime()


def _map(
    pool: ThreadPoolExecutor,
    function: Callable[[T], R],
    items: Iterable[T],
    window: int,
    size: Callable[[T], int] = lambda _: 0,
    most: int = 0,
    here: Callable[[T], bool] = lambda _: False,
) -> Iterator[R]:
    pending: deque[tuple[Future[R] | None, T, int]] = deque()
    pending_bytes = 0  # bytes of pending results

    def take() -> R:
        nonlocal pending_bytes
        future, item, item_bytes = pending.popleft()
        pending_bytes -= item_bytes
        return function(item) if future is None else future.result()

    try:
        for item in items:
            item_bytes = size(item)
            pending.append((None if here(item) else pool.submit(function, item), item, item_bytes))
            pending_bytes += item_bytes
            while pending and (len(pending) >= window or pending_bytes > most):
                yield take()
        while pending:
            yield take()
    finally:
        for future, _, _ in pending:
            if future:
                future.cancel()


class RetryPolicy(Struct, frozen=True):
    """How often something is attempted, and how long the pauses between are."""

    tries: int  # the most attempts, the first one included
    # the longest pause before the second attempt is twice this; it doubles with each attempt. 0 = no pause: for
    # conflicts in which each loss means that another writer succeeded.
    base_seconds: float = 0.05
    cap_seconds: float = 2.0  # no pause is longer


class Attempt(NamedTuple):
    """One attempt. ``number`` counts from 0; after the one that ``is_last`` its error is final."""

    number: int
    is_last: bool


REQUEST = RetryPolicy(6)  # a small object or message. A throttled or unreachable server has up to 3 seconds to recover.
READ = RetryPolicy(8)
"""A GET or HEAD on S3. It is harmless to repeat, and a scan that fails loses all that it has read."""
POINTER_PUT = RetryPolicy(8)
"""The PUT of a pointer that has not moved since. A failure repeats the whole commit, so more attempts pay."""
POINTER_READ = RetryPolicy(3, base_seconds=0)
"""A GET of the pointer, then of its manifest. Garbage collection may delete the manifest in between, which takes longer
than a retention: twice is already improbable, so a third time is damage."""
TRANSACTION = RetryPolicy(100)
"""A user's function in ``Database.run``. A hundred conflicts in a row are starvation, not bad luck."""
WRITER_BATCH = RetryPolicy(11, base_seconds=0)
"""A batch of ``BufferedWriter``. Each repetition needs another writer's conflicting commit or applied request."""
AUTOCOMMIT = RetryPolicy(10, base_seconds=0)
"""A single statement. Each repetition needs a change of the table's columns or a new erasure."""
INGEST_BATCH = RetryPolicy(5, base_seconds=0)
"""A batch of requests, built again when its base is no longer the newest version. The queue delivers it again."""
CURSOR_OPENING = RetryPolicy(10)  # the first opening of a cursor, while another process makes or removes it
NEW_COLUMNS = RetryPolicy(20)
"""Adding a DataFrame's new columns. Many Spark jobs may start together and add the same ones."""
FENCE = RetryPolicy(10)
"""Moving the fence. Only another collection, or a change of settings, conflicts with it."""
RECEIPT = RetryPolicy(10)  # replacing an erasure's receipt, to which several functions may add at once
EXPIRY = RetryPolicy(5, base_seconds=0)
"""Expiring rows by ``ttl``. A table was dropped, or its setting changed, since it was read."""
PUBLICATION = RetryPolicy(20)
"""Publishing a table. Each repetition needs another publisher that was faster, or a version that expired."""
GLUE_REGISTRATION = RetryPolicy(20)
"""Registering a publication in Glue. Each repetition needs another registration in the meantime."""
PUBLICATION_CHECK = RetryPolicy(5, base_seconds=0)
"""Verifying the newest publication. A finding counts only if no other publication replaced it during the check."""
DIRECTORY = RetryPolicy(100, base_seconds=0)
"""Creating a file in a directory. Another process may remove the empty directory before the file is in it."""


def attempts(runtime: Runtime, policy: RetryPolicy = REQUEST) -> Iterator[Attempt]:
    """Yields attempts, and sleeps between them: uniformly between 0 and a doubling, capped limit."""
    for number in range(policy.tries):
        if number and policy.base_seconds:
            runtime.sleep(runtime.random.uniform(0, min(policy.cap_seconds, policy.base_seconds * 2**number)))
        yield Attempt(number, number == policy.tries - 1)


def never() -> bool:
    """A deadline that never comes."""
    return False
