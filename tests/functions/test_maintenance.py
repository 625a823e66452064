"""The scheduled functions: what they do, what they tell, when they stop, and what stops them not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import InputError
from support.functions import World


@pytest.fixture
def filled(world: World) -> World:
    """Three tables of six small files each, with an unresolved delete that hides all of one file."""
    for name in ("a", "b", "c"):
        world.create(name)
        for n in range(6):
            world.database.table(name).append([{"id": n, "user_id": n, "kind": "x"}, {"id": n + 10, "user_id": n}])
        world.database.table(name).delete("user_id = 0")
    return world


def files(world: World) -> dict[str, int]:
    database = world.database
    return {name: database.table(name).describe()["files"] for name in database.tables()}


def unresolved(world: World) -> dict[str, int]:
    database = world.database
    return {name: len(database.table(name).describe()["unresolved_deletes"]) for name in database.tables()}


def measured(capsys: pytest.CaptureFixture[str], wanted: str) -> dict[str, float]:
    """The metrics of the only invocation that measured ``wanted``."""
    [line] = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if wanted in line]
    return {name: value[0] for name, value in line.items() if isinstance(value, list) and len(value) == 1}


def test_a_round_resolves_and_compacts_every_table_and_changes_no_row(filled: World) -> None:
    before = {name: filled.rows(name) for name in ("a", "b", "c")}
    answer = filled.call("compact")
    assert answer == {"finished": True, "version": filled.database.version}
    assert files(filled) == {"a": 1, "b": 1, "c": 1}
    assert unresolved(filled) == {"a": 0, "b": 0, "c": 0}
    assert {name: filled.rows(name) for name in ("a", "b", "c")} == before


@pytest.mark.slow
def test_a_second_round_finds_nothing_to_do_and_makes_no_version(filled: World) -> None:
    version = filled.call("compact")["version"]
    told = len(filled.listener.entries)
    assert filled.call("compact") == {"finished": True, "version": version}
    filled.restart()
    assert filled.call("compact") == {"finished": True, "version": version}
    assert len(filled.listener.entries) == told  # nor does it fill the log


def test_a_schedule_may_name_tables_and_steps(filled: World) -> None:
    filled.call("compact", {"tables": ["b"], "steps": ["resolve"]})
    assert unresolved(filled) == {"a": 1, "b": 0, "c": 1}
    assert files(filled) == {"a": 6, "b": 6, "c": 6}
    filled.call("compact", {"detail-type": "Scheduled Event", "detail": {"tables": ["c"], "steps": ["compact"]}})
    assert files(filled) == {"a": 6, "b": 6, "c": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "event", "phrase"),
    [
        ("compact", {"table": "a"}, "'table'.*tables, steps"),
        ("compact", {"tables": "a"}, "list"),
        ("compact", {"tables": []}, "list"),
        ("compact", {"tables": [1]}, "list"),
        ("compact", {"tables": ["No Table"]}, "No Table"),
        ("compact", {"steps": ["vacuum"]}, "expire, resolve, compact, index, merge, publish"),
        ("compact", [], "object"),
        ("compact", {"detail-type": "Scheduled Event", "detail": "{"}, "not JSON"),
        ("compact", {"detail-type": "Scheduled Event", "detail": {"dry_run": True}}, "dry_run"),
        ("gc", {"dry_run": "yes"}, "true or false"),
        ("gc", {"tables": ["a"]}, "'tables'.*dry_run"),
        ("gc", "x", "object"),
    ],
)
def test_an_event_that_cannot_be_meant_is_refused_and_nothing_is_done(
    filled: World, function: str, event: Any, phrase: str
) -> None:
    before = filled.database.version
    with pytest.raises(InputError, match=phrase):
        filled.call(function, event)
    assert filled.database.version == before


def test_an_envelope_without_anything_in_it_means_everything(filled: World) -> None:
    for detail in ({}, "{}", ""):
        assert filled.call("compact", {"detail-type": "Scheduled Event", "detail": detail})["finished"] is True
    assert filled.call("compact", {"detail-type": "Scheduled Event"})["finished"] is True
    assert files(filled) == {"a": 1, "b": 1, "c": 1}


def test_without_time_nothing_is_begun_and_the_next_call_does_it_all(filled: World) -> None:
    before = filled.database.version
    assert filled.call("compact", remaining_ms=[5_000]) == {"finished": False, "version": before}
    assert filled.database.version == before
    assert [facts["text"] for facts in filled.listener.entries][-1] == "to be continued"
    assert filled.call("compact")["finished"] is True
    assert files(filled) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.slow
def test_it_stops_in_time_wherever_time_runs_out_and_goes_on_at_the_next_call(filled: World) -> None:
    """The time jumps to its end at the n-th look at the clock, for every n: all is done in the end, none is lost."""
    before = {name: filled.rows(name) for name in ("a", "b", "c")}
    unfinished = 0
    for looks in range(1, 200):
        answer = filled.call("compact", remaining_ms=[900_000] * looks + [1_000])
        assert {name: filled.rows(name) for name in ("a", "b", "c")} == before
        if answer["finished"]:
            break
        unfinished += 1
    assert unfinished >= 3
    assert files(filled) == {"a": 1, "b": 1, "c": 1}
    assert unresolved(filled) == {"a": 0, "b": 0, "c": 0}


def test_a_table_that_fails_does_not_stop_the_others_and_is_named(
    filled: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for victim in (tmp_path / "database" / "data" / "b").rglob("*.parquet"):
        victim.write_bytes(victim.read_bytes()[:-100] + bytes(100))
    # What the delete hides is known from statistics, so that nothing has to be read to resolve it.
    with pytest.raises(RuntimeError, match="compact b: ") as raised:
        filled.call("compact")
    assert "compact a" not in str(raised.value)
    told = filled.log_entries("resolve failed") + filled.log_entries("compact failed")
    assert [(facts["table"], facts["error"]) for facts in told] == [("b", "CorruptionError")]
    assert all(facts["reason"] for facts in told)
    there = files(filled)
    assert (there["a"], there["c"]) == (1, 1)
    assert measured(capsys, "StepsFailed")["StepsFailed"] == 1


def test_a_table_that_is_not_there_is_a_failure_and_the_others_are_done(filled: World) -> None:
    with pytest.raises(RuntimeError, match="absent"):
        filled.call("compact", {"tables": ["absent", "a"]})
    assert files(filled)["a"] == 1


def test_rows_expire_before_anything_else(filled: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    table = filled.database.create_table("d", schema, properties={"ttl": "at 90d"})
    now_us = Runtime().clock_us()
    times = pa.array([now_us] + [now_us - 100 * 86_400_000_000] * 3, schema.field("at").type)
    table.append(pa.table({"id": [1, 2, 3, 4], "at": times}))
    filled.call("compact", {"tables": ["d"]})
    assert filled.ids("d") == [1]
    assert [facts["text"] for facts in filled.listener.entries] == ["expire", "resolve", "compact"]
    assert filled.log_entries("expire")[0]["tables"] == ["d"]
    assert unresolved(filled)["d"] == 0


def test_metrics_tell_of_what_was_done_and_what_is_left(filled: World, capsys: pytest.CaptureFixture[str]) -> None:
    filled.call("compact", {"tables": ["a", "b"]})
    told = measured(capsys, "TombstoneDebt")
    assert told["TombstonesResolved"] == 2
    assert told["FilesCompacted"] == 12
    assert told["RowsRemoved"] == 4
    assert told["TombstoneDebt"] == 1
    assert told["SmallFileDebt"] == 5
    assert told["OldestUnresolvedDeleteSeconds"] >= 0
    assert 0 < told["ManifestBytes"] < told["ManifestBudget"]
    assert (told["StepsFailed"], told["RoundsUnfinished"]) == (0, 0)


@pytest.mark.slow
def test_collection_deletes_what_expired_versions_alone_needed(
    filled: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: filled.rows(name) for name in ("a", "b", "c")}
    filled.call("compact")
    filled.database.set(retention="1s", keep_versions=1, reader_grace="1s")
    Runtime().sleep(1.1)
    filled.database.table("a").append([{"id": 99}])
    Runtime().sleep(1.1)
    first = filled.call("gc")
    assert first["finished"] is True
    Runtime().sleep(1.1)
    capsys.readouterr()
    filled.call("gc")
    told = measured(capsys, "ObjectsDeleted")
    assert told["ObjectsDeleted"] > 18
    assert told["DeletesFailed"] == 0
    assert len(list((tmp_path / "database" / "data").rglob("*.parquet"))) == 4
    assert filled.database.verify(deep=True).ok
    assert {name: filled.rows(name) for name in ("b", "c")} == {name: before[name] for name in ("b", "c")}
    [*_, facts] = filled.log_entries("collected")
    assert facts["deleted"]["released"] >= 18


def test_a_dry_run_of_collection_deletes_nothing(filled: World, capsys: pytest.CaptureFixture[str]) -> None:
    filled.call("compact")
    filled.database.set(retention="1s", keep_versions=1)
    Runtime().sleep(1.1)
    before = filled.database.version
    assert filled.call("gc", {"dry_run": True}) == {"finished": True, "version": before}
    assert filled.database.version == before
    assert measured(capsys, "ObjectsDeleted")["ObjectsDeleted"] == 0
    assert filled.log_entries("collected")[0]["versions_expired"] > 0


def test_before_there_is_a_database_there_is_nothing_to_do(world: World) -> None:
    assert world.call("compact") == {"finished": True, "version": 0}
    assert world.call("gc") == {"finished": True, "version": 0}


@pytest.mark.slow
def test_both_work_on_a_real_server(s3_world: World) -> None:
    s3_world.create("a")
    for n in range(3):
        s3_world.database.table("a").append([{"id": n}])
    s3_world.database.table("a").delete(keys=[1])
    assert s3_world.call("compact")["finished"] is True
    assert s3_world.ids("a") == [0, 2]
    s3_world.database.set(retention="1s", keep_versions=1, reader_grace="1s")
    Runtime().sleep(2.1)
    s3_world.database.table("a").append([{"id": 3}])
    for _ in range(2):
        Runtime().sleep(2.1)
        assert s3_world.call("gc")["finished"] is True
    assert s3_world.database.history()[-1].version > 1
    assert s3_world.ids("a") == [0, 2, 3]
    assert s3_world.database.verify(deep=True).ok
