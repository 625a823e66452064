"""What tables do, as the README and the design promise it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.errors import (
    InputError,
    InvalidNameError,
    LimitError,
    PredicateError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from dolmen.rows.scan.scan import plan_of
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA, people


def ids(table: dolmen.Table, where: str | None = None) -> list[int]:
    return sorted(table.scan(columns=["id"], where=where).to_arrow()["id"].to_pylist())


def test_opening_creates_nothing(db: Database, store: CountingStore) -> None:
    assert (db.version, db.tables(), store.puts) == (0, [], 0)


def test_a_new_table_is_empty_and_remembers_its_shape(table: dolmen.Table) -> None:
    assert table.schema.equals(SCHEMA)
    assert (table.primary_key, table.sort_key, table.count()) == (("id",), ("user_id",), 0)
    assert table.to_arrow().schema.equals(SCHEMA)


def test_a_name_is_taken_once(db: Database, other: Database, table: dolmen.Table) -> None:
    with pytest.raises(TableExistsError, match="people"):
        other.create_table("people", SCHEMA)
    assert db.tables() == ["people"]


@pytest.mark.parametrize("name", ["", "People", "a-b", "a/b", "..", "x" * 65, "ä"])
def test_bad_names_are_refused(db: Database, name: str) -> None:
    with pytest.raises(InvalidNameError):
        db.create_table(name, SCHEMA)


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (pa.schema([]), {}),
        (pa.schema([("a", pa.null())]), {}),
        (pa.schema([("a", pa.float16())]), {}),
        (pa.schema([("a", pa.duration("s"))]), {}),
        (pa.schema([("_commit_ts", pa.int64())]), {}),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), {}),
        (pa.schema([("a", pa.float64())]), {"primary_key": "a"}),
        (pa.schema([("a", pa.list_(pa.int64()))]), {"sort_key": "a"}),
        (pa.schema([("a", pa.int64())]), {"primary_key": "b"}),
        (pa.schema([("a", pa.int64())]), {"primary_key": ["a", "a"]}),
    ],
)
def test_tables_that_could_not_be_stored_are_refused(db: Database, schema: pa.Schema, options: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        db.create_table("t", schema, **options)
    assert db.version == 0


def test_rows_of_any_kind_of_frame_are_appended(table: dolmen.Table) -> None:
    rows = people(1, 2)
    table.append(rows)
    table.append(rows.to_batches()[0])
    table.append(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
    table.append(rows.to_pandas())
    table.append(pl.from_arrow(rows))
    table.append(rows.to_pylist())
    assert table.count() == 12


def test_columns_match_by_name_and_missing_ones_are_null(table: dolmen.Table) -> None:
    table.append(pa.table({"name": ["a"], "id": [1]}))
    assert table.to_arrow().to_pylist() == [{"id": 1, "user_id": None, "name": "a"}]


@pytest.mark.parametrize(
    ("rows", "error", "phrase"),
    [
        (pa.table({"id": [1], "extra": [2]}), SchemaError, "extra"),
        (pa.table({"user_id": [1]}), SchemaError, "id"),
        (pa.table({"id": [1, None]}), RowError, "row 2"),
        (pa.table({"id": ["1"]}), SchemaError, "id"),
        (pa.table({"id": [1.5]}), (RowError, SchemaError), "id"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), RowError, "id"),
        (42, InputError, "42|int"),
    ],
)
def test_rows_that_do_not_fit_are_refused_whole(
    table: dolmen.Table, rows: object, error: type[Exception], phrase: str
) -> None:
    with pytest.raises(error, match=phrase):
        table.append(rows)
    assert table.count() == 0


def test_an_empty_append_makes_no_commit(db: Database, table: dolmen.Table, store: CountingStore) -> None:
    before = store.puts
    commit = table.append(SCHEMA.empty_table())
    assert (commit.operation, commit.version, store.puts) == ("nothing", 1, before)
    assert table.append(SCHEMA.empty_table(), request="r").version == 2
    assert table.append(SCHEMA.empty_table(), request="r").already == {"r": 2}


def test_deletes_hide_what_was_there_and_nothing_that_comes_later(table: dolmen.Table) -> None:
    table.append(people(1, 2, 3, 4, 5, 6))
    table.delete("id > 4")
    table.delete({"id": 1})
    table.delete(keys=[2])
    table.delete("id = 3", mode="positions")
    assert ids(table) == [4]
    table.append(people(1, 2, 3, 5, 6))
    assert ids(table) == [1, 2, 3, 4, 5, 6]
    assert table.count() == 6


def test_what_a_delete_tells(table: dolmen.Table, store: CountingStore) -> None:
    table.append(people(*range(10)))
    assert table.delete("id < 3").rows is None
    assert table.delete("id < 5", mode="positions").rows == 2
    before = store.puts
    assert table.delete("id < 5", mode="positions").rows == 0
    assert store.puts == before


def test_null_equals_nothing(table: dolmen.Table) -> None:
    table.append(pa.table({"id": [1, 2], "user_id": [None, 5]}))
    table.delete("user_id IN (NULL)")
    table.delete("user_id <> 5")
    table.delete("user_id NOT IN (7, NULL)")
    assert ids(table) == [1, 2]
    table.delete({"user_id": None})
    assert ids(table) == [2]


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        ((), {}, InputError),
        (("id = 1",), {"keys": [1]}, InputError),
        (("",), {}, InputError),
        (({},), {}, InputError),
        (("id =",), {}, PredicateError),
        (("nope = 1",), {}, PredicateError),
        (("id = 'x'",), {}, PredicateError),
        (("id = 1; DROP TABLE people",), {}, PredicateError),
        (("id = (SELECT 1)",), {}, PredicateError),
        ((), {"keys": ["a"]}, InputError),
        ((), {"keys": [None]}, RowError),
        ((), {"keys": [1], "on": ["nope"]}, SchemaError),
        (("id = 1",), {"mode": "sideways"}, InputError),
        ((), {"keys": [1], "mode": "positions"}, InputError),
        ((), {"keys": range(1_000_001)}, LimitError),
    ],
)
def test_deletes_that_make_no_sense_are_refused(
    table: dolmen.Table, arguments: tuple[object, ...], keywords: dict[str, object], error: type[Exception]
) -> None:
    table.append(people(1))
    with pytest.raises(error):
        table.delete(*arguments, **keywords)
    assert ids(table) == [1]


def test_an_argument_that_is_mistyped_is_named(table: dolmen.Table) -> None:
    for call in (table.append, table.upsert, table.overwrite, table.insert):
        misspelled: Any = partial(call, people(1), mesage="nightly")
        with pytest.raises(TypeError, match="no argument 'mesage': did you mean 'message'"):
            misspelled()
    assert table.count() == 0


def test_an_upsert_replaces_rows_and_the_last_of_equal_keys_wins(table: dolmen.Table) -> None:
    table.append(people(1, 2, 3))
    table.upsert(pa.table({"id": [2, 9, 2], "name": ["first", "new", "last"]}))
    rows = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert rows == {1: "x", 2: "last", 3: "x", 9: "new"}
    assert table.count() == 4


def test_an_upsert_goes_by_the_columns_it_is_told(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    with pytest.raises(InputError, match="primary key"):
        table.upsert(people(1))
    table.append(people(1, 2, 3, user_id=7))
    table.upsert(people(4, user_id=7), on=["user_id"])
    assert ids(table) == [4]
    with pytest.raises(RowError, match="row 2"):
        table.upsert(pa.table({"id": [1, 2], "user_id": [1, None]}), on=["user_id"])


def test_keys_of_several_columns(db: Database) -> None:
    table = db.create_table("t", SCHEMA, primary_key=["id", "name"])
    table.append(pa.table({"id": [1, 1, 2], "name": ["a", "b", "a"]}))
    table.delete(keys=[(1, "a")])
    table.delete({"id": 2, "name": "b"})
    assert [(r["id"], r["name"]) for r in table.to_arrow().to_pylist()] == [(1, "b"), (2, "a")]


def test_a_scan_becomes_any_frame(table: dolmen.Table) -> None:
    table.append(people(1, 2, 3))
    scan = table.scan(columns=["name", "id"], where="id > 1")
    assert scan.to_arrow().column_names == ["name", "id"]
    assert isinstance(scan.to_pandas(), pd.DataFrame)
    assert isinstance(scan.to_polars(), pl.DataFrame)
    assert pl.DataFrame(table).height == 3
    assert pa.table(table).num_rows == 3
    assert table.scan(limit=2).to_arrow().num_rows == 2
    assert table.scan(order_by="-id").to_arrow()["id"].to_pylist() == [3, 2, 1]


def test_a_dropped_table_is_gone_but_not_from_the_past(db: Database, table: dolmen.Table) -> None:
    table.append(people(1))
    db.drop_table("people")
    with pytest.raises(TableNotFoundError):
        table.count()
    with pytest.raises(TableNotFoundError):
        db.drop_table("people")
    db.create_table("people", pa.schema([("x", pa.int32())]))
    assert db.table("people").count() == 0
    assert db.at(version=2).table("people").count() == 1


def test_tables_commits_and_plans_are_worth_looking_at(db: Database, table: dolmen.Table) -> None:
    commit = table.append(people(1, 2))
    table.delete("name = 'x' OR user_id > 3")
    assert "people" in repr(table)
    assert "user_id" in table._repr_html_()
    assert "rows added 2" in repr(commit)
    assert "<table>" in commit._repr_html_()
    assert "people" in repr(db)
    assert "tombstone" in repr(plan_of(table.scan())).lower()
    assert "<" in plan_of(table.scan())._repr_html_()
    assert "user_id" in table.describe()["unresolved_deletes"][0]["rows"]
