"""``dolmen report``: a page, or its figures, and what needs attention."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EVENTS = Path(__file__).parents[2] / "examples" / "events.csv"
Cli = Callable[..., Any]


@pytest.fixture
def events(cli: Cli) -> Cli:
    cli("create", "events", "--like", EVENTS, "--primary-key", "id", "--sort-key", "event_time")
    for _ in range(20):
        cli("append", "events", EVENTS)
    cli("delete", "events", "--where", "amount > 3")
    return cli


def test_a_page_is_written_and_the_terminal_says_what_needs_attention(
    events: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = events("report")
    assert done.code == 0
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Table events has 20 small files of 20" in page
    lines = done.out.splitlines()
    assert lines[0] == "warning Table events has 20 small files of 20"
    assert lines[1:3] == ["  dolmen compact events --dry-run", "  dolmen compact events"]
    assert lines[-1] == "report.html: version 22, 1 to look at"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "report.html"]
    events("compact")
    again = events("report", "-o", tmp_path / "report.html")
    assert again.out.splitlines()[-1].endswith("nothing needs attention")
    assert (tmp_path / "report.html").read_text() != page


def test_figures_are_printed_as_json_and_then_no_page_is_written_unless_it_is_named(
    events: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(events("report", "--json").out)
    assert (found["versions"]["newest"], found["worst"]) == (22, "warning")
    assert found["concerns"][0]["commands"] == ["dolmen compact events --dry-run", "dolmen compact events"]
    assert not (tmp_path / "report.html").exists()
    events("report", "--json", "-o", "named.html")
    assert (tmp_path / "named.html").is_file()


def test_rejects_and_dead_letters_are_counted_where_they_are_named(
    events: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected, queue = tmp_path / "landing" / "rejected", tmp_path / "queue"
    for name in ("events/a.csv", "events/a.csv.error.json", "events/b.csv.error.json", "events/b.csv.retried.json"):
        (rejected / name).parent.mkdir(parents=True, exist_ok=True)
        (rejected / name).write_text("{}")
    queue.mkdir()
    (queue / "one.json").write_text("{}")
    (tmp_path / "dead-letters").mkdir()
    (tmp_path / "dead-letters" / "delete-1.json").write_text("{}")
    for options, environment in (
        (("--rejected", rejected, "--queue", queue), {}),
        ((), {"DOLMEN_LANDING_URL": str(tmp_path / "landing"), "DOLMEN_DELETE_QUEUE": str(queue)}),
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        beside = json.loads(events("report", "--json", *options).out)["pipeline"]
        assert (beside["rejects"]["waiting"], beside["rejects"]["retried"]) == ({"events": 1}, 1)
        assert [(q["name"], q["waiting"], q["dead"]) for q in beside["queues"]] == [("delete requests", 1, 1)]


def test_a_place_that_cannot_be_looked_at_stops_nothing(events: Cli, tmp_path: Path) -> None:
    done = events("report", "-o", tmp_path / "r.html", "--queue", tmp_path / "absent", "--rejected", "ftp://x/y")
    assert done.code == 0
    assert "queue of delete requests" in done.out
    assert "rejected files" in done.out


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("s3://bucket/report.html", 2, "local file"),
        (".", 2, "is a directory"),
        ("absent/report.html", 2, "no directory"),
    ],
)
def test_what_cannot_be_written_is_refused(
    events: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = events("report", "-o", output)
    assert (done.code, words in done.err.replace("\n", " ")) == (code, True), done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db"]


def test_a_page_is_whole_or_as_it_was(events: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.html"
    page.write_text("before")

    def fail(health: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dolmen.maintenance.health.page.draw_page", fail)
    done = events("report", "-o", page)
    assert (done.code, "No space left" in done.err) == (2, True)
    assert page.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "report.html"]


@pytest.mark.slow
def test_a_damaged_database_says_which_object_and_writes_nothing(events: Cli, program: str, tmp_path: Path) -> None:
    for manifest in (tmp_path / "db" / "manifest").iterdir():
        manifest.write_bytes(b"{}")
    command = [program, "report", "-o", str(tmp_path / "r.html"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done
    assert json.loads(done.stdout)["error"]["type"] == "CorruptionError"
    assert not (tmp_path / "r.html").exists()
