"""``dolmen tag``, ``tags``, ``restore`` and ``clone``; and ``--tag`` of the commands that read a version."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click import Context
from typer.main import get_command

from cli.conftest import Cli
from dolmen.cli.options import app


class Terminal(io.StringIO):
    """Answers of a person."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def table(cli: Cli, tmp_path: Path) -> Cli:
    """Version 2 has rows 1 and 2, and the tag ``first``; in version 4 row 1 is deleted."""
    assert cli("create", "t", "--columns", "id BIGINT NOT NULL, x VARCHAR", "--primary-key", "id").code == 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id":1,"x":"a"}\n{"id":2,"x":"b"}\n')
    assert cli("append", "t", rows).code == 0
    assert cli("tag", "first").code == 0
    assert cli("delete", "t", "--where", "id = 1").code == 0
    return cli


def ids(cli: Cli, *arguments: str) -> list[int]:
    done = cli("scan", *arguments, "--json")
    assert done.code == 0, done.err
    return sorted(row["id"] for row in done.lines())


def newest(cli: Cli) -> dict[str, Any]:
    return cli("history", "--limit", 1, "--json").lines()[0]


def test_a_tag_is_made_listed_moved_and_dropped(table: Cli) -> None:
    assert table("tag", "safe", "--version", 1, "--until", "90d", "--message", "ticket 9").out.split() == [
        *("version", "5", "tag(safe,", "version", "1)")
    ]
    [listed] = table("tags", "--json").lines()
    first, safe = listed
    assert (first["tag"], first["version"], "until" in first) == ("first", 2, False)
    left = datetime.fromisoformat(safe["until"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    shown = table("tags").out
    assert "until (UTC)" in shown
    assert shown.index("first") < shown.index("safe")
    assert newest(table)["message"] == "ticket 9"
    refused = table("tag", "safe")
    assert (refused.code, "--move" in refused.err) == (2, True)
    assert table("tag", "safe", "--move", "--json").lines()[0]["operation"] == "tag"
    assert {one["version"] for one in table("tags", "--json").lines()[0]} == {2, 5}
    assert table("tag", "safe", "--drop").out == "version 7 drop tag(safe)\n"
    assert table("history", "--limit", 1).out.count("drop tag(safe)") == 1
    assert table("tag", "safe", "--drop").code == 3
    assert len(table("tags", "--json").lines()[0]) == 1


def test_every_command_that_reads_a_version_takes_a_tag(table: Cli) -> None:
    assert (ids(table, "t"), ids(table, "t", "--tag", "first")) == ([2], [1, 2])
    assert table("sql", "SELECT count(*) AS n FROM t", "--tag", "first", "--json").lines() == [{"n": 2}]
    assert table("tables", "--tag", "first", "--json").lines()[0][0]["version"] == 2
    assert table("show", "t", "--tag", "first", "--json").lines()[0]["version"] == 2
    assert table("verify", "--tag", "first", "--json").lines()[0]["version"] == 2
    for command in (("scan", "t"), ("sql", "FROM t"), ("tables",), ("show", "t"), ("verify",)):
        unknown = table(*command, "--tag", "second")
        assert (unknown.code, "'second'" in " ".join(unknown.err.split())) == (3, True)
        twice = table(*command, "--tag", "first", "--version", 2)
        assert (twice.code, "only one of" in twice.err) == (2, True)


def test_a_table_is_restored_by_version_by_time_and_by_tag(table: Cli) -> None:
    assert (
        table("restore", "t", "--tag", "first").out == "version 5 restore t(version 2): 1 file added, 1 file removed\n"
    )
    assert ids(table, "t") == [1, 2]
    assert table("restore", "t", "--version", 4, "--json").lines()[0]["did"] == [
        {"table": "t", "what": "restore", "over": ["version 4"]}
    ]
    assert ids(table, "t") == [2]
    now = datetime.now(UTC).isoformat()
    for arguments in (("t",), ("--yes",), ()):
        refused = table("restore", *arguments, "--at", now)
        assert (refused.code, "--version 6" in " ".join(refused.err.split())) == (4, True)
    assert newest(table)["version"] == 6
    assert table("delete", "t", "--where", "true").code == 0
    assert table("restore", "t", "--at", now).out.startswith("version 8 restore t(version 6)")
    assert ids(table, "t") == [2]


def test_before_all_tables_are_restored_it_asks_and_names_those_that_go(
    table: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("u", "v"):
        assert table("clone", "t", name).code == 0
    for arguments in ((), ("--json",)):
        refused = table("restore", "--tag", "first", *arguments)
        assert (refused.code, "give --yes" in refused.out + refused.err) == (2, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    declined = table("restore", "--tag", "first")
    assert (declined.code, "declined" in declined.err) == (4, True)
    assert "u, v" in declined.err
    assert newest(table)["version"] == 6
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert table("restore", "--version", 5).code == 0
    assert [one["table"] for one in table("tables", "--json").lines()[0]] == ["t", "u"]
    assert table("restore", "--tag", "first", "--yes").code == 0
    assert [one["table"] for one in table("tables", "--json").lines()[0]] == ["t"]
    assert ids(table, "t") == [1, 2]


def test_a_clone_is_another_table(table: Cli) -> None:
    assert table("clone", "t", "u", "--tag", "first").out == "version 5 clone u(version 2): 1 file added\n"
    assert table("delete", "u", "--where", "id = 2").code == 0
    assert (ids(table, "t"), ids(table, "u")) == ([2], [1])
    assert table("clone", "t", "u").code == 2
    assert table("clone", "nothing", "w").code == 3


def test_a_request_is_applied_once(table: Cli) -> None:
    commands = (
        ("tag", "safe", "--request-id", "r1"),
        ("clone", "t", "u", "--version", 2, "--request-id", "r2"),
        ("restore", "t", "--tag", "first", "--request-id", "r3"),
        ("restore", "--tag", "first", "--yes", "--request-id", "r4"),
        ("tag", "safe", "--drop", "--request-id", "r5"),
    )
    for command in commands:
        assert table(*command).code == 0
    version = newest(table)["version"]
    for command in commands:
        again = table(*command)
        assert (again.code, "nothing to do" in again.out) == (0, True)
    assert newest(table)["version"] == version == 9
    other = table("restore", "t", "--version", 3, "--request-id", "r3")
    assert (other.code, "AppliedIdError" in other.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("tag", "a b"), 2, "1 to 64"),
        (("tag", "x", "--version", "9"), 3, "no version 9"),
        (("tag", "x", "--version", "1", "--at", "2026-01-01"), 2, "--version, --at and --tag"),
        (("tag", "x", "--until", "soon"), 2, "is not ISO 8601"),
        (("tag", "first", "--drop", "--move"), 2, "--drop"),
        (("restore", "t"), 2, "give --version, --at or --tag"),
        (("restore", "t", "--tag", "first", "--version", "2"), 2, "one of"),
        (("restore", "t", "u", "--tag", "first"), 3, "no table 'u'"),
        (("clone", "t", "u", "--tag", "x"), 3, "'x'"),
        (("clone", "t", "A b"), 2, "table"),
    ],
)
def test_what_can_not_be_is_refused_and_changes_nothing(
    table: Cli, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = table(*arguments)
    assert (done.code, words in " ".join(done.err.split())) == (code, True), done.err
    assert newest(table)["version"] == 4


def test_a_shell_completes_tags_and_the_tables_of_a_tag(table: Cli) -> None:
    assert table("drop", "t", "--yes").code == 0
    assert completions("tag", "name", "f") == completions("scan", "tag", "") == ["first"]
    assert completions("restore", "tables", "") == completions("scan", "tag", "x") == []
    assert completions("restore", "tables", "", tag="first") == completions("clone", "source", "", tag="first") == ["t"]
    assert completions("clone", "source", "", tag="nothing") == []


def completions(command: str, parameter: str, incomplete: str, **given: str) -> list[str]:
    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    context = Context(found)
    context.params.update(given)
    [one] = [one for one in found.params if one.name == parameter]
    return [item.value for item in one.shell_complete(context, incomplete)]


def test_a_table_shows_defaults_comments_and_settings_for_people(table: Cli) -> None:
    added = ("--add", "n INTEGER, at TIMESTAMPTZ", "--default", "n=7", "--default", "at=2026-01-01T00:00:00Z")
    assert table("alter", "t", *added, "--comment", "n=how many").code == 0
    assert table("set", "t", "ttl=at 90d", "target_file_bytes=1MB").code == 0
    shown = table("show", "t").out
    assert "ttl=at 90d, target_file_bytes=1MB" in shown
    for words in (("n", "int32", "7", "how many"), ("at", "timestamp[us, tz=UTC]", "2026-01-01 00:00:00+00:00", "")):
        assert any([cell.strip() for cell in line.split("│")[1:-1]] == [*words] for line in shown.splitlines())
    assert "{" not in shown
