"""Where the machine's database stands, and what time it is there."""

from __future__ import annotations

import random
import shutil
import tempfile
from typing import Protocol

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from machine.columns import START_US


class Place(Protocol):
    """A fresh place for one example."""

    def open(self) -> Database:
        """A handle of its own on the database, as another process would have."""

    def pass_time(self, seconds: int) -> None:
        """Time goes by, where it can be made to."""

    def close(self) -> None:
        """The example is over."""


class LocalPlace:
    """A directory, whose clock stands still unless it is told to go on: one example is the same whenever it runs."""

    def __init__(self) -> None:
        self._root = tempfile.mkdtemp(prefix="dolmen-machine-")
        self._now_us, self._opened = START_US, 0

    def open(self) -> Database:
        self._opened += 1
        runtime = Runtime(
            clock_us=lambda: self._now_us,
            monotonic=lambda: self._now_us / 1e6,
            sleep=self._sleep,
            random=random.Random(self._opened),
            threads=1,
        )
        return dolmen.open(f"{self._root}/db", runtime=runtime)

    def _sleep(self, seconds: float) -> None:
        self._now_us += round(seconds * 1e6)

    def pass_time(self, seconds: int) -> None:
        self._now_us += seconds * 1_000_000

    def close(self) -> None:
        shutil.rmtree(self._root)


class S3Place:
    """A prefix that nobody else has, by the server's clock."""

    def __init__(self, url: str) -> None:
        self._url, self._opened = url, 0

    def open(self) -> Database:
        self._opened += 1
        return dolmen.open(self._url, runtime=Runtime(random=random.Random(f"{self._url} {self._opened}")))

    def pass_time(self, seconds: int) -> None:
        """A server's clock can't be moved."""

    def close(self) -> None:
        """The server is gone after the tests, with all that it holds."""
