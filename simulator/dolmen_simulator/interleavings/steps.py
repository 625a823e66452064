"""What may be chosen in an execution, what goes wrong there, and which steps commute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dolmen_simulator.world.fates import Fate, Request, Verb


class Fault(NamedTuple):
    """What goes wrong in an execution.

    Args:
        task: 0 or 1.
        at: which of its requests, from 0.
        fate: what becomes of that; None: before it, the task stands still for hours.
        lasts: so many of the task's requests that follow are refused with 503.
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
        """Reads what ``str`` says."""
        task, at, what = text.split(":")
        name, _, lasts = what.partition("+")
        return cls(int(task), int(at), None if name == "stall" else Fate[name.upper()], int(lasts or 0))


class Footprint(NamedTuple):
    """What a step looks at or changes.

    Args:
        keys: objects.
        prefix: of a listing.
        after: it tells of greater keys only.
        writes: whether it changes them.
        timely: whether it makes a difference when it happens.
        passes: it lets time go by.
    """

    keys: frozenset[str] = frozenset()
    prefix: str | None = None
    after: str = ""
    writes: bool = False
    timely: bool = True
    passes: bool = False

    def conflicts(self, other: Footprint) -> bool:
        """Whether it makes a difference which of two comes first."""
        if (self.passes and other.timely) or (other.passes and self.timely):
            return True
        if not (self.writes or other.writes):
            return False
        return not self.keys.isdisjoint(other.keys) or self._lists(other) or other._lists(self)

    def _lists(self, other: Footprint) -> bool:
        return self.prefix is not None and any(key.startswith(self.prefix) and key > self.after for key in other.keys)


NOTHING = Footprint(timely=False)
TIME = Footprint(passes=True)
MUCH = Footprint(prefix="", writes=True, passes=True)
_NEVER_ARRIVES = (Fate.CRASH_BEFORE, Fate.REQUEST_LOST, Fate.LATE, Fate.THROTTLED, Fate.UNREACHABLE)


def footprint(request: Request, fate: Fate) -> Footprint:
    """What a request that this becomes of does to the bucket at once."""
    if fate in _NEVER_ARRIVES or (fate is Fate.CONFLICT and not request.upload):
        return NOTHING
    if request.verb is Verb.LIST:
        return Footprint(prefix=request.key, after=request.start_after)
    return Footprint(frozenset(request.keys or (request.key,)), writes=not request.verb.reads)


@dataclass
class Waiting:
    """What somebody does when he is chosen.

    Args:
        does: what it looks at and changes.
        told: in words.
        request: of the store, if it is one.
        sent_by: the step that sent it on its way; None for a task's own.
        arrive: makes it happen; None: its task goes on.
    """

    does: Footprint
    told: str
    request: Request | None = None
    fate: Fate | None = None
    sent_by: int | None = None
    arrive: Callable[[], None] | None = None


@dataclass
class Step:
    """What was chosen, and what came of it.

    Args:
        landed: whether the store did what was asked, once at least.
        did: what it looked at and changed; less than it might have, if nobody asked for the time that its answer told.
    """

    who: int
    waiting: Waiting
    at: int
    did: Footprint
    came: str = ""
    landed: bool = False


@dataclass
class Outcome:
    """What a task was told.

    Args:
        kind: ``done``, ``failed``, ``unknown`` or ``crashed``.
        value: what its call returned.
        error: what it raised.
        last: its last step.
    """

    kind: str = ""
    value: Any = None
    error: BaseException | None = None
    last: int = -1

    def __str__(self) -> str:
        if self.kind == "done":
            return f"returned {self.value!r}"
        return self.kind if self.error is None else f"{self.kind}: {type(self.error).__name__}: {self.error}"


_OF_WRITES = (Fate.CRASH_BEFORE, Fate.CRASH_AFTER, Fate.REQUEST_LOST, Fate.RESPONSE_LOST)
_OF_CONDITIONAL = (Fate.CONFLICT, Fate.THROTTLED_AFTER, Fate.DOUBLED)


def fates(request: Request) -> tuple[Fate, ...]:
    """What may go wrong with a request.

    What makes no difference is left out: whether a read that nobody hears of took place, and whether nothing landed
    because the request was lost, refused with 503 or found no connection, all of which are tried again.
    """
    if request.verb.reads:
        return (Fate.CRASH_BEFORE, Fate.REQUEST_LOST)
    if not request.verb.conditional:
        return _OF_WRITES
    return (*_OF_WRITES, *_OF_CONDITIONAL, *((Fate.LATE,) if request.if_match else ()))


def fates_in_outages(request: Request) -> tuple[Fate, ...]:
    """What may become of the first request of many that get no other answer than an error of the server."""
    if request.verb.reads:
        return (Fate.THROTTLED,)
    return (Fate.THROTTLED, Fate.THROTTLED_AFTER)


def fates_that_differ(request: Request, at: int) -> tuple[Fate, ...]:
    """Those without which nothing would end otherwise.

    A crash comes to the same as one right after the last write before it. A read, or the put of an object of which only
    its writer knows the name, that has not happened and is tried again, might as well have come later. Of the ways in
    which such a put may land unheard of, one will do.

    Args:
        at: which of its task's requests it is.
    """
    first = () if at else (Fate.CRASH_BEFORE,)
    if request.verb.reads:
        return first
    if request.verb.conditional and not request.if_match:
        return (*first, Fate.CRASH_AFTER, Fate.RESPONSE_LOST)
    return (*first, *(fate for fate in fates(request) if fate is not Fate.CRASH_BEFORE))
