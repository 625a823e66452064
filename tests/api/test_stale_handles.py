"""Handles that have not looked since others changed columns: a call goes by the columns of when it lands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Table
from dolmen.declaration import Declaration, plan
from dolmen.errors import ConflictError, InputError, SchemaError

SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.int64()), ("n", pa.int8()), ("at", pa.timestamp("us"))])
ROW = {"id": 1, "user": 42, "n": 0, "at": datetime(2026, 1, 1)}


@pytest.fixture
def handles(tmp_path: Path) -> tuple[Table, Table]:
    """A handle, and another one by which the table is changed."""
    stale = dolmen.open(str(tmp_path)).create_table("t", SCHEMA, primary_key="id")
    stale.append([ROW])
    return stale, dolmen.open(str(tmp_path)).table("t")


def url_of(table: Table) -> str:
    return table._context.store.url


def replace_user(other: Table) -> None:
    """Renames ``user`` to ``customer``, and adds another column ``user``."""
    other.rename_column("user", "customer")
    other.add_column("user", pa.int64(), 5)


@pytest.mark.parametrize("verb", ["append", "upsert", "insert", "overwrite"])
def test_rows_go_into_the_columns_that_have_their_names_now(handles: tuple[Table, Table], verb: str) -> None:
    stale, other = handles
    replace_user(other)
    getattr(stale, verb)([{"id": 2, "user": 7}])
    row = next(row for row in other.to_arrow().to_pylist() if row["id"] == 2)
    assert (row["customer"], row["user"]) == (None, 7)


@pytest.mark.parametrize("verb", ["delete", "erase"])
def test_rows_are_named_by_the_columns_that_have_their_names_now(handles: tuple[Table, Table], verb: str) -> None:
    stale, other = handles
    before = dolmen.open(url_of(other))
    replace_user(other)
    getattr(stale, verb)("user = 42")
    assert other.count() == 1, "the row has 42 in customer, and 5 in user"
    getattr(stale, verb)("user = 5")
    assert other.count() == 0
    assert before.at(2).table("t").count() == (0 if verb == "erase" else 1)


CALLS: dict[str, tuple[Callable[[Table], Any], Callable[[Table], Any]]] = {
    "a new column": (lambda other: other.add_column("c", pa.int8()), lambda stale: stale.append([{"id": 2, "c": 5}])),
    "a renamed one": (
        lambda other: other.rename_column("user", "customer"),
        lambda stale: stale.delete("customer = 42"),
    ),
    "a wider type": (
        lambda other: other.widen_column("n", pa.int64()),
        lambda stale: stale.append([{"id": 2, "n": 1000}]),
    ),
    "a new default": (
        lambda other: other.add_column("d", pa.int64(), 1),
        lambda stale: stale.set_default("d", 2),
    ),
    "a setting": (lambda other: other.add_column("seen", pa.timestamp("us")), lambda stale: stale.set(ttl="seen 9d")),
    "keys": (lambda other: other.rename_column("id", "key"), lambda stale: stale.delete(keys=[1], on=["key"])),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_fits_the_columns_of_now_is_not_refused(handles: tuple[Table, Table], name: str) -> None:
    stale, other = handles
    change, call = CALLS[name]
    change(other)
    call(stale)
    assert other._context.head.refresh().manifest.version == 4


@pytest.mark.parametrize("verb", ["append", "upsert", "delete", "erase", "set"])
def test_what_does_not_fit_the_columns_of_now_is_refused(handles: tuple[Table, Table], verb: str) -> None:
    stale, other = handles
    other.rename_column("user", "customer")
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: stale.append([{"id": 2, "user": 7}]),
        "upsert": lambda: stale.upsert([{"id": 2, "user": 7}]),
        "delete": lambda: stale.delete("user = 42"),
        "erase": lambda: stale.erase("user = 42"),
        "set": lambda: stale.set(subject="user"),
    }
    with pytest.raises(InputError, match="column 'user'"):
        calls[verb]()
    assert other.to_arrow().to_pylist() == [{"id": 1, "customer": 42, "n": 0, "at": ROW["at"]}]


def test_rows_that_can_be_read_once_are_a_conflict(handles: tuple[Table, Table]) -> None:
    stale, other = handles
    replace_user(other)
    rows = pa.table({"id": [2, 3], "user": [7, 8]})
    with pytest.raises(ConflictError, match="repeat"):
        stale.append(rows.to_reader())
    assert other.count() == 1
    stale.append(rows.to_reader())
    assert other.to_arrow()["user"].to_pylist() == [5, 7, 8]


def test_new_columns_conflict_with_nothing(handles: tuple[Table, Table]) -> None:
    stale, other = handles
    other.add_column("c", pa.int8(), 1)
    stale.append(pa.table({"id": [2]}).to_reader())
    stale.delete("id = 1")
    assert other.to_arrow()["c"].to_pylist() == [1]


def test_a_field_inside_of_a_column_counts_too(tmp_path: Path) -> None:
    struct = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    stale = dolmen.open(str(tmp_path)).create_table("t", pa.schema([("id", pa.int64()), ("s", struct)]))
    other = dolmen.open(str(tmp_path)).table("t")
    other.rename_column("s.x", "z")
    other.add_column("s.x", pa.int64())
    stale.append([{"id": 1, "s": {"x": 7}}])
    assert other.to_arrow()["s"].to_pylist() == [{"z": None, "y": None, "x": 7}]


@pytest.mark.parametrize("setting", [{"subject": "user"}, {"ttl": "at 90d"}])
@pytest.mark.parametrize("what", ["drop", "rename", "replace"])
def test_a_setting_lands_on_the_columns_that_it_was_checked_against(
    handles: tuple[Table, Table], setting: dict[str, str], what: str
) -> None:
    stale, other = handles
    column = next(iter(setting.values())).split()[0]
    transaction = dolmen.open(url_of(other)).transaction()
    transaction.table("t").set(**setting)
    if what == "drop":
        other.drop_column(column)
    else:
        other.rename_column(column, "renamed")
    if what == "replace":
        other.add_column(column, pa.int64())
    with pytest.raises(ConflictError, match=f"column '{column}'.*table 't'"):
        transaction.commit()
    assert next(iter(setting)) not in stale.describe()["properties"]


def test_settings_that_do_not_go_with_those_of_others_conflict(handles: tuple[Table, Table]) -> None:
    stale, other = handles
    other.set(ingest_mode="upsert")
    transaction = dolmen.open(url_of(other)).transaction()
    transaction.table("t").set(ingest_on_bad_row="quarantine")
    stale.add_column("c", pa.int8())
    transaction.commit()
    assert other.settings()["ingest_on_bad_row"] == "quarantine"


def test_a_plan_is_of_columns_too(handles: tuple[Table, Table]) -> None:
    stale, other = handles
    columns = "{id: BIGINT, user: BIGINT, n: TINYINT, at: TIMESTAMP}"
    text = f"tables:\n  t:\n    columns: {columns}\n    primary_key: id\n    ttl: at 90d\n"
    planned = plan(dolmen.open(url_of(other)), Declaration.parse(text))
    assert planned.changes
    other.rename_column("at", "seen")
    with pytest.raises(ConflictError, match="columns of table 't'"):
        planned.commit()
    with pytest.raises(SchemaError):
        stale.set(ttl="at 90d")
