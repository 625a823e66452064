"""Threads of one process in a history: they commit together, die together, and none waits for ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dolmen.base.records import replace
from dolmen.commit.head import CommitQueue
from dolmen.commit.loop import Leader, Member
from dolmen_simulator.actors.declaring import Founder
from dolmen_simulator.actors.teaming import Team
from dolmen_simulator.actors.writers import Actor
from dolmen_simulator.simulation import WEATHER, simulate
from dolmen_simulator.world.replay import HistoryError

CAST: tuple[tuple[type[Actor], int], ...] = ((Founder, 2), (Team, 2))


def counts_of(seeds: range, steps: int, weather: str) -> Counter[str]:
    found = (simulate(seed, steps, cast=CAST, faults=WEATHER[weather]).counts for seed in seeds)
    return sum(found, Counter[str]())


@pytest.mark.slow
def test_threads_commit_together() -> None:
    counts = counts_of(range(3), 800, "calm")
    assert counts["calls committed together"] > 20
    assert counts["threads that died"] == 0


@pytest.mark.slow
def test_a_crash_ends_all_threads_of_a_process() -> None:
    counts = counts_of(range(3), 800, "crashing")
    assert counts["threads that died"] > counts["crash before"] + counts["crash after"] > 5
    assert counts["calls committed together"] > 5


@pytest.mark.slow
def test_a_history_with_threads_can_be_repeated() -> None:
    assert counts_of(range(2), 500, "stormy") == counts_of(range(2), 500, "stormy")


@pytest.mark.slow
def test_a_thread_that_nobody_wakes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: CommitQueue[Member], member: Member) -> None:
        if member in self._waiting:
            self._waiting.remove(member)
        if self._leader is member:
            self._leader = None

    monkeypatch.setattr(CommitQueue, "leave", leave)
    with pytest.raises(HistoryError, match=r"threads of team-[12]"):
        counts_of(range(10), 800, "calm")


def test_a_call_that_is_told_of_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end = CommitQueue.end

    def tell(self: CommitQueue[Member], member: Member, outcome: Any) -> None:
        told = outcome if isinstance(outcome, Exception) else replace(outcome, effects=None, change=None)
        end(self, member, told)

    monkeypatch.setattr(CommitQueue, "end", tell)
    with pytest.raises(HistoryError, match="MISREPORTED"):
        counts_of(range(10), 800, "calm")


def test_changes_of_one_version_that_are_told_otherwise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Leader._finish

    def exchanged(self: Leader, group: list[Any], manifest: Any, effects: list[Any]) -> None:
        settle(self, group, manifest, effects[::-1])

    monkeypatch.setattr(Leader, "_finish", exchanged)
    with pytest.raises(HistoryError):
        counts_of(range(10), 800, "calm")
