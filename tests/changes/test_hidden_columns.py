"""A column that was dropped, and that a restore brought back, is NULL in the feed's versions in between."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Table

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.string())])
FED = ("_change", "_version", "_commit_ts")


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture(params=["id", None], ids=["keyed", "without key"])
def table(request: pytest.FixtureRequest, db: Database) -> Table:
    table = db.create_table("t", COLUMNS, primary_key=request.param)
    for id_, x in ((1, "a"), (2, "b")):
        table.append([{"id": id_, "x": x}])
    return table


def fed(table: Table, since: int, **options: Any) -> list[tuple[Any, ...]]:
    found = table.changes(since, **options).read_all().to_pylist()
    return sorted(((row["_change"], row["id"], row["x"]) for row in found), key=str)


def replay(table: Table, since: int) -> dict[int, Counter[tuple[Any, ...]]]:
    """The rows of each version of which there are changes, by the feed; what is taken away must be there."""
    state: Counter[tuple[Any, ...]] = Counter()
    states = {}
    for row in table.changes(since).read_all().to_pylist():
        values = tuple(value for name, value in row.items() if name not in FED)
        state[values] += 1 if row["_change"] in ("insert", "update_after") else -1
        assert state[values] >= 0, row
        states[row["_version"]] = +state
    return states


def rows(table: Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_arrow().to_pylist())


def kinds(table: Table) -> tuple[str, str]:
    """The changes by which one row becomes another."""
    return ("update_before", "update_after") if table.primary_key else ("delete", "insert")


def test_a_restore_that_brings_back_a_column_feeds_its_values(db: Database, table: Table) -> None:
    version = db.version
    gone = table.drop_column("x").version
    cursor = db.cursor("copy")
    table.restore(version)
    was, now = kinds(table)
    expected = sorted([(was, 1, None), (was, 2, None), (now, 1, "a"), (now, 2, "b")], key=str)
    assert (
        sorted(((row["_change"], row["id"], row["x"]) for row in cursor.changes("t").read_all().to_pylist()), key=str)
        == expected
    )
    assert fed(table, gone, net=True) == expected
    assert fed(table, version, net=True) == []
    assert fed(table, gone, columns=["id", "x"], where="x = 'b'") == [("insert", 2, "b")]
    assert fed(table, gone, where="x IS NULL") == [("delete", 1, None), ("delete", 2, None)]
    assert table.changes(version, columns=["id"]).read_all().num_rows == 0


def test_the_feed_makes_each_version_whatever_happened_while_the_column_was_gone(db: Database, table: Table) -> None:
    full = db.version
    expected = {full: Counter({(1, "a"): 1, (2, "b"): 1})}
    dropped = table.drop_column("x").version
    expected[dropped] = Counter({(1, None): 1, (2, None): 1})
    expected[table.append([{"id": 3}, {"id": 4}]).version] = Counter((id_, None) for id_ in (1, 2, 3, 4))
    expected[table.delete("id = 1").version] = Counter((id_, None) for id_ in (2, 3, 4))
    expected[table.upsert([{"id": 3}, {"id": 5}], on=["id"]).version] = Counter((id_, None) for id_ in (2, 3, 4, 5))
    db.resolve()
    db.compact()
    expected[table.delete("id = 2").version] = Counter((id_, None) for id_ in (3, 4, 5))
    restored = table.restore(full).version
    expected[restored] = rows(table)
    found = replay(table, 0)
    assert {version: found[version] for version in expected if version > 2} == expected
    assert set(found) <= expected.keys() | {2}, "compaction feeds nothing"
    for since in range(full, restored):
        state = Counter(next(expected[version] for version in range(since, 0, -1) if version in expected))
        for change, *row in fed(table, since, net=True):
            state[tuple(row)] += 1 if change in ("insert", "update_after") else -1
        assert +state == expected[restored], since
        assert min(state.values()) >= 0, since


def test_a_commit_that_drops_a_column_and_changes_rows_is_fed_as_the_difference(db: Database, table: Table) -> None:
    version = db.version
    with db.transaction() as tx:
        tx.table("t").drop_column("x")
        tx.table("t").append([{"id": 3}])
        tx.table("t").delete("id = 1")
    table.restore(version)
    assert replay(table, 0)[version + 1] == Counter({(2, None): 1, (3, None): 1})
    assert replay(table, 0)[version + 2] == rows(table)


def test_a_field_inside_a_column_comes_back_with_its_values(db: Database) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    table = db.create_table("n", pa.schema([("id", pa.int64()), ("s", kind)]), primary_key="id")
    version = table.append([{"id": 1, "s": {"a": 1, "b": 2}}, {"id": 2, "s": None}]).version
    dropped = table.drop_column("s.b").version
    table.add_column("s.c", pa.int64())
    table.restore(version)
    found = table.changes(version).read_all().select(["_version", "_change", "id", "s"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (dropped, "update_before", 1, {"a": 1, "b": 2}),
        (dropped, "update_after", 1, {"a": 1, "b": None}),
        (db.version, "update_before", 1, {"a": 1, "b": None}),
        (db.version, "update_after", 1, {"a": 1, "b": 2}),
    ]


def test_a_column_that_got_the_id_of_another_one_has_none_of_its_values(db: Database, table: Table) -> None:
    """A table that was dropped and restored may give an id a second time."""
    version = db.version
    table.add_column("first", pa.string(), "text")
    since = table.append([{"id": 3, "x": "c", "first": "more text"}]).version
    db.drop_table("t")
    db.restore(version, tables="t")
    table.add_column("second", pa.int64(), 7)
    found = table.changes(since - 1).read_all().select(["_version", "_change", "id", "second"]).to_pylist()
    assert [tuple(row.values()) for row in found if row["_version"] == since] == [(since, "insert", 3, 7)]
    assert {row["second"] for row in found} == {7}


def test_a_column_that_was_gone_may_be_null_whatever_it_was_declared(db: Database) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string(), nullable=False)])
    table = db.create_table("r", schema, primary_key="id")
    version = table.append([{"id": 1, "x": "a"}]).version
    later = table.append([{"id": 2, "x": "b"}]).version
    assert not table.changes(version).schema.field("x").nullable
    table.drop_column("x")
    table.restore(version)
    found = table.changes(later).read_all()
    found.validate(full=True)
    assert (found.schema.field("x").nullable, found.schema.field("id").nullable) == (True, False)
    assert set(found["x"].to_pylist()) == {None, "a", "b"}


def test_a_column_that_stays_dropped_feeds_nothing(db: Database, table: Table) -> None:
    version = db.version
    table.drop_column("x")
    assert [table.changes(version, net=net).read_all().num_rows for net in (False, True)] == [0, 0]
