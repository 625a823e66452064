"""Processor time of a Spark driver with all that it started: its JVM, and the JVM's Python workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Spent:
    """What one call cost, in seconds, and what it returned.

    Args:
        driver: processor time of the driver's Python.
        others: of the JVM and of the Python workers below it.
        wall: by the clock.
    """

    driver: float
    others: float
    wall: float
    result: Any = None

    @property
    def cpu(self) -> float:
        """All processor time."""
        return self.driver + self.others


def spend(function: Callable[[], Any]) -> Spent:
    """Runs a function in this process, the driver."""
    before, driver, wall = _others(), time.process_time(), time.perf_counter()
    result = function()
    wall, driver = time.perf_counter() - wall, time.process_time() - driver
    return Spent(driver, spent_between(before, _others()), wall, result)


@dataclass(frozen=True, slots=True)
class Used:
    """Processor time of one process since its start, in seconds.

    Args:
        own: its own.
        ended: that of its children that have ended and that it waited for, with what those had taken over likewise.
    """

    own: float
    ended: float


def spent_between(before: Mapping[Any, Used], after: Mapping[Any, Used]) -> float:
    """What processes used between two looks at them.

    Most processes that ended are in the time of a parent. One whose parent does not wait for it, as when Spark ends
    idle workers, is in none: what it used since the first look is lost, and nothing else.
    """
    nothing = Used(0.0, 0.0)
    own = sum(used.own - before.get(process, nothing).own for process, used in after.items())
    ended = sum(used.ended - before.get(process, nothing).ended for process, used in after.items())
    counted = sum(used.own + used.ended for process, used in before.items() if process not in after)
    return own + max(0.0, ended - counted)


def _others() -> dict[psutil.Process, Used]:
    """All descendants."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            user, system, ended_user, ended_system = process.cpu_times()[:4]
            found[process] = Used(user + system, ended_user + ended_system)
    return found
