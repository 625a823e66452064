"""What the two scheduled functions can be asked: the events of a schedule, checked.

An event is the payload of an EventBridge Scheduler schedule (``Input``)::

    {"tables": ["events"], "steps": ["resolve", "compact"]}         to compact; both may be left out
    {"dry_run": true}                                                to gc; may be left out

or the envelope that EventBridge makes when there is no ``Input``, whose ``detail`` is then that payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dolmen.errors import InputError
from dolmen.format.layout import check_table_name
from dolmen.maintenance.run import STEPS, Step

_ENVELOPE = "detail-type"


@dataclass(frozen=True)
class CompactRequest:
    """What a round is to do.

    Args:
        tables: names; None = all.
        steps: which, in the order of ``STEPS``.
    """

    tables: tuple[str, ...] | None = None
    steps: tuple[Step, ...] = STEPS

    @classmethod
    def of(cls, event: Any) -> CompactRequest:
        """Reads an event. Raises InputError, which names what is wrong, also for members nobody knows."""
        said = _payload(event, ("tables", "steps"))
        tables, steps = _names(said, "tables"), _names(said, "steps")
        for name in tables or ():
            check_table_name(name)
        if unknown := set(steps or ()) - set(STEPS):
            raise InputError(f"no step {min(unknown)!r}; there are: {', '.join(STEPS)}")
        return cls(tables, STEPS if steps is None else tuple(step for step in STEPS if step in steps))


@dataclass(frozen=True)
class GcRequest:
    """What a collection is to do.

    Args:
        dry_run: only say what would go.
    """

    dry_run: bool = False

    @classmethod
    def of(cls, event: Any) -> GcRequest:
        """Reads an event. Raises InputError, which names what is wrong, also for members nobody knows."""
        dry_run = _payload(event, ("dry_run",)).get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise InputError(f"dry_run is {dry_run!r}: true or false")
        return cls(dry_run)


def _payload(event: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if isinstance(event, Mapping) and _ENVELOPE in event:
        event = event.get("detail", {})
        if isinstance(event, str):  # Scheduler's own envelope holds it as text
            try:
                event = msgspec.json.decode(event or "{}")
            except msgspec.DecodeError as error:
                raise InputError(f"the detail of the event is not JSON: {error}") from None
    if not isinstance(event, Mapping):
        raise InputError(f"the event is {type(event).__name__}, not an object with {', '.join(known)}")
    if unknown := sorted(set(event) - set(known)):
        raise InputError(f"the event has {unknown[0]!r}, which nobody knows; there may be: {', '.join(known)}")
    return event


def _names(said: Mapping[str, Any], member: str) -> tuple[str, ...] | None:
    names = said.get(member)
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{member} is {names!r}: a list of names, or left out for all")
    return tuple(dict.fromkeys(names))
