"""Rows are put in order whatever they are and however little of them fits into memory."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.format.types import to_plain, to_scalar
from dolmen.maintenance.compact.rewrite import Bound, Sorter
from support.random_tables import FLAT, random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


def batches_of(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    yield from table.combine_chunks().to_batches(max_chunksize=rows)


def with_bounds(table: pa.Table, rows: int, key: str) -> Iterator[tuple[Bound | None, pa.RecordBatch]]:
    """Batches by their least key, as their statistics would place them."""
    batches = list(batches_of(table, rows))
    values = [[v for v in to_plain(batch[key]) if v is not None and v == v] for batch in batches]
    known = sorted((min(some), n) for n, some in enumerate(values) if some)
    unknown = [n for n, some in enumerate(values) if not some]
    for n in unknown:
        yield None, batches[n]
    for least, n in known:
        yield (to_scalar(least, table[key].type),), batches[n]


def keys_of(table: pa.Table, key: list[str]) -> str:
    """The key columns as text: NaN equals itself, and zeros of either sign are one."""
    values = [to_plain(table[name].combine_chunks()) for name in key]
    return repr([[0.0 if value == 0 else value for value in column] for column in values])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FLAT])
@pytest.mark.parametrize("memory", [2_000, 1 << 20])
def test_rows_of_any_type_come_in_order_and_none_is_lost(kind: str, memory: int, tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(f"{SEED} {kind}")
    rows = 600
    table = pa.table(
        {
            "k": random_column(rng, kind, rows),
            "l": random_column(rng, rng.choice([*FLAT]), rows),
            "n": pa.array(range(rows)),
        }
    )
    for key in (["k"], ["k", "l"]):
        sorter = Sorter(Runtime(), table.schema, key, memory, str(tmp_path))
        found = pa.Table.from_batches(sorter.sort(with_bounds(table, 40, "k")), table.schema)
        expected = table.sort_by([(name, "ascending") for name in key])
        assert sorted(found["n"].to_pylist()) == list(range(rows))
        assert keys_of(found, key) == keys_of(expected, key)
    assert list(tmp_path.iterdir()) == []


def ordered(rows: int, shuffled: bool = False) -> pa.Table:
    keys = np.arange(rows)
    if shuffled:
        np.random.default_rng(SEED).shuffle(keys)
    return pa.table({"k": keys, "text": pa.array([f"{key:050}" for key in keys])})


def test_rows_that_are_nearly_in_order_pass_through_memory_alone(tmp_path: Path) -> None:
    table = ordered(20_000)
    late = pa.concat_tables([table.slice(500), table.slice(0, 500)])  # some come late
    sorter = Sorter(Runtime(), table.schema, ["k"], table.nbytes // 20, str(tmp_path))
    found = pa.Table.from_batches(sorter.sort(with_bounds(late, 500, "k")), table.schema)
    assert found.equals(table)
    assert sorter.spilled_bytes == 0


@pytest.mark.slow
def test_rows_in_no_order_go_by_way_of_the_disk_and_little_of_them_is_held(tmp_path: Path) -> None:
    table = ordered(40_000, shuffled=True)
    memory = table.nbytes // 30
    sorter = Sorter(Runtime(), table.schema, ["k"], memory, str(tmp_path))
    longest = 0
    found: list[pa.RecordBatch] = []
    for batch in sorter.sort((None, batch) for batch in batches_of(table, 500)):
        longest = max(longest, batch.nbytes)
        found.append(batch)
    assert pa.Table.from_batches(found).equals(table.sort_by("k"))
    assert sorter.spilled_bytes > 0
    assert longest <= 2 * memory
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_more_runs_than_are_merged_at_once_are_merged_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.maintenance.compact.rewrite.FAN_IN", 4)
    table = ordered(20_000, shuffled=True)
    sorter = Sorter(Runtime(), table.schema, ["k"], table.nbytes // 30, str(tmp_path))
    found = pa.Table.from_batches(sorter.sort((None, batch) for batch in batches_of(table, 200)), table.schema)
    assert found.equals(table.sort_by("k"))


@pytest.mark.slow
def test_a_key_that_all_rows_share_needs_no_more_memory_than_others(tmp_path: Path) -> None:
    table = ordered(20_000, shuffled=True)
    table = table.add_column(0, "same", pa.array(["DE"] * table.num_rows))
    memory = table.nbytes // 20
    sorter = Sorter(Runtime(), table.schema, ["same"], memory, str(tmp_path))
    longest = max(batch.nbytes for batch in sorter.sort(with_bounds(table, 500, "same")))
    assert (longest <= 2 * memory, sorter.spilled_bytes) == (True, 0)
    sorter = Sorter(Runtime(), table.schema, ["same", "k"], memory, str(tmp_path))
    found = pa.Table.from_batches(sorter.sort(with_bounds(table, 500, "same")), table.schema)
    assert found["k"].to_pylist() == list(range(20_000))


def test_an_abandoned_sort_leaves_nothing_behind(tmp_path: Path) -> None:
    table = ordered(20_000, shuffled=True)
    sorter = Sorter(Runtime(), table.schema, ["k"], table.nbytes // 20, str(tmp_path))
    stream = sorter.sort((None, batch) for batch in batches_of(table, 500))
    next(stream)
    assert sorter.spilled_bytes
    stream.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
