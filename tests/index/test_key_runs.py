"""Keys of many rows: sorted in runs, of which most wait in files, and the keys that several rows have."""

from __future__ import annotations

import os
import random
from collections import Counter

import pyarrow as pa
import pytest

from dolmen.entries.index import sorting
from dolmen.entries.index.sorting import KeyRuns

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
SCHEMA = pa.schema([("a", pa.string()), ("b", pa.int32())])


@pytest.mark.slow
@pytest.mark.parametrize("run_bytes", [600, 20_000, 1 << 30])
def test_runs_have_all_keys_in_order_and_repeated_ones_are_found_once(
    run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "_BLOCK_ROWS", 7)
    rng = random.Random(SEED)
    for _ in range(40):
        some = range(rng.randrange(300))
        rows = [("x" * rng.choice([0, 1, 9, 1500]) + str(rng.randrange(200)), rng.randrange(2)) for _ in some]
        keys = KeyRuns(SCHEMA, run_bytes)
        for start in range(0, len(rows), 40):
            part = [{"a": a, "b": b} for a, b in rows[start : start + 40]]
            keys.add(pa.RecordBatch.from_pylist(part, SCHEMA))
        repeated = {key for key, count in Counter(rows).items() if count > 1}
        count, first = keys.repeated_rows(5)
        assert count == len(repeated)
        named = [tuple(row.values()) for row in first.to_pylist()]
        assert len(named) == len(set(named)) == min(5, count)
        assert set(named) <= repeated
        for _ in range(2):
            runs = list(keys.runs())
            assert Counter(tuple(row.values()) for run in runs for row in run.values.to_pylist()) == Counter(rows)
            assert all((run.encoded[1:] >= run.encoded[:-1]).all() for run in runs)
            assert all(len(run.encoded) <= 40 or run.values.nbytes <= run_bytes for run in runs), (
                "one batch, or few bytes"
            )


def test_no_keys_make_no_run() -> None:
    keys = KeyRuns(SCHEMA)
    keys.add(pa.RecordBatch.from_pylist([], SCHEMA))
    assert (list(keys.runs()), keys.repeated_rows(3)[0]) == ([], 0)
