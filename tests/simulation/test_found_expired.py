"""What histories have brought to light about versions that expire under whoever reads them, as short stories."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.errors import StoreUnavailableError, VersionExpiredError
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.rows.write import row_input
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of
from simulation.interrupted import Interrupted

SCHEMA = pa.schema([("k", pa.int64())])


def open_database(bucket: MemoryBucket) -> Database:
    runtime = Runtime(clock_us=bucket.clock_us, sleep=lambda seconds: None, threads=1)
    return Database(MemoryStore(bucket, runtime), runtime)


class Expiring:
    """A database whose versions expire when told to."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000
        self.bucket = MemoryBucket(lambda: self.now_us)
        self.db = Database(MemoryStore(self.bucket, self.runtime()), self.runtime())
        self.db.set(retention="1m", keep_versions=1, reader_grace="1s", orphan_age="1h")
        self.db.create_table("t", SCHEMA).append(pa.table({"k": [1, 2, 3, 4]}))

    def runtime(self) -> Runtime:
        return Runtime(
            clock_us=lambda: self.now_us,
            monotonic=lambda: self.now_us / 1e6,
            sleep=lambda seconds: None,
            threads=1,
        )

    def expire(self) -> None:
        """Everybody goes on, and what was the newest version is collected."""
        before = self.db.version
        self.db.table("t").append(pa.table({"k": [5]}))
        for _ in range(5):
            self.now_us += 10 * 60 * 1_000_000
            self.db.refresh()
            collect(self.db._context)
        assert self.db._context.head.refresh().manifest.freed > before

    def stalled(self, before: str) -> Database:
        """Another process, for which that happens just before it next reads such an object."""
        store = Interrupted(self.bucket, self.runtime())
        db = Database(store, self.runtime())
        db.refresh()
        store.before, store.meanwhile = before, self.expire
        return db


def test_verification_looks_at_the_pointer_again_if_what_it_named_has_expired() -> None:
    """Seed 20260594: an inspector read the pointer, stood still for an hour, and called the manifest missing that had
    been collected meanwhile."""
    world = Expiring()
    report = world.stalled("manifest/").verify()
    assert report.findings == ()
    assert report.version == world.db.version


def test_verification_of_a_version_that_expires_before_it_is_read_says_so() -> None:
    world = Expiring()
    version = world.db.version
    world.db.set(keep_versions=2, retention="30m")
    newest = f"manifest/v{version:020}"
    with pytest.raises(VersionExpiredError, match=f"version {version} expired while it was checked"):
        world.stalled(newest).verify(version=version)


def test_background_work_whose_snapshot_has_expired_says_so_and_does_not_call_it_damage() -> None:
    """Seed 405: a compaction stalled until collection had removed what it was about to read."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.create_table("t", SCHEMA)
    for first in range(3):
        db.table("t").append(pa.table({"k": [first, first + 10]}))
    db.table("t").delete("k < 10 AND k > -1")
    other = Database(MemoryStore(bucket, runtime), runtime)

    def meanwhile() -> bool:
        other.set(retention="1h", keep_versions=1)
        other.table("t").overwrite(pa.table({"k": [5]}))
        for _ in range(3):
            now[0] += 10 * 86_400_000_000
            collect(other._context)
        return False

    with pytest.raises(VersionExpiredError):
        resolve(db._context, "t", deadline=meanwhile)
    assert db.table("t").to_arrow()["k"].to_pylist() == [5]


@pytest.mark.timeout(60)
def test_an_upserted_file_ends_if_another_delivery_has_applied_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 20260847: an idle table's section had expired, so that the transaction moved to the newest version, in which
    the same file was there already: the ingestion offered its rows again and again, for ever."""
    monkeypatch.setattr(row_input, "_FOLD_ROWS", 0)
    monkeypatch.setattr(row_input, "PART_KEYS", 0)
    bucket = MemoryBucket()
    db = open_database(bucket)
    db.create_table("t", pa.schema([pa.field("k", pa.int64(), nullable=False)]), primary_key="k")
    rows = pa.table({"k": [1, 2, 3]}, db.table("t").schema)

    def delivered(transaction: Transaction) -> None:
        transaction.bind("file", "digest")
        transaction.table("t").upsert(rows.to_reader(max_chunksize=1), request="file")

    late = open_database(bucket).transaction()
    assert not unit_of(late).find_applied(["file"])
    db.run(delivered)
    unit_of(late).refresh()
    delivered(late)
    assert late.commit().already == {"file": db.version}
    assert db.table("t").count() == 3


