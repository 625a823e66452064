"""What is done to the processes of a soak, and in which order: decided by its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

SERVER = "minio"
SCHEDULE = "schedule"
"""The process of the pipeline's own that calls the scheduled functions."""

STORM = 30
"""The number of blows before a calm, in which longer work ends too: collection, verification, compaction."""


@dataclass(frozen=True)
class Blow:
    """One thing that is done to one process.

    Args:
        after: seconds to wait before.
        how: SIGKILL, or SIGSTOP and, later, SIGCONT.
        away: seconds until it is started again, or goes on.
        is_due: it belongs to those that happen in every soak, however short.
    """

    after: float
    how: Literal["kill", "stop"]
    victim: str
    away: float
    is_due: bool

    @property
    def kind(self) -> str:
        """For counting: what was done to which kind of process."""
        return f"{self.how} {kind_of(self.victim)}"


def kind_of(victim: str) -> str:
    """``appender-2`` is an appender."""
    return victim.partition("-")[0]


def plan(seed: int, actors: Sequence[str], seconds_between: tuple[float, float]) -> Iterator[Blow]:
    """Endless: storms, and calms between them. At first each kind of process is killed once, and some are stopped."""
    dice = random.Random(seed)
    victims = [SERVER, SCHEDULE, *actors]
    by_kind = {kind_of(victim): victim for victim in dice.sample(victims, len(victims))}
    first = [("kill", victim) for victim in by_kind.values()] + [
        ("stop", victim) for kind, victim in by_kind.items() if kind in (SERVER, "transactor", "keeper")
    ]
    dice.shuffle(first)
    for number in count(1):
        is_due = bool(first)
        how, victim = first.pop() if first else (dice.choice(["kill", "kill", "stop"]), dice.choice([*victims, SERVER]))
        if victim == SCHEDULE:
            how = "kill"  # it is the pipeline's to look after
        away = dice.uniform(0, 4) if how == "stop" else dice.choice([0.0, dice.uniform(0, 2)])
        after = dice.uniform(*seconds_between) + (dice.uniform(4, 8) * seconds_between[1] if number % STORM == 0 else 0)
        yield Blow(after, "kill" if how == "kill" else "stop", victim, away, is_due)
