"""A history in which somebody computes for ever comes to an end all the same, and says where that was."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dolmen.commit.statements.background import Compact
from dolmen_simulator.simulation import simulate
from dolmen_simulator.world import scheduler
from dolmen_simulator.world.replay import HistoryError
from dolmen_simulator.world.scheduler import HangError, Scheduler


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_hanging_history_ends_and_tells_its_seed_and_where_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(*_: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.5)  # 10 s in all: nothing else takes so long, imports neither
    monkeypatch.setattr(scheduler, "LOOKS", 20)
    monkeypatch.setattr(Compact, "apply", for_ever)
    with pytest.raises(HistoryError) as caught:
        simulate(3, 2_000)
    failure = caught.value.failure
    assert failure.kind == "HangError"
    assert "for_ever (test_hanging.py:" in failure.reason
    assert failure.replay.command == "dolmen simulate --seed 3 --steps 2000"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_who_cannot_be_interrupted_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(scheduler, "LOOKS", 5)
    history = Scheduler()
    history.spawn("sleeper", lambda: time.sleep(20))
    with pytest.raises(HangError, match="sleeper"):
        history.run()


@pytest.mark.timeout(120)
def test_a_history_ends_in_which_nobody_has_anything_to_do() -> None:
    """Who is left waits for a table that nobody makes."""
    assert simulate(3, 2_000, only=["reader-1", "collector-1"], without=["all"]).steps < 2_000
