"""Turns: a writer that has lost again asks to be the next to commit.

Whoever has just committed knows the newest version without a request. Others must read it first, so against a writer
that commits without a pause they would lose for ever. A writer that has lost twice therefore replaces the pointer by
one that names the same version, and a turn. That makes no version. Attempts that are under way fail by it, as the ETag
that they depend on is gone, and who reads it waits until the version changes, or as long as the turn says.

Nothing depends on the waiting but fairness: a commit is a compare-and-swap, whosever turn it is.
"""

from __future__ import annotations

from dolmen.commit.head import Base, Head, Look
from dolmen.errors import ObjectNotFoundError, StoreUnavailableError
from dolmen.format.pointer import Turn

LOSSES = 2
"""Attempts that a writer loses before it asks for a turn: where few compete, the next one mostly lands anyway."""

LONGEST_SECONDS = 5.0
"""Nobody waits longer for a turn, whatever the pointer says."""

_SHORTEST_SECONDS = 0.1
_LEAST_TRIPS = 0.1
_TRIPS = 4
"""Round trips of a lost attempt, with its readback."""

_PATIENCE = 6
"""Round trips between the first looks of who waits. Who has seen n versions pass looks n + 1 times as often, so that it
mostly comes first to the turn of the next one."""


def turn_seconds(turn: Turn) -> float:
    """How long others wait for a turn at most."""
    return min(turn.ms / 1_000, LONGEST_SECONDS)


def await_turn(head: Head, losses: int, seconds: float) -> Base:
    """Waits until an attempt is worth while; takes a turn after ``LOSSES`` lost ones.

    Args:
        losses: how often this change has lost.
        seconds: how long its last attempt took.

    Returns:
        The newest version.
    """
    runtime = head.runtime
    own = Turn(runtime.uuid(), round(min(max(2 * seconds, _SHORTEST_SECONDS), LONGEST_SECONDS) * 1_000))
    if losses < LOSSES:
        runtime.sleep(runtime.random.uniform(0, min(seconds, LONGEST_SECONDS)))
    look = head.look()
    first = 0 if look is None else look.pointer.version
    while look is not None:
        look = _wait_for_others(head, look, own, first, min(seconds / _TRIPS, 1.0))
        if losses < LOSSES or look is None or look.turn == own:
            break
        try:
            taken = head.take_turn(look, own)
        except StoreUnavailableError:
            break  # the attempt finds out what is wrong
        if taken is not None:
            look = taken
            break
        look = head.look()  # another writer came first, or the answer was lost
    try:
        return head.refresh() if look is None else head.follow(look)
    except ObjectNotFoundError:  # the version has expired meanwhile
        return head.refresh()


def _wait_for_others(head: Head, look: Look, own: Turn, first: int, trip: float) -> Look | None:
    """Waits while the pointer has another writer's turn. Returns the pointer then; None if there is none.

    Args:
        first: the version that was the newest when this change began to wait.
        trip: seconds of a round trip, about.
    """
    runtime, since, slept = head.runtime, look, 0.0
    latest: Look | None = look
    while latest is not None and latest.turn not in (None, own):
        if latest.etag != since.etag:
            since, slept = latest, 0.0
        assert latest.turn is not None
        if max(latest.at - since.at, slept) >= turn_seconds(latest.turn):
            break  # whose turn it was does not come
        passed = latest.pointer.version - first
        pause = runtime.random.uniform(0.5, 1) * max(trip, 0.001) * max(_PATIENCE / (1 + passed), _LEAST_TRIPS)
        runtime.sleep(pause)
        slept += pause
        latest = head.look()
    return latest