def test_history_that_expires_while_it_is_read_is_no_damage() -> None:
    """Seed 7029: a collection stood still between a manifest and its history, and others collected meanwhile."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    other = Database(MemoryStore(bucket, runtime), runtime)
    other.set(root_bytes="4KB", retention="1h", keep_versions=1)
    for _ in range(90):
        other.set(reader_grace="1h")

    def collected() -> None:
        for _ in range(5):
            now[0] += 10 * 86_400_000_000
            other.set(reader_grace="1h")
            collect(other._context)

    def interrupted() -> Database:
        another = replace(runtime)  # of a process that has nothing in its cache
        store = Interrupted(bucket, another)
        store.meanwhile = collected
        return Database(store, another)

    with pytest.raises(VersionExpiredError):
        interrupted().history()
    for _ in range(90):
        other.set(reader_grace="1h")
    version = other.version - 80
    with pytest.raises(VersionExpiredError):
        interrupted().at(version=version)
    for _ in range(90):
        other.set(reader_grace="1h")
    with pytest.raises(VersionExpiredError):
        interrupted().at(timestamp=now[0] - 86_400_000_000)


def test_a_transaction_whose_version_expires_under_it_is_run_again_on_the_newest() -> None:
    """History 5000036: a deletion vector of the old version was gone, and the caller was told of a missing object."""
    now_us = 1_767_225_600_000_000
    bucket = MemoryBucket(lambda: now_us, "expiring")
    db, other = open_database(bucket), open_database(bucket)
    db.set(retention="1m", keep_versions=1, reader_grace="1s", orphan_age="1h")
    db.create_table("t", SCHEMA).append(pa.table({"k": [1, 2, 3]}))
    db.table("t").delete("k = 1", mode="positions")
    runs = []

    def delete(transaction: Transaction) -> None:
        nonlocal now_us
        table = transaction.table("t")
        runs.append(unit_of(transaction).base.version)
        if len(runs) == 1:
            other.table("t").delete("k = 2", mode="positions")
            for _ in range(3):
                now_us += 10 * 60 * 1_000_000
                other.refresh()
                collect(other._context)
            assert other._context.head.refresh().manifest.horizon > unit_of(transaction).base.version
        table.delete("k = 3", mode="positions")

    open_database(bucket).run(delete)
    assert len(runs) == 2
    assert db.table("t").count() == 0


def test_a_base_that_expires_while_a_change_is_fitted_to_it_is_no_damage() -> None:
    """History 7000240: a commit had just read the newest version, and merged its vector with one of that, when others
    replaced it and a collection removed it."""
    now = [1_800_000_000_000_000]
    bucket = MemoryBucket(lambda: now[0])
    runtime = Runtime(clock_us=lambda: now[0], monotonic=lambda: now[0] / 1e6, sleep=lambda seconds: None, threads=1)
    db = Database(MemoryStore(bucket, runtime), runtime)
    db.set(retention="1m", keep_versions=1, reader_grace="1s", orphan_age="1h")
    db.create_table("t", SCHEMA).append(pa.table({"k": [1, 2, 3, 4]}))
    store = Interrupted(bucket, runtime)
    store.before = "tombstone/"
    slow = Database(store, runtime).transaction()
    slow.table("t").delete("k = 1", mode="positions")
    db.table("t").delete("k = 2", mode="positions")
    happened = []

    def meanwhile() -> None:
        happened.append(db.version)
        db.table("t").delete("k = 3", mode="positions")
        for _ in range(3):
            now[0] += 10 * 60 * 1_000_000
            db.refresh()
            collect(db._context)
        assert db._context.head.refresh().manifest.horizon > happened[0]

    store.meanwhile = meanwhile
    slow.commit()
    assert happened
    assert db.table("t").to_arrow()["k"].to_pylist() == [4]


@pytest.mark.parametrize("what", ["manifest/", "segment/"])
def test_verification_calls_nothing_damaged_that_it_could_not_read_for_the_moment(what: str) -> None:
    """Seeds 2021 and 2022: the store answered 503 for a while, and manifests of kept versions were found damaged, with
    the advice to restore them from a copy."""
    bucket = MemoryBucket()
    db = open_database(bucket)
    db.set(root_bytes="4KB")
    db.create_table("t", SCHEMA)
    for k in range(40):
        db.table("t").append(pa.table({"k": [k]}))
    store = Interrupted(bucket, Runtime(sleep=lambda seconds: None, threads=1))
    other = Database(store, Runtime(sleep=lambda seconds: None, threads=1))
    assert not other.verify(all_versions=True).errors

    def unavailable() -> None:
        raise StoreUnavailableError("503 SlowDown")

    fresh = Database(store, Runtime(sleep=lambda seconds: None, threads=1))
    store.before, store.meanwhile = what, unavailable
    with pytest.raises(StoreUnavailableError):
        fresh.verify(all_versions=True)
