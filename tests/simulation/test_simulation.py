"""Production code in a world that loses, delays, doubles and refuses: many histories, each decided by its seed."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from dolmen.testing.simulation import WEATHER, simulate

LONG = bool(os.environ.get("DOLMEN_LONG"))
STEPS = 1_600
HISTORIES = 1_300 if LONG else 125
FIXED_SEED = 20_260_101

#: Per 200,000 steps; about half of what is usual, so that a change that makes histories tame is noticed.
AT_LEAST = {
    "commits": 8_000,
    "conflicts": 5_000,
    "replays": 600,
    "unknown outcomes": 6_000,
    "unknown outcomes of a pointer": 2_500,
    "unknown commits": 60,
    "unknown commits that had landed": 5,
    "late landings": 1_200,
    "late landings of a pointer": 150,
    "doubled at once": 500,
    "doubled later": 500,
    "crashes before": 500,
    "crashes after": 150,
    "refused": 250,
    "stalls": 150,
    "outages": 400,
    "applied twice prevented": 150,
    "partial overlaps": 250,
    "positions rebased over positions": 60,
    "reads": 1_000,
    "reads by time": 150,
    "versions audited": 400,
}


@pytest.mark.timeout(7_200 if LONG else 900)
def test_no_history_ever_shows_what_must_never_happen(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the seeds are always the same; the other half begin at one that is new each time, and printed."""
    fresh = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(10**9)))
    with capsys.disabled():
        print(f"\nsimulation: {HISTORIES} histories of {STEPS:,} steps, seeds from {FIXED_SEED} and from {fresh}")
    half = HISTORIES // 2
    seeds = [*range(FIXED_SEED, FIXED_SEED + half), *range(fresh, fresh + HISTORIES - half)]
    total: Counter[str] = Counter()
    weather: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), mp_context=spawn) as pool:
        for summary in pool.map(partial(simulate, steps=STEPS), seeds, chunksize=2):
            total += summary.counts
            total["steps"] += summary.steps
            weather[summary.weather] += 1
    with capsys.disabled():
        print("  " + ", ".join(f"{name} {total[name]:,}" for name in ("steps", *AT_LEAST)))
        print("  " + ", ".join(f"{name} {weather[name]}" for name in WEATHER))
    assert total["steps"] == HISTORIES * STEPS
    scale = HISTORIES * STEPS / 200_000
    tame = {name: total[name] for name, least in AT_LEAST.items() if total[name] < least * scale}
    assert not tame, f"too little happened: {tame}"
