"""The scheduled functions on one machine: called in a process of their own, which ends with the pipeline."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.service.local import LocalEvent, LocalLayout, run_local
from support.functions import FUNCTIONS

FUNCTION = """
import logging, os
logger = logging.getLogger("{name}")
logger.setLevel(logging.INFO)

def lambda_handler(event, context):
    print("a metric")
    logger.info("called", extra={{"said": event, "pid": os.getpid(), "ms": context.get_remaining_time_in_millis()}})
    {end}
"""


class EnoughError(Exception):
    """Ends a pipeline that goes on for ever."""


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    made = LocalLayout.under(tmp_path / "root")
    made.make()
    return made


def functions(directory: Path, **ends: str) -> Path:
    """The project's functions, with others in the place of the scheduled ones, which end as told."""
    directory.mkdir()
    for name in ("ingest", "delete"):
        (directory / name).symlink_to(FUNCTIONS / name)
    for name, end in ends.items():
        (directory / name).mkdir()
        (directory / name / "app.py").write_text(FUNCTION.format(name=name, end=end))
    return directory


def run_until(
    enough: Callable[[list[LocalEvent]], bool], layout: LocalLayout, functions: Path, **options: Any
) -> list[LocalEvent]:
    events: list[LocalEvent] = []

    def tell(event: LocalEvent) -> None:
        events.append(event)
        if enough(events):
            raise EnoughError

    with pytest.raises(EnoughError):
        run_local(layout.database, layout.landing, layout.queue, functions, poll_seconds=0.01, on_event=tell, **options)
    return events


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_both_are_called_again_and_again_in_another_process(layout: LocalLayout, tmp_path: Path) -> None:
    made = functions(tmp_path / "functions", compact="return 1", gc="return 2")

    def both_twice(events: list[LocalEvent]) -> bool:
        return all(sum(event.function == name for event in events) >= 2 for name in ("compact", "gc"))

    events = run_until(both_twice, layout, made, compact_seconds=0.01, gc_seconds=0.02)
    assert {(event.function, event.text, event.level) for event in events} == {
        ("compact", "called", logging.INFO),
        ("gc", "called", logging.INFO),
    }
    assert all(event.facts["said"] == {} and event.facts["ms"] > 100_000 for event in events)
    [process] = {event.facts["pid"] for event in events}
    assert process != os.getpid()
    assert not alive(process)


def test_a_call_that_fails_is_told_and_made_again(layout: LocalLayout, tmp_path: Path) -> None:
    made = functions(tmp_path / "functions", compact='raise RuntimeError("compact events: no")', gc="1 / 0")

    def failed_twice(events: list[LocalEvent]) -> bool:
        return all(
            sum((event.function, event.text) == (name, "round failed") for event in events) >= 2
            for name in ("compact", "gc")
        )

    events = run_until(failed_twice, layout, made, compact_seconds=0.01, gc_seconds=0.01)
    reasons = {event.function: event.facts["reason"] for event in events if event.text == "round failed"}
    assert reasons == {"compact": "compact events: no", "gc": "ZeroDivisionError: division by zero"}


@pytest.mark.slow
def test_a_process_that_dies_is_told_and_started_again(layout: LocalLayout, tmp_path: Path) -> None:
    made = functions(tmp_path / "functions", compact="os._exit(9)", gc="return 1")

    def started_again(events: list[LocalEvent]) -> bool:
        return len({event.facts["pid"] for event in events if event.text == "called"}) == 2

    events = run_until(started_again, layout, made, compact_seconds=0.01)
    [ended] = [event for event in events if event.text == "ended"]
    assert (ended.function, ended.level, ended.facts["exit_code"]) == ("schedule", logging.ERROR, 9)


def test_ingest_goes_on_while_a_round_takes_long(layout: LocalLayout, tmp_path: Path) -> None:
    made = functions(tmp_path / "functions", compact="import time; time.sleep(600)")

    def ingested(events: list[LocalEvent]) -> bool:
        if len(events) == 1:
            (layout.landing / "events").mkdir()
            (layout.landing / "events" / "a.csv").write_text("id\n1\n")
        return any(event.text == "drop ingested" for event in events)

    events = run_until(ingested, layout, made, compact_seconds=0.01, auto_create=True)
    assert events[0].function == "compact"
    assert not alive(events[0].facts["pid"])


@pytest.mark.slow
def test_the_projects_own_functions_keep_a_database_small_beside_ingest(layout: LocalLayout) -> None:
    database = dolmen.open(layout.database)
    table = database.create_table("events", pa.schema([("id", pa.int64())]))
    for n in range(6):
        table.append([{"id": n}])
    table.delete("id = 3")

    def both(events: list[LocalEvent]) -> bool:
        told = {(event.function, event.text) for event in events}
        return {("compact", "compact"), ("gc", "collected")} <= told

    events = run_until(both, layout, FUNCTIONS, compact_seconds=0.01, gc_seconds=0.01)
    assert not [event for event in events if event.level >= logging.ERROR]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 4, 5]
    assert (table.describe()["files"], table.describe()["unresolved_deletes"]) == (1, [])
    log = [json.loads(line) for line in (layout.state / "functions.log").read_text().splitlines()]
    assert {name for line in log for name in line} >= {"TombstoneDebt", "ManifestBytes"}
