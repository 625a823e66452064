"""Commands of upkeep: settings, background work, collection, checking, and the debt at a glance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dolmen
from dolmen.base.runtime import Runtime

EVENTS = Path(__file__).parents[2] / "examples" / "events.csv"
Cli = Callable[..., Any]


@pytest.fixture
def empty(cli: Cli) -> Cli:
    assert cli("create", "events", "--like", EVENTS, "--primary-key", "id").code == 0
    return cli


@pytest.fixture
def events(empty: Cli) -> Cli:
    """Six files of six rows each, and two unresolved deletes."""
    cli = empty
    for _ in range(6):
        cli("append", "events", EVENTS)
    cli("delete", "events", "--where", "amount > 3")
    cli("delete", "events", "--keys", "1")
    return cli


def count(cli: Cli) -> int:
    return int(cli("scan", "events", "--count").out)


def test_settings_of_a_table_are_changed_shown_and_unset(empty: Cli) -> None:
    events = empty
    done = events("set", "events", "ttl=event_time 3650d", "target_file_bytes=1MB", "--json")
    assert (done.code, json.loads(done.out)["operation"]) == (0, "set")
    holds = json.loads(events("settings", "events", "--json").out)
    assert (holds["ttl"], holds["target_file_bytes"], holds["ingest_mode"]) == ("event_time 3650d", "1MB", "append")
    assert events("set", "events", "ttl=").code == 0
    assert json.loads(events("settings", "events", "--json").out)["ttl"] is None
    shown = events("settings", "events").out
    assert all(part in shown for part in ("target_file_bytes", "1MB", "256MB", "size of a full data file"))


def test_settings_of_the_database_are_changed_and_shown(empty: Cli) -> None:
    events = empty
    assert events("set", "retention=7d", "keep_versions=10").code == 0
    holds = json.loads(events("settings", "--json").out)
    assert (holds["retention"], holds["keep_versions"], holds["root_bytes"]) == ("7d", "10", "256KB")
    assert "7d" in events("settings").out


@pytest.mark.parametrize(
    ("arguments", "code", "phrase"),
    [
        (["set", "retention=forever"], 2, "90d"),
        (["set", "ttl=event_time 90d"], 2, "retention, keep_versions"),
        (["set", "events", "ttl=user_id 90d"], 2, "int64"),
        (["set", "events", "retention=7d"], 2, "ttl, target_file_bytes"),
        (["set", "events"], 2, "NAME=VALUE"),
        (["set", "events", "ttl"], 2, "NAME=VALUE"),
        (["set", "absent", "ttl=event_time 90d"], 3, "absent"),
        (["settings", "absent"], 3, "absent"),
        (["compact", "absent"], 3, "absent"),
        (["resolve", "absent"], 3, "absent"),
        (["maintain", "absent"], 3, "absent"),
    ],
)
def test_what_cannot_be_done_says_why_and_has_its_exit_code(
    empty: Cli, arguments: list[str], code: int, phrase: str
) -> None:
    outcome = empty(*arguments)
    assert (outcome.code, phrase in outcome.err.replace("\n", " ")) == (code, True), outcome
    assert "Traceback" not in outcome.err


def test_a_dry_run_of_compaction_says_what_why_and_what_it_saves_and_does_nothing(events: Cli) -> None:
    before = events("history", "--json").out
    shown = events("compact", "--dry-run")
    assert shown.code == 0
    assert all(part in shown.out for part in ("small files", "6 files", "saves each scan", "5 requests"))
    [group] = json.loads(events("compact", "events", "--dry-run", "--json").out)["events"]["groups"]
    assert (group["reason"], group["files"], group["files_out"], group["requests_saved"]) == ("small files", 6, 1, 5)
    assert events("history", "--json").out == before


def test_resolving_and_compacting_change_what_is_stored_and_not_what_is_read(events: Cli) -> None:
    before = count(events)
    resolved = json.loads(events("resolve", "events", "--json").out)["events"]
    assert (resolved["tombstones"], resolved["dropped"]) == (2, 2)
    assert count(events) == before
    compacted = json.loads(events("compact", "--json").out)["events"]
    assert (compacted["files_in"], compacted["files_out"], compacted["finished"]) == (6, 1, True)
    assert count(events) == before
    [table] = json.loads(events("tables", "--json").out)
    assert (table["files"], table["unresolved_deletes"]) == (1, [])
    assert "nothing to do" in events("resolve").out
    assert "nothing to do" in events("compact").out


def test_a_round_of_maintenance_does_all_of_it(events: Cli) -> None:
    done = json.loads(events("maintain", "--json").out)
    assert [one["step"] for one in done["done"]] == ["expire", "resolve", "compact", "merge"]
    assert (done["finished"], done["failures"]) == (True, [])
    assert "nothing to do" in events("maintain").out


def test_the_debt_is_shown_at_a_glance_and_is_gone_after_a_round(events: Cli) -> None:
    shown = events("stats").out
    assert all(part in shown for part in ("unresolved deletes", "5 of 6 files fewer", "of 262,144 bytes", "events"))
    before = json.loads(events("stats", "--json").out)
    assert before["tables"]["events"]["tombstones"] == 2
    events("maintain")
    after = json.loads(events("stats", "--exact", "--json").out)
    assert (after["tables"]["events"]["tombstones"], after["tables"]["events"]["files"]) == (0, 1)
    assert after["released_objects"] > 6
    assert "none" in events("stats").out


@pytest.mark.slow
def test_collection_says_what_would_go_and_then_deletes_it(events: Cli, tmp_path: Path) -> None:
    events("maintain")
    events("set", "retention=1h", "keep_versions=1")
    young = json.loads(events("gc", "--dry-run", "--json").out)
    assert (young["versions_expired"], young["deleted"].keys() & {"released", "orphans"}) == (0, set())
    events("set", "retention=1s", "keep_versions=1", "reader_grace=1s")
    Runtime().sleep(1.1)
    events("append", "events", EVENTS)
    Runtime().sleep(1.1)
    dry = json.loads(events("gc", "--dry-run", "--json").out)
    assert (dry["dry_run"], dry["versions_expired"] > 5) == (True, True)
    first = json.loads(events("gc", "--json").out)
    assert first["versions_expired"] >= dry["versions_expired"]
    Runtime().sleep(1.1)
    shown = events("gc")
    assert shown.code == 0
    assert "deleted" in shown.out
    assert "expired versions" in shown.out
    assert len(list((tmp_path / "db" / "data").rglob("*.parquet"))) == 2
    assert events("verify", "--deep").code == 0
    assert events("scan", "events", "--version", "2").code == 3


def test_a_whole_database_is_verified_with_exit_code_0(events: Cli) -> None:
    shown = events("verify")
    assert (shown.code, "nothing wrong" in shown.out) == (0, True)
    told = json.loads(events("verify", "--deep", "--json").out)
    assert (told["ok"], told["deep"], told["findings"]) == (True, True, [])


def test_a_damaged_one_is_told_of_with_advice_and_exit_code_7(events: Cli, tmp_path: Path) -> None:
    victim = min((tmp_path / "db" / "data").rglob("*.parquet"))
    victim.unlink()
    shown = events("verify")
    assert shown.code == 7
    assert victim.name in shown.out
    assert "-missing" in shown.out
    assert "at(version=...)" in shown.out
    told = events("verify", "--json")
    assert told.code == 7
    assert [finding["object"].endswith(victim.name) for finding in json.loads(told.out)["findings"]] == [True]


def test_a_database_whose_pointer_is_damaged_is_told_of_like_any_other(events: Cli, tmp_path: Path) -> None:
    (tmp_path / "db" / "_latest_manifest").write_bytes(b'{"version":')
    shown = events("verify")
    assert shown.code == 7
    assert "_latest_manifest" in shown.out
    assert "--all-versions" in events("verify", "--help").out


def test_expired_rows_go_by_the_tables_setting(events: Cli, tmp_path: Path) -> None:
    events("set", "events", "ttl=event_time 1d")  # the file's rows are older
    events("maintain")
    assert count(events) == 0
    assert dolmen.open(str(tmp_path / "db")).history(3)[-1].operation in ("expire", "resolve")
