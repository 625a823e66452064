"""Tags, restores and clones, as users see them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.commit.statements.catalog import PutTag
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    InputError,
    InvalidNameError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TagExistsError,
    TagNotFoundError,
    UnsettledTimestampError,
    VersionNotFoundError,
)
from dolmen.format.layout import Tag
from dolmen.rows.scan.scan import plan_of
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore
from support.stores import RUNTIME

WEST = timezone(timedelta(hours=-5))
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])


@pytest.fixture
def db(tmp_path: Path) -> Database:
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("t", SCHEMA, primary_key="id").append(some(0, 10))
    return db


def some(start: int, stop: int, x: str = "a") -> list[dict[str, object]]:
    return [{"id": i, "x": x} for i in range(start, stop)]


def ids(at: object, name: str = "t") -> list[int]:
    return sorted(at.table(name).to_arrow()["id"].to_pylist())  # type: ignore[attr-defined]


# ---- tags ------------------------------------------------------------------------------------------------------------


def test_a_tag_names_a_version_and_is_seen_by_every_reader(db: Database) -> None:
    version = db.version
    assert db.tag("before-import").done == f"tag(before-import, version {version})"
    db.table("t").delete("id < 5")
    assert ids(db.at(tag="before-import")) == ids(dolmen.open(db.url).at(tag="before-import")) == list(range(10))
    assert db.table("t").at(tag="before-import").count() == 10
    assert db.tags()["before-import"].version == version
    assert db.tags()["before-import"].until is None
    assert db.at(tag="before-import").sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [10]
    assert db.verify().ok


def test_a_tag_moves_only_when_it_is_told_to(db: Database) -> None:
    db.tag("v1")
    with pytest.raises(TagExistsError, match=r"tag 'v1'.*version 2.*move=True"):
        db.tag("v1")
    db.table("t").append(some(10, 11))
    db.tag("v1", move=True)
    assert ids(db.at(tag="v1")) == list(range(11))
    db.tag("v1", 2, move=True)
    assert ids(db.at(tag="v1")) == list(range(10))
    db.tag("then", timestamp=datetime.now(UTC))
    assert db.tags()["then"].version >= 4


def test_a_restore_refuses_a_time_that_is_not_settled_unless_it_is_told_to(db: Database) -> None:
    """Someone notes the time, deletes all by mistake, and goes back."""
    table, noted = db.table("t"), datetime.now(UTC)
    newest, restores = db.version, [table.restore, db.restore]
    for restore in restores:
        with pytest.raises(UnsettledTimestampError, match=f"{newest}.*settled=False"):
            restore(timestamp=noted)
    with db.transaction() as tx, pytest.raises(UnsettledTimestampError):
        tx.table("t").restore(timestamp=noted)
    assert db.version == newest
    assert table.restore(timestamp=noted, settled=False).did[0].over == (f"version {newest}",)
    noted = datetime.now(UTC)
    for restore in restores:
        table.delete("TRUE")
        assert table.count() == 0
        restore(timestamp=noted)
        assert ids(db) == list(range(10))


def test_wrong_arguments_of_tags_are_refused(db: Database) -> None:
    for name in ("", ".x", "-x", "a b", "ä", "x" * 65, 7, None, "a/b", "x\n"):
        with pytest.raises(InvalidNameError):
            db.tag(name)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFoundError):
        db.tag("x", 99)
    with pytest.raises(InputError, match="until"):
        db.tag("x", until="yesterday")
    with pytest.raises(InputError, match="until="):
        db.tag("x", until=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(InputError, match="version, timestamp and tag"):
        db.tag("x", 1, timestamp=datetime.now(UTC))
    with pytest.raises(InputError):
        db.tag("x", move="yes")  # type: ignore[arg-type]
    with pytest.raises(TagNotFoundError, match="tag 'x'"):
        db.drop_tag("x")
    with pytest.raises(InputError, match="version, timestamp and tag"):
        db.at(1, tag="x")
    with pytest.raises(InputError):
        db.at(tag=7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no version"):
        dolmen.open("memory://nothing-yet").tag("x")
    assert db.tags() == {}


def test_a_tag_may_end(db: Database) -> None:
    db.tag("week", until="7d")
    db.tag("date", until=datetime.now(UTC) + timedelta(days=2))
    left = db.tags()["week"].until
    assert left is not None
    assert timedelta(days=6, hours=23) < left - datetime.now(UTC) <= timedelta(days=7)


@pytest.mark.parametrize("until", [10**18, 2**63 - 1, 253_402_300_800_000_000, datetime.max.replace(tzinfo=WEST)])
def test_a_tag_ends_before_the_year_10000(db: Database, until: Any) -> None:
    with pytest.raises(InputError, match="beyond the year 9999"):
        db.tag("keep", until=until)
    assert db.tags() == {}


def test_the_end_of_a_tag_is_exact(db: Database) -> None:
    for end in (datetime.max, datetime(2345, 6, 7, 8, 9, 10, 123_457)):
        db.tag("keep", until=end, move=True)
        assert db.tags()["keep"].until == end.replace(tzinfo=UTC)


def test_tags_that_end_too_late_to_be_shown_are_listed(db: Database) -> None:
    """An earlier version of dolmen took any end."""
    with db.transaction() as tx:
        manifest = context_of(db).head.refresh().manifest
        unit_of(tx).add(
            PutTag("keep", Tag(manifest.version, manifest.key, manifest.created_at, 10**18), may_move=False)
        )
    assert db.tags()["keep"].until == datetime.max.replace(tzinfo=UTC)


def test_tags_are_applied_once_by_request(db: Database) -> None:
    first = db.tag("v1", request="r1")
    db.drop_tag("v1", request="r2")
    again = db.tag("v1", request="r1")
    assert (again.operation, again.already) == ("nothing", {"r1": first.version})
    assert db.tags() == {}
    with pytest.raises(AppliedIdError):
        db.tag("v2", request="r1")
    assert db.drop_tag("v1", request="r2").operation == "nothing"


def test_a_database_without_tags_pays_nothing_for_them_and_a_tag_costs_two_puts() -> None:
    store = CountingStore(MemoryStore(MemoryBucket(name="tags"), RUNTIME))
    db = Database(store, RUNTIME)
    db.create_table("t", SCHEMA).append(some(0, 1))
    manifest = db._context.head.refresh().manifest
    assert b"tags" not in manifest.encode()
    assert b"cursors" not in manifest.encode()
    for call in (
        lambda: db.tag("v1"),
        lambda: db.table("t").restore(2),
        lambda: db.clone("t", "u"),
        lambda: db.restore(2),
        lambda: db.drop_tag("v1"),
    ):
        store.reset()
        call()
        assert store.puts == 2


# ---- restore ---------------------------------------------------------------------------------------------------------


def test_a_restored_table_has_the_rows_columns_and_settings_of_then(db: Database) -> None:
    table = db.table("t")
    table.delete("id = 3")
    table.set(ttl=None, target_file_bytes="1MB")
    version = db.refresh()
    table.add_column("c", pa.int64(), 7)
    table.rename_column("x", "y")
    table.set(target_file_bytes="2MB")
    table.upsert([{"id": 1, "y": "new", "c": 0}])
    table.delete("id >= 5", mode="positions")
    db.compact()
    commit = table.restore(version)
    assert commit.done == f"restore t(version {version})"
    assert table.to_arrow().sort_by("id").to_pylist() == [r for r in some(0, 10) if r["id"] != 3]
    assert table.settings()["target_file_bytes"] == "1MB"
    table.append([{"id": 3, "x": "again"}])
    assert ids(db) == list(range(10))
    table.restore(commit.version - 1)
    assert table.schema.names == ["id", "y", "c"]
    assert table.count() == 4
    assert db.verify(deep=True, all_versions=True).ok


def test_deletes_of_then_go_on_hiding_rows_and_later_ones_do_not(db: Database) -> None:
    table = db.table("t")
    table.delete("id < 3")
    version = db.refresh()
    table.delete("id < 6")
    table.append(some(0, 2, "late"))
    table.restore(version)
    assert ids(db) == list(range(3, 10))
    table.append(some(0, 2, "again"))
    db.resolve()
    db.compact()
    assert ids(db) == [0, 1, *range(3, 10)]
    assert [ids(db.at(v)) for v in (2, 3)] == [list(range(10)), list(range(3, 10))]


def test_a_table_is_restored_under_its_name_of_now_and_a_database_under_those_of_then(db: Database) -> None:
    version = db.refresh()
    db.rename_table("t", "s")
    db.create_table("t", SCHEMA).append(some(50, 51))
    db.table("s").append(some(20, 21))
    db.table("s").restore(version)
    assert (ids(db, "s"), ids(db, "t")) == (list(range(10)), [50])
    with pytest.raises(TableExistsError, match=r"table 't'.*version 2"):
        db.restore(version, tables="t")
    with pytest.raises(TableNotFoundError, match=r"table 't'.*version 2"):
        db.table("t").restore(version)
    db.restore(version)
    assert db.tables() == ["t"]
    assert ids(db) == list(range(10))
    db.restore(version + 4)
    assert (db.tables(), ids(db, "s"), ids(db, "t")) == (["s", "t"], [*range(10), 20], [50])
    assert db.verify(deep=True, all_versions=True).ok


def test_a_dropped_table_comes_back(db: Database) -> None:
    db.tag("safe")
    db.drop_table("t")
    db.restore(tag="safe", tables=["t"])
    assert ids(db) == list(range(10))
    with pytest.raises(TableNotFoundError):
        db.restore(tag="safe", tables=["t", "nothing"])


def test_an_id_of_a_column_is_never_given_twice_by_a_restore(db: Database) -> None:
    table = db.table("t")
    table.add_column("c", pa.int64())
    version = db.refresh() - 1
    with db.transaction() as held:  # its file has column c of now
        held.table("t").append([{"id": 100, "x": "b", "c": 1}])
        table.restore(version)
        table.add_column("d", pa.int64())
        with pytest.raises(ConflictError, match="column 'c'"):
            held.commit()
    db.drop_table("t")
    db.restore(version, tables="t")
    table.add_column("c", pa.int64())
    assert table.count("c IS NULL") == 10


def test_what_was_read_before_a_restore_is_a_conflict(db: Database) -> None:
    version = db.refresh()
    db.table("t").delete("id = 9")
    transaction = db.transaction()
    assert transaction.table("t").count() == 9
    transaction.table("t").append(some(90, 91))
    db.table("t").restore(version)
    with pytest.raises(ConflictError, match="restored"):
        transaction.commit()


def test_a_delete_by_position_looks_again_when_a_restore_brought_back_rows(db: Database) -> None:
    table, other = db.table("t"), dolmen.open(db.url)
    table.append(some(20, 30))
    version = db.refresh()
    table.delete("id >= 20")
    db.resolve()
    db.compact()
    transaction = db.transaction()
    transaction.table("t").delete("x = 'a'", mode="positions")
    other.table("t").restore(version)
    with pytest.raises(ConflictError, match="restored"):
        transaction.commit()
    db.run(lambda tx: tx.table("t").delete("x = 'a'", mode="positions"))
    assert ids(db) == []


def test_restores_are_statements_of_transactions_and_are_applied_once_by_request(db: Database) -> None:
    table, version = db.table("t"), db.refresh()
    table.append(some(20, 30))
    with db.transaction() as transaction:
        transaction.table("t").restore(version)
        transaction.table("t").append(some(77, 78))
        assert transaction.table("t").count() == 11
    assert ids(db) == [*range(10), 77]
    first = table.restore(version, request="r")
    table.append(some(60, 61))
    assert table.restore(version, request="r").already == {"r": first.version}
    with pytest.raises(AppliedIdError):
        table.restore(version + 1, request="r")
    assert ids(db) == [*range(10), 60]
    assert db.restore(version, request="all").operation == "restore"
    assert db.restore(version, request="all").operation == "nothing"


def test_a_nullable_column_of_later_rows_does_not_get_into_a_table_that_forbids_it_again(db: Database) -> None:
    strict = db.create_table("s", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    version = db.refresh()
    strict.make_nullable("id")
    transaction = db.transaction()
    transaction.table("s").append([{"id": None}])
    strict.restore(version)
    with pytest.raises(ConflictError, match="NULL"):
        transaction.commit()
    with pytest.raises((SchemaError, InputError)):
        strict.append([{"id": None}])


# ---- clones ----------------------------------------------------------------------------------------------------------


def test_a_clone_has_the_same_files_and_goes_its_own_way(db: Database) -> None:
    table = db.table("t")
    table.delete("id < 3")
    clone = db.clone("t", "copy")
    assert ids(db, "copy") == list(range(3, 10))
    files = {file.file.path for file in plan_of(table.scan()).files}
    assert {file.file.path for file in plan_of(clone.scan()).files} == files
    clone.upsert(some(5, 6, "clone"))
    clone.add_column("c", pa.int64())
    table.delete("id = 9")
    assert (ids(db), ids(db, "copy")) == ([3, 4, 5, 6, 7, 8], list(range(3, 10)))
    db.resolve()
    db.compact()
    assert (ids(db), ids(db, "copy")) == ([3, 4, 5, 6, 7, 8], list(range(3, 10)))
    older = db.clone("t", "older", 2)
    assert older.count() == 10
    assert pickle.loads(pickle.dumps(older)).count() == 10
    assert db.verify(deep=True, all_versions=True).ok


def test_wrong_clones_are_refused(db: Database) -> None:
    with pytest.raises(TableNotFoundError):
        db.clone("nothing", "copy")
    with pytest.raises(TableExistsError):
        db.clone("t", "t")
    with pytest.raises(InvalidNameError):
        db.clone("t", "A b")
    with pytest.raises(VersionNotFoundError):
        db.clone("t", "copy", 99)
    with pytest.raises(TagNotFoundError):
        db.clone("t", "copy", tag="x")
    assert db.tables() == ["t"]


def test_a_clone_is_made_once_by_request_and_in_transactions(db: Database) -> None:
    db.clone("t", "copy", request="r")
    db.drop_table("copy")
    db.clone("t", "copy", request="r")
    assert db.tables() == ["t"]
    with db.transaction() as transaction:
        transaction.clone("t", "copy").append(some(70, 71))
    assert ids(db, "copy") == [*range(10), 70]


def test_an_identity_is_that_of_the_table_and_the_columns_that_count(db: Database) -> None:
    table, version = db.table("t"), db.version
    known, some_known = table.identity(), table.identity(["id"])
    table.append(some(20, 21))
    table.set_default("x", "b")
    db.rename_table("t", "s")
    assert db.table("s").identity() == db.at(version).table("t").identity() == known
    db.clone("s", "t")
    assert db.table("t").identity(["id"]) != some_known
    table = db.table("s")
    table.drop_column("x")
    table.add_column("x", pa.string())
    assert (table.identity() == known, table.identity(["id"]) == some_known) == (False, True)
    table.restore(version)
    assert table.identity() == known
    with pytest.raises(SchemaError, match="column 'y'"):
        table.identity(["y"])
