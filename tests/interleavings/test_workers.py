"""Processes that share the faults of pairs find what one alone finds, and go on where others were stopped."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from dolmen.base.records import replace
from dolmen_simulator.interleavings.enumeration import Enumeration, ExecutionError, PairCount
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.interleavings.workers import Journal, run_pairs
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.fates import Fate

pytestmark = pytest.mark.slow

NAMES = ("create/create", "changes/changes of equal sequences")
"""One with faults, and one without any in quick mode."""


def untimed(count: PairCount) -> PairCount:
    return replace(count, seconds=0.0)


def test_many_processes_count_what_one_counts() -> None:
    alone = {untimed(Enumeration(PAIRS[name], quick=True).run()) for name in NAMES}
    assert {untimed(count) for count in run_pairs(NAMES, quick=True, jobs=3)} == alone


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    (first,) = run_pairs(NAMES[:1], quick=True, jobs=2, journal=journal)
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([*lines[:-3], lines[-3][:40]]))
    progress = list[tuple[int, int]]()
    (again,) = run_pairs(
        NAMES[:1], quick=True, jobs=2, journal=journal, progress=lambda done, total: progress.append((done, total))
    )
    faults = first.faults + 1
    assert untimed(again) == untimed(first)
    assert progress == [(1, 1), (faults - 3, faults), (faults - 2, faults), (faults - 1, faults), (faults, faults)]
    assert Journal(journal, quick=True).done.keys() == {
        (NAMES[0], None),
        *((NAMES[0], fault) for fault in Enumeration(PAIRS[NAMES[0]], quick=True).tally(None).faults),
    }


def test_what_is_done_by_other_code_or_in_another_mode_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tally = Enumeration(PAIRS["create/create"]).tally(Fault(0, 3, Fate.RESPONSE_LOST))
    Journal(path, quick=False).add(tally)
    assert Journal(path, quick=False).done == {("create/create", tally.fault): tally}
    assert not Journal(path, quick=True).done
    entry = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(entry | {"code": "0" * 32}))
    assert not Journal(path, quick=False).done


def test_what_a_process_finds_can_be_told_by_another() -> None:
    violation = ViolationError(Never.LOST, "a row")
    error = ExecutionError("create/create", (0, 1), Fault(0, 3, Fate.LATE), violation, ["the story"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_pair_with_all_of_its_faults_left_out_is_counted() -> None:
    (count,) = run_pairs(NAMES[1:], quick=True, jobs=1)
    assert count.faults == 0
    assert "with 0 faults (all left out) and none" in str(count)
