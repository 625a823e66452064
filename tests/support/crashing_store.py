"""A store whose process dies at one of its requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from dolmen.store.base import ObjectStore

VERBS = ("get", "head", "put", "list", "delete", "open_input")


class Crash(BaseException):
    """Ends the process; nothing catches it."""


class Countdown:
    """Counts the requests of all stores that share it; the process dies at the one at which ``left`` runs out.

    Args:
        left: number of requests that are still answered; None for all.
        after: whether the last request takes effect first.
        kill: whether the process is killed (``kill -9``), in place of an exception.
    """

    def __init__(self, left: int | None = None, *, after: bool = False, kill: bool = False) -> None:
        self.left, self.after, self.kill, self.done = left, after, kill, 0

    def _die(self) -> NoReturn:
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crash

    def call(self, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.left is not None and self.left <= 0:
            self._die()
        self.done += 1
        last = self.left is not None and self.left == 1
        if self.left is not None:
            self.left -= 1
        if last and not self.after:
            self._die()
        answer = verb(*args, **options)
        if last:
            self._die()
        return answer


class CrashingStore:
    """A store under a countdown; streamed uploads count when they are committed."""

    def __init__(self, store: ObjectStore, countdown: Countdown) -> None:
        self._store, self._countdown = store, countdown

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in VERBS:
            return found
        return lambda *args, **options: self._countdown.call(found, *args, **options)

    def open_output(self, key: str) -> Any:
        return _Output(self._store.open_output(key), self._countdown)


class _Output:
    def __init__(self, output: Any, countdown: Countdown) -> None:
        self._output, self._countdown = output, countdown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def commit(self) -> int:
        size: int = self._countdown.call(self._output.commit)
        return size

    def __enter__(self) -> Any:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.__exit__(*exception)
