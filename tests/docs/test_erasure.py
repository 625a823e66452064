"""docs/erasure.md: its examples are run as they stand there, and its figures are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dolmen.base.units import DAY_US
from dolmen.format.manifest import EMPTY, Erasure
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.erasures.erasure_work import expire_at, rewrite_due_at
from support.quick_command import quick_command

PAGE = (Path(__file__).parents[2] / "docs" / "erasure.md").read_text()


def block(kind: str, name: str, language: str) -> str:
    found = re.search(rf"<!-- {kind}: {name} -->\n```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    source = block("example", "erasure", "python") + block("example", "erased again", "python")
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)\s+# (.+)$", source, re.MULTILINE)
    with quick_command() as programs:
        shell = subprocess.run(
            ["bash", "-eu", "-c", block("tour", "erasure", "sh") + block("tour", "hurry", "sh")],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert shell.returncode == 0, shell.stdout + shell.stderr
    assert "verified: yes" in shell.stdout


def test_the_days_of_the_steps_are_those_of_the_code() -> None:
    settings = DatabaseSettings.of(EMPTY)
    erasure = Erasure(id="0" * 32, ts=1, version=1, requested_at=0, due_at=settings.erase_within_us)
    rewritten, expired = rewrite_due_at(erasure, settings), expire_at(erasure, settings)
    days = [int(day) for day in re.findall(r"\| day (\d+) \|$", PAGE, re.MULTILINE)]
    left = erasure.due_at - settings.erase_within_us // 8
    gone = expired + settings.orphan_age_us
    assert days == [at_us // DAY_US + 1 if at_us % DAY_US > DAY_US // 2 else at_us // DAY_US for at_us in
                    (rewritten, expired, expired, left, gone)]  # fmt: skip
