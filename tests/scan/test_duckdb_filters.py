"""Filters that DuckDB pushes into scans: the same rows as without, with DuckDB 2 and the oldest one we take."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from support.duckdb_filters import compare
from support.iceberg_readers import ROOT
from support.older_duckdb import run_with_older_duckdb

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
QUERIES = 10_000 if os.environ.get("DOLMEN_LONG") else 100


@pytest.mark.slow
@pytest.mark.timeout(7_200 if QUERIES > 1_000 else 600)
def test_pushed_filters_find_the_rows_that_unpushed_ones_find() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    seen = compare(SEED, QUERIES)
    print(dict(seen))
    assert seen["some"] > QUERIES / 4
    assert seen["failed here"] < QUERIES / 20


@pytest.mark.slow
@pytest.mark.timeout(7_200 if QUERIES > 1_000 else 600)
def test_pushed_filters_find_the_rows_that_unpushed_ones_find_with_the_oldest_duckdb(tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    seen = run_with_older_duckdb(
        ["-m", "support.duckdb_filters", "--seed", str(SEED), "--queries", str(QUERIES)], tmp_path
    )
    print(seen)
    version = seen.partition(" ")[0]
    assert re.search(
        rf'^sql = \["duckdb>={re.escape(version)}"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
