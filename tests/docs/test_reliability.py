"""Every command of docs/reliability.md that a reader can run is run here, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
COMMANDS = re.findall(r"<!-- run -->\n```shell\n(.*?)\n```", PAGE, re.DOTALL)


def test_the_page_has_commands_to_run() -> None:
    assert [command.split()[1] for command in COMMANDS].count("simulate") >= 3
    assert [command.split()[1] for command in COMMANDS].count("check-store") >= 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
