"""docs/health.md: its commands and its Python run, and it names the limits and the rules that the code has."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.cli import main
from dolmen.ingest.pipeline_health import MOST_OBJECTS
from dolmen.maintenance.health.look import MOST_COMMITS, MOST_ERASURES, MOST_TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "health.md").read_text()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dolmen.Database:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOLMEN_DATABASE", str(tmp_path / "db"))
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("k", pa.int64())]), sort_key="k")
    for number in range(20):
        table.append([{"k": number}])
    return db


def test_its_commands_run(
    database: dolmen.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    places = {"s3://LANDING/rejected": "rejected", "INGEST_QUEUE": "queue", "DELETE_QUEUE": "queue"}
    (tmp_path / "queue").mkdir()
    for line in block.splitlines():
        words = [places.get(word, word) for word in shlex.split(line, comments=True)]
        monkeypatch.setattr(sys, "argv", words)
        main_code = 0
        try:
            main()
        except SystemExit as done:
            main_code = int(done.code or 0)
        assert main_code == 0, line
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "health.html").is_file()
    assert '"concerns":[{"level":"warning"' in capsys.readouterr().out


def test_its_python_runs(database: dolmen.Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/health.md", "exec"), {"db": database, "Path": Path})
    assert "20 small files of 20" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_its_limits_are_those_of_the_code() -> None:
    figures = set(re.findall(r"[\d,]*\d", PAGE))
    assert {f"{most:,}" for most in (MOST_COMMITS, MOST_ERASURES, MOST_TABLES, MOST_OBJECTS)} <= figures
