"""Look-ups by primary key: what they find, with and without an index, in each version, and with how many requests."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, InputError, SchemaError
from dolmen.format.manifest import INDEXES, Segment
from dolmen.store import MemoryBucket, MemoryStore
from dolmen.store.local_store import LocalStore
from dolmen.transactions.snapshot import PinnedTable
from dolmen_simulator.counting import CountingStore

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), pa.field("s", pa.string())])


def rows(ids: list[int], n: int = 0) -> pa.Table:
    return pa.table({"id": ids, "n": [n] * len(ids), "s": [f"row {id_}" for id_ in ids]}, SCHEMA)


class World:
    """A database with a table ``t`` of an index, on a store that counts."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket()
        self.store = CountingStore(MemoryStore(self.bucket))
        self.db = Database(self.store, Runtime(threads=1))
        self.table = self.db.create_table("t", SCHEMA, primary_key=["id"], properties={"index": True})

    def anew(self) -> PinnedTable:
        """The newest version as a process sees it that has just opened it, which is not counted."""
        db = Database(self.store, Runtime(threads=1))
        table = db.at(db.version).table("t")
        self.store.reset()
        return table

    def parts(self) -> tuple[Segment, ...]:
        context = context_of(self.table)
        manifest = context.head.refresh().manifest
        return context.segments.whole(manifest.tables["t"]).segments_of("index")


def numbers(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_get_returns_a_row_or_none() -> None:
    world = World()
    world.table.append(rows([1, 2, 3]))
    for _ in range(2):
        assert world.table.get(2) == {"id": 2, "n": 0, "s": "row 2"}
        assert world.table.get(2, ["s"]) == {"s": "row 2"}
        assert world.table.get(4) is None
        assert numbers(world.table.get_many([3, 1, 3, 9])) == [1, 3]
        assert world.table.get_many([], ["n"]).schema.names == ["n"]
        world.db.maintain()
    assert len(world.parts()) == 1
    assert INDEXES in context_of(world.table).head.refresh().manifest.features


def test_the_youngest_of_several_rows_is_the_one() -> None:
    world = World()
    for n in (1, 2, 3):
        world.table.append(rows([7], n))
    assert world.table.get(7) == {"id": 7, "n": 3, "s": "row 7"}
    world.db.maintain(steps=["index"])
    assert world.table.get(7) == {"id": 7, "n": 3, "s": "row 7"}
    assert sorted(world.table.get_many([7])["n"].to_pylist()) == [1, 2, 3]


def test_deleted_rows_are_not_found_in_the_newest_version_and_are_in_older_ones() -> None:
    world = World()
    world.table.append(rows([1, 2, 3, 4]))
    world.db.maintain(steps=["index"])
    before = world.db.version
    world.table.delete("id = 1")
    world.table.delete(keys=[2])
    world.table.delete("id = 3", mode="positions")
    assert numbers(world.table.get_many([1, 2, 3, 4])) == [4]
    assert world.table.at(before).get(1) is not None
    assert numbers(world.db.at(before).table("t").get_many([1, 2, 3, 4])) == [1, 2, 3, 4]


def test_a_transaction_sees_its_own_rows() -> None:
    world = World()
    world.table.append(rows([1, 2]))
    world.db.maintain(steps=["index"])
    with world.db.transaction() as tx:
        table = tx.table("t")
        table.upsert(rows([2, 3], 9))
        assert [table.get(key)["n"] for key in (1, 2, 3)] == [0, 9, 9]  # type: ignore[index]
        table.delete("id = 1")
        assert table.get(1) is None


def test_a_transaction_that_looked_a_key_up_fails_when_the_key_comes_meanwhile() -> None:
    world = World()
    world.table.append(rows([1]))
    tx = world.db.transaction()
    assert tx.table("t").get(5) is None
    tx.table("t").append(rows([6]))
    world.table.append(rows([5]))
    with pytest.raises(ConflictError):
        tx.commit()


def test_keys_of_several_columns() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    schema = pa.schema([pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), pa.field("c", pa.bool_())])
    table = db.create_table("t", schema, primary_key=["b", "a"], properties={"index": True})
    table.append([{"a": a, "b": b, "c": True} for a in ("x", "y\0", "z" * 2000) for b in range(3)])
    for _ in range(2):
        assert table.get((1, "z" * 2000), ["b"]) == {"b": 1}
        found = table.get_many([(0, "x"), (2, "y\0"), (2, "y"), (7, "x")])
        assert {(row["b"], row["a"]) for row in found.to_pylist()} == {(0, "x"), (2, "y\0")}
        db.maintain(steps=["index"])


def test_an_index_needs_a_primary_key() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    with pytest.raises(SchemaError, match="primary key"):
        db.create_table("t", SCHEMA, properties={"index": True})
    table = db.create_table("t", SCHEMA)
    with pytest.raises(SchemaError, match="primary key"):
        table.set(index=True)
    with pytest.raises(InputError, match="primary key"):
        table.get(1)


@pytest.mark.slow
def test_a_look_up_reads_a_row_group_of_one_file() -> None:
    world = World()
    world.table.set(key_filter_bits=64)  # so that no filter is wrong about one of the many row groups
    random_source = np.random.default_rng(1)
    ids = random_source.permutation(400_000)
    for part in np.split(ids, 4):  # each file has keys of the whole range
        world.table.append(
            pa.table({"id": part, "n": part, "s": [random_source.bytes(12).hex() for _ in part]}, SCHEMA)
        )
    table = world.anew()
    assert table.get(int(ids[5])) is not None
    assert world.store.gets == 4 + 1, "without an index: footer and filters of each file, and the rows of one"
    without = world.store.bytes_down
    world.db.maintain(steps=["index"])
    table = world.anew()
    assert table.get(int(ids[5])) is not None
    assert world.store.gets == 3, "root block, leaf, and the columns of a row group but the key's, side by side"
    assert world.store.bytes_down < 200_000 < without
    world.store.reset()
    assert table.get(int(ids[5])) is not None
    assert world.store.gets == 0, "warm: all is in the cache"
    world.store.reset()
    assert table.get(-1) is None
    assert world.store.gets == 0, "it is beyond all bounds"


