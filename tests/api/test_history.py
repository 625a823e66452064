"""What history tells of commits: which tables, what was done over which columns, for whom; and never a value."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.format.layout import Pointer, seal, unseal
from dolmen.format.manifest import EMPTY, HistoryEntry, Manifest
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA, people

SECRET = 8_675_309


def test_history_tells_what_was_done_to_which_tables(db: Database, table: dolmen.Table) -> None:
    table.append(people(1, 2, SECRET), request="r", message="the first ones")
    table.upsert(people(2))
    table.delete({"id": SECRET}, request="gdpr-17")
    table.delete(f"user_id = {SECRET} OR name = '{SECRET}'", message="asked for by mail")
    table.delete(keys=[(7, SECRET)], on=["user_id", "id"])
    table.delete("user_id < 5", mode="positions")
    table.set(ttl=None, target_file_bytes="64MB")
    db.set(retention="9d")
    db.create_table("log", SCHEMA)
    with db.transaction("nightly", message="both") as tx:
        tx.table("people").append(people(9), request="a")
        tx.table("log").overwrite(people(9), request="b")
    db.drop_table("log")
    history = db.history()
    assert [(commit.done, commit.tables, commit.requests, commit.message) for commit in reversed(history)] == [
        ("create people", ("people",), (), ""),
        ("append people", ("people",), ("r",), "the first ones"),
        ("upsert people(id)", ("people",), (), ""),
        ("delete people(id)", ("people",), ("gdpr-17",), ""),
        ("delete people(user_id, name)", ("people",), (), "asked for by mail"),
        ("delete people(id, user_id)", ("people",), (), ""),
        ("delete people(user_id)", ("people",), (), ""),
        ("set people(ttl, target_file_bytes)", ("people",), (), ""),
        ("set(retention)", (), (), ""),
        ("create log", ("log",), (), ""),
        ("append people; overwrite log", ("people", "log"), ("a", "b"), "both"),
        ("drop log", ("log",), (), ""),
    ]
    assert str(SECRET) not in repr(history)
    assert "append people; overwrite log, for a, b, message 'both'" in repr(history[1])


def test_a_writer_is_told_what_history_tells(db: Database, table: dolmen.Table) -> None:
    made = table.append(people(1), request="r", message="hello")
    told = db.history(1)[0]
    assert (made.did, made.requests, made.message) == (told.did, told.requests, told.message)
    assert db.run(lambda tx: tx.table("people").delete("id = 1"), message="by hand") is None
    assert (db.history(1)[0].message, db.history(1)[0].done) == ("by hand", "delete people(id)")


def test_what_history_tells_of_a_commit_is_bounded(db: Database) -> None:
    wide = pa.schema([(f"column_{n}_{'x' * 100}", pa.int64()) for n in range(9)])
    for n in range(6):
        db.create_table(f"t{n}", wide)
    with db.transaction() as tx:
        for n in range(6):
            tx.table(f"t{n}").append(pa.table({wide.names[0]: [1]}))
            tx.table(f"t{n}").delete(" OR ".join(f"{name} > 3" for name in wide.names))
    (commit,) = db.history(1)
    assert (len(commit.did), commit.did_more) == (4, 8)
    assert [len(name) for name in commit.did[1].over] == [64] * 4
    assert commit.did[1].more == 5
    assert commit.done.endswith("5 more); 8 more")
    for wrong in ("x" * 257, "\ud800", 7, b""):
        with pytest.raises(InputError, match="message"):
            db.table("t0").append(pa.table({wide.names[0]: [1]}), message=wrong)  # type: ignore[arg-type]
    assert db.table("t0").append(pa.table({wide.names[0]: [1]}), message="x" * 256).message == "x" * 256


def test_metadata_of_every_kind_of_commit_is_in_its_history(db: Database, table: dolmen.Table, other: Database) -> None:
    note: dict[str, Any] = {"metadata": {"job": "nightly", "run.id": "17"}}
    with table.writer(**note) as writer:
        writer.append(people(20))
    with db.transaction(**note) as tx:
        tx.table("people").append(people(21))
    for call in (
        lambda: table.append(people(1), **note),
        lambda: table.insert(people(2), **note),
        lambda: table.upsert(people(2), **note),
        lambda: table.overwrite(people(2, 3), **note),
        lambda: table.delete("id = 2", **note),
        lambda: table.update({"name": "x"}, "id = 3", **note),
        lambda: table.merge(people(3), "id", "delete", **note),
        lambda: table.add_column("more", pa.int64(), **note),
        lambda: table.set(ttl=None, **note),
        lambda: db.sql("INSERT INTO people (id) VALUES (5)", **note),
        lambda: db.tag("now", **note),
        lambda: db.run(lambda tx: tx.table("people").delete("id = 5"), **note),
        lambda: db.clone("people", "more", **note),
        lambda: table.erase("id = 7", **note).commit,
        lambda: table.restore(2, settled=False, **note),
        lambda: db.rename_table("people", "persons", **note),
        lambda: db.drop_table("persons", **note),
    ):
        done = call()
        if isinstance(done, dolmen.Commit):
            assert done.metadata == note["metadata"]
    history = db.history()
    assert {tuple(each.metadata.items()) for each in history[:-1]} == {(("job", "nightly"), ("run.id", "17"))}
    assert (len(history), history[-1].metadata) == (20, {})
    assert [each.metadata for each in other.history()] == [each.metadata for each in history]
    told = db.sql("SELECT count(*) FROM dolmen_versions() WHERE metadata['run.id'] = '17'").fetchall()
    assert told == [(19,)]


def test_metadata_is_checked_before_anything_is_done(db: Database, table: dolmen.Table) -> None:
    version = db.version
    wrong: list[Any] = [
        "x",
        {"": "a"},
        {"k" * 101: "a"},
        {"a b": "c"},
        {1: "a"},
        {"a": 1},
        {"a": None},
        {"a": "\ud800"},
    ]
    wrong += [{"a": "x" * 1_001}, {f"k{n}": "" for n in range(101)}, [("a", "b")]]
    wrong += [{f"k{n}": "ü" * 1_000 for n in range(5)}]
    for metadata in wrong:
        with pytest.raises(InputError, match="metadata"):
            table.append(people(1), metadata=metadata)
        with pytest.raises(InputError, match="metadata"):
            db.transaction(metadata=metadata)
    with pytest.raises(InputError, match="metadata"), db.transaction() as tx:
        tx.table("people").append(people(1), metadata={"a": "b"})
    with pytest.raises(InputError, match="metadata"):
        db.sql("SELECT 1 FROM people", metadata={"a": "b"})
    assert db.refresh() == version
    most = {f"{n:03}": "ü" * 39 for n in range(100)} | {"000": "ü" * 39 + "x" * 92}
    assert table.append(people(1), metadata=most).metadata == most
    assert db.history(1)[0].metadata == most
    assert "ü" not in repr(db.history(1)), "a commit names the keys alone"


def test_requests_that_have_left_the_manifest_are_told_too(db: Database, store: CountingStore) -> None:
    db.set(root_bytes=4096)
    table = db.create_table("people", SCHEMA)
    for n in range(40):
        table.append(people(n), request=f"request {n}")
    assert context_of(db).head.cached is not None
    assert context_of(db).head.cached.manifest.segments_of("applied")
    assert [commit.requests for commit in db.history(40)] == [(f"request {n}",) for n in reversed(range(40))]


def without_deeds(bucket: MemoryBucket) -> None:
    """The newest manifest as a writer leaves it that knows nothing of them, but for those of its own."""
    pointer = Pointer.decode(bucket.objects["_latest_manifest"].body, "_latest_manifest")
    there = bucket.objects[pointer.manifest]
    document = msgspec.json.decode(unseal(there.body, pointer.manifest))
    for entry in document["history"]:
        [entry.pop(name, None) for name in ("did", "message", "metadata")]
    body = seal(msgspec.json.encode(document))
    bucket.objects[pointer.manifest] = MemoryObject(body, there.etag, there.last_modified_us)


def test_manifests_that_tell_less_of_older_commits_are_right(db: Database, bucket: MemoryBucket) -> None:
    db.create_table("people", SCHEMA).append(people(1), message="once told", metadata={"a": "b"})
    db.table("people").append(people(2))
    without_deeds(bucket)
    later = Database(MemoryStore(bucket, Runtime()), Runtime())
    assert [commit.message for commit in later.history()] == ["", "", ""]
    assert later.at(version=2).table("people").count() == 1
    assert later.verify(deep=True).findings == ()


def test_readers_leave_out_what_they_do_not_know(db: Database, table: dolmen.Table) -> None:
    """As those do that know nothing of deeds and messages."""

    class Older(msgspec.Struct):
        version: int
        operation: str

    table.append(people(1), message="hello")
    manifest = context_of(db).head.refresh().manifest
    assert msgspec.json.decode(manifest.encode(), type=Older) == Older(2, "append")
    more = seal(unseal(manifest.encode(), "")[:-1] + b',"of_later_times":{"a":[1]}}')
    assert Manifest.decode(more, manifest.key) == manifest
    entry = HistoryEntry(1, "00000000", "c", 1, 1, "append")
    assert msgspec.json.encode(entry) == (
        b'{"version":1,"attempt":"00000000","commit_id":"c","commit_ts":1,"created_at":1,"operation":"append"}'
    )


def test_what_people_look_at_is_short(db: Database, table: dolmen.Table) -> None:
    table.append(people(1, 2))
    table.delete("name = 'x' AND id = 1")
    assert repr(db.stats()).startswith("<Debts of version 3, 1 table: 1 unresolved delete; manifest of ")
    done = repr(db.maintain())
    assert done.startswith("<Round:\n  <Done ")
    assert "resolve people" in done
    with db.transaction("word") as tx:
        assert repr(tx) == "<Transaction word, open on version 4: 0 statements>"
        tx.table("people").append(people(3))
        assert repr(tx) == "<Transaction word, open on version 4: 1 statement about people>"
    assert "ended" in repr(tx)


def test_before_the_first_commit_is_kept_as_long_as_version_1() -> None:
    for horizon in (0, 1, 2):
        assert msgspec.structs.replace(EMPTY, horizon=horizon).is_kept(0) == (horizon < 2)
