"""``--cpu-seconds`` notes what tests cost, with the processes that they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import subprocess, sys

BUSY = "import time\\nwhile time.process_time() < 0.5: pass"

def test_starts_a_process():
    subprocess.run([sys.executable, "-c", BUSY], check=True)

def test_does_nothing():
    pass
"""


def test_the_time_of_a_process_counts_for_the_test_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "support.cpu_seconds", "--cpu-seconds=costs", "-q"]
    done = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=tmp_path, env=environment(), capture_output=True)
    assert done.returncode == 0, done.stdout
    shown = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "cpu_seconds.py"), "costs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    costs = {words[1]: float(words[0]) for words in map(str.split, shown.splitlines()) if len(words) == 2}
    assert costs["test_some.py::test_starts_a_process"] >= 0.4
    assert costs["test_some.py"] >= 0.4
    assert costs["test_some.py::test_does_nothing"] < costs["test_some.py::test_starts_a_process"]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