def test_an_index_without_places_of_column_chunks_is_read_by_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ids = World(), np.random.default_rng(1).permutation(200_000)
    for part in np.split(ids, 2):
        world.table.append(pa.table({"id": part, "n": part, "s": [f"row {id_}" * 5 for id_ in part]}, SCHEMA))
    with monkeypatch.context() as patched:  # as an older dolmen has made it
        patched.setattr("dolmen.entries.index.table_index.MOST_CHUNKS", 0)
        world.db.maintain(steps=["index"])
    (part,) = world.parts()
    before = world.anew()
    found = before.get(int(ids[5]))
    assert found is not None
    assert world.store.gets == 4, "root block, leaf, footer, and the pages, which are not far apart"
    for start in range(2):
        world.table.append(rows([-1 - start]))
        world.db.maintain(steps=["index"])
    assert len(world.parts()) == 3
    table = world.anew()
    assert table.get(int(ids[5])) == found
    assert world.store.gets == 6, "the root blocks of two parts more"
    world.table.append(rows([-3]))
    world.db.maintain(steps=["index"])
    assert world.db.verify(deep=True).findings == ()
    assert world.anew().get_many([-3, -2, -1, int(ids[5])]).num_rows == 4


@pytest.mark.slow
def test_look_ups_find_what_scans_find_whatever_has_happened() -> None:
    rng = random.Random(SEED)
    world = World()
    versions: list[tuple[int, list[int]]] = []
    for step in range(60):
        some = rng.sample(range(200), 20)
        match rng.randrange(9):
            case 0 | 1:
                world.table.append(rows(some, step))
            case 2 | 3:
                world.table.upsert(rows(some, step))
            case 4:
                world.table.delete(keys=some[:5])
            case 5:
                world.table.delete(f"n < {step - 20}", mode=rng.choice(["tombstone", "positions"]))
            case 6:
                world.db.maintain(steps=["resolve", "compact"])
            case _:
                world.db.maintain(steps=["index"])
        keys = rng.sample(range(200), 50)
        scanned = world.table.scan(where={"id": keys}).to_arrow()
        order = [("id", "ascending"), ("n", "ascending")]
        assert world.table.get_many(keys).sort_by(order) == scanned.sort_by(order)
        versions.append((world.db.version, numbers(world.table.to_arrow())))
        version, there = rng.choice(versions)
        assert numbers(world.table.at(version).get_many(list(range(200)))) == there
    assert world.parts()
    assert world.db.verify(deep=True).findings == ()


def test_parts_are_merged_and_the_rows_of_dead_files_leave_them() -> None:
    world = World()
    for start in range(0, 64, 4):
        world.table.append(rows([start, start + 1, start + 2, start + 3]))
        world.db.maintain(steps=["index"])
    assert sum(part.count for part in world.parts()) == 64
    assert len(world.parts()) < 8
    world.db.compact("t")
    world.db.maintain(steps=["index"])
    assert sum(part.count for part in world.parts()) == 64
    assert numbers(world.table.get_many(range(64))) == list(range(64))


def test_an_index_that_is_switched_off_goes() -> None:
    world = World()
    world.table.append(rows([1]))
    world.db.maintain(steps=["index"])
    world.table.set(index=False)
    world.db.maintain(steps=["index"])
    assert world.parts() == ()
    assert world.table.get(1) is not None


def test_erasing_rows_drops_the_index_and_files_that_may_hold_them_have_none_until_rewritten() -> None:
    world = World()
    world.table.append(rows([1, 2]))
    world.table.append(rows([3]))
    world.db.maintain(steps=["index"])
    version = world.db.version
    world.table.erase("id = 1")
    assert world.parts() == ()
    world.db.maintain(steps=["index"])
    assert world.parts() == (), "the tombstone may match rows of every file"
    world.db.maintain(steps=["resolve", "index"])
    assert [part.count for part in world.parts()] == [1]
    assert world.table.get(1) is None
    assert world.table.get(2) is not None
    assert world.table.at(version).get(1) is None
    world.table.restore(version)
    assert world.parts() == ()


def test_a_clone_and_a_restored_table_begin_without_an_index() -> None:
    world = World()
    world.table.append(rows([1, 2]))
    world.db.maintain(steps=["index"])
    clone = world.db.clone("t", "c")
    assert clone.get(1) is not None
    world.db.maintain(steps=["index"])
    assert clone.get(1) is not None
    version = world.db.version
    world.table.overwrite(rows([9]))
    assert world.table.get(1) is None
    world.table.restore(version)
    assert world.table.get(1) is not None


def test_a_repeated_lookup_by_index_in_a_directory_needs_no_thread(tmp_path: Path) -> None:
    runtime = Runtime(threads=4, cores=2)
    db = Database(LocalStore(tmp_path), runtime)
    table = db.create_table("t", SCHEMA, primary_key=["id"], properties={"index": True})
    table.append(rows([*range(5_000)]))
    db.maintain(steps=["index"])
    pinned = db.at(db.version).table("t")
    found = pinned.get(7)
    assert found == {"id": 7, "n": 0, "s": "row 7"}
    runtime._pool.shutdown()
    runtime._processors.shutdown()  # from now on, a task for a thread is an error
    assert pinned.get(7) == found
    assert pinned.get(5_000) is None
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        pinned.scan().to_arrow()
