"""Deadlines: stop before a step is begun that may not end in time, and share the time fairly among tables."""

from __future__ import annotations

import math
from collections.abc import Callable

from dolmen.base.runtime import Runtime

MARGIN_SECONDS = 10.0
"""Seconds that are always kept free: for a commit whose answer is lost, and for the end of a Lambda invocation."""
SLOWDOWN = 2.0
"""The next step may take this many times as long as the longest one so far."""


class Deadline:
    """Tells when to stop: when the next step may no longer fit into the time that is left.

    The duration of steps is measured between calls, so a loop calls it once per step. Work of short steps goes on until
    shortly before the end, and work of long steps stops early enough.

    Args:
        runtime: measures the steps.
        remaining_seconds: returns the seconds that are left; infinite by default.
    """

    def __init__(self, runtime: Runtime, remaining_seconds: Callable[[], float] = lambda: math.inf) -> None:
        self._runtime, self._remaining = runtime, remaining_seconds
        self._asked, self._longest = runtime.monotonic(), 0.0
        self.reached = False

    @property
    def left_seconds(self) -> float:
        """Seconds in which another step may begin; below 0 when the deadline is reached."""
        return self._remaining() - MARGIN_SECONDS - SLOWDOWN * self._longest

    def begin(self) -> None:
        """Begins a new piece of work: the time since the last call was not a step."""
        self._asked = self._runtime.monotonic()

    def __call__(self) -> bool:
        """Whether to stop. Once True, it stays True."""
        now = self._runtime.monotonic()
        self._longest, self._asked = max(self._longest, now - self._asked), now
        self.reached = self.reached or self.left_seconds <= 0
        return self.reached

    def share(self, seconds: float) -> Share:
        """A deadline for one of several tables: reached after ``seconds``, or when the whole deadline is reached."""
        return Share(self, seconds)


class Share:
    """A share of a deadline. See ``Deadline.share``.

    At least one step fits into any share: it says stop at its second call at the earliest, unless the whole is over.
    """

    def __init__(self, whole: Deadline, seconds: float) -> None:
        whole.begin()
        left = whole.left_seconds
        self._whole, self._left_at_end = whole, -math.inf if math.isinf(left) else left - seconds
        self._asked = False
        self.reached = False

    def __call__(self) -> bool:
        """Whether to stop. Once True, it stays True."""
        over = self._whole()
        if self._asked:
            over = over or self._whole.left_seconds <= self._left_at_end
        self._asked = True
        self.reached = self.reached or over
        return self.reached
