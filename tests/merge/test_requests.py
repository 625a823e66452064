"""What updates and merges ask of the store, to the request: files that cannot match are never read."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Commit, Database, Expression
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

FILES = 1_000
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
PLUS = {"n": "target.n + source.n"}


@pytest.fixture(scope="module")
def bucket_of_many() -> MemoryBucket:
    """A table of 1,000 files of ten rows, each with its own range of ids."""
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket, Runtime()), Runtime())
    db.set(root_bytes="16MB")  # all files stand in the manifest
    table = db.create_table("t", SCHEMA, primary_key="id")
    with db.transaction() as tx:
        for number in range(FILES):
            ids = range(10 * number, 10 * number + 10)
            tx.table("t").append({"id": ids, "n": [0] * 10, "text": ["x"] * 10})
    assert table.describe()["files"] == FILES
    return bucket


def opened(bucket: MemoryBucket) -> tuple[Table, CountingStore]:
    """The table in a copy of the bucket; its manifest is known."""
    own = MemoryBucket()
    own.objects.update(bucket.objects)
    store = CountingStore(MemoryStore(own, Runtime()))
    table = Database(store, Runtime()).table("t")
    table.describe()
    return table, store


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "act"),
    [
        (1, lambda table: table.update({"n": Expression("n + 1")}, "id = 5003")),
        (1, lambda table: table.update({"n": 1, "text": "y"}, "id = 5013 AND text = 'x'")),
        (2, lambda table: table.update({"n": 1}, "id BETWEEN 5028 AND 5031")),
        (1, lambda table: table.merge([{"id": 5043, "n": 1}], "id")),
        (1, lambda table: table.merge([{"id": 5053, "n": 1}], "id", PLUS, None)),
        (3, lambda table: table.merge({"id": [10, 5063, 9_990], "n": [1, 1, 1]}, "id", PLUS)),
        (1, lambda table: table.merge({"id": [5073, 50_000], "n": [1, 1]}, "id", PLUS)),
        (20, lambda table: table.merge({"id": range(7, 10_000, 500), "n": [1] * 20}, "id", PLUS, None)),
    ],
)
def test_of_a_thousand_files_those_that_may_match_are_read(
    bucket_of_many: MemoryBucket, files: int, act: Callable[[Table], Commit]
) -> None:
    table, store = opened(bucket_of_many)
    store.reset()
    done = act(table)
    assert done.counts.rows_deleted == max(1, files if files != 2 else 4)
    assert store.gets == 1 + files, "the pointer, and each file that may match"
    assert (store.puts, store.lists, store.heads) == (4, 0, 0), "a data file, positions, manifest, pointer"


@pytest.mark.slow
def test_an_update_that_can_match_no_file_reads_the_pointer_alone(bucket_of_many: MemoryBucket) -> None:
    table, store = opened(bucket_of_many)
    for act in (
        lambda: table.update({"n": 1}, "id = -5"),
        lambda: table.merge([{"id": -5, "n": 1}], "id", "update", None),
    ):
        store.reset()
        assert act().operation == "nothing"
        assert (store.gets, store.puts) == (1, 0)


def test_a_merge_that_only_inserts_reads_no_file_without_its_keys(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append({"id": range(10), "n": [0] * 10})
    store.reset()
    table.merge([{"id": 10, "n": 1}], "id")
    assert (store.gets, store.puts) == (1, 3), "the pointer; a data file, manifest, pointer"


def test_columns_that_become_constants_are_not_read(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA)
    rows = 100_000
    table.append({"id": range(rows), "n": [0] * rows, "text": [blake2b(b"%d" % i).hexdigest() for i in range(rows)]})

    def bytes_read(values: dict[str, Any]) -> int:
        tx = db.transaction()
        tx.table("t").count("id < 0")  # reads the manifest, and the footer
        store.reset()
        tx.table("t").update(values, "id < 10")
        return store.bytes_down

    assert bytes_read({"text": "x"}) < bytes_read({"n": 1}) / 4


@pytest.mark.slow
def test_rows_of_many_small_files_are_computed_together(bucket_of_many: MemoryBucket) -> None:
    table, _ = opened(bucket_of_many)
    done = table.merge({"id": range(0, 10_000, 5), "n": [1] * 2_000}, "id", {"n": "target.n + source.n"}, None)
    assert (done.counts.rows_added, done.counts.rows_deleted) == (2_000, 2_000)
    done = table.update({"n": Expression("n + 1")}, "n = 1 AND id < 5000")
    assert done.counts.rows_deleted == 1_000
    assert [table.count(f"n = {n}") for n in range(3)] == [8_000, 1_000, 1_000]
    assert table.count("id % 5 = 0 AND n = 0") == 0
