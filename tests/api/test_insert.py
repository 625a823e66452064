"""Inserts: a key is there once, whatever others commit meanwhile, and an attempt reads only what it must."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dolmen import Database, Table
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.entries.index import sorting
from dolmen.entries.index.sorting import KeyRuns
from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    CorruptionError,
    DuplicateKeyError,
    InputError,
    RowError,
    TableNotFoundError,
)
from dolmen.format.layout import POINTER
from dolmen.rows.scan import rows_by_key
from dolmen.store import MemoryBucket, MemoryStore
from dolmen.store.base import PutOutcome
from dolmen.transactions import row_statements
from dolmen_simulator.counting import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])


class RacingStore(MemoryStore):
    """A store on which others commit just before the pointers of this process arrive."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket)
        self.meanwhile: list[Callable[[], object]] = []

    def put(self, key: str, body: bytes | bytearray | memoryview, *, if_match: str | None = None) -> PutOutcome:
        if key == POINTER and self.meanwhile:
            self.meanwhile.pop(0)()
        return super().put(key, body, if_match=if_match)


class World:
    """Two processes on one database with a table ``t``: ours, and another that commits before our pointers."""

    def __init__(self, index: bool = False, schema: pa.Schema = SCHEMA) -> None:
        self.bucket = MemoryBucket()
        self.racing = RacingStore(self.bucket)
        self.store = CountingStore(self.racing)
        self.db = Database(self.store, Runtime(threads=1))
        self.table = self.db.create_table("t", schema, primary_key=["id"], properties={"index": index})
        self.other = Database(MemoryStore(self.bucket), Runtime(threads=1))

    @property
    def others(self) -> Table:
        return self.other.table("t")

    def meanwhile(self, *actions: Callable[[], object]) -> None:
        self.racing.meanwhile += actions

    def ids(self) -> list[int]:
        return sorted(self.others.to_arrow()["id"].to_pylist())


def rows(*ids: int, n: int = 0) -> list[dict[str, Any]]:
    return [{"id": id_, "n": n} for id_ in ids]


@pytest.mark.parametrize("index", [False, True])
def test_a_key_that_is_there_is_refused_and_named(index: bool) -> None:
    world = World(index)
    done = world.table.insert(rows(1, 2, 3))
    assert (done.rows, done.operation, done.done) == (3, "insert", "insert t")
    world.db.maintain()
    with pytest.raises(DuplicateKeyError) as caught:
        world.table.insert(rows(3, 4, 1))
    error = caught.value
    assert (error.table, error.columns, error.count, error.in_rows) == ("t", ("id",), 2, False)
    assert sorted(error.keys) == [(1,), (3,)]
    assert "2 keys (id): 1, 3" in str(error)
    assert "upsert" in str(error)
    assert world.ids() == [1, 2, 3], "nothing was added"


def test_a_key_that_two_rows_have_is_refused() -> None:
    world = World()
    with pytest.raises(DuplicateKeyError, match=r"1 key \(id\): 7") as caught:
        world.table.insert(rows(7, 8, 7, 7))
    assert (caught.value.in_rows, caught.value.count) == (True, 1)
    assert world.ids() == []


def test_an_error_names_ten_keys_and_counts_all() -> None:
    world = World()
    world.table.insert(rows(*range(30)))
    with pytest.raises(DuplicateKeyError, match=r"30 keys \(id\): 0, .*, 9 and 20 more") as caught:
        world.table.insert(rows(*range(40)))
    assert (len(caught.value.keys), caught.value.count) == (10, 30)


