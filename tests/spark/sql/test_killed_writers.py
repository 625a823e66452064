"""Processes that change one table by SQL, and are killed with SIGKILL: no row is lost or doubled."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from support import killed_sql_writers
from support.spark import require_java

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**31)
KILLS = 30 if os.environ.get("DOLMEN_LONG") else 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_statements_of_killed_sessions_are_applied_once_or_not_at_all(tmp_path: Path) -> None:
    require_java()
    print(f"DOLMEN_TEST_SEED={SEED}")
    lives = killed_sql_writers.run(tmp_path, KILLS, SEED)
    assert len(lives) == KILLS
    assert sum(life.acknowledged for life in lives) >= KILLS
