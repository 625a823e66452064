"""Every version of random histories shows what DuckDB says: rows and columns change in all ways, beside upkeep.

``python -m support.altered_history`` runs many more of them, and some by Spark.
"""

from __future__ import annotations

import os

import pytest

from support.altered_history import in_memory

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 4000 if os.environ.get("DOLMEN_LONG") else 30
TOGETHER = 10


@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_scans_counts_and_sql_show_in_every_version_what_duckdb_says(first: int) -> None:
    for number in range(first, first + TOGETHER):
        print(f"DOLMEN_TEST_SEED={SEED} history {number}")
        history = in_memory(f"{SEED} {number}")
        history.run()
        history.check(sql_share=0.15)
