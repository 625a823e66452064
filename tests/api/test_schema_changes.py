"""Columns are added, dropped, renamed and described; no file is touched, and each version shows its own columns.

``test_altered_histories`` has random histories of such changes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError, ConflictError, InputError, SchemaError

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture
def table(db: dolmen.Database) -> dolmen.Table:
    table = db.create_table("t", COLUMNS, primary_key="id")
    table.append([{"id": n, "name": f"n{n}"} for n in range(3)])
    return table


def rows(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().sort_by("id").to_pylist()
    return found


def test_an_added_column_has_its_default_in_older_rows_and_in_rows_without_it(table: dolmen.Table) -> None:
    table.add_column("n", pa.int32(), 7)
    table.append([{"id": 3, "name": "c"}])
    table.append([{"id": 4, "n": None}, {"id": 5, "n": 8}])
    assert [row["n"] for row in rows(table)] == [7, 7, 7, 7, None, 8]
    assert [table.count(where) for where in ("n = 7", "n IS NULL", "n > 7", "n < 7")] == [4, 1, 1, 0]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (pa.int8(), -5),
        (pa.uint64(), 2**64 - 1),
        (pa.float32(), 0.5),
        (pa.float64(), float("nan")),
        (pa.bool_(), False),
        (pa.string(), "Grüße"),
        (pa.binary(), b"\x00\xff"),
        (pa.binary(3), b"abc"),
        (pa.decimal128(38, 10), Decimal("-1.5")),
        (pa.date32(), date(2026, 1, 2)),
        (pa.time64("us"), time(1, 2, 3, 4)),
        (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 6)),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC)),
    ],
    ids=str,
)
def test_a_default_may_be_of_any_type_that_is_not_nested(table: dolmen.Table, kind: pa.DataType, default: Any) -> None:
    table.add_column("c", kind, default, nullable=False)
    table.append([{"id": 9, "name": "x", "c": default}])
    values = table.to_arrow()["c"]
    assert values.type == kind
    assert len(set(map(str, values.to_pylist()))) == 1
    assert table.count("c IS NULL") == 0
    assert not table.schema.field("c").nullable


def test_a_name_that_is_given_again_is_another_column(table: dolmen.Table) -> None:
    table.rename_column("name", "title")
    table.add_column("name", pa.float64())
    table.drop_column("title")
    table.add_column("title", pa.string(), "none")
    table.append([{"id": 3, "name": 1.5, "title": "t"}])
    assert rows(table)[0] == {"id": 0, "name": None, "title": "none"}
    assert rows(table)[3] == {"id": 3, "name": 1.5, "title": "t"}
    assert table.count("title = 'n0'") == 0


def test_each_version_shows_its_own_columns(db: dolmen.Database, table: dolmen.Table) -> None:
    before = db.version
    table.rename_column("name", "title")
    table.add_column("n", pa.int64())
    table.reorder(["n", "title"])
    assert table.schema.names == ["n", "title", "id"]
    assert rows(db.at(version=before).table("t"))[0] == {"id": 0, "name": "n0"}
    assert db.at(version=before).table("t").count("name = 'n1'") == 1
    with pytest.raises(SchemaError, match="column 'name'"):
        table.scan(["name"])


def test_deletes_by_a_column_go_on_hiding_rows_when_it_is_renamed_and_dropped(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    table.delete("name = 'n1'")
    table.rename_column("name", "title")
    assert [row["id"] for row in rows(table)] == [0, 2]
    table.drop_column("title")
    assert rows(table) == [{"id": 0}, {"id": 2}]
    db.maintain()
    assert rows(table) == [{"id": 0}, {"id": 2}]
    assert db.verify(deep=True).ok


def test_a_delete_by_a_column_that_is_younger_than_its_files(table: dolmen.Table) -> None:
    table.add_column("n", pa.int64(), 1)
    table.append([{"id": 3, "n": 2}])
    table.delete("n = 1")
    assert [row["id"] for row in rows(table)] == [3]
    table.append([{"id": 4}])
    assert [row["id"] for row in rows(table)] == [3, 4]


def test_all_that_describes_columns(table: dolmen.Table) -> None:
    table.comment("name", "as the customer spells it")
    table.add_column("n", pa.int64(), 3)
    table.set_default("n", 4)
    table.set_sort_key("name")
    assert table.describe()["comments"] == {"name": "as the customer spells it"}
    assert table.describe()["defaults"] == {"n": 4}
    assert table.describe()["sort_key"] == ["name"]
    table.append([{"id": 9, "name": "b"}, {"id": 8, "name": "a"}])
    assert [(row["id"], row["n"]) for row in table.scan(where="id > 5").to_arrow().to_pylist()] == [(8, 4), (9, 4)]
    assert rows(table)[0]["n"] == 3
    table.comment("name", "")
    table.set_sort_key(None)
    assert table.describe()["comments"] == {}
    assert table.describe()["sort_key"] == []


def test_settings_that_name_a_column_follow_it(db: dolmen.Database) -> None:
    table = db.create_table("e", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]))
    table.set(ttl="at 90d")
    table.rename_column("at", "event time")
    assert table.settings()["ttl"] == "event time 90d"
    with pytest.raises(SchemaError, match="ttl"):
        table.drop_column("event time")


@pytest.mark.parametrize(("setting", "value"), [("ttl", "at 90d"), ("subject", "at"), ("cdc_sequence", " at ")])
def test_a_column_that_a_setting_names_gets_no_name_with_spaces_at_an_end(
    db: dolmen.Database, setting: str, value: str
) -> None:
    table = db.create_table("e", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]))
    table.set(**{setting: value})
    for name in ("at ", " at", "at\N{NO-BREAK SPACE}"):
        with pytest.raises(SchemaError, match=f"setting {setting}"):
            table.rename_column("at", name)
    table.rename_column("id", "id ")
    table.set(**{setting: None})
    table.rename_column("at", "at ")
    assert table.schema.names == ["id ", "at "]


REFUSED: list[tuple[Callable[[dolmen.Table], object], type[Exception], str]] = [
    (lambda t: t.add_column("name", pa.int64()), SchemaError, "'name' is there twice"),
    (lambda t: t.add_column("NAME", pa.int64()), SchemaError, "differ in case only"),
    (lambda t: t.add_column("", pa.int64()), SchemaError, "empty"),
    (lambda t: t.add_column("_commit_ts", pa.int64()), SchemaError, "reserved"),
    (lambda t: t.add_column("c", pa.null()), SchemaError, "cannot be stored"),
    (lambda t: t.add_column("c", "BIGINT"), InputError, "not a pyarrow type"),  # type: ignore[arg-type]
    (lambda t: t.add_column("c", pa.int8(), 300), InputError, "default 300 of column 'c'"),
    (lambda t: t.add_column("c", pa.int8(), "x"), InputError, "default 'x' of column 'c'"),
    (lambda t: t.add_column("c", pa.list_(pa.int8()), [1]), InputError, "no default except NULL"),
    (lambda t: t.add_column("c", pa.int8(), nullable=False), SchemaError, "has no default"),
    (lambda t: t.drop_column("nope"), SchemaError, "no column 'nope'"),
    (lambda t: t.drop_column("id"), SchemaError, "part of the primary key"),
    (lambda t: t.rename_column("name", "name"), InputError, "this name already"),
    (lambda t: t.rename_column("name", "Id"), SchemaError, "differ in case only"),
    (lambda t: t.make_nullable("id"), SchemaError, "part of the primary key"),
    (lambda t: t.reorder(["id", "id"]), (SchemaError, InputError), "twice"),  # type: ignore[list-item]
    (lambda t: t.comment("name", "x" * 1001), InputError, "1,001 characters"),
    (lambda t: t.set_sort_key("nope"), SchemaError, "no column 'nope'"),
]


@pytest.mark.parametrize(("act", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_can_not_be_is_refused_and_changes_nothing(
    db: dolmen.Database,
    table: dolmen.Table,
    act: Callable[[dolmen.Table], object],
    error: type[Exception],
    words: str,
) -> None:
    version = db.version
    with pytest.raises(error, match=words):
        act(table)
    assert db.refresh() == version


def test_the_last_column_stays(db: dolmen.Database) -> None:
    table = db.create_table("one", pa.schema([("a", pa.int64())]))
    with pytest.raises(SchemaError):
        table.drop_column("a")


def test_a_transaction_changes_columns_and_rows_at_once(db: dolmen.Database, table: dolmen.Table) -> None:
    with db.transaction() as tx:
        inside = tx.table("t")
        inside.append([{"id": 3, "name": "before"}])
        inside.add_column("n", pa.int64(), 1)
        inside.append([{"id": 4, "name": "after", "n": 2}])
        inside.rename_column("name", "title")
        inside.delete("title = 'n0'")
        assert [row["n"] for row in rows(inside)] == [1, 1, 1, 2]
    assert [(row["id"], row["title"], row["n"]) for row in rows(table)] == [
        (1, "n1", 1),
        (2, "n2", 1),
        (3, "before", 1),
        (4, "after", 2),
    ]


def test_rows_that_were_written_under_older_columns_are_committed_where_they_fit(
    db: dolmen.Database, table: dolmen.Table
) -> None:
    other = dolmen.open(db.url).table("t")
    with db.transaction() as tx:
        tx.table("t").append([{"id": 3, "name": "c"}])
        other.add_column("n", pa.int64(), 5)
        other.rename_column("name", "title")
    assert rows(other)[3] == {"id": 3, "title": "c", "n": 5}
    tx = db.transaction()
    tx.table("t").append([{"id": 4, "title": "d", "n": 1}])
    other.drop_column("title")
    with pytest.raises(ConflictError, match="'title'"):
        tx.commit()
    tx = db.transaction()
    tx.table("t").append([{"id": 4, "n": 1}])
    other.add_column("m", pa.int64(), 1)
    other.set_default("m", 2)
    with pytest.raises(ConflictError, match="default"):
        tx.commit()
    tx = db.transaction()
    tx.table("t").delete("m = 1")
    other.drop_column("m")
    with pytest.raises(ConflictError, match="dropped"):
        tx.commit()
    assert rows(other)[3] == {"id": 3, "n": 5}
    assert db.verify(deep=True).ok


def test_two_that_change_columns_at_once_conflict(db: dolmen.Database, table: dolmen.Table) -> None:
    other = dolmen.open(db.url).table("t")
    tx = db.transaction()
    tx.table("t").add_column("a", pa.int64())
    other.add_column("b", pa.int64())
    with pytest.raises(ConflictError, match="columns"):
        tx.commit()
    assert table.schema.names == ["id", "name", "b"]


@pytest.mark.parametrize("verb", ["append", "upsert", "overwrite"])
def test_rows_of_a_request_come_again_after_a_column_was_added(db: dolmen.Database, verb: str) -> None:
    table = db.create_table("requested", pa.schema([("k", pa.int64()), ("v", pa.int64())]), primary_key="k")
    send, rows = getattr(table, verb), [{"k": 1, "v": 2}]
    version = send(rows, request="again").version
    table.add_column("since", pa.int64(), 7)
    table.reorder(["since"])
    assert send(rows, request="again").already == {"again": version}
    with pytest.raises(AppliedIdError):
        send([{"k": 1, "v": 3}], request="again")
    with pytest.raises(AppliedIdError):
        send([{"k": 1, "v": 2, "since": 7}], request="again")


def test_a_request_changes_columns_once(db: dolmen.Database, table: dolmen.Table) -> None:
    assert table.add_column("a", pa.int64(), 1, request="r").requests == ("r",)
    version = db.version
    assert table.add_column("a", pa.int64(), 1, request="r").version == version
    with pytest.raises(AppliedIdError):
        table.add_column("a", pa.int64(), 2, request="r")


def test_a_change_is_two_puts_and_is_told_in_the_history(db: dolmen.Database, table: dolmen.Table) -> None:
    commit = table.add_column("n", pa.int64(), 5, message="ticket 9")
    assert (commit.operation, commit.message, [str(deed) for deed in commit.did]) == (
        "alter",
        "ticket 9",
        ["alter t(n)"],
    )
    assert "column-defaults" in context_of(db).head.refresh().manifest.features


def test_a_table_without_defaults_needs_no_feature(db: dolmen.Database, table: dolmen.Table) -> None:
    table.add_column("n", pa.int64())
    table.rename_column("name", "title")
    assert context_of(db).head.refresh().manifest.features == ()
