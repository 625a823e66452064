"""Defaults ``now()`` and ``uuid()`` are computed by writers: once for a statement, and for each row."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError, SchemaError
from dolmen.format.manifest import DEFAULT_FUNCTIONS

NOW, UUID = dolmen.Expression("now()"), dolmen.Expression("UUID ( )")


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("n", pa.int64())]), primary_key="id")
    table.append([{"id": 1}, {"id": 2}])
    table.add_column("at", pa.timestamp("us", "UTC"), NOW)
    table.add_column("key", pa.string(), UUID)
    return table


def rows(table: Any) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in table.to_arrow().to_pylist()}


WRITES: dict[str, Callable[[dolmen.Table], object]] = {
    "append": lambda table: table.append([{"id": 8}, {"id": 9}]),
    "cast": lambda table: table.append([{"id": "8"}, {"id": "9"}], cast=True),
    "insert": lambda table: table.insert([{"id": 8}, {"id": 9}]),
    "upsert": lambda table: table.upsert([{"id": 8}, {"id": 9}]),
    "overwrite": lambda table: table.overwrite([{"id": 8}, {"id": 9}]),
    "merge": lambda table: table.merge([{"id": 8, "n": 1}, {"id": 9, "n": 1}], "id", "update", {"id": "source.id"}),
    "writer": lambda table: write_buffered(table),
}


def write_buffered(table: dolmen.Table) -> None:
    with table.writer() as writer:
        writer.append([{"id": 8}, {"id": 9}])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_rows_of_a_statement_have_one_time_and_each_its_uuid(
    table: dolmen.Table, write: Callable[[dolmen.Table], object]
) -> None:
    before = datetime.now(UTC)
    write(table)
    one, other = rows(table)[8], rows(table)[9]
    assert one["at"] == other["at"]
    assert timedelta(seconds=-2) < one["at"] - before < timedelta(minutes=1)
    keys = [uuid.UUID(row["key"]) for row in (one, other)]
    assert keys[0] != keys[1]
    assert {key.version for key in keys} == {4}
    assert [str(key) for key in keys] == [one["key"], other["key"]]
    assert rows(table) == rows(table), "readers compute nothing"


def test_existing_rows_get_one_time_and_no_uuid(db: dolmen.Database, table: dolmen.Table) -> None:
    one, other = rows(table).values()
    assert one["at"] == other["at"]
    created = db.history()[1].created_at
    assert abs(one["at"] - created) < timedelta(seconds=2)
    assert (one["key"], other["key"]) == (None, None)
    assert db._context.head.refresh().manifest.features == ("column-defaults", DEFAULT_FUNCTIONS)
    assert table.describe()["defaults"] == {"at": "now()", "key": "uuid()"}
    assert db.verify(deep=True).ok


def test_a_given_value_and_null_stay(table: dolmen.Table) -> None:
    table.append([{"id": 5, "at": None, "key": "x"}])
    assert rows(table)[5] == {"id": 5, "n": None, "at": None, "key": "x"}


def test_other_types_and_sql(db: dolmen.Database) -> None:
    db.sql(
        "CREATE TABLE u (id BIGINT, day DATE DEFAULT now(), made TIMESTAMP DEFAULT current_timestamp,"
        " key VARCHAR DEFAULT gen_random_uuid() NOT NULL)"
    )
    table = db.table("u")
    table.add_column("raw", pa.binary(16), UUID)
    db.sql(
        "INSERT INTO u (id) VALUES (1), (2); INSERT INTO u DEFAULT VALUES; INSERT INTO u (id, day) VALUES (3, DEFAULT)"
    )
    found = table.to_arrow().to_pylist()
    assert all(abs(row["day"] - datetime.now(UTC).date()) <= timedelta(days=1) for row in found)
    assert len({row["key"] for row in found}) == len({row["raw"] for row in found}) == 4
    assert all(uuid.UUID(bytes=row["raw"]).version == 4 for row in found)
    with pytest.raises(InputError, match="differs in each row: leave the column out"):
        db.sql("UPDATE u SET key = DEFAULT")
    db.sql(
        "UPDATE u SET made = DEFAULT WHERE id = 1; ALTER TABLE u ALTER made SET DEFAULT now(), ALTER key DROP DEFAULT"
    )
    assert table.describe()["defaults"] == {"day": "now()", "made": "now()", "raw": "uuid()"}
    table.set_default("day", date(2026, 1, 5))
    assert table.describe()["defaults"]["day"] == 20458


def test_a_text_is_a_constant(db: dolmen.Database) -> None:
    table = db.create_table("s", [{"id": 1}])
    table.add_column("text", pa.string(), "now()")
    assert table.to_arrow()["text"].to_pylist() == ["now()"]


@pytest.mark.parametrize(
    ("kind", "default", "problem"),
    [
        (pa.timestamp("us"), dolmen.Expression("now() - INTERVAL 1 DAY"), r"a value, now\(\) or uuid\(\)"),
        (pa.int64(), NOW, "for TIMESTAMPTZ, TIMESTAMP and DATE, not int64"),
        (pa.int64(), UUID, "for VARCHAR, or binaries of 16 bytes"),
        (pa.timestamp("us"), "now()", r'Expression\("now\(\)"\)'),
    ],
)
def test_other_functions_and_types_are_refused(
    table: dolmen.Table, kind: pa.DataType, default: Any, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        table.add_column("c", kind, default)


def test_a_uuid_needs_nulls_in_existing_rows(table: dolmen.Table) -> None:
    with pytest.raises(SchemaError, match="add it, update it, and then set_not_null"):
        table.add_column("c", pa.string(), UUID, nullable=False)
    table.add_column("c", pa.string(), UUID)
    table.update({"c": dolmen.Expression("'row ' || id")})
    table.set_not_null("c")
    table.append([{"id": 3}])


def test_a_repeated_request_is_the_same_request(table: dolmen.Table) -> None:
    assert table.append([{"id": 7}], request="r").rows == 1
    assert table.append([{"id": 7}], request="r").operation == "nothing"
    assert table.append([{"id": 8}], cast=True, request="c").rows == 1
    assert table.append([{"id": 8}], cast=True, request="c").operation == "nothing"
    assert table.count() == 4


def test_rows_that_were_prepared_before_the_column_are_written_again(db: dolmen.Database) -> None:
    table = db.create_table("t", [{"id": 1}])
    mine = dolmen.open(db.url).table("t")
    mine.count()
    table.add_column("at", pa.timestamp("us"), NOW)
    table.add_column("key", pa.string(), UUID)
    mine.append([{"id": 2}])
    assert rows(table)[2]["key"] is not None
    assert rows(table)[2]["at"] > rows(table)[1]["at"]
