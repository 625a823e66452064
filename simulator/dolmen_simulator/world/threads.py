"""Threads of one process: each makes calls of its own over the same Database, and waits for what others set."""

from __future__ import annotations

from dolmen_simulator.world.fates import Crash
from dolmen_simulator.world.network import Line
from dolmen_simulator.world.scheduler import Scheduler, Task


class ThreadSignal:
    """A signal between threads of one process: one waits until another one sets it; see ``dolmen.base.runtime.Signal``.

    Args:
        scheduler: lets others run in the meantime.
        line: the line of the process.
    """

    def __init__(self, scheduler: Scheduler, line: Line) -> None:
        self._scheduler, self._line = scheduler, line
        self._is_set = False
        self._waiting: Task | None = None

    def set(self) -> None:
        """Ends the waiting."""
        self._is_set = True
        if self._waiting is not None:
            self._line.parked.remove(self)
            self._scheduler.wake(self._waiting)
            self._waiting = None

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set. Raises Crash if the process has died in the meantime."""
        assert timeout is None, "nothing here waits for a limited time"
        if not self._is_set:
            self._waiting = self._scheduler.current
            self._line.parked.add(self)
            self._scheduler.park()
        if self._line.dead:
            raise Crash
        return True
