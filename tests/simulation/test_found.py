"""What histories have brought to light, as short stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.base.runtime import Runtime
from dolmen.errors import TableNotFoundError, UnsettledTimestampError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.base import Buffer, Deleted, ObjectInfo, PutOutcome
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of
from simulation.interrupted import Interrupted

SCHEMA = pa.schema([("k", pa.int64())])


def open_database(bucket: MemoryBucket) -> Database:
    runtime = Runtime(clock_us=bucket.clock_us, sleep=lambda seconds: None, threads=1)
    return Database(MemoryStore(bucket, runtime), runtime)


def test_a_redelivered_request_is_not_seen_twice_by_later_statements_of_its_batch() -> None:
    """The delete looked up positions in the rows of a request that was applied before, and so never committed."""
    db = open_database(MemoryBucket())
    db.create_table("t", SCHEMA)

    def first(transaction: Transaction) -> None:
        transaction.bind("a", "digest of a")
        transaction.table("t").append(pa.table({"k": [1, 2]}), request="a")

    def both(transaction: Transaction) -> int:
        first(transaction)
        seen = transaction.table("t").count()
        transaction.bind("b", "digest of b")
        transaction.table("t").delete("k = 1", mode="positions", request="b")
        return seen

    db.run(first)
    assert db.run(both) == 2
    assert db.table("t").to_arrow()["k"].to_pylist() == [2]
    assert db.run(both) == 1
    assert db.version == 3


def test_a_table_that_another_process_dropped_can_be_created_again() -> None:
    """The first process still had the table in its cached version, and called it existing without another look."""
    bucket = MemoryBucket()
    first, second = open_database(bucket), open_database(bucket)
    first.create_table("t", SCHEMA)
    second.drop_table("t")
    first.create_table("t", SCHEMA)
    assert second.tables() == ["t"]


def test_a_transaction_that_has_looked_into_its_version_does_not_move_to_another() -> None:
    """Seed 700086: a delete by position found nothing in version 2, and the rest was made on version 5."""
    bucket = MemoryBucket()
    first, second = open_database(bucket), open_database(bucket)
    first.create_table("a", SCHEMA)
    with first.transaction() as transaction:
        transaction.table("a").delete("k = 1", mode="positions")
        second.table("a").append(pa.table({"k": [1]}))
        second.create_table("b", SCHEMA)
        with pytest.raises(TableNotFoundError):
            transaction.table("b")
    assert second.table("a").count() == 1


def test_an_idle_table_is_read_and_deleted_from_by_position_like_any_other() -> None:
    """Seed 108: of a table whose whole entry had been spilled, the schema was taken from what is left in the root."""
    db = open_database(MemoryBucket())
    db.create_table("idle", SCHEMA)
    db.create_table("busy", SCHEMA)
    for first in range(0, 50, 5):
        db.table("idle").append(pa.table({"k": list(range(first, first + 5))}))
    db.set(root_bytes="4KB")
    for _ in range(80):
        db.table("busy").append(pa.table({"k": [1]}))
    head = db._context.head.cached
    assert head is not None
    assert head.manifest.tables["idle"].section is not None

    def move(transaction: Transaction) -> None:
        transaction.table("idle").delete("k < 10", mode="positions")
        rows = transaction.table("idle").count("k >= 40")
        db.table("idle").append(pa.table({"k": [20]}))  # does not change what was read
        transaction.table("busy").append(pa.table({"k": [rows]}))

    with db.transaction() as transaction:
        move(transaction)
    assert db.table("idle").count() == 41


class Refusing(MemoryStore):
    """Deletes no data files and no tombstones."""

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        stuck = [key for key in keys if key.startswith(("data/", "tombstone/"))]
        super().delete([key for key in keys if key not in stuck])
        return [Deleted(key, "InternalError" if key in stuck else None) for key in keys]


def test_a_dropped_segment_stays_until_all_that_it_names_is_deleted() -> None:
    """Seed 20260159: what it named could not be deleted, nor could something before it, and it was deleted itself."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    store = Refusing(bucket, runtime)
    db = Database(store, runtime)
    db.set(root_bytes="4KB", retention="1h", keep_versions=1, orphan_age="9000d")
    for name in ("first", "second"):
        db.create_table(name, SCHEMA)
    for k in range(30):
        db.table("second").append(pa.table({"k": [k]}))
        db.table("second").delete(f"k > {k} AND k < 1000")
    db.table("first").append(pa.table({"k": [1]}))
    db.drop_table("first")
    assert db._context.head.refresh().manifest.tables["second"].segments
    db.drop_table("second")
    for _ in range(8):
        now[0] += 86_400_000_000
        collect(db._context)
    assert any(key.startswith("data/second/") for key in bucket.objects)
    for _ in range(8):
        now[0] += 86_400_000_000
        collect(open_database(bucket)._context)
    assert not [key for key in bucket.objects if key.startswith(("data/", "tombstone/", "segment/files/"))]


