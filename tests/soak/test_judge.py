"""The soak's judge: what is right passes, and each thing that is wrong is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dolmen.base.records import replace
from soak import judge
from soak.journal import Entry, Journal, Steps, read

JOURNALS: dict[str, list[Entry]] = {
    "appender-1": [
        {"kind": "intent", "step": 0, "do": "append", "ids": [1, 2]},
        {"kind": "acknowledged", "step": 0, "version": 3},
        {"kind": "intent", "step": 1, "do": "append", "ids": [3]},
    ],
    "upserter-3": [
        {"kind": "intent", "step": 0, "do": "upsert", "ids": [10, 11]},
        {"kind": "acknowledged", "step": 0, "version": 4},
        {"kind": "intent", "step": 1, "do": "keys", "ids": [10]},
        {"kind": "acknowledged", "step": 1, "version": 5},
    ],
    "transactor-4": [
        {"kind": "intent", "step": 0, "do": "two", "ids": [20, 21], "gone": []},
        {"kind": "acknowledged", "step": 0, "version": 6},
        {"kind": "intent", "step": 1, "do": "two", "ids": [22], "gone": [20]},
        {"kind": "unknown", "step": 1},
        {"kind": "intent", "step": 2, "do": "count", "id": 0},
        {"kind": "acknowledged", "step": 2, "version": None},
        {"kind": "intent", "step": 3, "do": "two", "ids": [23], "gone": []},
        {"kind": "refused", "step": 3},
    ],
    "dropper-6": [
        {"kind": "intent", "step": 0, "do": "drop", "file": 0, "ids": [30, 31, 32]},
        {"kind": "acknowledged", "step": 0, "version": None},
        {"kind": "intent", "step": 1, "do": "delete", "request": 1, "ids": [32]},
        {"kind": "acknowledged", "step": 1, "version": None},
        {"kind": "intent", "step": 2, "do": "drop", "file": 2, "ids": [33, 34, 35]},
        {"kind": "acknowledged", "step": 2, "version": None},
        {"kind": "intent", "step": 3, "do": "delete", "request": 3, "ids": [33, 34]},
        {"kind": "acknowledged", "step": 3, "version": None},
    ],
}
ROWS = {
    ("appender-1", 1, 0),
    ("appender-1", 2, 0),
    ("upserter-3", 11, 0),
    ("transactor-4", 20, 0),
    ("transactor-4", 21, 0),
}
RIGHT = judge.Content(
    Counter(ROWS),
    Counter([30, 31, 35]),
    Counter([("transactor-4", 0), ("transactor-4", 2)]),
    {0: 1, 1: 0, 2: 0},
)


def found(content: judge.Content, version: int = 9, *, is_end: bool = True) -> list[str]:
    return judge.check(content, version, JOURNALS, JOURNALS, is_end=is_end)


def test_what_was_acknowledged_is_right_with_and_without_what_may_have_landed() -> None:
    assert found(RIGHT) == []
    assert found(replace(RIGHT, rows=Counter({*ROWS, ("appender-1", 3, 1)}))) == []
    landed = Counter({*ROWS, ("transactor-4", 22, 1)} - {("transactor-4", 20, 0)})
    assert found(replace(RIGHT, rows=landed, log=RIGHT.log + Counter([("transactor-4", 1)]))) == []


def test_an_older_version_holds_what_had_landed_by_then() -> None:
    rows = Counter([("appender-1", 1, 0), ("appender-1", 2, 0), ("upserter-3", 10, 0), ("upserter-3", 11, 0)])
    then = judge.Content(rows, Counter(), Counter([("transactor-4", 2)]), RIGHT.counters)
    assert found(then, 4, is_end=False) == []


WRONG: dict[str, tuple[str, judge.Content]] = {
    "a row is gone": ("lost", replace(RIGHT, rows=Counter(ROWS - {("appender-1", 2, 0)}))),
    "a row is there twice": ("lost", replace(RIGHT, rows=Counter([*ROWS, ("appender-1", 2, 0)]))),
    "a deleted row is back": ("revived", replace(RIGHT, rows=Counter({*ROWS, ("upserter-3", 10, 0)}))),
    "an older value": ("lost", replace(RIGHT, rows=Counter(ROWS - {("upserter-3", 11, 0)} | {("upserter-3", 11, 7)}))),
    "half of a transaction": ("half", replace(RIGHT, rows=Counter(ROWS - {("transactor-4", 21, 0)}))),
    "the other half alone": ("half", replace(RIGHT, rows=Counter({*ROWS, ("transactor-4", 22, 1)}))),
    "an acknowledged one is not there": ("misreported", replace(RIGHT, log=Counter([("transactor-4", 2)]))),
    "a refused one is there": ("misreported", replace(RIGHT, log=RIGHT.log + Counter([("transactor-4", 3)]))),
    "one is there twice": ("twice", replace(RIGHT, log=RIGHT.log + Counter([("transactor-4", 0)]))),
    "an update is lost": ("half", replace(RIGHT, counters={0: 0, 1: 0, 2: 0})),
    "a file is ingested twice": ("twice", replace(RIGHT, events=Counter([30, 30, 31, 35]))),
    "a file is lost": ("lost", replace(RIGHT, events=Counter([35]))),
    "a deleted row of a file is back": ("revived", replace(RIGHT, events=Counter([30, 31, 33, 34, 35]))),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_thing_that_is_wrong_is_named(wrong: str) -> None:
    name, content = WRONG[wrong]
    assert any(what.startswith(f"{name}: ") for what in found(content)), found(content)


@pytest.mark.parametrize(("events", "is_right"), [([30, 31], True), ([30, 31, 36, 37], True), ([30, 31, 36], False)])
def test_a_file_whose_dropper_was_killed_over_it_is_there_or_not(events: list[int], is_right: bool) -> None:
    """It was told to stop (seed 2317382920) before it was ready to end its step."""
    dropper = [*JOURNALS["dropper-6"][:4], {"kind": "intent", "step": 4, "do": "drop", "file": 4, "ids": [36, 37]}]
    journals = {**JOURNALS, "dropper-6": dropper}
    found = judge.check(replace(RIGHT, events=Counter(events)), 9, journals, journals, is_end=True)
    assert (found == []) == is_right


@pytest.mark.parametrize("events", [[30, 35], [30, 31, 33, 35]], ids=["half a file", "half a delete"])
def test_files_and_delete_requests_are_whole_while_it_runs(events: list[int]) -> None:
    (what,) = found(replace(RIGHT, events=Counter(events)), is_end=False)
    assert what.startswith("half: ")


def test_a_journal_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Journal(path).write("intent", step=0)
    with path.open("ab") as file:
        file.write(b'{"kind": "acknow')
    assert read(path) == [{"kind": "intent", "step": 0}]
    Journal(path).write("acknowledged", step=0, version=1)
    assert Steps(read(path)).landed(0, 1) is True
