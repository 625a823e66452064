"""Records a history in words: the last events for people and machines, and a digest for comparing runs."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dolmen_simulator.judge.model import RenameEffect
from dolmen_simulator.world.scheduler import START_US

if TYPE_CHECKING:
    from dolmen_simulator.judge.model import Effect, OperationRun

Kind = Literal["request", "note", "commit", "violation"]


class Event(NamedTuple):
    """One line of a trace.

    Args:
        kind: kind of the event.
        at_us: virtual time since the history's beginning.
        who: name of the actor.
        verb, key: verb and object of a request; "" otherwise.
        text: result of a request, or the text of another event.
    """

    kind: Kind
    at_us: int
    who: str
    verb: str
    key: str
    text: str


class Trace:
    """The last events of a history, and a digest of all.

    Args:
        keep: number of events to keep; None keeps all.
    """

    def __init__(self, keep: int | None = 60) -> None:
        self._events: deque[Event] = deque(maxlen=keep)
        self._hash = hashlib.blake2b(digest_size=16)

    def step(self, now_us: int, who: str, verb: str, key: str, fate: str) -> None:
        """Adds a request with its result."""
        self._add(Event("request", now_us - START_US, who, verb, key, fate))

    def note(self, now_us: int, who: str, text: str) -> None:
        """Adds any other event, such as the beginning or the end of an actor's call."""
        self._add(Event("note", now_us - START_US, who, "", "", text))

    def commit(self, now_us: int, version: int, run: OperationRun) -> None:
        """Adds a new version with its effects."""
        operation = run.operation
        text = f"version {version}: {operation.kind}{_effects(run.effects)}"
        self._add(Event("commit", now_us - START_US, operation.actor, "", "", text))

    def violation(self, now_us: int, text: str) -> None:
        """Adds a violation."""
        self._add(Event("violation", now_us - START_US, "", "", "", text))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._hash.update(f"{event.at_us} {event.who} {event.verb} {event.key} {event.text}\n".encode())

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._hash.hexdigest()

    @property
    def events(self) -> tuple[Event, ...]:
        """The last events, oldest first."""
        return tuple(self._events)


_WIDEST_KEY = 60

_UUID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")
_HOUR = re.compile(r"/\d{4}/\d\d/\d\d/\d\d/")
_VERSION = re.compile(r"\bv0{5,}(\d+)")


def shorten(text: str) -> str:
    """Shortens the object names in a text, each always in the same way.

    Uuids keep their first 8 digits, versions lose their zeros, and the hour of a data file's folder is left out.
    """
    return _HOUR.sub("/", _VERSION.sub(r"v\1", _UUID.sub(r"\1", text)))


def lines(events: Iterable[Event], actors: Collection[str] = ()) -> list[tuple[Event, str]]:
    """Returns events with aligned lines: virtual seconds, actor, and text.

    Args:
        events: the events.
        actors: names of the actors whose lines are kept; empty keeps all.
    """
    shown = [event for event in events if not actors or event.who in actors or event.kind == "violation"]
    who = max((len(event.who) for event in shown), default=0)
    verb = max((len(event.verb) for event in shown), default=0)
    key = min(max((len(shorten(event.key)) for event in shown), default=0), _WIDEST_KEY)
    return [
        (event, f"{event.at_us / 1e6:12.6f}  {event.who:<{who}}  {_describe_event(event, verb, key)}")
        for event in shown
    ]


def _describe_event(event: Event, verb: int, key: int) -> str:
    """The text of an event; that of a request has its verb, key and result in columns of these widths."""
    if event.kind == "request":
        return f"{event.verb:<{verb}} {shorten(event.key):<{key}}  {event.text}"
    if event.kind == "commit":
        return f"=> {shorten(event.text)}"
    return f"{'!! ' if event.kind == 'violation' else '-- '}{shorten(event.text)}"


def document(event: Event) -> dict[str, Any]:
    """Converts an event to JSON for machines, with nothing shortened."""
    found = {"kind": event.kind, "at": event.at_us / 1e6, "actor": event.who, "text": event.text}
    return found | ({"verb": event.verb, "key": event.key} if event.kind == "request" else {})


def _effects(effects: Iterable[Effect]) -> str:
    """A short description of a commit's effects."""
    parts = []
    for effect in effects:
        rows = getattr(effect, "rows", None)
        many = f" {len(rows)} rows" if isinstance(rows, tuple) else ""
        to = f" to {effect.to}" if isinstance(effect, RenameEffect) else ""
        parts.append(f"{type(effect).__name__.removesuffix('Effect').lower()} {effect.table or 'settings'}{to}{many}")
    return f" ({', '.join(parts)})" if parts else ""
