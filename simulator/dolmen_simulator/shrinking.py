"""Shrinks a failing history: an earlier end, fewer actors, and fewer kinds of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dolmen.base.records import replace
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen_simulator.simulation import KINDS, HistorySummary, simulate
from dolmen_simulator.world.replay import ALL, HistoryError, HistoryFailure, Replay


@dataclass(frozen=True)
class Shrunk:
    """The result of shrinking.

    Args:
        failure: failure of the smallest history, with as much of its trace as asked for.
        histories: number of histories that were tried.
        finished: whether nothing more can be left out; False if time ran out.
    """

    failure: HistoryFailure
    histories: int
    finished: bool


_PATIENCE = 4
_LEAST_STEPS = 200

Progress = Callable[[HistoryFailure, int], None]
"""Called with the smallest failure so far and the number of histories tried."""


def run(replay: Replay, *, keep: int | None = 60) -> HistorySummary | HistoryFailure:
    """Runs the history with these arguments. Returns its summary or its failure."""
    try:
        return simulate(
            replay.seed,
            replay.steps,
            keep=keep,
            only=replay.only,
            without=replay.without,
        )
    except HistoryError as error:
        return error.failure


def shrink(
    failure: HistoryFailure,
    *,
    keep: int | None = None,
    seconds: float = 60.0,
    runtime: Runtime | None = None,
    progress: Progress = lambda smallest, tried: None,
) -> Shrunk:
    """Finds a smaller history with the same violation.

    The search is greedy: it leaves out whatever it can, large portions first. Unexpected exceptions of the same type
    count as the same failure.

    Args:
        failure: the failure of the history.
        keep: number of trace events in the result; None for all.
        seconds: time limit, after which the smallest history so far is the result.
        runtime: measures the time.
        progress: called after each history.
    """
    shrinker = _Shrinker(failure, runtime or shared_runtime(), seconds, progress)
    try:
        shrinker.shrink()
        finished = True
    except _OutOfTimeError:
        finished = False
    smallest = shrinker.smallest
    soon = replace(smallest.replay, steps=min(smallest.step + 1, smallest.replay.steps))
    for replay in (soon, smallest.replay):  # the first, too, if there was no time to try it
        final = run(replay, keep=keep)
        if isinstance(final, HistoryFailure) and final.kind == smallest.kind:
            return Shrunk(final, shrinker.tried, finished)
    raise AssertionError("the same history, and it did not fail")


class _OutOfTimeError(Exception):
    """The time limit is over."""


class _Shrinker:
    def __init__(self, failure: HistoryFailure, runtime: Runtime, seconds: float, progress: Progress) -> None:
        self.smallest, self.tried = failure, 0
        self._runtime, self._until, self._progress = runtime, runtime.monotonic() + seconds, progress
        self._known: set[Replay] = {failure.replay}

    def shrink(self) -> None:
        """Shrinks until nothing more can be left out.

        Fewer actors need more steps until the same events coincide, so the history first gets several times as many
        steps as it took to fail; only then is its end moved earlier.
        """
        steps = min(self.smallest.replay.steps, max(_PATIENCE * self.smallest.step, _LEAST_STEPS))
        self._holds(replace(self.smallest.replay, steps=steps))
        self._leave_out_faults()
        before = None
        while self.smallest.replay != before:
            before = self.smallest.replay
            self._leave_out_actors()
            self._end_earlier()
            self._leave_out_faults()

    def _end_earlier(self) -> None:
        """Finds the earliest end, by bisection: the final checks may find the violation at an earlier end."""
        self._holds(replace(self.smallest.replay, steps=min(self.smallest.step + 1, self.smallest.replay.steps)))
        sound, failing = 0, self.smallest.replay.steps
        while failing - sound > 1:
            middle = (sound + failing) // 2
            if self._holds(replace(self.smallest.replay, steps=middle)):
                failing = middle
            else:
                sound = middle

    def _leave_out_actors(self) -> None:
        size = len(self.smallest.actors)
        while size := size // 2:
            for portion in _portions(self.smallest.actors, size):
                left = tuple(name for name in self.smallest.actors if name not in portion)
                if left:
                    self._holds(replace(self.smallest.replay, only=left))

    def _leave_out_faults(self) -> None:
        if self.smallest.replay.without == (ALL,) or self._holds(replace(self.smallest.replay, without=(ALL,))):
            return
        for kind in KINDS:
            self._holds(replace(self.smallest.replay, without=tuple(sorted({*self.smallest.replay.without, kind}))))

    def _holds(self, replay: Replay) -> bool:
        """Whether this history has the same failure; if so, makes it the smallest."""
        if replay in self._known:
            return replay == self.smallest.replay
        if self._runtime.monotonic() > self._until:
            raise _OutOfTimeError
        self._known.add(replay)
        self.tried += 1
        found = run(replay, keep=0)
        same = isinstance(found, HistoryFailure) and found.kind == self.smallest.kind
        if isinstance(found, HistoryFailure) and same:
            self.smallest = found
        self._progress(self.smallest, self.tried)
        return same


def _portions(names: tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
