"""The command, run as people run it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dolmen.cli import main
from support.quick_command import quick_command


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("DOLMEN_DATABASE", str(tmp_path / "db"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["dolmen", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def program() -> Iterator[str]:
    """The program ``dolmen``, each run of which is a process of its own, for tests of standard input and output."""
    with quick_command("duckdb") as programs:
        yield str(programs / "dolmen")
