"""The steps of an execution, the faults that may strike them, and the rule by which steps commute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dolmen_simulator.world.fates import Fate, StoreRequest, Verb


class Fault(NamedTuple):
    """The fault of an execution.

    Args:
        task: number of the task, 0 or 1.
        at: index of the request that it strikes, from 0.
        fate: fate of that request; None: the task stalls for hours before it.
        lasts: number of the task's following requests that are refused with 503.
    """

    task: int
    at: int
    fate: Fate | None
    lasts: int = 0

    def __str__(self) -> str:
        lasts = f"+{self.lasts}" if self.lasts else ""
        return f"{self.task}:{self.at}:{self.fate.name.lower() if self.fate else 'stall'}{lasts}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parses the form that ``str`` returns."""
        task, at, what = text.split(":")
        name, _, lasts = what.partition("+")
        return cls(int(task), int(at), None if name == "stall" else Fate[name.upper()], int(lasts or 0))


class Footprint(NamedTuple):
    """The objects that a step reads or changes.

    Args:
        keys: keys of the objects.
        prefix: prefix of a listing.
        after: a listing returns only greater keys.
        writes: whether the step changes the objects.
        depends_on_time: whether the step's time affects its result.
        passes_time: whether the step advances the time.
    """

    keys: frozenset[str] = frozenset()
    prefix: str | None = None
    after: str = ""
    writes: bool = False
    depends_on_time: bool = True
    passes_time: bool = False

    def conflicts(self, other: Footprint) -> bool:
        """Whether the order of the two steps affects the result."""
        if (self.passes_time and other.depends_on_time) or (other.passes_time and self.depends_on_time):
            return True
        if not (self.writes or other.writes):
            return False
        return not self.keys.isdisjoint(other.keys) or self._lists(other) or other._lists(self)

    def _lists(self, other: Footprint) -> bool:
        return self.prefix is not None and any(key.startswith(self.prefix) and key > self.after for key in other.keys)


NOTHING = Footprint(depends_on_time=False)
TIME = Footprint(passes_time=True)
EVERYTHING = Footprint(prefix="", writes=True, passes_time=True)
_NEVER_ARRIVES = (Fate.CRASH_BEFORE, Fate.REQUEST_LOST, Fate.LATE, Fate.THROTTLED, Fate.UNREACHABLE)


def footprint(request: StoreRequest, fate: Fate) -> Footprint:
    """The immediate effect of a request with this fate on the bucket."""
    if fate in _NEVER_ARRIVES or (fate is Fate.CONFLICT and not request.upload):
        return NOTHING
    if request.verb is Verb.LIST:
        return Footprint(prefix=request.key, after=request.start_after)
    keys = {request.key, request.source} - {""}
    return Footprint(frozenset(request.keys or keys), writes=not request.verb.reads)


@dataclass
class PendingStep:
    """A step that happens once it is chosen.

    Args:
        footprint: the objects that it reads and changes.
        description: the step in words.
        request: the request to the store, if it is one.
        fate: fate of the request.
        sent_by: index of the step that sent the request on its way; None for a step of a task.
        arrive: lets the request arrive; None: the task continues.
    """

    footprint: Footprint
    description: str
    request: StoreRequest | None = None
    fate: Fate | None = None
    sent_by: int | None = None
    arrive: Callable[[], None] | None = None


@dataclass
class Step:
    """A step that was chosen, and its result.

    Args:
        who: number that was chosen.
        waiting: the pending step that ran.
        at: index of the step.
        footprint: the objects that it read and changed; without the dependence on time if nobody read the clock.
        result: the answer, in words.
        landed: whether the store carried out the request at least once.
    """

    who: int
    waiting: PendingStep
    at: int
    footprint: Footprint
    result: str = ""
    landed: bool = False


@dataclass
class TaskOutcome:
    """The outcome of a task.

    Args:
        kind: ``done``, ``failed``, ``unknown`` or ``crashed``.
        value: result of its call.
        error: error that it raised.
        last: index of its last step.
    """

    kind: str = ""
    value: Any = None
    error: BaseException | None = None
    last: int = -1

    def __str__(self) -> str:
        if self.kind == "done":
            return f"returned {self.value!r}"
        return self.kind if self.error is None else f"{self.kind}: {type(self.error).__name__}: {self.error}"


_WRITE_FATES = (Fate.CRASH_BEFORE, Fate.CRASH_AFTER, Fate.REQUEST_LOST, Fate.RESPONSE_LOST)
_CONDITIONAL_FATES = (Fate.CONFLICT, Fate.THROTTLED_AFTER, Fate.DOUBLED)


def fates(request: StoreRequest) -> tuple[Fate, ...]:
    """The fates, other than OK, that are tried for a request.

    Fates with the same effect are left out: whether a read without an answer took place, and whether nothing landed
    because the request was lost, refused with 503 or found no connection, all of which are retried.
    """
    if request.verb.reads:
        return (Fate.CRASH_BEFORE, Fate.REQUEST_LOST)
    if not request.verb.conditional:
        return _WRITE_FATES
    return (*_WRITE_FATES, *_CONDITIONAL_FATES, *((Fate.LATE,) if request.if_match else ()))


def fates_in_outages(request: StoreRequest) -> tuple[Fate, ...]:
    """The fates of the first request in an outage, in which the server only answers with errors."""
    if request.verb.reads:
        return (Fate.THROTTLED,)
    return (Fate.THROTTLED, Fate.THROTTLED_AFTER)


def distinct_fates(request: StoreRequest, at: int) -> tuple[Fate, ...]:
    """The fates of a request that may lead to a new end.

    A crash has the same effect as one right after the last write before it. A read that failed and is retried might as
    well have come later; so might the put of an object whose name only its writer knows. Of the ways in which such a
    put lands without an answer, one is enough.

    Args:
        at: index of the request among those of its task.
    """
    first = () if at else (Fate.CRASH_BEFORE,)
    if request.verb.reads:
        return first
    if request.verb.conditional and not request.if_match:
        return (*first, Fate.CRASH_AFTER, Fate.RESPONSE_LOST)
    return (*first, *(fate for fate in fates(request) if fate is not Fate.CRASH_BEFORE))
