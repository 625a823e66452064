"""An upsert's rows and keys: of rows with equal keys the last wins."""

from __future__ import annotations

import os
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dolmen.errors import InputError, LimitError, RowError
from dolmen.format.schema import Schema
from dolmen.format.types import to_plain
from dolmen.rows.write import row_input
from dolmen.rows.write.row_input import dedupe_last
from support.random_tables import random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


def dedupe(rows: pa.Table, *names: str, batch_rows: int = 3) -> tuple[pa.Table, pa.Table]:
    schema = Schema.from_arrow(rows.schema)
    batches = rows.cast(schema.arrow).to_batches(max_chunksize=batch_rows)
    kept, keys = dedupe_last(batches, tuple(schema.field(name) for name in names))
    ids = {str(schema.field(name).id): name for name in names}
    named = keys.rename_columns([ids[name] for name in keys.column_names])
    return pa.Table.from_batches(kept, schema.arrow), named


def test_the_last_row_of_a_key_wins_and_the_order_stays() -> None:
    rows = pa.table({"id": [1, 2, 1, 3, 2, 4], "v": list("abcdef")})
    kept, keys = dedupe(rows, "id")
    assert kept.to_pydict() == {"id": [1, 3, 2, 4], "v": ["c", "d", "e", "f"]}
    assert keys.to_pydict() == {"id": [1, 2, 3, 4]}


def test_keys_of_several_columns_are_one_key() -> None:
    rows = pa.table({"row": ["x", "x", "y", "x"], "0": [1, 2, 1, 1], "v": [1, 2, 3, 4]})
    kept, keys = dedupe(rows, "row", "0")
    assert kept["v"].to_pylist() == [2, 3, 4]
    assert sorted(map(tuple, map(dict.values, keys.select(["row", "0"]).to_pylist()))) == [("x", 1), ("x", 2), ("y", 1)]


def test_no_rows_make_no_keys() -> None:
    kept, keys = dedupe(pa.table({"id": pa.array([], pa.int64())}), "id")
    assert (kept.num_rows, keys.num_rows) == (0, 0)


@pytest.mark.parametrize(
    "kind", ["int8", "uint64", "string", "binary", "fixed_binary", "decimal_38_10", "zoned", "bool"]
)
def test_random_upserts_are_those_of_a_dict(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(f"{SEED} {kind}")
    monkeypatch.setattr(row_input, "_FOLD_ROWS", 50)
    for _ in range(10):
        keys = random_column(rng, kind, 400).drop_null()
        rows = pa.table({"k": keys, "n": np.arange(len(keys))})
        expected = {key: n for n, key in enumerate(to_plain(keys))}
        kept, found = dedupe(rows, "k", batch_rows=rng.choice([1, 7, 100]))
        assert kept["n"].to_pylist() == sorted(expected.values())
        assert set(to_plain(found["k"].combine_chunks())) == set(expected)


def test_a_null_key_is_refused_with_its_row() -> None:
    rows = pa.table({"a": range(10), "b": [1] * 7 + [None] + [1] * 2})
    with pytest.raises(RowError, match="row 8, column 'b'") as caught:
        dedupe(rows, "a", "b")
    assert caught.value.row == 8


@pytest.mark.parametrize("values", [[1.5, 2.5], [[1], [2]], []])
def test_a_float_or_nested_key_is_refused_whatever_the_rows(values: list[Any]) -> None:
    rows = pa.table({"k": pa.array(values, pa.float64() if not values else None)})
    with pytest.raises(InputError, match="column 'k'"):
        dedupe(rows, "k")


def test_too_many_keys_are_refused_and_duplicates_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_input, "MAX_KEYS", 100)
    monkeypatch.setattr(row_input, "_FOLD_ROWS", 100)
    kept, _ = dedupe(pa.table({"id": list(range(100)) * 50}), "id", batch_rows=30)
    assert kept.num_rows == 100
    with pytest.raises(LimitError, match="100 keys"):
        dedupe(pa.table({"id": list(range(101)) * 2}), "id", batch_rows=30)


def test_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_input, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(row_input, "_FOLD_BYTES", 1 << 18)
    rows = pa.table({"id": range(20), "v": ["x" * 100_000] * 20})
    with pytest.raises(LimitError, match="1 MB"):
        dedupe(rows, "id")
    again = pa.table({"id": [1] * 20, "v": ["x" * 100_000] * 20})
    assert dedupe(again, "id")[0].num_rows == 1


def test_decimals_of_one_value_are_one_key() -> None:
    values = [Decimal("1.50"), Decimal("1.50")]
    assert dedupe(pa.table({"k": pa.array(values, pa.decimal128(9, 2))}), "k")[0].num_rows == 1
