"""The arguments that replay a history, and the error of a history that failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dolmen.errors import InputError
from dolmen_simulator.judge.never import Never
from dolmen_simulator.world.trace import Event, lines

STEADY = "skew"
"""The skew of the actors' clocks, which can be left out like a kind of fault."""

ALL = "all"
"""All kinds of faults."""

_SHOWN = 60


@dataclass(frozen=True)
class Replay:
    """The arguments that determine a history.

    Args:
        seed: seed of all random numbers.
        steps: number of requests after which it ends.
        only: names of the actors that take part; None for all. The others' random numbers do not depend on it.
        without: kinds of faults (fields of ``Faults``) that do not happen, and ``skew``.
    """

    seed: int
    steps: int
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs this history."""
        return (
            f"dolmen simulate --seed {self.seed} --steps {self.steps}"
            + (f" --only {','.join(self.only)}" if self.only is not None else "")
            + (f" --without {','.join(self.without)}" if self.without else "")
        )


@dataclass(frozen=True)
class HistoryFailure:
    """The failure of a history.

    Args:
        replay: the arguments of the history.
        never: kind of the violation; None for an unexpected exception.
        reason: description of what happened.
        step: step at which it was found.
        digest: digest of the trace, with the violation.
        events: the last events of the trace.
        actors: names of the actors that took part.
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
        """The kind of the failure. A smaller history with the same kind has the same failure."""
        return self.never.name if self.never else self.reason.partition(":")[0]


class HistoryError(AssertionError):
    """A history in which something happened that must never happen.

    Args:
        failure: the failure, with the arguments that replay it.
    """

    def __init__(self, failure: HistoryFailure) -> None:
        super().__init__(failure)  # so that it can be sent between processes
        self.failure = failure

    @property
    def never(self) -> Never | None:
        """Kind of the violation; None for an unexpected exception."""
        return self.failure.never

    def __str__(self) -> str:
        failure = self.failure
        what = f"{failure.never.name}: {failure.never.value}" if failure.never else "an unexpected error"
        return "\n".join(
            [
                f"{what} (seed {failure.replay.seed}, step {failure.step:,})",
                failure.reason,
                f"replay: {failure.replay.command}",
                "last events:",
                *(line for _, line in lines(failure.events[-_SHOWN:])),
            ]
        )


def check_names(names: Collection[str] | None, there: Collection[str], what: str) -> frozenset[str] | None:
    """Returns the names as a set, and checks that all of them are known.

    Raises:
        InputError: a name is unknown; the message lists the known ones.
    """
    if names is not None and (unknown := sorted(set(names) - set(there))):
        raise InputError(f"no {what} {', '.join(unknown)}; there are {', '.join(there)}")
    return None if names is None else frozenset(names)
