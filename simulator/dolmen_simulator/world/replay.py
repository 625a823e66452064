"""What it takes to run a history again, and the error that says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dolmen.errors import InputError
from dolmen_simulator.judge.never import Never
from dolmen_simulator.world.trace import Event, lines

STEADY = "skew"
"""Left out like a kind of fault: with it, the actors' clocks differ."""

ALL = "all"
"""Every kind of fault at once."""

_SHOWN = 60


@dataclass(frozen=True)
class Replay:
    """Which history: all of it follows from this.

    Args:
        seed: decides everything.
        steps: after so many it ends, and is checked.
        only: the actors that take part; None for all. Those left out leave the streams of the others alone.
        without: kinds of faults (fields of ``Faults``) that don't happen, and ``skew``.
    """

    seed: int
    steps: int
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """How to run it by hand."""
        return (
            f"dolmen simulate --seed {self.seed} --steps {self.steps}"
            + (f" --only {','.join(self.only)}" if self.only is not None else "")
            + (f" --without {','.join(self.without)}" if self.without else "")
        )


@dataclass(frozen=True)
class HistoryFailure:
    """What went wrong in a history.

    Args:
        replay: which history.
        never: which of the things that must never happen; None: an exception that nobody expected.
        reason: what happened, in words.
        step: at which step it showed.
        digest: of the trace, the violation included.
        events: the last of the trace.
        actors: who took part.
    """

    replay: Replay
    never: Never | None
    reason: str
    step: int
    digest: str
    events: tuple[Event, ...]
    actors: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What a smaller history must show too, to be the same failure."""
        return self.never.name if self.never else self.reason.partition(":")[0]


class HistoryError(AssertionError):
    """A history in which something happened that must never happen.

    Args:
        failure: what, and how to see it again.
    """

    def __init__(self, failure: HistoryFailure) -> None:
        super().__init__(failure)  # so that it can be sent between processes
        self.failure = failure

    @property
    def never(self) -> Never | None:
        """Which of the things that must never happen; None: an exception that nobody expected."""
        return self.failure.never

    def __str__(self) -> str:
        failure = self.failure
        what = f"{failure.never.name}: {failure.never.value}" if failure.never else "an unexpected error"
        return "\n".join(
            [
                f"{what} (seed {failure.replay.seed}, step {failure.step:,})",
                failure.reason,
                f"replay: {failure.replay.command}",
                "the last of it:",
                *(line for _, line in lines(failure.events[-_SHOWN:])),
            ]
        )


def check_names(names: Collection[str] | None, there: Collection[str], what: str) -> frozenset[str] | None:
    """These names, all of which must be known.

    Raises:
        InputError: names one that is not there, and those that are.
    """
    if names is not None and (unknown := sorted(set(names) - set(there))):
        raise InputError(f"no {what} {', '.join(unknown)}; there are {', '.join(there)}")
    return None if names is None else frozenset(names)
