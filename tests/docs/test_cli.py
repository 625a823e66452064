"""docs/cli.md is run as it stands there; and every ``dolmen`` command that a page or a message names exists, with its
options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from dolmen.cli import exit_codes
from dolmen.cli.options import EXAMPLES
from dolmen.cli.run import COMMANDS, command_line
from dolmen_simulator.command import app as simulator
from support.quick_command import quick_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
SOURCES = [*sorted((ROOT / "shared").rglob("*.py")), *sorted((ROOT / "functions").rglob("*.py"))]
SOURCES += [*sorted((ROOT / "jobs").glob("*.py")), *sorted((ROOT / "examples").glob("*.py")), ROOT / "template.yaml"]
_GLOBAL = {"--version", "--help", "-h", "--install-completion", "--show-completion"}


def tours() -> str:
    return "".join(re.findall(r"<!-- tour: [a-z ]+ -->\n```sh\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
def test_the_page_runs_as_it_stands_there(tmp_path: Path) -> None:
    for name in ("examples", "functions"):
        (tmp_path / name).symlink_to(ROOT / name)
    with quick_command() as programs:
        done = subprocess.run(
            ["bash", "-eu", "-c", tours()],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "events.parquet").is_file()
    assert (tmp_path / "joined.csv.gz").is_file()
    assert '"id":6' in done.stdout


def test_the_page_has_every_example_of_the_help() -> None:
    lines = tours().splitlines()
    for examples in EXAMPLES.values():
        for example in examples:
            assert any(line.startswith(example) for line in lines), example


@pytest.mark.slow
def test_every_command_has_an_example_that_its_help_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLES.keys() == commands().keys()
    for name, command in commands().items():
        if EXAMPLES[name]:
            shown = command.get_help(command.make_context(name, [], resilient_parsing=True))
            shown += capsys.readouterr().out
            words = re.sub(r"[\s│]+", "", shown)
            assert re.sub(r"\s+", "", EXAMPLES[name][0]) in words, name


def test_the_page_has_every_exit_code() -> None:
    assert exit_codes.__doc__
    codes = re.findall(r"^(\d+) ", exit_codes.__doc__, re.MULTILINE)
    assert set(codes) == set(re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE))))


def test_every_command_is_in_the_module_that_it_is_imported_from() -> None:
    found: dict[str, set[str]] = {}
    for name, command in commands().items():
        if name != "simulate":
            inner = getattr(command, "commands", {"": command})
            found.setdefault(name, set()).update(one.callback.__module__ for one in inner.values())
    assert found == {
        name: {f"dolmen.cli.{module}"} for module, names in COMMANDS.items() for name in names if name != "simulate"
    }


@pytest.mark.slow
def test_a_command_starts_without_the_modules_of_others() -> None:
    source = "import sys; from dolmen.cli.run import command_line; command_line('scan'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert {f"dolmen.cli.{module}" for module in COMMANDS} & set(done.stdout.split()) == {"dolmen.cli.table_data"}


@cache
def commands() -> dict[str, Any]:
    return {
        **command_line().commands,
        "simulate": typer.main.get_command(simulator),
    }  # which takes all that follows its name


def named(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each mention of a command, with the options that stand behind it on its line."""
    for name, rest in re.findall(r"\bdolmen ([a-z][a-z-]+)((?: [^`\n|;]*)?)", text):
        if name in commands():
            yield name, re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z](?![\w-]))", rest)


def test_every_option_that_is_named_with_a_command_exists() -> None:
    mentions = [(file, *mention) for file in (*PAGES, *SOURCES) for mention in named(file.read_text())]
    assert len(mentions) > 100
    for file, name, options in mentions:
        command = commands()[name]
        members = getattr(command, "commands", {"": command}).values()
        known = {
            word for one in members for parameter in one.params for word in (*parameter.opts, *parameter.secondary_opts)
        }
        for option in options:
            assert option in known | {"--help", "-h"}, f"{file}: dolmen {name} has no {option}"


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_in_code_on_a_page_exists(file: Path) -> None:
    text = file.read_text()
    blocks = "".join(re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL))
    code = [*re.findall(r"`(dolmen [^`\n]+)`", text), *re.findall(r"^(dolmen .+)$", blocks, re.MULTILINE)]
    for line in code:
        word = line.split()[1]
        assert word in commands() or word in _GLOBAL or not re.fullmatch(r"[a-z][a-z-]+|--?[a-z-]+", word), line


def test_a_version_is_asked_for_as_a_version() -> None:
    for file in [*PAGES, *SOURCES]:
        assert not re.search(r"dolmen \w+ [^`\n]*--at (VERSION|\d+\b(?!-))", file.read_text()), file
