"""``make demo`` sets itself up and shows what the README says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time it installs an environment of its own
def test_the_demo_shows_flights_before_and_after_a_deletion() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "AWS_", "DOLMEN_"))
    }
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "version 2 has 336,776 rows" in shown
    assert "(no rows) 336,665 rows are left, 111 fewer" in shown
    assert shown.count("│ EWR │ 102 │") == 2, "before, and in the past"
    assert "delete request │ 3 │" in shown, "3 PUTs"
