"""Commands that look again and again, until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from dolmen.errors import InputError


@contextmanager
def stopping_at_interrupt() -> Iterator[Event]:
    """Makes Ctrl-C set the event; a second one interrupts as usual."""
    stop = Event()
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
