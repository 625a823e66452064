"""The form of the checks of an object store, and what they share.

A check is a function of a ``Sandbox`` that raises ``BrokenError`` when a promise does not hold. No check asks more of a
store than dolmen itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from threading import Event
from typing import Any, TypeVar

from msgspec import Struct

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.errors import Error
from dolmen.store.base import ObjectStore, PreconditionFailed, Stored, Unknown

R = TypeVar("R")

PART_BYTES = 5 * MIB  # size of parts in checks: the least that S3 accepts
THRESHOLD_BYTES = 6 * MIB  # size above which an upload has parts in checks


class Grant(Enum):
    """A permission: its name on S3, what fails without it, and whether dolmen can still be used."""

    PUT = ("s3:PutObject", "writing is impossible", False)
    GET = ("s3:GetObject", "reading is impossible", False)
    LIST = ("s3:ListBucket", "missing objects are reported as forbidden, and gc and ingest see no objects", False)
    DELETE = ("s3:DeleteObject", "gc cannot remove garbage; all other callers are safer without it", True)
    ABORT = ("s3:AbortMultipartUpload", "uploads that fail leave parts behind, which cost money", True)

    def __init__(self, action: str, without: str, is_harmless: bool) -> None:
        self.action, self.without, self.is_harmless = action, without, is_harmless


class BrokenError(AssertionError):
    """A promise does not hold: says what was found and what was expected."""


class Load(Struct, frozen=True):
    """The amount of concurrent work: numbers of threads, of what each of them does, and of objects in a listing."""

    writers: int = 8
    increments: int = 10
    creators: int = 32
    commits: int = 10
    listed: int = 1_100


@dataclass
class Sandbox:
    """The empty store that one check works in."""

    store: ObjectStore
    # opens another client of the same store, on the given runtime or a new one
    reopen: Callable[[Runtime | None], ObjectStore]
    # calls a function of a module with such a client, in another process if the store can be reached from there, and
    # returns its result
    call_elsewhere: Callable[..., Any]
    load: Load = field(default_factory=Load)
    stopped: Event = field(default_factory=Event)  # set when the check no longer waits for its threads

    def run_threads(self, function: Callable[[int], R], count: int) -> list[R]:
        """Calls ``function(0)`` to ``function(count - 1)`` in threads of their own; returns their results or raises.

        No thread continues when the caller is interrupted: it would write to a store that is being cleared.
        """
        all_started = Event()

        def call(number: int) -> R:
            # The pool does not wait for a thread whose start was interrupted, which must do nothing then.
            all_started.wait()
            self.raise_if_stopped()
            return function(number)

        with ThreadPoolExecutor(count) as pool:
            try:
                results = pool.map(call, range(count))
                all_started.set()
                return list(results)
            except BaseException:
                self.stopped.set()
                raise
            finally:
                all_started.set()

    def raise_if_stopped(self) -> None:
        """Ends a long-running thread that the check no longer waits for."""
        if self.stopped.is_set():
            raise BrokenError("it was stopped")


class Check(Struct, frozen=True):
    """A promise that must hold."""

    name: str
    promise: str  # the sentence that must be true
    means: str  # the consequence for dolmen when it does not hold
    is_harmless: bool  # whether dolmen can still be used then
    needs: frozenset[Grant]  # permissions it needs beside putting and getting objects
    run: Callable[[Sandbox], None]


def check(
    means: str, *, is_harmless: bool = False, needs: Collection[Grant] = ()
) -> Callable[[Callable[[Sandbox], None]], Check]:
    """A decorator that makes a check of a function, whose name and docstring are the check's."""

    def make(function: Callable[[Sandbox], None]) -> Check:
        name, promise = function.__name__.replace("_", " "), " ".join((function.__doc__ or "").split())
        return Check(name, promise, means, is_harmless, frozenset(needs), function)

    return make


def expect(holds: object, problem: str) -> None:
    """Raises BrokenError with ``problem`` unless ``holds`` is true."""
    if not holds:
        raise BrokenError(problem)


def equal(actual: object, expected: object, what: str) -> None:
    """Raises BrokenError unless both are equal."""
    if actual != expected:
        raise BrokenError(f"{what}: {_short(actual)} instead of {_short(expected)}")


def raises(kind: type[Error], what: str, call: Callable[[], object]) -> Error:
    """Returns the error that ``call`` must raise."""
    try:
        result = call()
    except kind as error:
        return error
    raise BrokenError(f"{what}: no {kind.__name__}, but {_short(result)}")


def put(store: ObjectStore, key: str, body: bytes = b"x", if_match: str | None = None) -> str:
    """Creates or replaces an object, which must succeed. Returns its ETag."""
    outcome = store.put(key, body, if_match=if_match)
    if not isinstance(outcome, Stored):
        raise BrokenError(f"{'creating' if if_match is None else 'replacing'} {key!r}: {_short(outcome)}")
    return outcome.etag


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    """The keys in a listing."""
    return [info.key for info in store.list(prefix, start_after)]


def delete(store: ObjectStore, *names: str) -> None:
    """Deletes objects, which must succeed."""
    outcomes = list(store.delete(names))
    equal([outcome.error for outcome in outcomes], [None] * len(names), f"deleting {', '.join(map(repr, names))}")


def _short(value: object) -> str:
    match value:
        case Stored():
            return "done"
        case PreconditionFailed():
            return "refused"
        case Unknown():
            return f"an unclear answer ({value.reason})"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]} ... ({len(text)} characters)"
