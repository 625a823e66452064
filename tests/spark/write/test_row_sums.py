"""A digest of rows in any order, for requests of Spark's tasks."""

from __future__ import annotations

import math
import os
import random

import pyarrow as pa
import pytest

from dolmen.spark.write.write_tasks import RowSums
from support.random_tables import random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


def sums(table: pa.Table, batch_rows: int = 1 << 20) -> list[object]:
    found = RowSums()
    for batch in table.to_batches(max_chunksize=batch_rows):
        found.add(batch)
    return found.content()


def test_order_batches_slices_and_columns_make_no_difference() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(20):
        table = random_table(rng, 200)
        expected = sums(table)
        shuffled = table.take(pa.array(rng.sample(range(200), 200)))
        assert sums(shuffled, rng.randint(1, 50)) == expected
        assert sums(table.select(rng.sample(table.column_names, table.num_columns))) == expected
        parts = [table.slice(0, 77), table.slice(77, 50).combine_chunks(), table.slice(127)]
        total = RowSums()
        for part in parts:
            some = RowSums()
            for batch in part.to_batches():
                some.add(batch)
            total.add_sums(some)
        assert total.content() == expected
        names = [name for name in table.column_names if table[name].null_count < 200]
        table = table.select(names)
        nulls = pa.nulls(200, pa.string())
        assert sums(table.append_column("another", nulls)) == expected
        assert sums(table.rename_columns([names[0] + "x", *names[1:]])) != expected


def _are_nan(*values: pa.Scalar) -> bool:
    """Arrow finds no NaN equal to another; they have the same digest, since all of them are one value."""
    return all(pa.types.is_floating(value.type) and value.is_valid and math.isnan(value.as_py()) for value in values)


def test_any_other_value_is_another_digest() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(20):
        table = random_table(rng, 40)
        expected = sums(table)
        for name in table.column_names:
            values = table[name].to_pylist() if not pa.types.is_temporal(table[name].type) else None
            one, other = rng.sample(range(40), 2)
            place = table.column_names.index(name)
            column = table[name].combine_chunks()
            if column[one].equals(column[other]) or _are_nan(column[one], column[other]):
                continue
            taken = list(range(40))
            taken[one] = other
            changed = table.set_column(place, name, column.take(pa.array(taken)))
            assert sums(changed) != expected, (name, values and (values[one], values[other]))
            swapped = list(range(40))
            swapped[one], swapped[other] = other, one
            moved = table.set_column(place, name, column.take(pa.array(swapped)))
            if not table.drop_columns([name]).slice(one, 1).equals(table.drop_columns([name]).slice(other, 1)):
                assert sums(moved) != expected, f"{name} of two rows was swapped"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "bc"], ["ab", "c"]),
        (["", None], [None, None]),
        (["a" * 70_000 + "b"], ["a" * 70_000 + "c"]),
        ([[1, 2], [3]], [[1], [2, 3]]),
        ([[1, 2]], [[2, 1]]),
        ([[]], [None]),
        ([[None]], [[]]),
        ([{"a": 1, "b": 2}], [{"a": 2, "b": 1}]),
        ([0.0], [-0.0]),
        ([0], [None]),
        ([1, 1], [2, 0]),
    ],
)
def test_what_is_alike_is_told_apart(one: list[object], other: list[object]) -> None:
    kind = pa.array(one + other).type
    assert sums(pa.table({"x": pa.array(one, kind)})) != sums(pa.table({"x": pa.array(other, kind)}))


def test_long_columns_are_folded_by_portions() -> None:
    texts = [("x" * (place % 7_000)) + str(place) for place in range(400)]
    lists = [list(range(place % 3_000)) for place in range(400)]
    table = pa.table({"s": texts, "l": lists, "huge": [list(range(300_000)), *[None] * 399]})
    assert sums(table, 1) == sums(table, 7) == sums(table)
    assert sums(table.set_column(0, "s", pa.array(["y" + texts[0][1:], *texts[1:]]))) != sums(table)