def test_a_dropped_segment_is_no_orphan_while_something_that_it_names_is_there() -> None:
    """Seed 6000147: of what it named one object could not be deleted, and the same run swept the segment away. Nobody
    looked for the object again, whose name is older than what is swept."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.set(root_bytes="4KB", retention="1h", keep_versions=1, orphan_age="1h")
    db.create_table("t", SCHEMA)
    for k in range(60):
        db.table("t").append(pa.table({"k": [k]}))
    assert db._context.head.refresh().manifest.tables["t"].segments
    for _ in range(4):
        now[0] += 86_400_000_000
        collect(db._context)
    db.drop_table("t")
    refusing = Database(Refusing(bucket, runtime), runtime)
    for _ in range(4):
        now[0] += 86_400_000_000
        collect(refusing._context)
    assert any(key.startswith("data/t/") for key in bucket.objects)
    for _ in range(4):
        now[0] += 86_400_000_000
        collect(open_database(bucket)._context)
    assert not [key for key in bucket.objects if key.startswith(("data/", "segment/files/"))]


def test_a_delete_by_position_is_planned_again_without_the_requests_that_others_have_applied() -> None:
    """History 5000230: of a batch another worker had applied the first delete, to older rows; the rows that this one
    would have taken were left out of the second delete, which matches them too, and so stayed."""
    bucket = MemoryBucket()
    db, other = open_database(bucket), open_database(bucket)
    db.create_table("t", SCHEMA).append(pa.table({"k": [1]}))
    runs = []

    def batch(transaction: Transaction) -> None:
        runs.append(unit_of(transaction).base.version)
        for id_ in ("a", "b", "c"):
            transaction.bind(id_, f"digest of {id_}")
        table = transaction.table("t")
        table.append(pa.table({"k": [5, 6, 7]}), request="a")
        table.delete("k = 6", mode="positions", request="b")
        table.delete("k > 5", mode="positions", request="c")
        if len(runs) == 1:

            def theirs(transaction: Transaction) -> None:
                transaction.bind("b", "digest of b")
                transaction.table("t").delete("k = 6", mode="positions", request="b")

            other.run(theirs)

    db.run(batch)
    assert len(runs) == 2
    assert sorted(db.table("t").to_arrow()["k"].to_pylist()) == [1, 5]


def test_a_delete_by_position_that_found_nothing_is_planned_again_too() -> None:
    """History 6000262: it had found nothing because a delete before it in its batch, which another worker applied to
    older rows, had already taken what it matches."""
    bucket = MemoryBucket()
    db, other = open_database(bucket), open_database(bucket)
    db.create_table("t", SCHEMA)
    runs = []

    def theirs(transaction: Transaction) -> None:
        transaction.bind("a", "digest of a")
        table = transaction.table("t")
        table.delete("k = 8", mode="positions", request="a")

    stale = other.transaction()
    theirs(stale)
    db.table("t").append(pa.table({"k": [7, 8]}))

    def batch(transaction: Transaction) -> None:
        runs.append(unit_of(transaction).base.version)
        for id_ in ("a", "b"):
            transaction.bind(id_, f"digest of {id_}")
        table = transaction.table("t")
        table.delete("k = 8", mode="positions", request="a")
        table.delete("k > 7", mode="positions", request="b")
        if len(runs) == 1:
            stale.commit()

    db.run(batch)
    assert len(runs) == 2
    assert db.table("t").to_arrow()["k"].to_pylist() == [7]


class Listed(MemoryStore):
    """Something happens just before it lists what jobs are under way."""

    meanwhile: Callable[[], None] | None = None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        if self.meanwhile:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().list(prefix, start_after)


def test_a_collection_keeps_what_settings_keep_that_were_made_while_it_planned() -> None:
    """History 8000158: it had planned by a shorter age, and moved the fence long after a longer one was set."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.set(retention="1m", keep_versions=1, reader_grace="1s", orphan_age="1h")
    db.create_table("t", SCHEMA)
    for k in range(5):
        db.table("t").append(pa.table({"k": [k]}))
    now[0] += 2 * 3_600_000_000
    store = Listed(bucket, runtime)
    prolonged = []
    store.meanwhile = lambda: prolonged.append(db.set(retention="30d", keep_versions=100, orphan_age="7d"))
    collect(Database(store, runtime)._context)
    manifest = db._context.head.refresh().manifest
    assert len(prolonged) == 1
    assert manifest.horizon == 0
    assert manifest.orphan_cutoff <= now[0] - 7 * 86_400_000_000
    assert db.at(version=3).table("t").count() == 1


