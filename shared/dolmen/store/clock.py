"""The server's clock, as its answers show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dolmen.base.runtime import Instant, Runtime
from dolmen.base.units import SECOND_US

_LONGEST_SECONDS = 30.0
"""An answer whose way took longer makes the server's time no more uncertain than this."""


@dataclass(frozen=True, slots=True)
class DatedAnswer:
    """The server's time by one answer.

    Args:
        date_us: its ``Date``, microseconds since the epoch.
        arrived: when it arrived; None if that is not known.
        vague_us: how much later than ``date_us`` the server's clock may have been at the arrival.
    """

    date_us: int
    arrived: Instant | None
    vague_us: int = 0


@dataclass(slots=True)
class ServerClock:
    """The store's own clock, as last seen in an answer.

    Every store feeds it with the ``Date`` of each answer, errors included. Threads may feed and read it at once: a
    reading and its age always belong together when taken by ``reading``.
    """

    runtime: Runtime
    _last: DatedAnswer = field(default=DatedAnswer(0, None), repr=False)

    @property
    def last(self) -> DatedAnswer:
        """The last answer."""
        return self._last

    def observe(self, date_us: int, *, vague_us: int = 0, sent: Instant | None = None) -> None:
        """Takes the ``Date`` of an answer that has just arrived.

        Args:
            date_us: the time that it shows, microseconds since the epoch.
            vague_us: what it leaves out, as ``Date`` leaves out parts of a second.
            sent: when the request was sent; None if the answer came at once.
        """
        took_seconds = 0.0 if sent is None else self.runtime.elapsed(sent)
        arrived = None
        if took_seconds < float("inf"):  # else the machine was frozen meanwhile, and the answer may be old
            arrived = self.runtime.instant()
            vague_us += round(min(took_seconds, _LONGEST_SECONDS) * SECOND_US)
        self._last = DatedAnswer(date_us, arrived, vague_us)

    def reading(self) -> tuple[int, float]:
        """The last ``Date`` in microseconds, and how many seconds ago it arrived.

        These are infinite before the first one, and if they are not known: see ``Runtime.elapsed``.
        """
        last = self.last
        return last.date_us, self._age_of(last)

    def estimate(self) -> int | None:
        """The server's time now, in microseconds; None if the age of the last ``Date`` is not known.

        It is that of this machine's clock, if this is possible by the last answer, or the possible time next to it.
        """
        last = self.last
        least_us = self._least_us(last)
        if least_us is None:
            return None
        return min(max(self.runtime.clock_us(), least_us), least_us + last.vague_us)

    @property
    def least_us(self) -> int | None:
        """A time at or before the server's time now; None if the age of the last ``Date`` is not known."""
        return self._least_us(self.last)

    @property
    def now_us(self) -> int:
        """The last ``Date`` as it was received, microseconds since the epoch; 0 before the first. It is in the past."""
        return self.last.date_us

    @property
    def current_us(self) -> int:
        """The server's time now, as near as it is known without a request."""
        estimate_us = self.estimate()
        return self.now_us if estimate_us is None else estimate_us

    @property
    def age_seconds(self) -> float:
        """How long ago the last ``Date`` arrived; infinite if that is not known."""
        return self._age_of(self.last)

    def _age_of(self, answer: DatedAnswer) -> float:
        return float("inf") if answer.arrived is None else self.runtime.elapsed(answer.arrived)

    def _least_us(self, answer: DatedAnswer) -> int | None:
        age_seconds = self._age_of(answer)
        return None if age_seconds == float("inf") else answer.date_us + int(age_seconds * SECOND_US)
