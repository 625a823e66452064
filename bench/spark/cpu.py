"""Processor time of a Spark driver with all that it started: its JVM, and the JVM's Python workers."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    others, driver, wall = _others(), time.process_time(), time.perf_counter()
    result = function()
    wall, driver = time.perf_counter() - wall, time.process_time() - driver
    return Spent(driver, _others() - others, wall, result)


def _others() -> float:
    """Of all descendants; those that have ended are in the times of the parent that waited for them."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
