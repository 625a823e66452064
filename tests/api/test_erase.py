"""Erasures: rows that nobody sees from one commit on, in whichever version, tag or clone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import AppliedIdError, ConflictError, ErasureNotFoundError, InputError, SchemaError
from dolmen.format.manifest import ERASURES, Manifest
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

SEED = os.environ.get("DOLMEN_TEST_SEED", "")
HISTORIES = 60 if os.environ.get("DOLMEN_LONG") else 2

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user", pa.int64()), ("x", pa.string())])


def rows(start: int, stop: int, x: str = "a") -> list[dict[str, object]]:
    return [{"id": i, "user": i % 3, "x": x} for i in range(start, stop)]


def users(at: object, name: str = "t") -> set[int]:
    return set(at.table(name).to_arrow()["user"].to_pylist())  # type: ignore[attr-defined]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "user"}).append(rows(0, 9))
    return db


def manifest(db: Database) -> Manifest:
    return context_of(db).head.refresh().manifest


def cost(store: CountingStore, act: Callable[[], object]) -> tuple[int, int]:
    """The GETs and PUTs that an act takes; it takes no other requests."""
    store.reset()
    act()
    assert (store.heads, store.lists) == (0, 0)
    return store.gets, store.puts


# ---- of one table ----------------------------------------------------------------------------------------------------


def test_erased_rows_are_seen_in_no_version_by_no_reader(db: Database) -> None:
    first = db.version
    db.tag("before")
    db.table("t").append(rows(9, 12, "b"))
    done = db.table("t").erase("user = 1 AND id < 10", request="gdpr-1")
    assert done.commit.operation == "erase"
    assert done.commit.done == "erase t(id, user)"
    for at in (db, db.at(first), db.at(first + 1), db.at(tag="before"), dolmen.open(db.url).at(first)):
        table = at.table("t")
        assert {(row["id"], row["user"]) for row in table.to_arrow().to_pylist()} & {(1, 1), (4, 1), (7, 1)} == set()
        assert table.count("user = 1 AND id < 10") == 0
        assert table.scan().explain()
        assert "x" in table.to_pandas().columns
    assert db.at(first).table("t").count() == 6
    assert db.at(tag="before").sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [6]
    assert db.at(timestamp=db.tags()["before"].created_at).table("t").count() == 6
    assert sum(batch.num_rows for batch in db.at(first).table("t").scan().to_batches()) == 6
    db.table("t").append([{"id": 100, "user": 1, "x": "new"}])  # rows of later are new rows
    assert db.table("t").count("user = 1") == 2  # and row 10
    assert db.verify(deep=True).ok


def test_keys_are_erased_like_predicates(db: Database) -> None:
    first = db.version
    db.table("t").erase(keys=[3, 4])
    assert sorted(db.at(first).table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 5, 6, 7, 8]
    db.table("t").erase(keys=[0], on=["user"])
    assert users(db.at(first)) == users(db) == {1, 2}
    with pytest.raises(InputError, match="predicate"):
        db.table("t").erase()
    with pytest.raises(InputError, match="for keys"):
        db.table("t").erase("id = 1", on=["id"])


def test_an_erasure_takes_three_puts_and_reads_nothing() -> None:
    store = CountingStore(MemoryStore(MemoryBucket(), Runtime()))
    db = Database(store, Runtime())
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "user"})
    db.create_table("u", SCHEMA, properties={"subject": "user"})
    table.append(rows(0, 9))
    first = db.version
    assert cost(store, lambda: table.erase("user = 1")) == (1, 3)
    assert cost(store, lambda: table.erase(keys=[2])) == (1, 3)
    assert cost(store, lambda: db.forget([0, 2])) == (1, 3)  # two tables: one object with the deletes of both
    other = Database(store, Runtime())
    other.table("t").count()
    assert cost(store, lambda: other.at(first)) == (2, 0)  # the pointer, and the manifest of then
    assert other.at(first).table("t").count() == 0
    assert db.verify(deep=True).ok


def test_a_database_without_erasures_has_not_a_byte_or_a_request_more() -> None:
    store = CountingStore(MemoryStore(MemoryBucket(), Runtime()))
    db = Database(store, Runtime())
    table = db.create_table("t", SCHEMA)
    table.append(rows(0, 9))
    table.append(rows(9, 12))
    body = store.get(manifest(db).key).body
    assert not any(word in body for word in (b"erasures", b"leaving", b"origins", b"erasing"))
    one, other = Database(store, Runtime()), Database(store, Runtime())
    assert one.refresh() == other.refresh() == 3
    assert cost(store, lambda: one.at(2).table("t").count()) == (2, 0)
    assert cost(store, lambda: other.clone("t", "c", 2)) == (3, 2)


def test_a_repeated_request_is_one_erasure(db: Database) -> None:
    table = db.table("t")
    done = table.erase("user = 1", request="r")
    again = table.erase("user = 1", request="r")
    assert again.id == done.id
    assert again.commit.already == {"r": done.commit.version}
    assert (again.due_at, done.due_at) == (None, db.erasure(done.id).due_at)
    assert [each.id for each in db.erasures()] == [done.id]
    with pytest.raises(AppliedIdError):
        table.erase("user = 2", request="r")
    with pytest.raises(AppliedIdError):
        table.delete("user = 1", request="r")
    with pytest.raises(ErasureNotFoundError):
        db.erasure("0" * 32)


def test_the_list_and_the_history_tell_no_value(db: Database) -> None:
    db.table("t").append([{"id": 77, "user": 424242, "x": "personal"}])
    db.set(erase_within="10d")
    done = db.forget(424242, request="f")
    db.table("t").erase("x = 'personal'")
    (forgotten, erased) = db.erasures()
    assert (forgotten.id, forgotten.subjects, forgotten.request) == (done.id, 1, "f")
    assert (forgotten.due_at - forgotten.requested_at).days == 10
    assert [(part.table, part.columns) for part in forgotten.tables] == [("t", ("user",))]
    assert [(part.table, part.columns) for part in erased.tables] == [("t", ("x",))]
    for said in (repr(forgotten), repr(erased), repr(db.history()), repr(done)):
        assert "424242" not in said
        assert "personal" not in said
    assert manifest(db).features == (ERASURES,)


# ---- clones, restores, older columns ---------------------------------------------------------------------------------


def test_an_erasure_reaches_clones_of_clones_even_after_those_between_are_gone(db: Database) -> None:
    db.clone("t", "b")
    db.clone("b", "c")
    db.table("c").append(rows(20, 23))
    db.drop_table("b")
    before = db.version
    db.table("t").erase("user = 1")
    assert users(db, "c") == users(db, "t") == {0, 2}
    assert users(db.at(before), "c") == users(db.at(before - 2), "b") == {0, 2}
    db.table("c").erase("user = 2")  # not the other way
    assert users(db, "t") == {0, 2}
    assert db.verify(deep=True).ok


def test_restores_and_clones_of_older_versions_bring_no_erased_row_back(db: Database) -> None:
    first = db.version
    db.table("t").erase("user = 1")
    db.table("t").delete("id < 100")
    db.table("t").restore(first)
    assert users(db) == {0, 2}
    db.clone("t", "c", first)
    assert users(db, "c") == {0, 2}
    db.restore(first)
    assert users(db) == {0, 2}
    db.drop_table("t")
    db.restore(first, tables="t")
    assert users(db) == {0, 2}
    assert {t.ts for t in manifest(db).tables["t"].tombstones} == {db.erasures()[0].commit_ts}
    assert db.verify(deep=True).ok


def test_who_is_forgotten_is_not_in_dropped_tables_either(db: Database) -> None:
    first = db.version
    db.create_table("other", SCHEMA, properties={"subject": "user"}).append(rows(0, 3))
    db.drop_table("t")
    db.forget(1)
    assert users(db.at(first)) == {0, 2}
    db.restore(first, tables="t")
    assert users(db) == {0, 2}
    assert users(db, "other") == {0, 2}
    db.drop_table("t")
    db.clone("t", "c", first)
    assert users(db, "c") == {0, 2}
    assert db.maintain()
    assert users(db, "c") == {0, 2}
    assert db.verify(deep=True).ok


def test_in_one_transaction_an_erasure_holds_for_what_comes_after_it(db: Database) -> None:
    first = db.version
    with db.transaction() as transaction:
        transaction.table("t").add_column("channel", pa.string(), "web")
        transaction.table("t").erase("channel = 'web' AND user = 1")
        transaction.clone("t", "c", first)
        transaction.table("t").restore(first)
    assert users(db) == users(db, "c") == users(db.at(first)) == {0, 2}
    (erasure,) = db.erasures()
    for name in ("t", "c"):
        assert [t.ts for t in manifest(db).tables[name].tombstones] == [erasure.commit_ts]
    assert db.verify(deep=True).ok


def test_a_column_that_an_older_version_lacks_has_its_default_there(db: Database) -> None:
    first = db.version
    db.table("t").add_column("region", pa.string(), "eu")
    db.table("t").append([{"id": 50, "user": 0, "x": "b", "region": "us"}])
    db.clone("t", "c", first)
    db.table("t").erase("region = 'eu' AND user = 2")
    assert users(db.at(first)) == users(db, "c") == {0, 1}
    db.table("c").add_column("own", pa.string())
    db.table("t").erase("region = 'us'")
    assert db.table("t").count("id = 50") == 0
    assert users(db, "c") == {0, 1}
    assert db.verify(deep=True).ok


def test_a_clone_with_another_column_of_that_id_is_not_meant(db: Database) -> None:
    db.clone("t", "c")
    db.table("t").add_column("p", pa.string(), "x")
    db.table("c").add_column("q", pa.string(), "x")
    db.table("t").erase("p = 'x'")
    assert (db.table("t").count(), db.table("c").count()) == (0, 9)


@pytest.mark.slow
def test_idle_tables_are_reached_and_others_stay_idle(db: Database) -> None:
    db.set(root_bytes="4KB")
    db.clone("t", "idle")
    db.create_table("still", SCHEMA).append(rows(0, 3))
    busy = db.create_table("busy", SCHEMA)
    for start in range(90):
        busy.append(rows(start, start + 1))
    entries = manifest(db).tables
    assert entries["idle"].section
    assert entries["still"].section
    before = db.version
    db.table("t").erase("user = 1")
    assert users(db, "idle") == users(db.at(before), "idle") == {0, 2}
    assert manifest(db).tables["still"].section == entries["still"].section
    assert db.verify(deep=True).ok


def test_many_erasures_spill_and_still_hold(db: Database) -> None:
    db.set(root_bytes="4KB")
    first = db.version
    db.table("t").append(rows(9, 60))
    for key in range(0, 60, 2):
        db.table("t").erase(keys=[key])
    assert manifest(db).segments_of("erasures")
    assert len(db.erasures()) == 30
    assert sorted(db.at(first).table("t").to_arrow()["id"].to_pylist()) == [1, 3, 5, 7]
    assert sorted(dolmen.open(db.url).at(first).table("t").to_arrow()["id"].to_pylist()) == [1, 3, 5, 7]
    db.table("t").restore(first)
    assert sorted(db.table("t").to_arrow()["id"].to_pylist()) == [1, 3, 5, 7]
    db.maintain()
    assert len(db.erasures()) == 30
    assert db.verify(deep=True).ok


# ---- who is forgotten ------------------------------------------------------------------------------------------------


def test_forgetting_is_one_commit_over_all_tables_with_a_subject(db: Database) -> None:
    db.create_table("texts", pa.schema([("who", pa.string()), ("n", pa.int64())]), properties={"subject": "who"})
    db.table("texts").append([{"who": "1", "n": 1}, {"who": "2", "n": 2}])
    db.create_table("free", SCHEMA).append(rows(0, 3))
    before = db.version
    with pytest.raises(InputError, match=r"table 't'.*column 'user'"):
        db.forget("bob")
    done = db.forget([1, "1"])
    assert done.commit.version == before + 1
    assert done.commit.done == "forget"
    assert users(db) == users(db.at(before)) == {0, 2}
    assert db.table("texts").to_arrow()["who"].to_pylist() == ["2"]
    assert users(db, "free") == {0, 1, 2}
    for wrong in ([], None, True, 1.5, [None]):
        with pytest.raises(InputError):
            db.forget(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"1,001 subjects"):
        db.forget(range(1001))


@pytest.mark.parametrize("text", ["007", "1_0", "1e0", "+7", " 7", "7.0", "7"])
def test_a_text_is_no_number(db: Database, text: str) -> None:
    """Where one person's id is the text "007", another's may be the number 7."""
    db.create_table("numbers", pa.schema([("who", pa.int64())]), properties={"subject": "who"})
    db.create_table("decimals", pa.schema([("who", pa.decimal128(9, 2))]), properties={"subject": "who"})
    db.table("t").set(subject=None)
    db.create_table("texts", pa.schema([("who", pa.string())]), properties={"subject": "who"})
    db.table("numbers").append([{"who": 7}, {"who": 10}, {"who": 1}])
    db.table("decimals").append([{"who": Decimal("7.00")}, {"who": Decimal("1.00")}])
    db.table("texts").append([{"who": text}])
    with pytest.raises(InputError, match="type"):
        db.forget(text)
    db.forget([text, 99])
    assert (db.table("numbers").count(), db.table("decimals").count(), db.table("texts").count()) == (3, 2, 0)
    assert (db.at(db.version - 1).table("numbers").count(), db.at(db.version - 1).table("texts").count()) == (3, 0)


def test_ids_as_large_as_uint64_are_forgotten(db: Database) -> None:
    table = db.create_table("large", pa.schema([("who", pa.uint64())]), properties={"subject": "who"})
    db.table("t").set(subject=None)
    table.append([{"who": 2**63}, {"who": 2**64 - 1}, {"who": 5}])
    before = db.version
    db.forget([2**63, np.uint64(2**64 - 1)])
    assert table.to_arrow()["who"].to_pylist() == [5]
    assert dolmen.open(db.url).at(before).table("large").to_arrow()["who"].to_pylist() == [5]
    with pytest.raises(InputError):
        db.forget(2**64)


def test_who_stands_in_dropped_tables_alone_is_forgotten_if_the_caller_says_so(db: Database) -> None:
    db.table("t").set(subject=None)
    db.create_table("people", pa.schema([("who", pa.string())]), properties={"subject": "who"})
    db.table("people").append([{"who": "alice"}, {"who": "bob"}])
    db.tag("audit")
    db.drop_table("people")
    with pytest.raises(InputError, match="`dropped`"):
        db.forget("alice")
    db.create_table("orders", pa.schema([("user", pa.int64())]), properties={"subject": "user"}).append([{"user": 1}])
    with pytest.raises(InputError, match="type"):
        db.forget("alice")
    done = db.forget("alice", dropped=True)
    assert db.erasure(done.id).subjects == 1
    assert db.at(tag="audit").table("people").to_arrow()["who"].to_pylist() == ["bob"]
    db.restore(tag="audit", tables="people")
    assert db.table("people").to_arrow()["who"].to_pylist() == ["bob"]
    assert db.table("orders").count() == 1
    assert db.verify(deep=True).ok


def test_an_erasure_of_no_keys_has_a_receipt(db: Database) -> None:
    done = db.table("t").erase(keys=[], request="none")
    assert done.due_at is not None
    assert db.erasure(done.id).request == "none"
    assert db.table("t").count() == 9


def test_a_table_that_gets_a_subject_meanwhile_is_forgotten_in_too(db: Database) -> None:
    transaction = db.transaction()
    transaction.forget(1)
    other = dolmen.open(db.url)
    other.create_table("late", SCHEMA, properties={"subject": "user"}).append(rows(0, 3))
    other.clone("t", "c")
    transaction.commit()
    assert users(db, "late") == users(db, "c") == users(db) == {0, 2}


def test_the_subject_is_a_column_that_stays(db: Database) -> None:
    with pytest.raises(SchemaError, match="setting subject"):
        db.table("t").drop_column("user")
    db.table("t").rename_column("user", "person")
    assert db.table("t").describe()["properties"] == {"subject": "person"}
    db.forget(1)
    assert set(db.table("t").to_arrow()["person"].to_pylist()) == {0, 2}
    with pytest.raises(SchemaError):
        db.table("t").set(subject="nobody")
    db.table("t").add_column("f", pa.float64())
    with pytest.raises(SchemaError, match="subject"):
        db.table("t").set(subject="f")


# ---- writers at the same time ----------------------------------------------------------------------------------------


def _update(db: Database) -> Callable[[], object]:
    transaction = db.transaction()
    transaction.table("t").update({"x": "changed"}, "user = 1")
    return transaction.commit


def _merge(db: Database) -> Callable[[], object]:
    transaction = db.transaction()
    transaction.table("t").merge([{"id": 1, "x": "m"}], "id", {"x": "source.x"}, None)
    return transaction.commit


def _copy(db: Database) -> Callable[[], object]:
    transaction = db.transaction()
    transaction.table("copy").append(transaction.table("t").to_arrow())
    return transaction.commit


@pytest.mark.parametrize("begin", [_update, _merge, _copy])
def test_who_has_read_rows_before_an_erasure_does_not_write_them_after_it(
    db: Database, begin: Callable[[Database], Callable[[], object]]
) -> None:
    db.create_table("copy", SCHEMA)
    commit = begin(db)
    dolmen.open(db.url).table("t").erase("user = 1")
    with pytest.raises(ConflictError):
        commit()
    assert users(db) == {0, 2}


def test_background_work_that_began_before_brings_nothing_back(db: Database) -> None:
    first = db.version
    for start in range(10, 40, 10):
        db.table("t").append(rows(start, start + 10))
    db.table("t").erase("user = 1")
    db.maintain()
    assert users(db) == users(db.at(first)) == {0, 2}


def test_a_restore_or_a_clone_that_lands_after_an_erasure_heeds_it(db: Database) -> None:
    first = db.version
    restore, clone = db.transaction(), db.transaction()
    restore.table("t").restore(first)
    clone.clone("t", "c", first)
    dolmen.open(db.url).forget(1)
    restore.commit()
    clone.commit()
    assert users(db) == users(db, "c") == {0, 2}


# ---- random histories ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(HISTORIES))
def test_after_every_erasure_every_kept_version_is_without_the_rows(turn: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} erase {turn}")
    db = dolmen.open(str(tmp_path / "db"))
    db.set(root_bytes="4KB")
    db.create_table("t0", SCHEMA, primary_key="id", properties={"subject": "user"})
    shown: dict[int, dict[str, dict[int, int]]] = {}  # by version, table: ids and their users, as they must be read
    next_id, made = 0, 1

    def now() -> dict[str, dict[int, int]]:
        return {name: {row["id"]: row["user"] for row in db.table(name).to_arrow().to_pylist()} for name in db.tables()}

    def uuids() -> dict[str, set[str]]:
        return {name: set(entry.lineage) for name, entry in manifest(db).tables.items()}

    of_version: dict[int, dict[str, set[str]]] = {}
    for _ in range(40):
        names = db.tables()
        name = rng.choice(names)
        act = rng.choice(
            ["append", "append", "upsert", "delete", "clone", "restore", "drop", "erase", "forget", "work"]
        )
        if act in ("append", "upsert"):
            new = [{"id": next_id + i, "user": rng.randrange(12), "x": act} for i in range(rng.randrange(1, 30))]
            next_id += len(new)
            getattr(db.table(name), act)(new)
        elif act == "delete":
            db.table(name).delete(f"id % 7 = {rng.randrange(7)}")
        elif act == "clone":
            versions = [version for version in shown if name in shown[version]]
            if versions:
                version = rng.choice(versions)
                db.clone(name, f"t{made}", version)
                assert now()[f"t{made}"] == shown[version][name]
                made += 1
        elif act == "restore" and shown:
            version = rng.choice(sorted(shown))
            db.restore(version)
            assert now() == shown[version]
        elif act == "drop" and len(names) > 1:
            db.drop_table(name)
        elif act == "erase":
            user, most = rng.randrange(12), rng.randrange(next_id + 1)
            uuid = manifest(db).tables[name].uuid
            db.table(name).erase(f"user = {user} AND id < {most}")
            for version, tables in shown.items():
                for each in tables:
                    if uuid in of_version[version][each]:
                        tables[each] = {i: u for i, u in tables[each].items() if not (u == user and i < most)}
        elif act == "forget":
            user = rng.randrange(12)
            db.forget(user)
            for tables in shown.values():
                for each in tables:
                    tables[each] = {i: u for i, u in tables[each].items() if u != user}
        elif act == "work":
            db.maintain()
        shown[db.version], of_version[db.version] = now(), uuids()
        if act in ("erase", "forget", "restore", "clone"):
            opened = dolmen.open(db.url)
            for version in rng.sample(sorted(shown), min(8, len(shown))):
                at = opened.at(version)
                for each, wanted in shown[version].items():
                    found = {row["id"]: row["user"] for row in at.table(each).to_arrow().to_pylist()}
                    assert found == wanted, (act, version, each)
                    assert at.table(each).count() == len(wanted)
    assert db.verify(deep=True).ok
