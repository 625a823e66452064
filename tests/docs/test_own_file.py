"""docs/your-own-file.md is followed from its first line to its last, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.quick_command import quick_command

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-file.md").read_text()


@pytest.mark.slow
def test_the_tutorial_of_own_files_works_as_it_stands_there(tmp_path: Path) -> None:
    blocks = re.findall(r"<!-- tour: own file -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```sh")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOLMEN_")}
    with quick_command() as programs:
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), environment["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
            cwd=tmp_path,
            env=environment | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    [inferred] = re.findall(r"^```\n(january.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    first, *columns = [line.strip() for line in inferred.splitlines()]
    assert any(line.startswith(first.removesuffix("...").strip()) for line in lines)
    assert set(columns) <= set(lines)
    assert [line for line in lines if re.fullmatch(r"[0-9.]+", line)] == re.findall(
        r"  # ([0-9.]+)$", "\n".join(blocks), re.M
    )
    assert next(line for line in PAGE.splitlines() if line.startswith("stock.xlsx: ")) in done.stdout + done.stderr
    assert any("march" in line for line in lines[-5:]), "the last command lists the reject"
