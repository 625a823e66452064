"""The change feed of single commits: which rows it has, how it says what they are, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MoveFence
from dolmen.errors import InputError, SchemaError, TableNotFoundError, VersionExpiredError, VersionNotFoundError

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    table = db.create_table("t", COLUMNS, primary_key="id")
    table.append(rows(0, 1, 2, 3))
    return table


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": id_, "name": f"{name}{id_}"} for id_ in ids]


def fed(table: dolmen.Table, since: Any, until: Any = None, **options: Any) -> list[tuple[Any, ...]]:
    """The changes as (change, version, id, name), in a steady order within a version."""
    found = table.changes(since, until, **options).read_all().to_pylist()
    told = [(row["_change"], row["_version"], row["id"], row["name"]) for row in found]
    return sorted(told, key=lambda row: (row[1], str(row[2]), row[0] in ("insert", "update_after"), str(row[3])))


def test_an_append_is_fed_as_inserts_with_version_and_timestamp(db: dolmen.Database, table: dolmen.Table) -> None:
    commit = table.append(rows(7))
    found = table.changes(commit.version - 1).read_all()
    assert found.to_pylist() == [
        {"id": 7, "name": "n7", "_change": "insert", "_version": commit.version, "_commit_ts": commit.commit_ts}
    ]
    assert found.schema == pa.schema(
        [
            *COLUMNS,
            pa.field("_change", pa.string(), nullable=False),
            pa.field("_version", pa.int64(), nullable=False),
            pa.field("_commit_ts", pa.int64(), nullable=False),
        ]
    )
    assert table.changes(db.version).read_all().num_rows == 0


@pytest.mark.parametrize("mode", ["tombstone", "positions"])
def test_a_delete_is_fed_with_the_rows_that_it_hid(table: dolmen.Table, mode: Any) -> None:
    version = table.delete("id < 2", mode=mode).version
    assert fed(table, version - 1) == [("delete", version, 0, "n0"), ("delete", version, 1, "n1")]
    again = table.delete("id < 3", mode=mode).version
    assert fed(table, version) == [("delete", again, 2, "n2")]
    assert fed(table, again) == []


def test_rows_that_an_older_delete_hid_are_not_fed_again(db: dolmen.Database, table: dolmen.Table) -> None:
    table.delete("id = 1")
    table.delete(keys=[2])
    before = db.version
    table.delete("id <= 2")  # of which only 0 is there
    assert fed(table, before) == [("delete", before + 1, 0, "n0")]
    table.delete("TRUE")
    assert fed(table, before + 1) == [("delete", before + 2, 3, "n3")]


def test_an_upsert_is_fed_as_updates_and_inserts(table: dolmen.Table) -> None:
    version = table.upsert(rows(1, 8, name="new")).version
    assert fed(table, version - 1) == [
        ("update_before", version, 1, "n1"),
        ("update_after", version, 1, "new1"),
        ("insert", version, 8, "new8"),
    ]


def test_an_upsert_of_a_table_without_key_is_paired_by_its_own_columns(db: dolmen.Database) -> None:
    table = db.create_table("t", COLUMNS)
    table.append([*rows(1, 2), *rows(1, name="twin")])
    version = table.upsert(rows(1, 9, name="new"), on=["id"]).version
    assert [(change, id_) for change, _, id_, _ in fed(table, version - 1)] == [
        ("update_before", 1),
        ("delete", 1),
        ("update_after", 1),
        ("insert", 9),
    ]
    with db.transaction() as tx:
        tx.table("t").delete("id = 2")
        tx.table("t").append(rows(2, name="other"))
    assert [change for change, *_ in fed(table, version)] == ["delete", "insert"]


def test_a_transaction_is_fed_by_its_effect(db: dolmen.Database, table: dolmen.Table) -> None:
    with db.transaction() as tx:
        inside = tx.table("t")
        inside.append(rows(10, 11, 12))
        inside.delete("id = 10")
        inside.delete("id = 11", mode="positions")
        inside.upsert(rows(0, 12, name="up"))
        inside.delete("id = 3")
        inside.append(rows(3, name="back"))
    version = db.version
    assert fed(table, version - 1) == [
        ("update_before", version, 0, "n0"),
        ("update_after", version, 0, "up0"),
        ("insert", version, 12, "up12"),
        ("update_before", version, 3, "n3"),
        ("update_after", version, 3, "back3"),
    ]


def test_an_overwrite_is_fed_as_the_difference(table: dolmen.Table) -> None:
    version = table.overwrite([*rows(0, 1), *rows(2, name="changed"), *rows(5)]).version
    assert fed(table, version - 1) == [
        ("update_before", version, 2, "n2"),
        ("update_after", version, 2, "changed2"),
        ("delete", version, 3, "n3"),
        ("insert", version, 5, "n5"),
    ]


def test_background_work_feeds_nothing_and_reads_no_data(db: dolmen.Database, table: dolmen.Table) -> None:
    for id_ in range(20, 60):
        table.append(rows(id_))
    table.delete("id = 25")
    before = db.version
    db.resolve()
    db.compact()
    db.merge()
    assert db.refresh() > before
    assert [table.changes(before, net=net).read_all().num_rows for net in (False, True)] == [0, 0]


def test_rows_that_a_ttl_deletes_are_fed_at_its_commit(db: dolmen.Database) -> None:
    table = db.create_table("e", pa.schema([("at", pa.timestamp("us"))]))
    table.append([{"at": datetime(2001, 1, 1)}, {"at": datetime(2999, 1, 1)}])
    table.set(ttl="at 30d")
    before = db.version
    db.expire()
    (row,) = table.changes(before).read_all().to_pylist()
    assert (row["at"].year, row["_change"], row["_version"]) == (2001, "delete", db.version)


def test_only_wanted_columns_and_rows_are_fed(table: dolmen.Table) -> None:
    since = table.delete("id = 9").version
    table.upsert(rows(1, 2, name="new"))
    table.delete("id = 2")
    named = table.changes(since, columns=["name"]).read_all()
    assert named.column_names == ["name", "_change", "_version", "_commit_ts"]
    assert sorted(zip(named["_change"].to_pylist(), named["name"].to_pylist(), strict=True)) == [
        ("delete", "new2"),
        ("update_after", "new1"),
        ("update_after", "new2"),
        ("update_before", "n1"),
        ("update_before", "n2"),
    ]
    assert [change for change, *_ in fed(table, since, where="id = 2")] == ["update_before", "update_after", "delete"]
    assert [row[::3] for row in fed(table, since, where="name = :name", parameters={"name": "n1"})] == [
        ("delete", "n1")
    ]


def test_a_row_that_comes_to_fulfil_the_predicate_is_an_insert(table: dolmen.Table) -> None:
    version = table.upsert(rows(1, name="new")).version
    assert fed(table, version - 1, where="name LIKE 'new%'") == [("insert", version, 1, "new1")]


def test_net_says_nothing_of_rows_that_came_and_went(db: dolmen.Database, table: dolmen.Table) -> None:
    since = db.version
    table.append(rows(20, 21))
    table.upsert(rows(0, 1, name="up"))
    table.delete("id = 20")
    table.delete("id = 3")
    table.upsert(rows(1))  # as it was
    expected = [
        ("update_before", 0, "n0"),
        ("update_after", 0, "up0"),
        ("insert", 21, "n21"),
        ("delete", 3, "n3"),
    ]
    assert [(row[0], *row[2:]) for row in fed(table, since, net=True)] == expected
    db.maintain()
    for id_ in range(30, 60):
        table.append(rows(id_))
    table.delete("id >= 30")
    db.resolve()
    db.compact()
    assert [(row[0], *row[2:]) for row in fed(table, since, net=True)] == expected


def test_each_bit_counts(db: dolmen.Database) -> None:
    kind = pa.struct([("l", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.binary()))])
    schema = pa.schema([("x", pa.float64()), ("y", kind)])
    table = db.create_table("f", schema)
    one = {"x": float("nan"), "y": {"l": [0.0, None], "m": [("a", b"\0")]}}
    minus = {"x": float("nan"), "y": {"l": [-0.0, None], "m": [("a", b"\0")]}}
    zero, other = {"x": 0.0, "y": None}, {"x": None, "y": {"l": None, "m": []}}

    def replace(*rows: dict[str, Any]) -> list[tuple[str, str]]:
        since = db.version
        table.overwrite(pa.Table.from_pylist(rows, schema))
        found = table.changes(since).read_all().to_pylist()
        return [(row["_change"], str([row["x"], row["y"]])) for row in found]

    def told(row: dict[str, Any]) -> str:
        return str(list(row.values()))

    assert replace(one, zero, other) == [("insert", told(row)) for row in (one, zero, other)]
    assert replace(other, one, {**zero, "x": -0.0}) == [("insert", "[-0.0, None]"), ("delete", "[0.0, None]")]
    assert replace(minus, {**zero, "x": -0.0}, other) == [("insert", told(minus)), ("delete", told(one))]


def test_the_columns_are_those_of_the_last_version(db: dolmen.Database, table: dolmen.Table) -> None:
    since = db.version
    table.append(rows(5))
    table.add_column("n", pa.int64(), 7)
    table.upsert([{"id": 0, "name": "x", "n": 1}])
    table.rename_column("name", "title")
    table.delete("title = 'n1'")
    middle = db.version
    table.drop_column("title")
    table.delete("id = 2")
    names = ["id", "title", "n", "_change", "_version"]
    found = table.changes(since, middle).read_all().select(names).to_pylist()
    assert [tuple(row.values())[:4] for row in found] == [
        (5, "n5", 7, "insert"),
        (0, "n0", 7, "update_before"),
        (0, "x", 1, "update_after"),
        (1, "n1", 7, "delete"),
    ]
    last = table.changes(since).read_all()
    assert last.column_names == ["id", "n", "_change", "_version", "_commit_ts"]
    assert last["id"].to_pylist() == [5, 0, 0, 1, 2]


def test_a_table_is_followed_through_renames(db: dolmen.Database, table: dolmen.Table) -> None:
    since = db.version
    table.append(rows(5))
    db.rename_table("t", "u")
    db.create_table("t", COLUMNS).append(rows(99))
    renamed = db.rename_table("u", "v").version
    db.table("v").append(rows(6))
    assert [(row[1], row[2]) for row in fed(db.table("v"), since)] == [(since + 1, 5), (renamed + 1, 6)]
    assert [row[2] for row in fed(db.table("t"), since)] == [99]


def test_before_its_creation_a_table_has_no_changes(db: dolmen.Database, table: dolmen.Table) -> None:
    db.drop_table("t")
    again = db.create_table("t", COLUMNS)
    again.append(rows(1))
    assert [row[:3] for row in fed(again, 0)] == [("insert", db.version, 1)]
    assert [row[:3] for row in fed(again, 0, net=True)] == [("insert", db.version, 1)]
    db.drop_table("t")
    with pytest.raises(TableNotFoundError):
        again.changes(0)
    assert [row[2] for row in fed(again, 0, db.version - 1)] == [1]


def test_a_window_is_named_by_versions_or_times(db: dolmen.Database, table: dolmen.Table) -> None:
    first, last = table.append(rows(5)), table.append(rows(6))
    assert [row[2] for row in fed(table, first.version - 1, first.version)] == [5]
    assert [row[2] for row in fed(table, first.created_at, last.created_at)] == [6]
    assert [row[2] for row in fed(table, first.created_at.isoformat())] == [6]
    assert fed(table, last.version, last.version) == []


REFUSED: list[tuple[Callable[[dolmen.Table], object], type[Exception], str]] = [
    (lambda t: t.changes(2, 1), InputError, "since=2 is after until=1"),
    (lambda t: t.changes(99), VersionNotFoundError, "no version 99"),
    (lambda t: t.changes(-1), VersionNotFoundError, "no version -1"),
    (lambda t: t.changes(True), InputError, "whole number"),
    (lambda t: t.changes("soon"), InputError, "not ISO 8601"),
    (lambda t: t.changes(date(2026, 1, 31)), InputError, "is a day: give a time"),
    (lambda t: t.changes(1_790_000_000_000_000), VersionNotFoundError, "no version 1790000000000000"),
    (lambda t: t.changes(datetime(2001, 1, 1, tzinfo=UTC)), VersionNotFoundError, "did not exist"),
    (lambda t: t.changes(1, columns=["nope"]), SchemaError, "no column 'nope'"),
    (lambda t: t.changes(1, net=1), InputError, "neither True nor False"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("act", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_arguments_that_make_no_feed_are_refused(
    table: dolmen.Table, act: Callable[[dolmen.Table], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        act(table)


@pytest.mark.parametrize("name", ["_change", "_VERSION"])
def test_a_column_with_a_name_of_the_feed_is_refused_when_it_is_read(db: dolmen.Database, name: str) -> None:
    table = db.create_table("t", pa.schema([("id", pa.int64()), (name, pa.int64())]))
    table.append([{"id": 1, name: 2}])
    with pytest.raises(SchemaError, match="rename"):
        table.changes(0)
    assert table.changes(0, columns=["id"]).read_all()["id"].to_pylist() == [1]


def test_expired_versions_are_refused_and_the_oldest_is_named(db: dolmen.Database, table: dolmen.Table) -> None:
    table.append(rows(5))
    kept = db.version
    slow = table.changes(1)
    table.append(rows(6))
    submit(context_of(db).head, "gc", [MoveFence((0, 0), kept, 0)])
    for since in (0, kept - 1):
        with pytest.raises(VersionExpiredError, match=f"{kept}"):
            table.changes(since)
    assert [row[2] for row in fed(table, kept)] == [6]
    manifest = context_of(db).head.refresh().manifest
    (file,) = manifest.table("t").files[1:2]
    context_of(db).store.delete([file.path])  # as if it had been replaced, and collected
    with pytest.raises(VersionExpiredError, match=f"{kept}"):
        slow.read_all()


def test_a_feed_from_a_tag_says_which_later_version_expired_while_it_was_read(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    since = db.version
    db.tag("start")
    table.append(rows(5))
    gone = db.version
    table.append(rows(6))
    kept = db.version
    slow = table.changes(since)
    submit(context_of(db).head, "gc", [MoveFence((0, 0), kept, 0)])
    (file,) = context_of(db).head.refresh().manifest.table("t").files[1:2]
    context_of(db).store.delete([file.path])  # as if it had been replaced, and collected
    with pytest.raises(VersionExpiredError, match=f"version {since + 1}.*{kept}"):
        slow.read_all()
    assert gone < kept


@pytest.mark.parametrize("root_bytes", ["256KB", "4KB"])
def test_a_column_that_became_wider_is_fed_in_its_type_of_the_last_version(
    db: dolmen.Database, root_bytes: str
) -> None:
    db.set(root_bytes=root_bytes)  # entries leave the manifest early, or not
    table = db.create_table("w", pa.schema([("id", pa.int32()), ("day", pa.date32())]), primary_key="id")
    since = db.version
    for day in range(1, 25):
        table.append([{"id": day, "day": date(2026, 1, day)}])
    table.delete("day = DATE '2026-01-03'")
    middle = db.version
    table.widen_column("day", pa.timestamp("us"))
    table.widen_column("id", pa.int64())
    table.upsert([{"id": 4, "day": datetime(2026, 1, 4, 12)}])
    where = "day >= TIMESTAMP '2026-01-03' AND day < TIMESTAMP '2026-01-05'"
    found = table.changes(since, where=where).read_all().select(["id", "day", "_change"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (3, datetime(2026, 1, 3), "insert"),
        (4, datetime(2026, 1, 4), "insert"),
        (3, datetime(2026, 1, 3), "delete"),
        (4, datetime(2026, 1, 4), "update_before"),
        (4, datetime(2026, 1, 4, 12), "update_after"),
    ]
    net = table.changes(middle, where=where, net=True).read_all()["_change"].to_pylist()
    assert net == ["update_before", "update_after"]
    table.restore(middle)
    with pytest.raises(SchemaError, match=r"int64.*int32"):
        table.changes(db.version - 1).read_all()
    table.widen_column("id", pa.int64())
    table.widen_column("day", pa.timestamp("us"))
    assert set(table.changes(db.version - 3).read_all()["_change"].to_pylist()) == {"update_before", "update_after"}


def test_fields_inside_a_column_are_fed_by_their_ids(db: dolmen.Database) -> None:
    table = db.create_table(
        "n", pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int8()), ("b", pa.int8())]))])
    )
    table.append([{"id": 1, "s": {"a": 1, "b": 2}}])
    before = db.version
    table.drop_column("s.b")
    table.add_column("s.b", pa.int8())
    table.append([{"id": 2, "s": {"a": 3, "b": 4}}])
    found = table.changes(before - 1).read_all()["s"].to_pylist()
    assert found == [{"a": 1, "b": None}, {"a": 3, "b": 4}]
    table.restore(before)
    changes = table.changes(db.version - 1).read_all().select(["s", "_change"]).to_pylist()
    assert {(str(row["s"]), row["_change"]) for row in changes} >= {("{'a': 3, 'b': None}", "delete")}
