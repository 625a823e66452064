"""Facts about a table, slices of scans, forms of SQL results, and forms of keys."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.errors import InputError, TableNotFoundError
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA, people


@pytest.fixture
def table(db: Database) -> dolmen.Table:
    """Rows in four files, with deletes by predicate, key and position."""
    table = db.create_table("numbers", pa.schema([("n", pa.int64()), ("text", pa.string())]))
    for first in range(0, 400, 100):
        table.append({"n": list(range(first, first + 100)), "text": [f"t{n}" for n in range(first, first + 100)]})
    table.delete("n % 10 = 3", mode="positions")
    table.delete("n BETWEEN 120 AND 139")
    table.delete({"n": 390})
    return table


LIVE = [n for n in range(400) if n % 10 != 3 and not 120 <= n <= 139 and n != 390]


def test_a_table_has_a_version_columns_and_a_length(db: Database, table: dolmen.Table) -> None:
    assert (table.version, table.columns, len(table)) == (db.version, ["n", "text"], len(LIVE))
    assert (table.at(version=1).version, len(table.at(version=1)), len(table.at(version=2))) == (1, 0, 100)
    assert bool(db.create_table("empty", SCHEMA))
    assert len(db.table("empty")) == 0
    with db.transaction() as tx:
        tx.table("numbers").append({"n": [1000]})
        assert (len(tx.table("numbers")), tx.table("numbers").columns) == (len(LIVE) + 1, ["n", "text"])


@pytest.mark.slow
@pytest.mark.parametrize("resolved", [False, True])
def test_offset_limit_and_batch_size_are_slices(db: Database, table: dolmen.Table, resolved: bool) -> None:
    if resolved:
        db.resolve()
    everything = table.scan(["n"]).to_arrow()["n"].to_pylist()
    assert sorted(everything) == LIVE
    ordered = [f"t{n}" for n in sorted(LIVE, reverse=True)]
    for offset in (0, 1, 89, 90, 91, 97, 170, 300, len(LIVE) - 1, len(LIVE), 1000):
        for limit in (None, 0, 1, 95, 1000):
            end = None if limit is None else offset + limit
            scan = table.scan(["n"], limit=limit, offset=offset)
            assert scan.to_arrow()["n"].to_pylist() == everything[offset:end], (offset, limit)
            assert scan.count() == len(everything[offset:end])
            total = sum(everything[offset:end]) if everything[offset:end] else None
            assert scan.to_duckdb().aggregate("sum(n)").fetchall() == [(total,)]
            assert scan.to_polars_lazy().filter(pl.col("n") >= 0).collect()["n"].to_list() == everything[offset:end]
            sorted_scan = table.scan(["text"], order_by="-n", limit=limit, offset=offset)
            assert sorted_scan.to_arrow()["text"].to_pylist() == ordered[offset:end]
    for size in (1, 7, 64, 1000):
        for scan in (table.scan(batch_size=size, offset=5), table.scan(order_by="n", batch_size=size)):
            batches = list(scan)
            assert max(batch.num_rows for batch in batches) <= size
            assert pa.Table.from_batches(batches).equals(scan.to_arrow())
            assert sum(batch.num_rows for batch in scan.to_reader()) == scan.count()


def test_files_before_an_offset_are_not_read(db: Database, table: dolmen.Table, store: CountingStore) -> None:
    db.table("numbers").overwrite({"n": list(range(5)), "text": ["x"] * 5})
    for _ in range(9):
        table.append({"n": list(range(5)), "text": ["x"] * 5})
    fresh = Database(store, replace(db._context.runtime)).table("numbers")  # with an empty cache
    store.reset()
    assert fresh.scan(offset=45).to_arrow().num_rows == 5
    few = store.gets
    store.reset()
    assert fresh.scan().to_arrow().num_rows == 50
    assert (few, store.gets) == (3, 10)  # the pointer, the manifest and a file; the pointer and the other nine files


@pytest.mark.parametrize("bad", [{"offset": -1}, {"offset": 1.5}, {"batch_size": 0}, {"offset": True}])
def test_wrong_numbers_are_refused(table: dolmen.Table, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        table.scan(**bad)


def test_a_filter_is_one_more_condition(table: dolmen.Table) -> None:
    scan = table.scan(["text"], where="n < 50")
    assert scan.filter("n > ?", parameters=[45]).to_arrow()["text"].to_pylist() == ["t46", "t47", "t48", "t49"]
    assert scan.filter({"n": [1, 99]}).filter("text IS NOT NULL").count() == 1
    assert scan.count() == 45
    for limited in (table.scan(limit=3), table.scan(offset=3)):
        with pytest.raises(InputError, match="further condition"):
            limited.filter("n = 1")


@pytest.mark.slow
def test_a_sample_has_each_live_row_as_often_as_any_other(db: Database, table: dolmen.Table) -> None:
    drawn = Counter[int]()
    for seed in range(150):
        rows = table.sample(12, seed=seed)
        assert rows.num_rows == len(set(rows["n"].to_pylist())) == 12
        drawn.update(rows["n"].to_pylist())
    assert drawn.keys() <= set(LIVE)
    assert len(drawn) > 0.97 * len(LIVE)
    # Each row is expected 150 * 12 / 339 = 5.3 times; the sum of squares says whether all are alike.
    expected = 150 * 12 / len(LIVE)
    assert sum((drawn[n] - expected) ** 2 / expected for n in LIVE) < 1.3 * len(LIVE)
    assert table.sample(12, seed=3).equals(table.sample(12, seed=3))
    assert sorted(table.sample(1000)["n"].to_pylist()) == LIVE
    assert (table.sample(0).num_rows, table.sample().num_rows) == (0, 5)
    table.delete("n <> 77")
    assert table.sample(5)["n"].to_pylist() == [77]
    assert db.create_table("empty", SCHEMA).sample().schema == SCHEMA


def test_statistics_hold_for_all_rows(db: Database, table: dolmen.Table) -> None:
    assert table.stats().to_pylist() == [
        {"column": "n", "type": "int64", "min": "0", "max": "399", "nulls": 0, "nans": 0},
        {"column": "text", "type": "string", "min": "t0", "max": "t99", "nulls": 0, "nans": 0},
    ]
    table.add_column("price", pa.float64())
    table.append({"n": [-5], "text": [None], "price": [float("nan")]})
    number, text, price = table.stats().to_pylist()
    assert (number["min"], text["nulls"], price["nulls"], price["nans"]) == ("-5", 1, 400, 1)
    assert db.create_table("empty", pa.schema([("a", pa.list_(pa.int32()))])).stats().num_rows == 1


def test_a_table_compacts_and_drops_itself(db: Database, table: dolmen.Table) -> None:
    assert sorted(vars(table.compact(dry_run=True))) == sorted(vars(db.compact("numbers", dry_run=True)["numbers"]))
    table.compact()
    assert table.files().num_rows == 1
    assert table.scan(["n"], order_by="n").to_arrow()["n"].to_pylist() == LIVE
    assert table.drop(request="gone").operation == "drop_table"
    assert "numbers" not in db.tables()
    assert table.drop(request="gone").already.keys() == {"gone"}
    with pytest.raises(TableNotFoundError):
        table.drop()
    other = db.create_table("numbers", SCHEMA)
    assert other.drop(request="gone").already.keys() == {"gone"}
    with db.transaction() as tx:
        tx.table("numbers").drop()
    assert db.tables() == []


def test_results_of_sql_are_read_as_duckdbs_are(table: dolmen.Table, db: Database, capsys: Any) -> None:
    result = db.sql("SELECT n, text FROM numbers ORDER BY n")
    assert (result.fetchone(), result.fetchmany(2), result.fetchone()) == (
        (0, "t0"), [(1, "t1"), (2, "t2")], (4, "t4"),
    )  # fmt: skip
    assert [n for n, _ in result] == LIVE
    assert result.fetchone() == (0, "t0")
    assert result.columns == ["n", "text"]
    assert result.fetchone() == (1, "t1")
    assert result.arrow().num_rows == len(result.df()) == result.pl().height == len(LIVE)
    assert result.fetchone() == (0, "t0")
    assert len(result.fetchmany(1000)) == len(LIVE) - 1
    assert (result.fetchone(), result.fetchmany(3)) == (None, [])
    result.show(rows=2)
    assert {"t0", "t1"} <= set(capsys.readouterr().out.replace("│", " ").split()) - {"t2"}
    with pytest.raises(InputError, match="size"):
        result.fetchmany(-1)
    assert db.sql("EXPLAIN SELECT 1").fetchone() is not None


@pytest.mark.parametrize(
    "keys",
    [
        [2, 5], (2, 5), {2, 5}, range(2, 6, 3), (n for n in (2, 5)), {2: "a", 5: "b"}.keys(), {"a": 2, "b": 5}.values(),
        np.array([2, 5]), pa.array([2, 5]), pa.chunked_array([[2], [5]]), pd.Series([2, 5]), pd.Index([2, 5]),
        pl.Series([2, 5]), pa.table({"id": [2, 5]}), pd.DataFrame({"id": [2, 5]}), pl.DataFrame({"id": [2, 5]}),
        map(int, ("2", "5")), pa.table({"id": [2, 5]}).to_reader(), iter(pa.table({"id": [2, 5]}).to_batches()),
    ],
    ids=lambda keys: type(keys).__name__,
)  # fmt: skip
def test_keys_are_taken_from_anything_that_has_values(db: Database, keys: Any) -> None:
    table = db.create_table("keyed", SCHEMA, primary_key="id")
    table.append(people(*range(8)))
    table.delete(keys=keys)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 3, 4, 6, 7]


def test_a_lazy_frame_is_appended_in_batches(db: Database) -> None:
    table = db.create_table("lazy", pa.schema([("n", pa.int64()), ("double", pa.int64())]))
    numbers = list(range(300_000))
    random.Random(4).shuffle(numbers)
    frame = pl.DataFrame({"n": numbers}).lazy().with_columns(double=pl.col("n") * 2).filter(pl.col("n") % 3 == 0)
    table.append(frame)
    assert table.count() == 100_000
    assert db.sql("SELECT sum(double) - 2 * sum(n), min(n), max(n) FROM lazy").fetchall() == [(0, 0, 299_997)]
    table.append(frame.filter(pl.col("n") < 0))
    assert table.count() == 100_000
