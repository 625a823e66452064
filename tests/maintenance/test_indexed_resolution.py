"""Resolution asks the index for the rows of deletes by key, where that reads less, and finds the same rows."""

from __future__ import annotations

import os
import random
import uuid

import numpy as np
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.maintenance.resolution import Resolved
from dolmen.store import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64()), pa.field("s", pa.string())])


def texts(source: np.random.Generator, count: int) -> list[str]:
    return [str(uuid.UUID(bytes=source.bytes(16))) for _ in range(count)]


def resolved(bucket: MemoryBucket) -> tuple[Resolved, int, list[str]]:
    """Resolution by a process that has just opened the database: its result, bytes fetched, and the keys left."""
    store = CountingStore(MemoryStore(bucket))
    db = Database(store, Runtime(threads=1))
    assert db.version
    store.reset()
    done = db.resolve("t")["t"]
    return done, store.bytes_down, sorted(db.table("t").to_arrow()["id"].to_pylist())


@pytest.mark.slow
def test_keys_of_an_index_are_resolved_without_reading_data_files() -> None:
    source = np.random.default_rng(SEED)
    found = {}
    ids = texts(source, 40_000)
    values = [source.bytes(40).hex() for _ in ids]
    for index in (False, True):
        bucket = MemoryBucket()
        db = Database(MemoryStore(bucket), Runtime(threads=1))
        table = db.create_table("t", SCHEMA, primary_key=["id"], properties={"index": index})
        for start in range(0, len(ids), 2_000):
            some = slice(start, start + 2_000)
            table.append(pa.table({"id": ids[some], "n": [start] * 2_000, "s": values[some]}, SCHEMA))
        db.maintain(steps=["index"])
        table.delete(keys=ids[::8_000])
        table.append(pa.table({"id": ids[:1], "n": [9], "s": ["again"]}, SCHEMA))
        found[index] = resolved(bucket)
    (plain, whole, left), (indexed, fetched, same) = found[False], found[True]
    assert same == left
    assert len(same) == 40_000 - 5 + 1
    assert (plain.indexed, indexed.indexed, indexed.read) == (0, 20, 0)
    assert (plain.rows, plain.dropped) == (indexed.rows, indexed.dropped) == (5, 1)
    assert fetched < whole
    store = CountingStore(MemoryStore(bucket))
    Database(store, Runtime(threads=1)).table("t").scan(["id"]).to_arrow()
    assert store.bytes_down > 10 * fetched
    assert "by the index 20" in repr(indexed)


@pytest.mark.slow
def test_the_index_hides_what_reading_the_keys_hides_whatever_has_happened() -> None:
    rng = random.Random(SEED)
    for number in range(6):
        bucket = MemoryBucket()
        db = Database(MemoryStore(bucket), Runtime(threads=1))
        schema = pa.schema(
            [pa.field("a", pa.int32(), False), pa.field("b", pa.string(), False), pa.field("n", pa.int64())]
        )
        table = db.create_table("t", schema, primary_key=["b", "a"], properties={"index": True})
        asked = 0
        for step in range(25):
            rows = [
                {"a": rng.randrange(5), "b": rng.choice("xyz") * rng.choice([1, 1200]), "n": step} for _ in range(4)
            ]
            match rng.randrange(6):
                case 0 | 1:
                    table.append(rows)
                case 2:
                    table.upsert(rows)
                case 3:
                    table.delete(keys=[(row["b"], row["a"]) for row in rows])
                case 4:
                    db.maintain(steps=["index"])
                case _:
                    before = sorted(map(str, table.to_arrow().to_pylist()))
                    asked += db.resolve("t")["t"].indexed
                    assert sorted(map(str, table.to_arrow().to_pylist())) == before, (number, step)
        assert db.verify(deep=True).findings == ()
