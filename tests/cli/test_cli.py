"""The ``dolmen`` command: what people see, what machines get, and exit codes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

EVENTS = Path(__file__).parents[2] / "examples" / "events.csv"


Cli = Callable[..., Any]


@pytest.fixture
def events(cli: Cli) -> Cli:
    assert cli("create", "events", "--like", EVENTS, "--primary-key", "id").code == 0
    assert cli("append", "events", EVENTS).code == 0
    return cli


def ids(outcome: Any) -> list[object]:
    return sorted(row["id"] for row in outcome.lines())


def test_a_table_is_created_from_columns(cli: Cli) -> None:
    made = cli(
        "create", "t", "--columns", "id BIGINT NOT NULL, at TIMESTAMPTZ, tags VARCHAR[], d DECIMAL(10, 2)", "--json"
    )
    assert json.loads(made.out)["columns"] == {
        "id": "int64",
        "at": "timestamp[us, tz=UTC]",
        "tags": "list<element: string>" if "element" in made.out else "list<item: string>",
        "d": "decimal128(10, 2)",
    }


def test_files_of_each_format_are_appended_in_one_commit(cli: Cli, tmp_path: Path) -> None:
    lines = EVENTS.read_text().splitlines()
    plain, zipped, parquet = tmp_path / "a.csv", tmp_path / "b.csv.gz", tmp_path / "c.parquet"
    plain.write_text("\n".join(lines[:3]) + "\n")
    zipped.write_bytes(gzip.compress(("\n".join([lines[0], *lines[3:5]]) + "\n").encode()))
    assert cli("append", "events", plain, zipped, "--create").code == 0
    assert cli("scan", "events", "-o", parquet).code == 0
    assert pq.read_table(parquet)["id"].to_pylist() == [1, 2, 3, 4]
    assert cli("append", "events", parquet).code == 0
    assert [commit["operation"] for commit in cli("history", "--json").lines()] == ["append"] * 2
    assert ids(cli("scan", "events", "--json")) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_table_is_renamed(events: Cli) -> None:
    renamed = events("rename", "events", "archive", "--json")
    assert renamed.code == 0
    assert json.loads(renamed.out)["operation"] == "rename_table"
    assert [table["table"] for table in json.loads(events("tables", "--json").out)] == ["archive"]
    assert ids(events("scan", "archive", "--json")) == [1, 2, 3, 4, 5, 6]
    assert "rename events(archive)" in events("history").out
    assert [table["table"] for table in json.loads(events("tables", "--version", 2, "--json").out)] == ["events"]
    missing = events("rename", "events", "other")
    assert (missing.code, "TableNotFoundError" in missing.err) == (3, True)
    assert events("create", "events", "--like", EVENTS).code == 0
    taken = events("rename", "events", "archive")
    assert (taken.code, "TableExistsError" in taken.err) == (2, True)


def test_a_delete_by_predicate_by_keys_by_file_and_by_position(events: Cli, tmp_path: Path) -> None:
    assert events("delete", "events", "--where", "id = 1").code == 0
    assert events("delete", "events", "--keys", "2, 3").code == 0
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n4\n")
    assert events("delete", "events", "--keys-file", keys).code == 0
    done = events("delete", "events", "--where", "id = 5", "--mode", "positions", "--json")
    assert (json.loads(done.out)["rows_deleted"], json.loads(done.out)["mode"]) == (1, "positions")
    assert events("delete", "events", "--where", "id // 2 = 3", "--mode", "tombstone").code == 2
    assert json.loads(events("delete", "events", "--where", "id // 2 = 3", "--json").out)["mode"] == "positions"
    assert ids(events("scan", "events", "--json")) == []


def test_an_upsert_replaces_rows(events: Cli, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "user_id": 99}\n')
    assert events("append", "events", rows, "--upsert").code == 0
    assert [row["user_id"] for row in events("scan", "events", "--where", "id = 1", "--json").lines()] == [99]


def test_an_insert_refuses_keys_that_are_there(events: Cli, tmp_path: Path) -> None:
    rows = tmp_path / "new.csv"
    rows.write_text("id,user_id\n1,2\n77,2\n")
    before = events("count", "events").out
    refused = events("append", "events", rows, "--insert")
    assert (refused.code, events("count", "events").out) == (2, before)
    assert "1 key (id): 1" in refused.err
    assert events("append", "events", rows, "--insert", "--upsert").code == 2
    rows.write_text("id,user_id\n77,2\n")
    assert events("append", "events", rows, "--insert").code == 0


def test_a_scan_filters_projects_sorts_limits_and_counts(events: Cli) -> None:
    found = events(
        "scan", "events", "--columns", "id", "--where", "user_id = 42", "--order-by", "-id", "--limit", 2, "--json"
    )
    assert found.lines() == [{"id": 5}, {"id": 3}]
    assert events("scan", "events", "--count").out.strip() == "6"
    assert "events" in events("scan", "events", "--explain").out


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_rows_are_printed(events: Cli, form: str) -> None:
    assert "refund" in events("scan", "events", "--format", form).out


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_rows_are_written_and_read_again(events: Cli, tmp_path: Path, name: str) -> None:
    assert events("scan", "events", "--output", tmp_path / name).code == 0
    assert events("append", "events", tmp_path / name).code == 0
    assert ids(events("scan", "events", "--json")) == sorted([1, 2, 3, 4, 5, 6] * 2)


def test_older_versions_are_read(events: Cli) -> None:
    events("delete", "events", "--where", "TRUE")
    assert events("scan", "events", "--count").out.strip() == "0"
    assert events("scan", "events", "--count", "--version", 2).out.strip() == "6"
    assert events("sql", "SELECT count(*) AS n FROM events", "--version", 2, "--json").lines() == [{"n": 6}]


def test_sql_joins_and_groups(events: Cli) -> None:
    found = events("sql", "SELECT user_id, count(*) AS n FROM events GROUP BY ALL ORDER BY ALL", "--json")
    assert found.lines() == [{"user_id": 7, "n": 2}, {"user_id": 13, "n": 1}, {"user_id": 42, "n": 3}]


def test_tables_and_show_tell_of_unresolved_deletes(events: Cli) -> None:
    events("delete", "events", "--where", "amount > 3 AND user_id = 42")
    events("delete", "events", "--where", "id = 1")
    (table,) = json.loads(events("tables", "--json").out)
    assert (table["table"], table["rows_in_files"], table["files"]) == ("events", 6, 1)
    shown = events("show", "events")
    assert "timestamp[us, tz=UTC]" in shown.out
    assert "amount" in shown.out
    assert "id = 1" in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "phrase"),
    [
        (["scan", "events", "--where", "nope = 1"], 2, "nope"),
        (["scan", "events", "--columns", "nope"], 2, "nope"),
        (["delete", "events"], 2, "--where"),
        (["delete", "events", "--keys", "x"], 2, "x"),
        (["create", "events", "--columns", "id BIGINT"], 2, "exists"),
        (["create", "Bad-Name", "--columns", "id BIGINT"], 2, "Bad-Name"),
        (["create", "t", "--columns", "id INTERVAL"], 2, "INTERVAL"),
        (["append", "events", "absent.csv"], 2, "absent.csv"),
        (["append", "events", "rows.xml"], 2, "rows.xml"),
        (["scan", "events", "-o", "rows.pdf"], 2, ".csv, .tsv or .jsonl"),
        (["scan", "absent"], 3, "absent"),
        (["scan", "events", "--version", "99"], 3, "99"),
        (["scan", "events", "--at", "2001-01-01"], 3, "did not exist"),
        (["scan", "events", "--at", "2999-01-01"], 4, "future"),
        (["scan", "events", "--at", "yesterday"], 2, "yesterday"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_an_error_says_what_to_do_and_has_its_exit_code(
    events: Cli, arguments: list[str], code: int, phrase: str
) -> None:
    outcome = events(*arguments)
    assert (outcome.code, phrase in outcome.err.replace("\n", " ")) == (code, True), outcome
    assert "Traceback" not in outcome.err


def test_an_error_stands_on_one_line_however_long(events: Cli) -> None:
    outcome = events("scan", "events", "--where", f"nope = '{'x' * 200}'")
    assert outcome.err.count("\n") == 1


def test_errors_are_json_for_machines(events: Cli) -> None:
    outcome = events("scan", "absent", "--json")
    error = json.loads(outcome.out)["error"]
    assert (outcome.code, error["type"], error["exit_code"]) == (3, "TableNotFoundError", 3)


def test_reading_where_nothing_is_says_so(cli: Cli) -> None:
    outcome = cli("tables")
    assert outcome.code == 3
    assert "no database" in outcome.err


def test_a_bad_row_is_named_and_nothing_is_appended(events: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("id,user_id\n7,1\nseven,2\n")
    outcome = events("append", "events", EVENTS, bad)
    assert outcome.code == 2
    assert all(part in outcome.err.replace("\n", " ") for part in ("bad.csv", "line 3", "'id'"))
    assert events("scan", "events", "--count").out.strip() == "6"


def test_a_request_id_is_applied_once(events: Cli) -> None:
    first = events("append", "events", EVENTS, "--request-id", "r1", "--json")
    again = events("append", "events", EVENTS, "--request-id", "r1", "--json")
    assert json.loads(again.out)["already"] == {"r1": json.loads(first.out)["version"]}
    assert events("scan", "events", "--count").out.strip() == "12"
    version = json.loads(first.out)["version"]
    events("append", "events", EVENTS)
    told = events("append", "events", EVENTS, "--request-id", "r1").out
    assert told.strip() == f"nothing to do: version {version} applied r1"


def test_a_request_id_about_tables_is_applied_once_and_messages_are_kept(events: Cli) -> None:
    for command in (
        ("create", "new", "--columns", "id BIGINT"),
        ("set", "events", "target_file_bytes=1MB"),
        ("set", "retention=7d"),
        ("rename", "new", "newer"),
        ("drop", "newer", "--yes"),
    ):
        own = (
            "--request-id",
            " ".join(command),
            "--message",
            f"why {command[0]}",
            "--metadata",
            "job=x",
            "--metadata",
            "n=1",
        )
        for _ in range(2):
            assert events(*command, *own).code == 0
        newest = events("history", "--limit", "2", "--json").lines()
        assert (newest[0]["requests"], newest[0]["message"]) == ([" ".join(command)], f"why {command[0]}")
        assert newest[0]["metadata"] == {"job": "x", "n": "1"}
        assert newest[1].get("requests") != newest[0]["requests"]
    assert "job=x, n=1" in events("history").out
    for wrong in (("request=r",), ("events", "message=m"), ("metadata=m",)):
        assert events("set", *wrong).code == 2, "these are no settings"
    for pairs in (("a",), ("a=1", "--metadata", "a=2"), ("a b=c",)):
        refused = events("delete", "events", "--keys", "1", "--metadata", *pairs)
        assert (refused.code, "metadata" in refused.err) == (2, True)
    for command in (("append", "events", EVENTS), ("delete", "events", "--keys", "1")):
        assert events(*command, "--message", "ticket 9").code == 0
        assert events("history", "--limit", "1", "--json").lines()[0]["message"] == "ticket 9"


def test_a_shell_completes_the_names_of_tables(events: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    events("create", "errors", "--columns", "id BIGINT")
    monkeypatch.setenv("_DOLMEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "dolmen scan e")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert events().out.split() == ["errors", "events"]
    monkeypatch.setenv("DOLMEN_DATABASE", "/nowhere/at/all")
    assert events().out.split() == []


def test_history_tells_what_was_done_to_which_tables_and_for_which_requests(events: Cli) -> None:
    assert events("delete", "events", "--where", "user_id = 42", "--request-id", "gdpr-17").code == 0
    told = events("history").out
    for words in ("create events", "append events", "delete", "events(user_id)", "gdpr-17"):
        assert words in told
    assert events("delete", "events", "--where", "user_id = 43", "--request-id", "gdpr-17").code != 0
    newest = events("history", "--limit", "1", "--json").lines()[0]
    assert newest["did"] == [{"table": "events", "what": "delete", "over": ["user_id"]}]
    assert newest["requests"] == ["gdpr-17"]
