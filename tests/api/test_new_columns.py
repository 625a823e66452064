"""``new_columns=``: what becomes of columns that the table lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.errors import AppliedIdError, ConflictError, InputError, SchemaError
from support.people import SCHEMA

ROWS = pa.table({"ID": [1, 2], "name": ["a", "b"], "city": ["Bern", None], "score": [1.5, 2.0], "none": [None, None]})
WHOLE = [
    {"id": 1, "user_id": None, "name": "a", "city": "Bern", "score": 1.5},
    {"id": 2, "user_id": None, "name": "b", "city": None, "score": 2.0},
]


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows, lambda rows: rows.to_reader(), lambda rows: iter(rows.to_batches()), pa.Table.to_pylist,
        pa.Table.to_pydict, pa.Table.to_pandas, pl.from_arrow, lambda rows: pl.from_arrow(rows).lazy(),
    ],
    ids=["table", "reader", "batches", "dicts", "columns", "pandas", "polars", "lazy"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["append", "insert", "upsert", "overwrite"])
def test_columns_are_added_or_ignored_or_refused(db: Database, form: Callable[[pa.Table], Any], verb: str) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    write = getattr(table, verb)
    with pytest.raises(SchemaError, match="city"):
        write(form(ROWS))
    assert db.refresh() == 1
    write(form(ROWS), new_columns="ignore")
    assert (table.columns, table.count("name = 'a'")) == (SCHEMA.names, 1)
    table.delete("TRUE")
    before = db.refresh()
    write(form(ROWS), new_columns="add")
    assert db.refresh() == before + 1
    assert table.scan(order_by="id").to_arrow().to_pylist() == WHOLE
    assert table.at(version=before).columns == SCHEMA.names
    if verb != "insert":
        write(form(ROWS), new_columns="add")
        assert table.columns == [*SCHEMA.names, "city", "score"]


def test_frames_keep_their_casts(db: Database) -> None:
    table = db.create_table("t", pa.schema([("n", pa.int64())]))
    table.append(pd.DataFrame({"n": [1.0, None], "x": ["a", "b"]}), new_columns="ignore")
    table.append(pd.DataFrame({"n": [2.0, None], "x": ["a", "b"]}), new_columns="add")
    assert sorted(table.to_arrow()["n"].drop_null().to_pylist()) == [1, 2]
    assert table.columns == ["n", "x"]
    table.append(pd.DataFrame({"n": [3], 7: [1]}, index=pd.Index([5], name="place")), new_columns="ignore")
    table.append(pd.DataFrame({"n": [4], 7: [1]}, index=pd.Index([5], name="place")), new_columns="add")
    assert (table.columns, table.count()) == (["n", "x", "place", "7"], 6)


def test_a_part_is_overwritten_with_more_columns(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    table.append([{"id": 1, "name": "old"}, {"id": 3, "name": "other"}])
    table.overwrite(ROWS.slice(0, 1), where="id = 1", new_columns="add")
    assert table.scan(["id", "name", "city"], order_by="id").to_arrow().to_pylist() == [
        {"id": 1, "name": "a", "city": "Bern"}, {"id": 3, "name": "other", "city": None},
    ]  # fmt: skip


def test_two_that_add_columns_at_once_both_get_in(db: Database, other: Database) -> None:
    table = db.create_table("t", SCHEMA)
    assert other.table("t").count() == 0
    table.append(ROWS, new_columns="add")
    other.table("t").append(ROWS.append_column("more", pa.array([1, 2])), new_columns="add")  # does not know of it
    db.refresh()
    assert table.columns == [*SCHEMA.names, "city", "score", "more"]
    assert table.count("city = 'Bern'") == 2
    transaction = db.transaction()
    transaction.table("t").append({"id": [9], "late": [1]}, new_columns="add")
    other.table("t").append({"id": [8], "late": ["text"]}, new_columns="add")
    with pytest.raises(ConflictError):
        transaction.commit()


def test_a_request_is_applied_once(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    first = table.append(ROWS, new_columns="add", request="r")
    assert table.append(ROWS, new_columns="add", request="r").already == {"r": first.version}
    table.drop_column("score")
    assert table.append(ROWS, new_columns="add", request="r").already == {"r": first.version}
    assert (table.count(), "score" in table.columns) == (2, False)
    with pytest.raises(AppliedIdError):
        table.append(ROWS.slice(1), new_columns="add", request="r")


def test_a_failed_row_adds_no_column(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    with pytest.raises(dolmen.Error):
        table.append([{"id": None, "city": "Bern"}], new_columns="add")
    with db.transaction() as tx:
        with pytest.raises(dolmen.Error):
            tx.table("t").append([{"id": None, "city": "Bern"}], new_columns="add")
        tx.table("t").append({"id": [1]})
    assert table.columns == SCHEMA.names


@pytest.mark.parametrize(
    ("data", "new_columns", "error"),
    [
        ({"x": [1]}, "add", SchemaError),
        ({"x": [1]}, "ignore", SchemaError),
        ({"id": [1], "x": [1]}, "maybe", InputError),
        ({"id": [1], "x": [1], "X": [2]}, "add", SchemaError),
        (pa.table({"id": [1], "x": pa.array([1], pa.duration("s"))}), "add", SchemaError),
    ],
)
def test_what_can_not_be_added_is_refused(db: Database, data: Any, new_columns: Any, error: type[Exception]) -> None:
    table = db.create_table("t", SCHEMA)
    with pytest.raises(error):
        table.append(data, new_columns=new_columns)
    assert (db.refresh(), table.columns) == (1, SCHEMA.names)


@pytest.mark.parametrize("form", [lambda rows: rows, pa.Table.to_pylist, pa.Table.to_pandas, pl.from_arrow])
@pytest.mark.parametrize("whole", [True, False], ids=["all columns", "some"])
def test_a_merge_refuses_ignores_or_adds_columns(db: Database, form: Callable[[pa.Table], Any], whole: bool) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append([{"id": 1, "name": "old", "user_id": 7}, {"id": 3, "name": "other"}])
    rows = ROWS.append_column("user_id", pa.array([5, 6])) if whole else ROWS
    with pytest.raises(SchemaError, match=r"city.*new_columns"):
        table.merge(form(rows), "id")
    with pytest.raises(InputError, match="new_columns"):
        table.merge(form(rows), "id", new_columns="maybe")  # type: ignore[arg-type]
    assert db.refresh() == 2
    table.merge(form(rows), "id", new_columns="ignore")
    assert (table.columns, table.count("name = 'a'"), table.count()) == (SCHEMA.names, 1, 3)
    before = db.refresh()
    table.merge(form(rows), "id", new_columns="add")
    assert (db.refresh(), table.columns) == (before + 1, [*SCHEMA.names, "city", "score"])
    assert table.scan(["id", "name", "city", "score"], order_by="id").to_arrow().to_pylist() == [
        {"id": 1, "name": "a", "city": "Bern", "score": 1.5},
        {"id": 2, "name": "b", "city": None, "score": 2.0},
        {"id": 3, "name": "other", "city": None, "score": None},
    ]
    assert table.get(1)["user_id"] == (5 if whole else 7)


def test_a_merge_adds_no_column_that_is_for_an_expression(db: Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append([{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])
    rows = pa.table({"id": [1, 2, 3], "op": ["d", "u", "u"], "city": ["a", "b", "c"]})
    matched = [dolmen.Delete(when="source.op = 'd'"), dolmen.Update()]
    with db.transaction() as tx:
        tx.table("t").merge(rows, "id", matched, new_columns="add")
    assert table.columns == [*SCHEMA.names, "city"]
    assert table.scan(["id", "name", "city"], order_by="id").to_arrow().to_pylist() == [
        {"id": 2, "name": "y", "city": "b"}, {"id": 3, "name": None, "city": "c"},
    ]  # fmt: skip
    more = {"id": [2], "late": ["z"]}
    table.merge(more, "id", {"name": "source.late"}, None, new_columns="add")
    assert (table.columns, table.get(2)["name"]) == ([*SCHEMA.names, "city"], "z"), "no clause would write it"


def test_a_merge_that_adds_columns_is_applied_once(db: Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    for rows in (ROWS, ROWS.append_column("user_id", pa.array([5, 6]))):
        request = f"{rows.num_columns}"
        first = table.merge(rows, "id", new_columns="add", request=request)
        table.append([{"id": 7, "name": "later"}])
        assert table.merge(rows, "id", new_columns="add", request=request).already == {request: first.version}
        table.drop_column("score")
        assert table.merge(rows, "id", new_columns="add", request=request).already == {request: first.version}
        assert "score" not in table.columns
        with pytest.raises(AppliedIdError):
            table.merge(rows.slice(1), "id", new_columns="add", request=request)


def test_a_writer_refuses_ignores_or_adds_columns(db: Database, other: Database) -> None:
    table = db.create_table("t", SCHEMA)
    with table.writer() as writer, pytest.raises(SchemaError, match="city"):
        writer.append(ROWS)
    with pytest.raises(InputError, match="new_columns"):
        table.writer(new_columns="maybe")  # type: ignore[arg-type]
    with table.writer(new_columns="ignore") as writer:
        writer.append(ROWS)
    assert (table.columns, table.count()) == (SCHEMA.names, 2)
    with (
        table.writer(new_columns="add", message="m") as writer,
        other.table("t").writer(new_columns="add") as stale,
    ):
        stale.append({"id": [5]})
        done = [writer.append({"id": [4]}), writer.append(ROWS, request="r"), writer.append({"id": [6], "z": [None]})]
        stale.append(ROWS.append_column("more", pa.array([1, 2])))
        done.append(writer.append(ROWS, request="r"))
        with pytest.raises(SchemaError, match="score"):
            writer.append({"id": [1], "score": ["text"]})
    assert {each.result().message for each in done} == {"m"}
    db.refresh()
    assert table.columns == [*SCHEMA.names, "city", "score", "more"]
    assert (table.count(), table.count("city = 'Bern'"), table.count("more = 1")) == (9, 2, 1)
    with table.writer(new_columns="add") as writer:
        assert "r" in writer.append(ROWS, request="r").result().already
