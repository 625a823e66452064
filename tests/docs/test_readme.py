"""Every command of the README is run here, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    found = re.search(rf"<!-- tour: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"the README has no tour in {name}"
    return found[1]


def run(command: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_tour_prints_what_it_says(tmp_path: Path) -> None:
    source = block("python")
    output = run([sys.executable, "-c", source], tmp_path)
    promised = re.findall(r"print\(.*\)\s+# (\d+)$", source, re.MULTILINE)
    assert len(promised) >= 3
    printed = iter(output.splitlines())
    for value in promised:
        assert value in printed, f"{value} is not printed, or not in that order:\n{output}"
    assert "Ada" in output
    assert "Grace" not in output


def test_the_shell_tour_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    output = run(["bash", "-euo", "pipefail", "-c", block("shell")], tmp_path)
    assert re.search(r"^6$", output, re.MULTILINE), "the scan of version 2 counts all 6 rows"
    assert '"operation":"delete"' in output


def test_the_make_targets_exist() -> None:
    targets = (ROOT / "Makefile").read_text()
    for command in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{command}:", targets, re.MULTILINE), f"make {command} is in the README only"


def test_linked_pages_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
