"""Same seed, same history: otherwise nothing could be replayed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dolmen_simulator.simulation import simulate
from dolmen_simulator.world.replay import HistoryError


def run(seed: int, steps: int, **environment: str) -> str:
    command = [sys.executable, "-m", "dolmen_simulator", "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_seed_makes_the_same_history_in_every_process_and_under_every_hash_seed() -> None:
    first = run(7, 1_200, PYTHONHASHSEED="1")
    assert "digest" in first
    assert run(7, 1_200, PYTHONHASHSEED="4242") == first


@pytest.mark.slow
def test_a_history_depends_on_nothing_that_ran_before_it_in_its_process() -> None:
    first = simulate(11, 600)
    simulate(12, 600)
    again = simulate(11, 600)
    assert (again.digest, again.counts) == (first.digest, first.counts)


@pytest.mark.slow
def test_a_history_has_as_many_steps_as_were_asked_for() -> None:
    assert [simulate(seed, steps).steps for seed, steps in ((5, 333), (6, 50), (9, 700))] == [333, 50, 700]


@pytest.mark.slow
def test_other_seeds_make_other_histories() -> None:
    assert len({simulate(seed, 200).digest for seed in range(4)}) == 4


def test_a_failure_tells_how_to_replay_it_and_what_came_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen_simulator.judge.ledger.SETTLED_US", -1)
    with pytest.raises(HistoryError) as caught:
        simulate(3, 400)
    told = str(caught.value)
    assert "dolmen simulate --seed 3 --steps 400" in told
    assert re.search(r"\b(get|put) +manifest/v\d+-[0-9a-f]{8}\.json  ", told)
    assert "COLLECTED" in told
