"""Names of columns are found in any case, as two that differ in case alone cannot exist; results have the table's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dolmen import Database, Expression, Table
from dolmen.base.runtime import Runtime
from dolmen.errors import InputError, SchemaError
from dolmen.store import MemoryBucket, MemoryStore

SCHEMA = pa.schema(
    [
        ("Id", pa.int64()),
        ("Name", pa.string()),
        ("Day", pa.date32()),
        ("Place", pa.struct([("City", pa.string()), ("Zip", pa.string())])),
        ("Tags", pa.map_(pa.string(), pa.int64())),
    ]
)
ROW = {"ID": 2, "nAME": "b", "day": None, "PLACE": {"CITY": "x", "zip": None}, "tags": [("k", 1)]}
STORED = {"Id": 2, "Name": "b", "Day": None, "Place": {"City": "x", "Zip": None}, "Tags": [("k", 1)]}
ARROW = pa.table({"ID": [2], "nAME": ["b"], "PLACE": pa.array([{"CITY": "x", "zip": None}])})


@pytest.fixture
def db() -> Database:
    return Database(MemoryStore(MemoryBucket()), Runtime(threads=1))


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="ID", sort_key=["DAY", "id"], properties={"subject": "NAME"})
    table.append([{"Id": 1, "Name": "a", "Place": {"City": "c", "Zip": "z"}}])
    return table


def test_what_is_declared_in_another_case_is_the_column(table: Table) -> None:
    assert (table.primary_key, table.sort_key) == (("Id",), ("Day", "Id"))
    table.set(ttl="DAY 30d")
    assert (table.settings()["ttl"], table.settings()["subject"]) == ("Day 30d", "Name")
    table.set_sort_key(None)
    with pytest.raises(SchemaError, match="ttl"):
        table.drop_column("DAY")


WRITES: dict[str, Callable[[Table], Any]] = {
    "append": lambda t: t.append([ROW]),
    "insert": lambda t: t.insert([ROW]),
    "upsert": lambda t: t.upsert([ROW], on="iD"),
    "merge": lambda t: t.merge([ROW], "iD"),
    "merge of fewer": lambda t: t.merge([{k: v for k, v in ROW.items() if k != "day"}], ["iD"]),
}


@pytest.mark.parametrize("write", WRITES)
def test_rows_are_written_under_names_of_any_case(table: Table, write: str) -> None:
    WRITES[write](table)
    assert table.get(2) == STORED


@pytest.mark.parametrize("frame", [ARROW, ARROW.to_pandas(), pl.from_arrow(ARROW)], ids=["arrow", "pandas", "polars"])
def test_frames_may_have_names_of_any_case(table: Table, frame: Any) -> None:
    for write in (table.append, table.upsert, lambda rows: table.merge(rows, "id")):
        write(frame)
        assert table.get(2, ["place", "NAME"]) == {"Place": {"City": "x", "Zip": None}, "Name": "b"}


def test_rows_are_changed_by_names_of_any_case(table: Table) -> None:
    table.update({"NAME": "new", "place": Expression("{'CITY': 'y'}")}, {"ID": 1})
    assert table.get(1, ["Name", "Place"]) == {"Name": "new", "Place": {"City": "y", "Zip": None}}
    table.merge([{"ID": 1}], "id", {"NAME": "concat(TARGET.name, '!')", "ID": "Source.Id"})
    assert table.get(1, ["name"]) == {"Name": "new!"}
    with pytest.raises(InputError, match="twice"):
        table.update({"name": "a", "NAME": "b"})
    with pytest.raises(SchemaError, match="primary key"):
        table.update({"ID": 5})
    table.delete(keys=pd.DataFrame({"ID": [1]}))
    table.append([ROW])
    table.delete(keys=["b"], on=["NAME"])
    assert table.count() == 0


def test_rows_are_read_by_names_of_any_case(table: Table) -> None:
    table.append([ROW])
    found = table.scan(["NAME", "id"], "ID > 0 AND name IN ('a', 'b')", order_by=["ID"]).to_arrow()
    assert found.to_pydict() == {"Name": ["a", "b"], "Id": [1, 2]}
    assert table.get_many(pa.table({"ID": [2]}), ["NAME"]).to_pydict() == {"Name": ["b"]}
    changes = table.changes(since=1, columns=["NAME"]).read_all()
    assert "Name" in changes.column_names
    with pytest.raises(SchemaError, match="twice"):
        table.scan(["id", "ID"])


def test_columns_are_changed_by_names_of_any_case(table: Table) -> None:
    table.add_column("PLACE.Country", pa.string())
    table.rename_column("place.CITY", "Town")
    table.set_default("NAME", "none")
    table.comment("name", "who")
    table.reorder(["PLACE", "id"])
    table.set_sort_key("NAME")
    table.rename_column("DAY", "Date")
    table.rename_column("name", "NAME")  # another spelling of the same name
    assert table.schema.names == ["Place", "Id", "NAME", "Date", "Tags"]
    assert [field.name for field in table.schema.field("Place").type] == ["Town", "Zip", "Country"]
    assert (table.sort_key, table.settings()["subject"]) == (("NAME",), "NAME")
    table.drop_column("date")
    assert "Date" not in table.schema.names


def test_two_names_that_differ_in_case_alone_are_one_column_twice(table: Table) -> None:
    for rows in ({"id": [1], "ID": [2]}, [{"id": 1}, {"ID": 2}]):
        for write in (table.append, table.upsert, lambda given: table.merge(given, "id")):
            with pytest.raises(SchemaError, match=r"(?i)'id'"):
                write(rows)


@pytest.mark.parametrize("name", ["adress.country", "place.city.name", "tags.value.more", "nope.a.b", "."])
def test_a_typo_in_a_path_makes_no_column(table: Table, name: str) -> None:
    with pytest.raises(SchemaError):
        table.add_column(name, pa.string())
    assert table.schema.names == SCHEMA.names


def test_a_name_with_a_point_is_given_in_double_quotes(table: Table) -> None:
    with pytest.raises(SchemaError, match=r'"adress.country"'):
        table.add_column("adress.country", pa.string())
    table.add_column('"adress.country"', pa.string(), "de")
    assert table.get(1, ["ADRESS.country"]) == {"adress.country": "de"}
    table.drop_column("adress.COUNTRY")
    assert table.schema.names == SCHEMA.names


def test_a_column_that_is_not_there_is_added_by_add_column(table: Table) -> None:
    for write in (table.append, table.insert, table.upsert):
        with pytest.raises(SchemaError, match=r"column 'extra'.*add_column"):
            write([{"id": 5, "extra": 1}])


@pytest.mark.parametrize("default", ["now()", "current_date", "uuid()", "1 + 1", Expression("random()")])
def test_a_default_is_a_value(table: Table, default: Any) -> None:
    with pytest.raises(InputError, match="default"):
        table.add_column("more", pa.timestamp("us"), default)
    with pytest.raises(InputError, match="default"):
        table.set_default("day", default)
