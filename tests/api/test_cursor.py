"""Cursors: readers of changes that come and go, as users see them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.errors import (
    ConflictError,
    InputError,
    InvalidNameError,
    TableNotFoundError,
    TagNotFoundError,
    VersionExpiredError,
    VersionNotFoundError,
)
from support.aging import EAGER, Place, rows

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])


@pytest.fixture
def db(tmp_path: Path) -> Database:
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("t", SCHEMA, primary_key="id")
    db.create_table("u", SCHEMA, primary_key="id")
    return db


def some(start: int, stop: int) -> list[dict[str, object]]:
    return [{"id": i, "x": "a"} for i in range(start, stop)]


def ids(reader: pa.RecordBatchReader) -> list[int]:
    return sorted(reader.read_all()["id"].to_pylist())


def test_what_is_not_acknowledged_is_given_again_also_to_another_process(db: Database) -> None:
    cursor = db.cursor("warehouse")
    db.table("t").append(some(0, 3))
    assert ids(cursor.changes("t")) == [0, 1, 2]
    other = dolmen.open(db.url).cursor("warehouse", create=False)
    assert ids(other.changes("t")) == [0, 1, 2]
    assert other.acknowledge().operation == "cursor"
    with pytest.raises(ConflictError, match="reader"):
        cursor.acknowledge()
    assert ids(db.cursor("warehouse").changes("t")) == []
    db.table("t").delete("id = 1")
    assert ids(db.cursor("warehouse").changes("t")) == [1]
    assert db.cursors() == ["warehouse"]


def test_all_tables_are_read_up_to_one_version_until_the_cursor_moves(db: Database) -> None:
    cursor = db.cursor("both", start=0)
    db.table("t").append(some(0, 2))
    assert ids(cursor.changes("t")) == [0, 1]
    with db.transaction() as transaction:
        transaction.table("t").append(some(2, 3))
        transaction.table("u").append(some(2, 3))
    assert (ids(cursor.changes("t")), ids(cursor.changes("u"))) == ([0, 1], [])
    cursor.acknowledge()
    assert (ids(cursor.changes("t")), ids(cursor.changes("u"))) == ([2], [2])
    assert cursor.version < cursor.until


def test_a_reader_that_acknowledges_without_having_read_skips_what_there_is(db: Database) -> None:
    cursor = db.cursor("c")
    db.table("t").append(some(0, 2))
    newest = db.version
    cursor.acknowledge()
    assert cursor.version == newest
    assert ids(cursor.changes("t")) == []


def test_a_cursor_is_reset_and_removed(db: Database) -> None:
    db.table("t").append(some(0, 2))
    cursor = db.cursor("c")
    cursor.reset(0)
    assert ids(cursor.changes("t")) == [0, 1]
    cursor.reset()
    assert ids(cursor.changes("t")) == []
    cursor.remove()
    assert db.cursors() == []
    with pytest.raises(ConflictError, match="was removed"):
        cursor.acknowledge()
    with pytest.raises(TagNotFoundError, match=r"cursor 'c'.*create=False"):
        db.cursor("c", create=False)


def test_wrong_arguments_are_refused(db: Database) -> None:
    for name in ("", "a b", None, 7):
        with pytest.raises(InvalidNameError):
            db.cursor(name)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFoundError):
        db.cursor("c", start=99)
    with pytest.raises(InputError):
        db.cursor("c", age="soon")
    with pytest.raises(InputError):
        db.cursor("c", create=1)  # type: ignore[arg-type]
    cursor = db.cursor("c")
    with pytest.raises(TableNotFoundError):
        cursor.changes("nothing")
    with pytest.raises(InputError):
        cursor.reset(99)
    assert cursor.ends_at - db.history(1)[0].created_at < timedelta(days=31)


def test_nothing_that_a_reader_has_not_seen_expires_before_the_cursor_ends_and_then_it_is_told() -> None:
    place = Place()
    table = place.db.create_table("t", rows().schema)
    cursor = place.db.cursor("late", start=0, age="60d")
    for key in range(10):
        table.append(rows(key))
        place.pass_hours(1)
    place.pass_hours(30 * 24)
    place.collect_all(EAGER)
    late = place.open().cursor("late")
    assert sorted(late.changes("t").read_all()["k"].to_pylist()) == list(range(10))
    place.pass_hours(31 * 24)
    place.collect_all(EAGER)
    late = place.open().cursor("late")
    with pytest.raises(VersionExpiredError, match=r"cursor 'late'.*version 0"):
        late.changes("t").read_all()
    for again in (late, place.open().cursor("late")):  # which has not called ``changes``
        with pytest.raises(VersionExpiredError, match=r"cursor 'late'.*version 0.*version 1"):
            again.acknowledge()
    with pytest.raises(VersionExpiredError):
        late.reset(3)
    late.reset()
    table.append(rows(77))
    assert late.changes("t").read_all()["k"].to_pylist() == [77]
    assert cursor.name == "late"


def test_the_feed_of_a_table_that_is_restored_or_cloned_is_the_difference(db: Database) -> None:
    table = db.table("t")
    table.append(some(0, 10))
    version = db.refresh()
    table.delete("id < 3")
    table.append(some(20, 22))
    cursor = db.cursor("c")
    table.restore(version)
    fed = cursor.changes("t").read_all()
    assert sorted(zip(fed["_change"].to_pylist(), fed["id"].to_pylist(), strict=True)) == [
        ("delete", 20),
        ("delete", 21),
        ("insert", 0),
        ("insert", 1),
        ("insert", 2),
    ]
    cursor.acknowledge()
    db.clone("t", "copy")
    fed = cursor.changes("copy").read_all()
    assert sorted(zip(fed["_change"].to_pylist(), fed["id"].to_pylist(), strict=True)) == [
        ("insert", i) for i in range(10)
    ]
    assert cursor.changes("t").read_all().num_rows == 0
