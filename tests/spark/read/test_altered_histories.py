"""Spark's native reader and its data source show in every version of random histories what DuckDB says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.altered_history import on_disk

pytestmark = pytest.mark.slow

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 60 if os.environ.get("DOLMEN_LONG") else 1


@pytest.mark.parametrize("number", range(HISTORIES))
def test_spark_shows_in_every_version_what_duckdb_says(number: int, spark: SparkSession, tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    history = on_disk(f"{SEED} {number}", str(tmp_path / "db"))
    history.run(steps=7)
    history.check_spark(spark)
