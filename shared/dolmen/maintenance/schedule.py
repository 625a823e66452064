"""The events of the two scheduled functions, parsed and checked.

An event is the payload (``Input``) of an EventBridge Scheduler schedule::

    {"tables": ["events"], "steps": ["resolve", "compact"]}         to compact; both may be left out
    {"dry_run": true}                                                to gc; may be left out

or, without ``Input``, the envelope that EventBridge makes, whose ``detail`` is the payload.
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
    """A request for a round of maintenance.

    Args:
        tables: their names; None for all.
        steps: the steps to run, in the order of ``STEPS``.
    """

    tables: tuple[str, ...] | None = None
    steps: tuple[Step, ...] = STEPS

    @classmethod
    def of(cls, event: Any) -> CompactRequest:
        """Reads an event. Raises InputError, which names what is wrong; unknown members are errors too."""
        said = _payload(event, ("tables", "steps"))
        tables, steps = _names(said, "tables"), _names(said, "steps")
        for name in tables or ():
            check_table_name(name)
        if unknown := set(steps or ()) - set(STEPS):
            raise InputError(f"no step {min(unknown)!r}; there are: {', '.join(STEPS)}")
        return cls(tables, STEPS if steps is None else tuple(step for step in STEPS if step in steps))


@dataclass(frozen=True)
class GcRequest:
    """A request for a collection.

    Args:
        dry_run: report what would be deleted, and delete nothing.
    """

    dry_run: bool = False

    @classmethod
    def of(cls, event: Any) -> GcRequest:
        """Reads an event. Raises InputError, which names what is wrong; unknown members are errors too."""
        dry_run = _payload(event, ("dry_run",)).get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise InputError(f"dry_run is {dry_run!r}: give true or false")
        return cls(dry_run)


def _payload(event: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if isinstance(event, Mapping) and _ENVELOPE in event:
        event = event.get("detail", {})
        if isinstance(event, str):  # in Scheduler's own envelope the detail is text
            try:
                event = msgspec.json.decode(event or "{}")
            except msgspec.DecodeError as error:
                raise InputError(f"the detail of the event is not JSON ({error}): give an object") from None
    if not isinstance(event, Mapping):
        raise InputError(f"the event is {type(event).__name__}, not an object with {', '.join(known)}")
    if unknown := sorted(set(event) - set(known)):
        raise InputError(f"the event has the unknown member {unknown[0]!r}; allowed are: {', '.join(known)}")
    return event


def _names(said: Mapping[str, Any], member: str) -> tuple[str, ...] | None:
    names = said.get(member)
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{member} is {names!r}: give a list of names, or leave it out for all")
    return tuple(dict.fromkeys(names))
