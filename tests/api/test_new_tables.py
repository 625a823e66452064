"""The forms in which ``create_table`` takes columns and rows, and what it does with a table that exists."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.errors import AppliedIdError, ConflictError, InputError, SchemaError, TableExistsError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.decimal128(9, 2))])
EMPTY = SCHEMA.empty_table()


@pytest.mark.parametrize(
    "columns",
    [
        SCHEMA,
        "id BIGINT NOT NULL, name VARCHAR, price DECIMAL(9, 2)",
        {"id": "BIGINT NOT NULL", "name": "VARCHAR", "price": "DECIMAL(9, 2)"},
        {"id": "BIGINT NOT NULL", "name": pa.string(), "price": pa.decimal128(9, 2)},
        EMPTY,
    ],
    ids=["arrow", "text", "texts", "types", "rows"],
)
def test_columns_are_taken_in_many_forms(db: Database, columns: Any) -> None:
    table = db.create_table("t", columns, primary_key="id")
    assert (table.schema, table.primary_key, db.version) == (SCHEMA, ("id",), 1)
    with db.transaction() as tx:
        assert tx.create_table("u", columns).schema == SCHEMA


def test_schemas_of_polars_and_pandas_are_taken(db: Database) -> None:
    table = db.create_table("p", pl.Schema({"n": pl.Int32, "t": pl.String, "d": pl.Decimal(9, 2)}))
    assert table.schema == pa.schema([("n", pa.int32()), ("t", pa.string()), ("d", pa.decimal128(9, 2))])
    pandas = pd.DataFrame({"n": pd.array([1], "Int64"), "f": [0.5], "at": [pd.Timestamp("2026-11-29", tz="UTC")]})
    table = db.create_table("q", pandas.dtypes)
    assert table.schema == pa.schema([("n", pa.int64()), ("f", pa.float64()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"n": [1, 2], "t": ["a", None]}), pl.DataFrame({"n": [1, 2], "t": ["a", None]}),
        pl.LazyFrame({"n": [1, 2], "t": ["a", None]}), pd.DataFrame({"n": [1, 2], "t": ["a", None]}),
        [{"n": 1, "t": "a"}, {"n": 2}], {"n": [1, 2], "t": ["a", None]},
        pa.table({"n": [1, 2], "t": ["a", None]}).to_reader(),
    ],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_rows_make_a_table_in_one_commit(db: Database, rows: Any) -> None:
    table = db.create_table("t", rows, sort_key="n")
    assert db.version == 1
    assert table.scan(order_by="n").to_arrow().to_pydict() == {"n": [1, 2], "t": ["a", None]}
    assert table.schema == pa.schema([("n", pa.int64()), ("t", pa.string())])
    with db.transaction() as tx:
        made = tx.create_table("u", table.scan())
        assert made.count() == 2
    assert (db.version, db.table("u").count()) == (2, 2)


def test_a_table_that_exists_is_an_error_or_kept_or_replaced(db: Database, other: Database) -> None:
    first = db.create_table("t", "n BIGINT", exist="ok")
    first.append({"n": [1]})
    with pytest.raises(TableExistsError):
        db.create_table("t", "x VARCHAR")
    kept = db.create_table("t", {"x": ["a"]}, exist="ok")
    assert (kept.columns, kept.count(), db.refresh()) == (["n"], 1, 2)
    replaced = db.create_table("t", {"x": ["a", "b"]}, exist="replace")
    assert (replaced.columns, replaced.count(), db.refresh()) == (["x"], 2, 3)
    assert db.at(version=2).table("t").columns == ["n"]
    assert db.create_table("new", "x BIGINT", exist="replace").columns == ["x"]
    with db.transaction() as tx:
        assert tx.create_table("t", "y BIGINT", exist="ok").columns == ["x"]
        assert tx.create_table("t", {"y": [1]}, exist="replace").columns == ["y"]
        assert tx.create_table("fresh", "y BIGINT", exist="ok").columns == ["y"]
    assert (db.table("t").to_arrow().to_pydict(), sorted(db.tables())) == ({"y": [1]}, ["fresh", "new", "t"])


def test_creating_beside_others(db: Database, other: Database) -> None:
    db.create_table("t", "n BIGINT")
    transaction = db.transaction()
    transaction.create_table("raced", "n BIGINT", exist="ok")
    other.create_table("raced", "x BIGINT")
    with pytest.raises((ConflictError, TableExistsError)):
        transaction.commit()
    transaction = db.transaction()
    transaction.create_table("t", "x BIGINT", exist="ok").append({"n": [1]})
    other.drop_table("t")
    with pytest.raises(dolmen.Error):
        transaction.commit()
    assert "t" not in db
    assert other.create_table("t", "x BIGINT", exist="ok").columns == ["x"]


def test_a_request_creates_a_table_with_rows_once(db: Database) -> None:
    rows = {"n": [1, 2]}
    db.create_table("t", rows, request="r")
    db.table("t").delete({"n": 1})
    assert db.create_table("t", rows, request="r").count() == 1
    for name, other, exist in (("t", {"n": [1, 3]}, "error"), ("t", "n BIGINT", "error"), ("u", rows, "error")):
        with pytest.raises(AppliedIdError):
            db.create_table(name, other, request="r", exist=exist)  # type: ignore[arg-type]
    db.create_table("t", {"x": ["a"]}, exist="replace", request="again")
    db.table("t").append({"x": ["b"]})
    assert db.create_table("t", {"x": ["a"]}, exist="replace", request="again").count() == 2


@pytest.mark.parametrize(
    "columns",
    [
        None, 7, "", "id", "id BIGINT PRIMARY KEY", "id NOTYPE", {"id": "NOTYPE"}, {"id": 3}, [1, 2], [{"a": None}],
        {"a": ["x"], "A": [1]}, pl.Schema({"o": pl.Object}), pd.DataFrame({"o": [object()]}).dtypes, {}, [],
    ],
    ids=repr,
)  # fmt: skip
def test_what_has_no_columns_is_refused(db: Database, columns: Any) -> None:
    with pytest.raises((SchemaError, InputError)):
        db.create_table("t", columns)
    assert db.refresh() == 0


def test_exist_is_one_of_three_words(db: Database) -> None:
    with pytest.raises(InputError, match="exist='maybe' is not 'error' or 'ok' or 'replace'"):
        db.create_table("t", SCHEMA, exist="maybe")  # type: ignore[arg-type]


def test_rows_that_do_not_fit_leave_no_table_in_a_transaction(db: Database) -> None:
    with db.transaction() as tx:
        with pytest.raises(dolmen.Error):
            tx.create_table("t", iter([pa.record_batch({"n": [1]}), pa.record_batch({"n": ["x"]})]))
        assert tx.tables() == []
        tx.create_table("u", {"n": [1]})
    assert db.tables() == ["u"]
