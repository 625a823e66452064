"""CI does not pass when a suite was skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SOURCE = """
import pytest

def test_a(): pass

@pytest.mark.skip(reason="no server")
def test_b(): pass

@pytest.mark.skip(reason="set DOLMEN_LONG=1")
def test_c(): pass
"""


@pytest.mark.slow
def test_a_skipped_test_fails_the_run_and_is_named_unless_the_long_mode_runs_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.skip('no Java', allow_module_level=True)\n")
    command = [sys.executable, "-m", "pytest", "-p", "support.no_skips", "--no-skips", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-n", "2", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    _, _, named = done.stdout.partition("which --no-skips makes a failure")
    assert "no server" in named
    assert "no Java" in named
    assert "DOLMEN_LONG" not in named
