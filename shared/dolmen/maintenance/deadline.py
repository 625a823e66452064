"""When to stop: in time for the step that is under way, and shared fairly among those who wait for their turn."""

from __future__ import annotations

import math
from collections.abc import Callable

from dolmen.runtime import Runtime

MARGIN_SECONDS = 10.0
"""Kept free whatever has been measured: a commit with a lost answer or two, and a Lambda's own end."""
SLOWDOWN = 2.0
"""How much longer than the longest step so far the next one may take."""


class Deadline:
    """True once the next step may no longer fit into what is left of the time.

    How long a step may take is measured: what is asked in a loop is asked once a step. So work made of short steps
    goes on until shortly before the end, and work made of long ones stops early enough.

    Args:
        runtime: measures the steps.
        remaining_seconds: how long there is, by whoever ends it; infinite by default.
    """

    def __init__(self, runtime: Runtime, remaining_seconds: Callable[[], float] = lambda: math.inf) -> None:
        self._runtime, self._remaining = runtime, remaining_seconds
        self._asked, self._longest = runtime.monotonic(), 0.0
        self.reached = False

    @property
    def left_seconds(self) -> float:
        """How long one may go on before a step is begun that could take too long; below 0 when it is over."""
        return self._remaining() - MARGIN_SECONDS - SLOWDOWN * self._longest

    def begin(self) -> None:
        """Says that a new piece of work begins: what was done since the last question was no step."""
        self._asked = self._runtime.monotonic()

    def __call__(self) -> bool:
        """Whether to stop. Once it is so it stays so."""
        now = self._runtime.monotonic()
        self._longest, self._asked = max(self._longest, now - self._asked), now
        self.reached = self.reached or self.left_seconds <= 0
        return self.reached

    def share(self, seconds: float) -> Share:
        """A deadline for one of several who wait: over after ``seconds``, or when the whole is over."""
        return Share(self, seconds)


class Share:
    """One's share of a deadline. See ``Deadline.share``.

    At least one step fits into any share: it says stop at the second question at the earliest, unless all is over.
    """

    def __init__(self, whole: Deadline, seconds: float) -> None:
        whole.begin()
        left = whole.left_seconds
        self._whole, self._left_at_end = whole, -math.inf if math.isinf(left) else left - seconds
        self._asked = False
        self.reached = False

    def __call__(self) -> bool:
        """Whether to stop. Once it is so it stays so."""
        over = self._whole()
        if self._asked:
            over = over or self._whole.left_seconds <= self._left_at_end
        self._asked = True
        self.reached = self.reached or over
        return self.reached