def test_keys_of_several_columns_are_named_whole_and_long_texts_are_cut() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    schema = pa.schema([pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), ("c", pa.bool_())])
    table = db.create_table("t", schema, primary_key=["b", "a"])
    table.insert([{"a": a, "b": b} for a in ("x", "z" * 3000) for b in range(2)])
    table.insert([{"a": "x\0", "b": 1}, {"a": "", "b": 1}, {"a": "z" * 2999, "b": 1}])
    with pytest.raises(DuplicateKeyError, match=r"2 keys \(b, a\): \(1, 'x'\), \(1, 'z{76}\.\.\.\)"):
        table.insert([{"a": "x", "b": 1}, {"a": "z" * 3000, "b": 1}, {"a": "x", "b": 5}])


def test_a_null_in_a_key_is_refused_as_by_an_upsert() -> None:
    world = World(schema=pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    with pytest.raises(RowError, match="row 2, column 'id': NULL"):
        world.table.insert([{"id": 1}, {"id": None}])


def test_a_table_without_a_key_takes_no_inserts() -> None:
    db = Database(MemoryStore(MemoryBucket()), Runtime(threads=1))
    table = db.create_table("t", SCHEMA)
    with pytest.raises(InputError, match=r"table 't'.*primary key"):
        table.insert(rows(1))


def test_no_rows_make_no_version() -> None:
    world = World()
    assert world.table.insert([]).operation == "nothing"
    assert world.table.insert(pa.table({"id": [], "n": []}, SCHEMA)).version == 1


@pytest.mark.parametrize("by", ["frame", "reader", "batches"])
def test_rows_come_as_for_an_append(by: str) -> None:
    world = World()
    data = pa.table({"id": [1, 2], "n": [3, 4]}, SCHEMA)
    given = {"frame": data.to_pandas(), "reader": data.to_reader(), "batches": data.to_batches()[0]}[by]
    world.table.insert(given)
    assert world.ids() == [1, 2]


def test_a_deleted_key_may_be_inserted_again() -> None:
    world = World()
    world.table.insert(rows(1, 2, 3))
    world.table.delete(keys=[1])
    world.table.delete("id = 2", mode="positions")
    world.table.insert(rows(1, 2, n=1))
    assert world.ids() == [1, 2, 3]
    with pytest.raises(DuplicateKeyError):
        world.table.insert(rows(3))


MEANWHILE: dict[str, tuple[Callable[[World], object], object]] = {
    "an insert of the key": (lambda w: w.others.insert(rows(5, n=9)), DuplicateKeyError),
    "an insert of another key": (lambda w: w.others.insert(rows(6)), [1, 2, 5, 6]),
    "an append of the key": (lambda w: w.others.append(rows(5, n=9)), DuplicateKeyError),
    "an append of another key": (lambda w: w.others.append(rows(6)), [1, 2, 5, 6]),
    "an upsert of the key": (lambda w: w.others.upsert(rows(5, n=9)), DuplicateKeyError),
    "an upsert of another key": (lambda w: w.others.upsert(rows(2, n=9)), [1, 2, 5]),
    "an upsert and a delete of the key": (
        lambda w: (w.others.upsert(rows(5)), w.others.delete(keys=[5])),
        [1, 2, 5],
    ),
    "an append and a delete by position": (
        lambda w: (w.others.append(rows(5, 6)), w.others.delete("id = 5", mode="positions")),
        [1, 2, 5, 6],
    ),
    "an update": (lambda w: w.others.update({"n": 5}, "id = 1"), [1, 2, 5]),
    "a merge with the key": (lambda w: w.others.merge(rows(5, n=9), "id"), DuplicateKeyError),
    "a delete": (lambda w: w.others.delete("id = 1"), [2, 5]),
    "an overwrite with the key": (lambda w: w.others.overwrite(rows(5)), DuplicateKeyError),
    "an overwrite without it": (lambda w: w.others.overwrite(rows(7)), [5, 7]),
    "a restore of a version with the key": (lambda w: w.others.restore(2), DuplicateKeyError),
    "a restore of a version without it": (lambda w: w.others.restore(1), [5]),
    "background work": (lambda w: w.other.maintain(), [1, 2, 5]),
    "an append of the key, which is compacted": (
        lambda w: (w.others.append(rows(5)), w.others.append(rows(6)), w.other.maintain()),
        DuplicateKeyError,
    ),
    "an append of another key, which is compacted": (
        lambda w: (w.others.append(rows(6)), w.others.append(rows(7)), w.other.maintain()),
        [1, 2, 5, 6, 7],
    ),
    "an erasure of another key": (lambda w: w.others.erase("id = 1"), [2, 5]),
    "the index dropped": (lambda w: w.others.set(index=False), [1, 2, 5]),
    "a column more": (lambda w: w.others.add_column("m", pa.int64()), [1, 2, 5]),
    "the key under another name": (
        lambda w: (w.others.rename_column("id", "key"), w.others.rename_column("key", "id")),
        [1, 2, 5],
    ),
    "a drop": (lambda w: w.other.drop_table("t"), TableNotFoundError),
    "another table of the name": (
        lambda w: (w.other.drop_table("t"), w.other.create_table("t", SCHEMA, primary_key="id")),
        ConflictError,
    ),
    "another name": (lambda w: w.other.rename_table("t", "u"), ConflictError),
}


@pytest.mark.parametrize("index", [False, True], ids=["", "indexed"])
@pytest.mark.parametrize("name", MEANWHILE)
def test_an_insert_is_right_beside(name: str, index: bool) -> None:
    world = World(index)
    world.others.append(rows(5))  # version 2
    world.others.delete(keys=[5])
    world.others.append(rows(1, 2))
    if index:
        world.other.maintain(steps=["index"])
    world.table.count()
    action, expected = MEANWHILE[name]
    world.meanwhile(lambda: action(world))
    if isinstance(expected, type):
        with pytest.raises(expected):
            world.table.insert(rows(5))
    else:
        assert world.table.insert(rows(5)).attempts == 2
        assert world.ids() == expected


def test_of_two_that_race_one_wins_and_the_other_is_told() -> None:
    world = World()
    world.meanwhile(lambda: world.others.insert(rows(1, 2, n=1)))
    with pytest.raises(DuplicateKeyError) as caught:
        world.table.insert(rows(2, 3, n=2))
    assert caught.value.keys == ((2,),)
    assert sorted(world.others.to_arrow()["n"].to_pylist()) == [1, 1]


def test_a_wider_key_is_compared_as_such() -> None:
    world = World(schema=pa.schema([pa.field("id", pa.int32(), False)]))
    world.table.insert([{"id": 1}])
    world.meanwhile(lambda: world.others.widen_column("id", pa.int64()))
    world.table.insert([{"id": 2}])
    with pytest.raises(DuplicateKeyError):
        world.table.insert([{"id": 1}])
    world.meanwhile(lambda: world.others.insert([{"id": 3}]), lambda: world.others.insert([{"id": 4}]))
    with pytest.raises(DuplicateKeyError):
        world.table.insert([{"id": 4}])


def test_a_key_of_days_that_became_times_meanwhile_is_a_conflict() -> None:
    world = World(schema=pa.schema([pa.field("id", pa.date32(), False)]))
    world.meanwhile(lambda: world.others.widen_column("id", pa.timestamp("us")))
    with pytest.raises(ConflictError, match=r"type.*key"):
        world.table.insert([{"id": date(2026, 1, 1)}])


def test_a_duplicate_in_an_old_version_is_no_reason() -> None:
    world = World()
    world.table.insert(rows(1))
    world.others.delete(keys=[1])
    assert world.table.insert(rows(1, n=2)).version == 4, "this process knew version 2"


def test_a_request_is_applied_once_whoever_sends_it() -> None:
    world = World()
    first = world.table.insert(rows(1, 2), request="a")
    assert world.table.insert(rows(1, 2), request="a").already == {"a": first.version}
    again = world.others.insert(rows(3), request="b")
    assert world.table.insert(rows(3), request="b").already == {"b": again.version}, "the base was too old to know"
    world.meanwhile(lambda: world.others.insert(rows(4), request="c"))
    assert world.table.insert(rows(4), request="c").already == {"c": again.version + 1}
    with pytest.raises(AppliedIdError):
        world.table.insert(rows(9), request="a")
    with pytest.raises(AppliedIdError):
        world.table.append(rows(1, 2), request="a")
    assert world.ids() == [1, 2, 3, 4]


def test_a_transaction_inserts_beside_its_other_statements() -> None:
    world = World()
    world.table.append(rows(1, 2))
    with world.db.transaction() as tx:
        table = tx.table("t")
        table.delete(keys=[1])
        table.insert(rows(1, n=5))
        table.append(rows(3))
        for taken in (1, 2, 3):
            with pytest.raises(DuplicateKeyError):
                table.insert(rows(taken, 9))
        table.insert(rows(4))
        with pytest.raises(DuplicateKeyError):
            table.insert(rows(4))
        fresh = tx.create_table("u", SCHEMA, primary_key="id")
        fresh.insert(rows(1))
        with pytest.raises(DuplicateKeyError):
            fresh.insert(rows(1))
    assert world.ids() == [1, 2, 3, 4]
    assert world.table.get(1) == {"id": 1, "n": 5}


@pytest.mark.parametrize("first", ["delete", "append", "overwrite", "restore"])
def test_a_transaction_that_is_tried_again_compares_with_its_own_statements(first: str) -> None:
    world = World()
    world.table.append(rows(1))
    world.table.append(rows(2))

    def begin() -> Any:
        tx = world.db.transaction()
        table = tx.table("t")
        if first == "delete":
            table.delete("TRUE")
        elif first == "append":
            table.append(rows(4))
        elif first == "overwrite":
            table.overwrite(rows(4), force=True)
        else:
            table.restore(2)
        table.insert(rows(5))
        return tx

    tx = begin()
    world.meanwhile(lambda: world.others.insert(rows(5, 6)))
    if first == "append":
        with pytest.raises(DuplicateKeyError):
            tx.commit()
    else:  # theirs goes by our first statement
        tx.commit()
        assert world.ids() == {"delete": [5], "overwrite": [4, 5], "restore": [1, 5]}[first]


def test_an_insert_conflicts_with_no_read_of_its_transaction_but_those_it_made() -> None:
    world = World()
    tx = world.db.transaction()
    tx.table("t").insert(rows(1))
    world.others.append(rows(2))
    tx.commit()
    assert world.ids() == [1, 2]


def test_keys_beyond_all_bounds_cost_an_append() -> None:
    world = World()
    world.table.append(rows(*range(100)))
    world.table.append(rows(*range(200, 300)))
    world.store.reset()
    world.table.insert(rows(*range(100, 200)))
    assert (world.store.puts, world.store.gets) == (3, 0)


def test_an_attempt_reads_only_what_came_since_the_last_one() -> None:
    world = World()
    for start in range(3):
        world.table.append(rows(*range(start, 300, 3)))
    table = Database(world.store, Runtime(threads=1)).table("t")
    table.count()
    world.store.reset()
    world.meanwhile(
        lambda: world.others.append(rows(500, 700)),
        lambda: world.others.append(rows(1000)),
        lambda: world.others.delete("id = 1"),
    )
    done = table.insert(rows(600, 299_000, 601))
    assert done.attempts == 3, "the third commit comes before a turn"
    lost = 2 * (2 + 1)  # the pointer for the readback and for the next attempt, and the winner's manifest
    turn = 2  # the pointer, once more, and that winner's manifest
    assert world.store.gets == lost + turn + 1, "of all files one may have the keys, and it came meanwhile"


def test_a_failing_insert_writes_nothing() -> None:
    world = World()
    world.table.append(rows(1))
    world.store.reset()
    with pytest.raises(DuplicateKeyError):
        world.table.insert(rows(1))
    assert world.store.puts == 0


def test_an_index_finds_keys_in_few_pages() -> None:
    world = World(index=True)
    source = np.random.default_rng(1)
    ids = source.permutation(400_000) * 2
    for part in np.split(ids, 4):
        world.table.append(pa.table({"id": part, "n": part}, SCHEMA))
    world.db.maintain(steps=["index"])
    table = Database(world.store, Runtime(threads=1)).table("t")
    table.count()
    world.store.reset()
    table.insert(rows(77_777, 777_777))
    assert world.store.puts == 3
    assert world.store.gets <= 4, "the root block, and a page for each key"
    assert world.store.bytes_down < 1_000_000
    world.store.reset()
    with pytest.raises(DuplicateKeyError):
        table.insert(rows(77_778))
    assert world.store.gets <= 3, "the pointer before and after, and a leaf: nothing of a data file"


@pytest.mark.slow
@pytest.mark.parametrize("held", [0, 1 << 40])
def test_rows_are_streamed_and_their_keys_wait_in_files(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(row_statements, "BUFFER_BYTES", held)
    monkeypatch.setattr(row_statements, "KeyRuns", lambda schema: KeyRuns(schema, run_bytes=4_000))
    monkeypatch.setattr(sorting, "_BLOCK_ROWS", 300)
    monkeypatch.setattr(rows_by_key, "MOST_LISTED_KEYS", 100)
    world = World()
    source = np.random.default_rng(7)
    ids = source.permutation(20_000)

    def batches(some: np.ndarray) -> pa.RecordBatchReader:
        parts = [pa.record_batch({"id": part, "n": part}, SCHEMA) for part in np.array_split(some, 11)]
        return pa.RecordBatchReader.from_batches(SCHEMA, parts)

    world.meanwhile(lambda: world.others.append(rows(-1, 20_000)))
    assert world.table.insert(batches(ids[:10_000])).rows == 10_000
    with pytest.raises(DuplicateKeyError) as caught:
        world.table.insert(batches(ids[9_990:]))
    assert caught.value.count == 10
    assert {key for (key,) in caught.value.keys} == set(ids[9_990:10_000].tolist())
    with pytest.raises(DuplicateKeyError) as caught:
        world.table.insert(batches(np.concatenate([ids[10_000:], ids[-3:]])))
    assert (caught.value.count, caught.value.in_rows) == (3, True)
    world.meanwhile(lambda: world.others.insert(rows(int(ids[15_000]))))
    with pytest.raises(DuplicateKeyError) as caught:
        world.table.insert(batches(ids[10_000:]))
    assert caught.value.keys == ((int(ids[15_000]),),)
    assert world.others.count() == 10_003


@pytest.mark.parametrize("prefix", ["segment/index/", "data/t/"])
@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_what_cannot_be_read_adds_nothing(prefix: str, fault: str) -> None:
    world = World(index=True)
    source = np.random.default_rng(1)
    ids = source.permutation(100_000) * 2
    for part in np.split(ids, 2):
        world.table.append(pa.table({"id": part, "n": part}, SCHEMA))
    world.db.maintain(steps=["index"])
    objects = world.bucket.objects
    for key in [key for key in objects if key.startswith(prefix)]:
        if fault == "missing":
            del objects[key]
        else:
            body = bytearray(objects[key].body)
            body[4:-2000] = bytes(len(body) - 2004)
            objects[key] = replace(objects[key], body=bytes(body))
    table = Database(MemoryStore(world.bucket), Runtime(threads=1)).table("t")
    before = world.others._snapshot().version
    if prefix == "data/t/":
        with pytest.raises(DuplicateKeyError):  # the index knows the key, and that its row is there: no file is read
            table.insert(rows(int(ids[0])))
    else:
        with pytest.raises(CorruptionError, match=prefix):
            table.insert(rows(int(ids[0])))
    assert world.others._snapshot().version == before
