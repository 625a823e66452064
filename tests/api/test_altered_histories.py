"""Every version of random histories shows what DuckDB says: rows and columns change in all ways, beside upkeep.

Half of them ask every Bloom filter that can be asked. ``python -m support.altered_history``
runs many more of them, and some by Spark.
"""

from __future__ import annotations

import os

import pytest

from support.altered_history import ask_all_filters, in_memory

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 4000 if os.environ.get("DOLMEN_LONG") else 30
TOGETHER = 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_scans_counts_and_sql_show_in_every_version_what_duckdb_says(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_filters = first % (2 * TOGETHER) > 0
    exclusions = ask_all_filters(monkeypatch) if all_filters else []
    for number in range(first, first + TOGETHER):
        print(f"DOLMEN_TEST_SEED={SEED} history {number}")
        history = in_memory(f"{SEED} {number}")
        history.run()
        history.check(sql_share=0.15)
    if all_filters:  # about one history in three has a file that a filter excludes
        assert sum(exclusions) > 0
