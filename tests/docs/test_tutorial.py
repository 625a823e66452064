"""docs/tutorial.md is followed from its first line to its last, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.quick_command import quick_command

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


def blocks(tour: str, language: str) -> str:
    """All examples of one tour, in their order."""
    return "\n".join(re.findall(rf"<!-- tour: {tour} -->\n```{language}\n(.*?)```", PAGE, re.DOTALL))


def run(command: list[str], directory: Path, programs: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOLMEN_")}
    path = f"{programs}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=directory, env={**environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tutorial_works_as_it_stands_there(tmp_path: Path) -> None:
    python, shell = blocks("tutorial", "python"), blocks("tutorial shell", "sh")
    with quick_command() as programs:
        printed = run([sys.executable, "-c", python], tmp_path, programs).splitlines()
        shown = run(["bash", "-euo", "pipefail", "-c", shell], tmp_path, programs)
    assert printed == re.findall(r"^print\(.*\)\s+# (.+)$", python, re.MULTILINE)
    counts = re.findall(r"--count\s+# (\d+)$", shell, re.MULTILINE)
    assert len(counts) == 2
    lines = [line.strip() for line in shown.splitlines()]
    assert [line for line in lines if line.isdigit()] == counts


def test_no_example_of_the_tutorial_is_left_out() -> None:
    python, shell = (re.findall(rf"^```{language}$", PAGE, re.MULTILINE) for language in ("python", "sh"))
    assert len(python) == PAGE.count("<!-- tour: tutorial -->")
    assert len(shell) == PAGE.count("<!-- tour: tutorial shell -->") + 1  # the installation
