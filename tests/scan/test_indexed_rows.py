"""Scans, updates, merges and deletes by key go through the index where that reads less, and find the same rows."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.format.types import to_mask
from dolmen.predicate.evaluate import matches
from dolmen.rows.scan.rows_by_key import where_key_in
from dolmen.store import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), pa.field("s", pa.string())])
FILES, ROWS = 12, 20_000


def database(*, index: bool) -> tuple[MemoryBucket, list[int]]:
    """Files whose random keys overlap, so that statistics exclude none of them."""
    source = np.random.default_rng(SEED)
    ids = source.permutation(FILES * ROWS) * 1_000_003
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket), Runtime(threads=1))
    table = db.create_table("t", SCHEMA, primary_key=["id"], properties={"index": index})
    for part in np.split(ids, FILES):
        table.append(pa.table({"id": part, "n": part, "s": [source.bytes(20).hex() for _ in part]}, SCHEMA))
    table.delete({"id": int(ids[1])}, mode="positions")
    table.delete({"id": int(ids[2])})
    db.maintain(steps=["index"])
    return bucket, ids.tolist()


def opened(bucket: MemoryBucket) -> tuple[Database, CountingStore]:
    store = CountingStore(MemoryStore(bucket))
    db = Database(store, Runtime(threads=1))
    assert db.version
    store.reset()
    return db, store


@pytest.mark.slow
def test_a_scan_of_some_keys_reads_their_row_groups_and_says_so() -> None:
    (plain, ids), (indexed, _) = database(index=False), database(index=True)
    some = [*ids[:4], ids[ROWS * 5 + 3], 5]
    for where in ({"id": ids[0]}, {"id": some}, f"id IN ({ids[7]}, {ids[8]}) AND n > 5"):
        found, told, fetched = [], [], []
        for bucket in (plain, indexed):
            db, store = opened(bucket)
            table = db.at(db.version).table("t")
            store.reset()
            found.append(sorted(table.scan(where=where).to_arrow().to_pylist(), key=str))
            fetched.append((store.gets, store.bytes_down))
            db, store = opened(bucket)
            told.append(db.table("t").scan(where=where).explain())
            assert db.table("t").count(where) == len(found[-1])
        assert found[0] == found[1]
        assert [each.indexed_files for each in told] == [0, FILES]
        assert told[1].absent_files >= FILES - 2
        assert "fetch index" in repr(told[1])
        assert (told[1].fetch.requests, told[1].fetch.bytes) == fetched[1]
        assert fetched[1][1] * 4 < fetched[0][1]


@pytest.mark.slow
def test_updates_merges_and_deletes_by_key_read_what_the_index_finds() -> None:
    (plain, ids), (indexed, _) = database(index=False), database(index=True)
    left, fetched = [], []
    for bucket in (plain, indexed):
        db, store = opened(bucket)
        table = db.table("t")
        table.update({"n": -1}, where={"id": ids[:5]})
        table.merge(pa.table({"id": [ids[5], 7], "n": [-2, -2], "s": ["x", "y"]}, SCHEMA), "id", {"n": "source.n"})
        table.delete({"id": ids[9:12]}, mode="positions")
        fetched.append(store.bytes_down)
        rows = table.scan(["id", "n"]).to_arrow().sort_by("id")
        left.append(rows)
    assert left[0] == left[1]
    assert left[0].num_rows == FILES * ROWS - 2 - 3 + 1
    assert fetched[1] * 2 < fetched[0], "once for the three, as the cache keeps columns"


@pytest.mark.slow
def test_scans_by_key_find_what_whole_scans_find_whatever_has_happened() -> None:
    rng = random.Random(SEED)
    schema = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.string(), False), pa.field("n", pa.int64())])
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    table = db.create_table("t", schema, primary_key=["b", "a"], properties={"index": True})
    for step in range(40):
        rows = [{"a": rng.randrange(9), "b": rng.choice("xyz") * rng.choice([1, 1200]), "n": step} for _ in range(30)]
        match rng.randrange(7):
            case 0 | 1 | 2:
                table.append(rows)
            case 3:
                table.upsert(rows)
            case 4:
                table.delete({"a": rng.randrange(9)}, mode=rng.choice(["tombstone", "positions"]))
            case 5:
                db.maintain(steps=["resolve"])
            case _:
                db.maintain(steps=["index"])
        keys = {"a": rng.sample(range(9), 2), "b": ["x", "z" * 1200]}
        everything = table.to_arrow().to_pylist()
        expected = [row for row in everything if row["a"] in keys["a"] and row["b"] in keys["b"]]
        found = table.scan(where=keys).to_arrow().to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize("ranges", [1, 2])
def test_a_predicate_lists_the_values_of_a_key_s_column_if_they_are_few_and_else_has_ranges(ranges: int) -> None:
    keys = {1: pa.array([1, 2] * 50), 2: pa.array([*range(50), *range(1_000, 1_050)])}
    rows = {1: pa.array([1, 3, 2, 2, 1]), 2: pa.array([0, 0, 500, 1_049, 1_050])}
    found = matches(where_key_in(keys, 10, ranges=ranges), rows, 5)
    assert to_mask(found).tolist() == [True, False, ranges == 1, True, False]
