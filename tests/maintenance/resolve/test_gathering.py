"""Gathering vectors: few requests for a scan of many files, and never a row more or less."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles
from dolmen.maintenance.resolution import MOST_OBJECTS, gather_vectors, resolve
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

FILES = MOST_OBJECTS + 8


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore(MemoryBucket()))


def scattered(store: CountingStore, root_bytes: int) -> Database:
    """A table of which each file has a vector in an object of its own."""
    db = Database(store, Runtime())
    db.set(root_bytes=root_bytes)
    table = db.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    for number in range(FILES):
        table.append(pa.table({"k": range(number * 10, number * 10 + 10)}))
    for number in range(FILES):
        table.delete(f"k = {number * 10 + 3}", mode="positions")
    return db


def vector_objects(db: Database) -> set[str]:
    entry = db._context.head.refresh().manifest.table("t")
    return {file.vector.object for file in LiveFiles.of(entry, db._context.segments) if file.vector}


@pytest.mark.slow
@pytest.mark.parametrize("root_bytes", [256 << 10, 16 << 10])
def test_scattered_vectors_are_gathered_and_hide_the_same_rows(store: CountingStore, root_bytes: int) -> None:
    db = scattered(store, root_bytes)
    assert len(vector_objects(db)) == FILES
    before = sorted(db.table("t").to_arrow()["k"].to_pylist())
    reader = Database(store, Runtime())
    reader.refresh()
    store.reset()
    reader.table("t").to_arrow()
    scattered_gets = store.gets
    assert resolve(db._context, "t").gathered == FILES
    assert len(vector_objects(db)) == 1
    reader = Database(store, Runtime())
    store.reset()
    assert sorted(reader.table("t").to_arrow()["k"].to_pylist()) == before
    assert store.gets <= scattered_gets - FILES + 1 + 2
    version = db.version
    assert resolve(db._context, "t").gathered == 0
    assert db.refresh() == version, "gathered once is enough"


def test_vectors_stay_where_they_are_while_a_delete_is_unresolved(store: CountingStore) -> None:
    db = scattered(store, 256 << 10)
    db.table("t").delete("k > 390")
    before = sorted(db.table("t").to_arrow()["k"].to_pylist())
    assert gather_vectors(db._context, "t") == 0
    assert resolve(db._context, "t").gathered == FILES
    assert sorted(db.table("t").to_arrow()["k"].to_pylist()) == before


@pytest.mark.slow
def test_a_delete_that_comes_between_is_not_lost(store: CountingStore) -> None:
    db = scattered(store, 256 << 10)
    other = Database(store, Runtime())
    put, done = store.put, []

    def racing(key: str, body: bytes, *, if_match: str | None = None) -> object:
        if key == "_latest_manifest" and not done:
            done.append(key)
            other.table("t").delete("k IN (0, 11)", mode="positions")
            other.table("t").delete("k = 22")
        return put(key, body, if_match=if_match)

    store.put = racing  # type: ignore[method-assign,assignment]
    expected = set(db.table("t").to_arrow()["k"].to_pylist()) - {0, 11, 22}
    assert gather_vectors(db._context, "t") == FILES
    assert done
    assert set(dolmen.Database.table(db, "t").to_arrow()["k"].to_pylist()) == expected
    assert db.table("t").describe()["unresolved_deletes"]
