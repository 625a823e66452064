"""The version, the list of commands and their names for a shell need no import, and are those of the commands."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import dolmen
from dolmen.cli.overview import COMMANDS, help_text
from dolmen.cli.run import command_line

HEAVY = {"pyarrow", "numpy", "boto3", "typer", "rich", "msgspec", "dolmen.cli.run"}


def run(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """The output of the command, and the modules that it imported."""
    source = (
        "import sys, atexit; from dolmen.cli import main;"
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); sys.argv[0] = 'dolmen'; main()"
    )
    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80", **environment}
    )
    return done.stdout, set(done.stderr.split())


def test_each_command_is_listed_with_the_first_paragraph_of_its_help() -> None:
    helps = {name: inspect.cleandoc(command.help or "") for name, command in command_line().commands.items()}
    first = {name: " ".join(text.split("\n\n")[0].split()) for name, text in helps.items()}
    assert first == {name: text for names in COMMANDS.values() for name, text in names.items()}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["-h"]])
def test_version_and_help_import_no_library(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown, imported = run(*arguments)
    assert shown == (help_text() if arguments != ["--version"] else f"dolmen {dolmen.__version__}\n")
    assert imported & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["", "s", "request-", "nothing"])
def test_a_shell_completes_the_same_commands_with_and_without_an_import(begun: str) -> None:
    words = {"_DOLMEN_COMPLETE": "complete_bash", "COMP_WORDS": f"dolmen {begun}"}
    early, imported = run(**words, COMP_CWORD="1")
    assert imported & HEAVY == set()
    source = "from dolmen.cli.run import main; import sys; sys.argv[:] = ['dolmen']; main()"
    typer = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **words, "COMP_CWORD": "1"},
    )
    assert sorted(early.split()) == sorted(typer.stdout.split())
    assert [name for names in COMMANDS.values() for name in names if name.startswith(begun)] == early.split()


@pytest.mark.parametrize("width", [20, 80, 250])
def test_the_list_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, help_text().splitlines())) <= max(width, 80)
