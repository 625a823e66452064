"""Timing in turns: A B A B ..., so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Medians of two things measured in turns, in seconds, and the median of their ratios pair by pair."""

    ours: float
    theirs: float
    ratio: float
    rounds: int


def compare(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> Comparison:
    """Times both ``rounds`` times in turns, after one warm-up of each."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return Comparison(
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
        rounds,
    )


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
