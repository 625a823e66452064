"""Compactions too large for a function: started as a job, once, left alone meanwhile, and done here when that fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dolmen.commit.head import context_of
from dolmen.format.entries import DataFile
from dolmen.maintenance.compact.compaction_plan import MOST_FILES, NEXT_PLAN, CompactionPlan, PlannedGroup
from dolmen.service.functions.scheduled_functions import FILE_BYTES, bytes_to_compact, tables_larger_than, weight_of
from handover.conftest import Handing

FILES = 10
LIMIT = 8 * FILE_BYTES


@pytest.fixture
def filled(handing: Handing, monkeypatch: pytest.MonkeyPatch) -> Handing:
    """Two tables: of ten files, which are too many, and of six, which are not."""
    for name, files in (("big", FILES), ("little", 6)):
        handing.world.create(name)
        for n in range(files):
            handing.world.database.table(name).append([{"id": n, "user_id": n, "kind": "x"}])
        handing.world.database.table(name).delete("user_id = 0")
    monkeypatch.setenv("DOLMEN_HANDOVER_COMPACT_BYTES", str(LIMIT))
    return handing


def files(handing: Handing, name: str) -> int:
    return int(handing.world.database.table(name).describe()["files"])


def unresolved(handing: Handing, name: str) -> int:
    return len(handing.world.database.table(name).describe()["unresolved_deletes"])


def metrics(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """The metrics of the last round."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    line = [line for line in lines if "JobsStarted" in line][-1]
    return {name: value[0] for name, value in line.items() if isinstance(value, list) and len(value) == 1}


@pytest.mark.slow
def test_a_large_plan_becomes_a_job_and_all_else_is_done_here(
    filled: Handing, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = filled.world.call("compact")
    assert answer["finished"] is True
    [run] = filled.runs("dolmen-compact-")
    assert run.arguments == ["--database", filled.world.database.url, "--table", "big"]
    assert run.request["job_driver"]["sparkSubmit"]["entryPoint"].endswith("/compact.py")
    assert run.request["tags"] == {"dolmen": "compact"}
    assert files(filled, "big") == FILES
    assert files(filled, "little") == 1
    assert unresolved(filled, "big") == unresolved(filled, "little") == 0
    assert metrics(capsys)["JobsStarted"] == 1
    assert filled.world.log_entries("job started")[0]["table"] == "big"


@pytest.mark.slow
def test_while_a_job_is_alive_its_table_is_left_alone_even_when_little_is_left(filled: Handing) -> None:
    filled.world.call("compact")
    [run] = filled.runs("dolmen-compact-")
    filled.server.set_state(run.id, "RUNNING")
    table = filled.world.database.table("big")
    filled.world.database.compact("big")  # the job's work
    for n in range(5):
        table.append([{"id": 100 + n}])
    filled.world.call("compact")
    assert files(filled, "big") == 6
    assert len(filled.runs("dolmen-compact-")) == 1
    filled.server.set_state(run.id, "SUCCESS")
    filled.world.call("compact")
    assert files(filled, "big") == 1
    assert len(filled.runs("dolmen-compact-")) == 1


@pytest.mark.slow
def test_after_a_run_that_failed_the_function_goes_on_as_well_as_it_can(
    filled: Handing, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.world.call("compact")
    [run] = filled.runs("dolmen-compact-")
    filled.server.set_state(run.id, "FAILED")
    capsys.readouterr()
    filled.world.call("compact")
    assert files(filled, "big") == 1
    assert len(filled.runs("dolmen-compact-")) == 1
    assert metrics(capsys)["JobsHeld"] == 1


def test_a_service_that_refuses_leaves_the_compaction_here(
    filled: Handing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOLMEN_SPARK_APPLICATION", "00nosuchapplication")
    filled.world.call("compact")
    assert files(filled, "big") == files(filled, "little") == 1
    assert metrics(capsys)["JobStartsFailed"] == 1
    assert filled.world.log_entries("jobs unknown")[0]["error"] == "NotFoundError"


@pytest.mark.parametrize("event", [{"tables": ["little"]}, {"steps": ["resolve", "merge"]}])
def test_a_round_that_is_not_about_it_starts_nothing(filled: Handing, event: dict[str, Any]) -> None:
    filled.world.call("compact", event)
    assert filled.runs("dolmen-compact-") == []
    assert files(filled, "big") == FILES


def test_records_and_their_age_are_measured(filled: Handing, capsys: pytest.CaptureFixture[str]) -> None:
    filled.world.call("compact")
    assert metrics(capsys)["HandedPending"] == 0
    filled.world.ingest(filled.world.drop("events/large.csv", "id,user_id,kind\n" + "1,1,x\n" * 50))
    filled.world.call("compact")
    measured = metrics(capsys)
    assert measured["HandedPending"] == 1
    assert measured["HandedAgeSeconds"] >= 0
    assert measured["JobsStarted"] == 0  # the ingest function's is alive


# ---- what is large --------------------------------------------------------------------------------------------------


def test_only_a_table_larger_than_the_limit_is_planned(filled: Handing) -> None:
    context = context_of(filled.world.database)
    assert tables_larger_than(context, LIMIT) == ["big"]
    assert tables_larger_than(context, LIMIT, ["little"]) == []
    assert sorted(tables_larger_than(context, FILE_BYTES)) == ["big", "little"]
    assert bytes_to_compact(context, "big") > LIMIT
    filled.world.database.compact("big")
    assert bytes_to_compact(context, "big") == 0


def group(files: int, size: int, *, bytes_out: int = 1) -> PlannedGroup:
    inputs = tuple(DataFile(f"data/t/{n:032x}.parquet", size, 1, (0, 0, 0)) for n in range(files))
    return PlannedGroup("small files", inputs, bytes_out, 1, 0)


def test_a_plan_weighs_what_it_reads_and_its_files() -> None:
    size = 1 << 20
    assert weight_of(CompactionPlan("t", 9, 9 * size, ())) == 0
    assert weight_of(CompactionPlan("t", 9, 9 * size, (group(4, size), group(3, size)))) == 7 * (size + FILE_BYTES)
    assert weight_of(CompactionPlan("t", 9, 9 * size, (group(4, size, bytes_out=0),))) == 0  # gone without reading


def test_a_full_plan_weighs_what_the_next_ones_will_too() -> None:
    size = 1 << 10
    once = weight_of(CompactionPlan("t", 4, 4 * size, (group(4, size),)))
    more = CompactionPlan("t", 3 * MOST_FILES, 0, (group(4, size),), {NEXT_PLAN: 2 * MOST_FILES, "full": 7})
    assert weight_of(more) == 3 * once