def test_a_point_in_time_is_settled_by_when_the_pointer_was_read_and_not_the_manifest() -> None:
    """Seed 6 of 2,000 steps: half an hour went by between the two, in which others committed for that time."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    writer = open_database(bucket)
    writer.create_table("t", SCHEMA)
    runtime = Runtime(clock_us=bucket.clock_us, monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    asked_us = now[0] + 60_000_000

    def stalls() -> None:
        now[0] = asked_us - 1_000_000
        writer.table("t").append(pa.table({"k": [1]}))
        now[0] = asked_us + 30 * 60_000_000

    store = Interrupted(bucket, runtime)
    reader = Database(store, runtime)
    writer.table("t").append(pa.table({"k": [2]}))
    store.before, store.meanwhile = "manifest/", stalls
    with pytest.raises(UnsettledTimestampError):
        reader.at(timestamp=asked_us, settled=True)
    assert reader.at(timestamp=asked_us).version == writer.version


class Dropping(MemoryStore):
    """Another process drops a table as soon as the first table's file is opened."""

    drop: Callable[[], object] | None = None

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        if self.drop and key.startswith("data/a/"):
            happens, self.drop = self.drop, None
            happens()
        return super().put(key, body, if_match=if_match)


def test_a_step_over_all_tables_leaves_out_one_that_is_dropped_before_its_turn() -> None:
    """Seed 205 of 3,000 steps: compaction of all tables failed for one that nobody had asked for by its name."""
    bucket = MemoryBucket()
    writer = open_database(bucket)
    for name in ("a", "b"):
        writer.create_table(name, SCHEMA)
        for k in range(12):
            writer.table(name).append(pa.table({"k": [k]}))
    runtime = Runtime(clock_us=bucket.clock_us, sleep=lambda seconds: None, threads=1)
    store = Dropping(bucket, runtime)
    store.drop = lambda: writer.drop_table("b")
    assert list(Database(store, runtime).compact()) == ["a"]
    assert store.drop is None
    assert writer.table("a").count() == 12
    with pytest.raises(TableNotFoundError):
        Database(store, runtime).compact("b")
