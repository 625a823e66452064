"""Commands that look again and again, until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from dolmen.errors import InputError


class Stop:
    """Whether somebody has asked to stop.

    ``set`` may be called by a signal handler at any place of the same thread. ``threading.Event`` may not: its lock is
    not reentrant, so a signal between two steps of its ``wait`` would stop the program for good.
    """

    def __init__(self) -> None:
        self._asked = False
        self._bell: SimpleQueue[None] = SimpleQueue()  # the one queue whose put is reentrant

    def set(self) -> None:
        """Asks to stop."""
        self._asked = True
        self._bell.put(None)

    def is_set(self) -> bool:
        """Whether somebody has asked."""
        return self._asked

    def wait(self, seconds: float) -> bool:
        """Waits until somebody asks, or for so many seconds; returns whether somebody has asked."""
        if not self._asked:
            with suppress(Empty):
                self._bell.get(timeout=seconds)
        return self._asked


@contextmanager
def stopping_at_interrupt() -> Iterator[Stop]:
    """Makes Ctrl-C ask to stop; a second one interrupts as usual."""
    stop = Stop()
    before = signal.getsignal(signal.SIGINT)

    def ask_to_stop(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask_to_stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def check_interval(seconds: float) -> None:
    """Raises InputError unless a command may wait for so long between two looks."""
    if not 0 < seconds < 86_400:
        raise InputError(f"--interval {seconds}: give seconds, more than 0 and less than a day")
