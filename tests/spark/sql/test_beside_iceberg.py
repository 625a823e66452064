"""Random statements leave the rows that they leave in a table of Iceberg, or that plain Spark makes of the same rows.

``tests/support/beside_iceberg.py`` runs many, and docs/spark-catalog.md lists where the two differ.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from support import beside_iceberg
from support.spark import SparkProcess, require_java
from support.spark_jars import find_jars

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**31)
STATEMENTS = 2000 if os.environ.get("DOLMEN_LONG") else 60


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_statements_leave_the_rows_that_they_leave_beside_iceberg(tmp_path: Path) -> None:
    require_java()
    class_path, missing = find_jars("iceberg")
    if class_path is None:
        pytest.skip(missing)
    print(f"DOLMEN_TEST_SEED={SEED}")
    settings = {**beside_iceberg.SETTINGS, "spark__jars": class_path}
    with SparkProcess.start(tmp_path / "spark", {}, "local[1]", **settings) as process:
        outcomes = process.run(beside_iceberg.run, SEED, STATEMENTS, str(tmp_path))
    assert (outcomes.total, outcomes.wrong) == (STATEMENTS, []), str(outcomes)
    assert outcomes.same.total() > STATEMENTS / 2, str(outcomes)
    assert outcomes.refused_here.total() <= STATEMENTS / 20, str(outcomes)
