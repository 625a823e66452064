"""The plugin that keeps CI from passing because a suite was skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "support.no_skips", "--no-skips", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-n", "2", "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='no server')\ndef test_b(): pass\n",
        "import pytest\ndef test_a(): pytest.skip('no server')\n",
        "import pytest\npytest.skip('no server', allow_module_level=True)\n",
    ],
    ids=["mark", "call", "module"],
)
def test_a_skipped_test_fails_the_run_and_is_named(tmp_path: Path, source: str) -> None:
    result = run_pytest(tmp_path, source)
    assert result.returncode != 0
    assert "test_it.py" in result.stdout
    assert "no server" in result.stdout


def test_what_only_the_long_mode_runs_may_be_skipped(tmp_path: Path) -> None:
    source = "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='set DOLMEN_LONG=1')\ndef test_b(): pass\n"
    result = run_pytest(tmp_path, source)
    assert result.returncode == 0, result.stdout
    assert "1 passed, 1 skipped" in result.stdout
