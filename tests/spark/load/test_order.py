"""Cutting sorted runs at sampled keys: the same order as Arrow sorts by."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.rows.write.runs import sort_columns
from dolmen.spark.load import load_tasks as load_tasks
from dolmen.spark.load.load_tasks import Ranges, SortKeys

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
NAN, INFINITY = float("nan"), float("inf")

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-(1 << 63), -1, 0, 5, (1 << 63) - 1],
    pa.uint64(): [0, 7, (1 << 64) - 1],
    pa.float64(): [NAN, -INFINITY, INFINITY, -0.0, 0.0, 1e300, 1.5],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "ab", "é", "\U0001f600", "\uffff", "b"],
    pa.binary(): [b"", b"\x00", b"\xff", b"a"],
    pa.decimal128(38, 9): [Decimal("-1e28"), Decimal("0"), Decimal("1.000000001"), Decimal("9" * 29)],
    pa.date32(): [0, -1_000_000, 20_000],
    pa.timestamp("us", tz="UTC"): [0, -(10**15), 10**18],  # beyond the years that Python knows
    pa.time64("us"): [0, 1, 86_399_999_999],
}


def table_of(kinds: list[pa.DataType], columns: list[pa.Array]) -> tuple[TableEntry, pa.Table]:
    schema = pa.schema([(f"c{place}", kind) for place, kind in enumerate(kinds)])
    stored = Schema.from_arrow(schema)
    entry = TableEntry(uuid="0" * 32, epoch=0, schema=stored, sort_key=tuple(field.id for field in stored.fields))
    chunks = [pa.chunked_array([column]) for column in columns]
    sort_columns(chunks, list(chunks))
    return entry, pa.table(chunks, schema)


def test_keys_compare_as_arrow_sorts() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(200):
        kinds = rng.sample(list(VALUES), rng.randint(1, 3))
        count = rng.randint(1, 40)
        columns = [pa.array([rng.choice([None, *VALUES[kind]]) for _ in range(count)], kind) for kind in kinds]
        entry, rows = table_of(kinds, columns)
        keys = SortKeys(rows, entry)
        found = [keys.at(row) for row in range(count)]
        assert found == sorted(found)
        assert json.loads(json.dumps(found)) == found, "samples travel as JSON"
        bounds: list[Any] = []
        for bound in sorted(rng.choices(found, k=rng.randint(0, 5))):
            if not bounds or bound > bounds[-1]:
                bounds.append(bound)
        parts = {number: found[start:end] for number, start, end in keys.cuts(bounds)}
        expected = {number: [key for key in found if sum(b <= key for b in bounds) == number] for number in range(9)}
        assert parts == {number: some for number, some in expected.items() if some}


def test_ranges_have_about_equal_shares_and_each_part_its_ranges() -> None:
    rng = random.Random(1)
    samples = [([[0, rng.random()]], 1.0) for _ in range(10_000)]
    ranges = Ranges.of(samples, parts=4, pieces=5)
    assert len(ranges.bounds) == 19
    assert ranges.parts == tuple(place // 5 for place in range(20))
    edges = [0.0, *(bound[0][1] for bound in ranges.bounds), 1.0]
    assert all(0.03 < after - before < 0.07 for before, after in pairwise(edges))


@pytest.mark.parametrize("common", [0.5, 1.0])
def test_a_key_that_most_rows_have_is_in_one_range(common: float) -> None:
    samples = [([[0, 7 if place < common * 1000 else place]], 1.0) for place in range(1000)]
    ranges = Ranges.of(samples, parts=8, pieces=1)
    assert list(ranges.bounds) == sorted({bound[0][1]: bound for bound in ranges.bounds}.values())
    assert list(ranges.parts) == sorted(ranges.parts)
    assert ranges.parts[-1] < 8


def test_a_range_without_end_is_merged_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"c0": pa.array([7] * 1000, pa.int64())})
    monkeypatch.setattr(load_tasks, "RANGE_BYTES", 5 * rows.nbytes)
    entry, _ = table_of([pa.int64()], [pa.array([1], pa.int64())])
    taken = 0

    def pieces() -> Iterator[tuple[int, int, pa.Table]]:
        nonlocal taken
        while taken < 100:
            taken += 1
            yield 0, 0, rows

    handed = 0
    for batch in load_tasks._merge_pieces(pieces(), entry):
        assert taken * 1000 - handed <= 11_000
        handed += batch.num_rows
    assert handed == 100_000
