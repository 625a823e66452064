"""An upsert's rows and keys: of rows with equal keys the last wins."""

from __future__ import annotations

import os
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError, RowError
from dolmen.format.schema import Schema
from dolmen.format.types import to_plain
from dolmen.rows.write import row_input
from dolmen.rows.write.row_input import distinct_parts
from support.random_tables import random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


def dedupe(rows: pa.Table, *names: str, batch_rows: int = 3) -> tuple[pa.Table, pa.Table]:
    schema = Schema.from_arrow(rows.schema)
    batches = rows.cast(schema.arrow).to_batches(max_chunksize=batch_rows)
    fields = tuple(schema.field(name) for name in names)
    [(kept, keys)] = list(distinct_parts(batches, fields)) or [(schema.arrow.empty_table(), rows.slice(0, 0))]
    ids = {str(schema.field(name).id): name for name in names}
    named = keys.rename_columns([ids.get(name, name) for name in keys.column_names])
    return kept, named


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


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of more than 20 keys, or 4 KB."""
    for name, value in {"PART_KEYS": 20, "PART_BYTES": 4096, "_FOLD_ROWS": 20, "_FOLD_BYTES": 1024}.items():
        monkeypatch.setattr(row_input, name, value)


def batches_of(rows: pa.Table, most: int) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=most))


@pytest.mark.slow
@pytest.mark.usefixtures("_small_parts")
def test_upserts_of_several_parts_are_those_of_a_dict() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng, counts = random.Random(f"{SEED} parts"), set[int]()
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False), ("n", pa.int64())]
    )
    for number in range(30):
        db = dolmen.open(f"memory://parts-{number}")
        table = db.create_table("t", schema, primary_key=["a", "b"])
        expected: dict[tuple[int, str], int] = {}
        for n in range(2):
            most = rng.choice([1, 50, 200])  # of few keys some are in several parts, of many hardly any
            count = rng.randrange(300)
            keys = [(rng.randrange(most**2), rng.choice("xy") * rng.choice([1, 30])) for _ in range(count)]
            values = [1_000 * n + i for i in range(count)]
            rows = pa.table({"a": [a for a, _ in keys], "b": [b for _, b in keys], "n": values}, schema)
            before = table.version
            commit = table.upsert(batches_of(rows, rng.choice([1, 7, 60])), request=f"r{n}")
            expected |= dict(zip(keys, values, strict=True))
            found = {(row["a"], row["b"]): row["n"] for row in table.to_arrow().to_pylist()}
            assert (found, table.count()) == (expected, len(expected))
            assert table.version == before + 1, "one commit, which also remembers a request without rows"
            counts.add(commit.counts.tombstones_added)
            assert table.upsert(batches_of(rows, 9), request=f"r{n}").operation == "nothing", "it is a repetition"
        assert db.verify(deep=True).ok
        db.resolve()
        assert {(row["a"], row["b"]): row["n"] for row in table.to_arrow().to_pylist()} == expected
    assert min(counts) <= 1 < max(counts)


@pytest.mark.usefixtures("_small_parts")
def test_parts_without_a_key_in_common_are_one_statement_whose_rows_no_tombstone_hides() -> None:
    table = dolmen.open("memory://distinct-parts").create_table("t", pa.schema([("id", pa.int64())]))
    commit = table.upsert(batches_of(pa.table({"id": range(100)}), 10), on="id")
    assert (str(commit.done), commit.counts.tombstones_added) == ("upsert t(id)", 4)
    deleted = {delete["commit_ts"] for delete in table.describe()["unresolved_deletes"]}
    assert deleted == set(table.files()["least_commit_ts"].to_pylist()) == {commit.commit_ts}
    again = table.upsert(batches_of(pa.table({"id": [*range(100), 3]}), 10), on="id")
    assert len(set(table.files()["greatest_commit_ts"].to_pylist())) > 2, "of each part, and of those before"
    assert table.count() == 100
    assert again.counts.tombstones_added > 3


@pytest.mark.usefixtures("_small_parts")
def test_a_refused_row_in_a_later_part_leaves_nothing() -> None:
    db = dolmen.open("memory://refused-part")
    table = db.create_table("t", pa.schema([("id", pa.int64())]))
    rows = pa.table({"id": [*range(70), None]})
    with db.transaction() as tx:
        with pytest.raises(RowError, match="row 71"):
            tx.table("t").upsert(batches_of(rows, 10), on="id")
        tx.table("t").append({"id": [-1]})
    assert table.to_arrow()["id"].to_pylist() == [-1]
    assert db.verify(deep=True).ok


@pytest.mark.usefixtures("_small_parts")
def test_skip_equal_compares_each_part_with_the_table_and_the_parts_before() -> None:
    rng = random.Random(f"{SEED} equal parts")
    for number in range(10):
        db = dolmen.open(f"memory://equal-parts-{number}")
        table = db.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())]), "id")
        expected: dict[int, int] = {}
        for n in range(3):
            keys = [rng.randrange(rng.choice([30, 300])) for _ in range(rng.randrange(1, 200))]
            values = [rng.randrange(2) for _ in keys]
            rows = pa.table({"id": keys, "n": values})
            expected |= dict(zip(keys, values, strict=True))
            commit = table.upsert(batches_of(rows, rng.choice([1, 9, 60])), skip_equal=True, request=f"r{n}")
            assert {row["id"]: row["n"] for row in table.to_arrow().to_pylist()} == expected
            assert table.count() == len(expected)
            assert commit.counts.rows_added + (commit.rows_skipped or 0) >= len(set(keys))
            again = table.upsert(
                batches_of(pa.table({"id": [*expected], "n": [*expected.values()]}), 7), skip_equal=True
            )
            assert (again.operation, again.rows_skipped) == ("nothing", len(expected))
        assert db.verify(deep=True).ok
    assert (
        table.upsert(batches_of(pa.table({"id": range(1000, 1100), "n": range(100)}), 10), skip_equal=True).rows == 100
    )


def test_decimals_of_one_value_are_one_key() -> None:
    values = [Decimal("1.50"), Decimal("1.50")]
    assert dedupe(pa.table({"k": pa.array(values, pa.decimal128(9, 2))}), "k")[0].num_rows == 1
