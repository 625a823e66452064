"""Every command of docs/reliability.md that a reader can run is run here, and says what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
COMMANDS = dict(re.findall(r"<!-- run -->\n```shell\n(.*?)\n```(?:\n\n```\n(.*?\n)```)?", PAGE, re.DOTALL))
"""What each prints, as the page has it: "" where it shows nothing."""


def test_the_page_has_commands_to_run() -> None:
    assert [command.split()[1] for command in COMMANDS].count("simulate") >= 3
    assert [command.split()[1] for command in COMMANDS].count("check-store") >= 1
    assert sum(shown != "" for shown in COMMANDS.values()) >= 2


SLOW = ("dolmen check-store", "dolmen simulate --seed 100 ", "dolmen simulate --seed 7 ")


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[pytest.mark.slow] if command.startswith(SLOW) else []) for command in COMMANDS],
)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    assert is_shown_as(untimed(COMMANDS[command]), untimed(done.stdout)), done.stdout


def is_shown_as(shown: str, printed: str) -> bool:
    """Whether the page shows just what was printed, but for what it leaves out by a line of three dots."""
    if not shown:
        return True
    parts = [re.escape(part) for part in shown.split("...\n")]
    return re.fullmatch("(?:.*\n)*".join(parts), printed) is not None


def untimed(printed: str) -> str:
    """Without what a command took, in seconds, and without spaces at the ends of lines."""
    return re.sub(r" +\d+\.\d\d ", " 0.00 ", re.sub(r" +$", "", printed, flags=re.MULTILINE))
