"""A small data file goes up beside the manifest of its commit, and no version refers to a file that is not stored."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from bench.round_trips import TimedRuntime, Timeline, TimelineStore

from dolmen import Database, Transaction
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.commit.loop import Committed, Leader, Member
from dolmen.commit.uploads import MOST_BUFFERED_BYTES, BufferedFiles
from dolmen.errors import AccessDeniedError, DuplicateKeyError, Error, StoreUnavailableError, TableNotFoundError
from dolmen.format.layout import POINTER
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen.transactions.unit_of_work import UnitOfWork
from support.commit_world import (
    Behaviour,
    Perform,
    ScriptedStore,
    deny,
    land_late,
    lose_the_request,
    lose_the_response,
    meanwhile,
    refuse_409,
    retry_below,
)
from support.crashing_store import Countdown, Crash, CrashingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def rows(*ids: int) -> list[dict[str, object]]:
    return [{"id": id_, "note": "x"} for id_ in ids]


def noise(size: int) -> pa.Table:
    """Rows that take at least ``size`` bytes in a file, whatever compresses them."""
    texts = [chunk.hex() for chunk in _chunks(size)]
    return pa.table([range(1_000, 1_000 + len(texts)), texts], schema=SCHEMA)


def _chunks(size: int) -> list[bytes]:
    source = np.random.default_rng(3)
    return [source.bytes(512) for _ in range(size // 512 + 1)]


@pytest.fixture
def bucket() -> MemoryBucket:
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket, Runtime()), Runtime())
    db.create_table("t", SCHEMA, primary_key="id").append(rows(0))
    return bucket


def opened(bucket: MemoryBucket, threads: int = 1) -> tuple[Database, ScriptedStore]:
    """The database in a process that knows it, and whose requests can be scripted."""
    runtime = Runtime(threads=threads, sleep=lambda seconds: None)
    store = ScriptedStore(bucket, runtime)
    db = Database(store, runtime)
    db.refresh()
    store.puts.clear()
    return db, store


def kinds(keys: list[str]) -> list[str]:
    return [key.split("/")[0] for key in keys]


def is_data(key: str) -> bool:
    return key.startswith("data/")


def ids(bucket: MemoryBucket) -> list[int]:
    """The rows of the newest version, read by another process."""
    db = Database(MemoryStore(bucket, Runtime()), Runtime())
    assert not db.verify().findings
    return sorted(db.table("t").scan(["id"]).to_arrow()["id"].to_pylist())


def data_keys(bucket: MemoryBucket) -> list[str]:
    return [key for key in bucket.objects if is_data(key)]


def depth(bucket: MemoryBucket, work: Callable[[Database], object]) -> tuple[float, int]:
    """Round trips one after the other, and PUTs, of a process that knows the database."""
    timeline = Timeline()
    runtime = TimedRuntime(threads=32, cores=2, timeline=timeline)
    store = TimelineStore(MemoryStore(bucket, runtime), timeline)
    db = Database(store, runtime)
    db.refresh()
    start, puts = timeline.now, store.puts
    work(db)
    return timeline.now - start, store.puts - puts


def test_an_append_and_an_upsert_of_a_small_file_take_two_round_trips(bucket: MemoryBucket) -> None:
    assert depth(bucket, lambda db: db.table("t").append(rows(1, 2))) == (2, 3)
    assert depth(bucket, lambda db: db.table("t").upsert(rows(2, 3))) == (2, 4)
    assert ids(bucket) == [0, 1, 2, 3]


def test_a_larger_file_goes_up_first_as_ever(bucket: MemoryBucket) -> None:
    large = noise(MOST_BUFFERED_BYTES)
    assert depth(bucket, lambda db: db.table("t").append(large)) == (3, 3)
    assert depth(bucket, lambda db: db.table("t").upsert(large)) == (3, 4)
    assert ids(bucket) == [0, *range(1_000, 1_000 + large.num_rows)]


def test_a_transaction_an_overwrite_and_an_insert_upload_their_files_first(bucket: MemoryBucket) -> None:
    def transact(db: Database) -> None:
        with db.transaction() as tx:
            tx.table("t").append(rows(1))
            assert tx.table("t").count() == 2

    db, store = opened(bucket)
    for work in (
        lambda: transact(db),
        lambda: db.table("t").insert(rows(2)),
        lambda: db.table("t").overwrite(rows(3), force=True),
    ):
        store.puts.clear()
        work()
        assert kinds(store.puts) == ["data", "manifest", POINTER]


def test_the_bytes_of_a_file_are_those_of_one_that_is_not_held(bucket: MemoryBucket) -> None:
    db, _ = opened(bucket)
    before = set(data_keys(bucket))
    db.table("t").append(rows(1, 2, 3))
    with db.transaction() as tx:
        tx.table("t").append(rows(1, 2, 3))
    held, streamed = (bucket.objects[key].body for key in data_keys(bucket) if key not in before)
    assert held == streamed


def test_what_is_held_is_bounded_over_all_files_of_a_commit() -> None:
    store = MemoryStore(runtime=Runtime())
    files = BufferedFiles(store)
    with files.open("data/before") as output:
        output.write(b"x")
        output.commit()
    assert not files, "nothing is held unless it is allowed"
    files.buffer_small_files()
    for key, size in (("data/a", MOST_BUFFERED_BYTES - 10), ("data/b", 11), ("data/c", 10), ("data/d", 1)):
        with files.open(key) as output:
            assert output.write(bytes(size - 1)) == size - 1
            assert output.write(b"y") == 1
            assert output.commit() == size
    assert {key: len(body) for key, body in files.bodies.items()} == {"data/a": MOST_BUFFERED_BYTES - 10, "data/c": 10}
    assert [store.get(key).body for key in ("data/b", "data/d")] == [bytes(10) + b"y", b"y"]
    with files.open("data/e") as output:
        output.write(bytes(MOST_BUFFERED_BYTES))
    assert "data/e" not in store.bucket.objects
    files.release()
    with files.open("data/f") as output:
        output.write(b"z")
    assert not files, "it was not committed"


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("fault", [lose_the_request, lose_the_response, retry_below, land_late])
def test_a_file_whose_put_is_unclear_is_stored_once_before_the_pointer_moves(
    bucket: MemoryBucket, fault: Behaviour, threads: int
) -> None:
    db, store = opened(bucket, threads)
    store.is_scripted = is_data
    store.script = deque([fault, lose_the_response])
    known = len(data_keys(bucket))
    db.table("t").append(rows(1))
    while store.under_way:
        store.land()
    assert store.puts[-1] == POINTER
    assert store.puts.count(POINTER) == 1
    assert len(data_keys(bucket)) == known + 1
    assert ids(bucket) == [0, 1]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (deny, AccessDeniedError),
        (refuse_409, StoreUnavailableError),
        (lose_the_request, StoreUnavailableError),
        (land_late, StoreUnavailableError),
    ],
)
def test_a_file_that_is_not_known_to_be_stored_leads_to_no_pointer_though_the_manifest_landed(
    bucket: MemoryBucket, fault: Behaviour, error: type[Error]
) -> None:
    db, store = opened(bucket, threads=4)
    manifests = len([key for key in bucket.objects if key.startswith("manifest/")])

    def manifest_landed() -> None:
        for _ in range(10_000):
            if len([key for key in list(bucket.objects) if key.startswith("manifest/")]) > manifests:
                return
            time.sleep(0.001)
        pytest.fail("the manifest does not go up beside the file")

    store.is_scripted = is_data
    store.script = deque([meanwhile(manifest_landed, fault), *[fault] * 100])
    with pytest.raises(error):
        db.table("t").append(rows(1))
    assert POINTER not in store.puts
    assert ids(bucket) == [0]
    store.script.clear()
    while store.under_way:
        store.land()
    db.table("t").append(rows(2))
    assert ids(bucket) == [0, 2]


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_crash_at_any_request_leaves_the_old_version_or_the_new_one(write: str) -> None:
    for after in (False, True):
        for left in range(6):
            bucket = MemoryBucket()
            Database(MemoryStore(bucket, Runtime()), Runtime()).create_table("t", SCHEMA, primary_key="id").append(
                rows(0)
            )
            countdown = Countdown(after=after)
            runtime = Runtime(threads=1)
            db = Database(CrashingStore(MemoryStore(bucket, runtime), countdown), runtime)  # type: ignore[arg-type]
            db.refresh()
            puts = 3 if write == "append" else 4
            countdown.left = left
            try:
                getattr(db.table("t"), write)(rows(1))
                crashed = False
            except Crash:
                crashed = True
            assert crashed == (left <= puts)
            has_landed = left > puts or (left == puts and after)
            assert ids(bucket) == ([0, 1] if has_landed else [0])
            again, _ = opened(bucket)
            getattr(again.table("t"), write)(rows(2))
            assert ids(bucket) == ([0, 1, 2] if has_landed else [0, 2])


def test_a_lost_race_uploads_the_file_once(bucket: MemoryBucket) -> None:
    (db, store), (other, _) = opened(bucket), opened(bucket)
    for work in (lambda: db.table("t").append(rows(1)), lambda: db.table("t").upsert(rows(1))):
        store.puts.clear()
        store.script = deque([meanwhile(lambda: other.table("t").append(rows(5)))])
        work()
        assert store.puts.count(POINTER) == 2
        assert sum(map(is_data, store.puts)) == 1
    assert ids(bucket) == [0, 1, 5, 5]


def waiting(db: Database, *ids_: int) -> Member:
    """An append that holds its file, before it joins others."""
    transaction = Transaction(UnitOfWork(context_of(db), "append"))
    unit_of(transaction).uploads.files.buffer_small_files()
    transaction.table("t").append(rows(*ids_))
    assert unit_of(transaction).uploads.files
    return member(transaction)


def member(transaction: Transaction) -> Member:
    change = unit_of(transaction).end()
    assert change is not None
    return Member(change, unit_of(transaction).uploads, threading.Event())


def inserting(db: Database, *ids_: int) -> Member:
    transaction = Transaction(UnitOfWork(context_of(db), "insert"))
    transaction.table("t").insert(rows(*ids_))
    return member(transaction)


def commit_together(db: Database, *members: Member) -> list[Committed | Error | None]:
    queue = context_of(db).head.queue
    for each in members:
        queue.join(each)
    for each in members:
        if each.outcome is None:
            Leader(context_of(db).head, each).lead()
        queue.leave(each)
    return [each.outcome for each in members]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_files_of_a_group_go_up_with_its_one_manifest(bucket: MemoryBucket, threads: int) -> None:
    db, store = opened(bucket, threads)
    outcomes = commit_together(db, *(waiting(db, number) for number in range(1, 6)))
    assert {each.manifest.version for each in outcomes if isinstance(each, Committed) and each.manifest} == {3}
    assert sorted(kinds(store.puts)) == [POINTER, *["data"] * 5, "manifest"]
    assert store.puts[-1] == POINTER
    assert ids(bucket) == [0, 1, 2, 3, 4, 5]


def test_a_file_that_cannot_be_stored_is_the_error_of_the_whole_group(bucket: MemoryBucket) -> None:
    db, store = opened(bucket)
    members = [waiting(db, 1), waiting(db, 2)]
    store.is_scripted, store.script = is_data, deque([meanwhile(lambda: None), deny])
    assert [type(each) for each in commit_together(db, *members)] == [AccessDeniedError] * 2
    assert POINTER not in store.puts
    assert ids(bucket) == [0]


def test_an_insert_reads_files_that_earlier_changes_of_its_version_hold(bucket: MemoryBucket) -> None:
    db, store = opened(bucket)
    members = [waiting(db, 1), inserting(db, 1), inserting(db, 2)]
    appended, twice, free = commit_together(db, *members)
    assert isinstance(appended, Committed)
    assert isinstance(twice, DuplicateKeyError)
    assert isinstance(free, Committed)
    assert ids(bucket) == [0, 1, 2]
    assert sum(map(is_data, store.puts)) == 3


def test_a_file_that_an_insert_wants_to_read_and_cannot_be_stored_yet_is_stored_before_the_pointer(
    bucket: MemoryBucket,
) -> None:
    db, store = opened(bucket)
    members = [waiting(db, 1), inserting(db, 2)]
    store.is_scripted, store.script = is_data, deque([deny])
    outcomes = commit_together(db, *members)
    assert all(isinstance(each, Committed) for each in outcomes), outcomes
    assert ids(bucket) == [0, 1, 2]


def test_who_comes_while_another_leads_uploads_at_once(bucket: MemoryBucket) -> None:
    db, store = opened(bucket)
    first = waiting(db, 1)
    queue = context_of(db).head.queue
    assert queue.join(first)
    known = len(data_keys(bucket))
    thread = threading.Thread(target=lambda: db.table("t").append(rows(2)))
    thread.start()
    for _ in range(10_000):
        if queue.last_number == first.number + 1:
            break
        time.sleep(0.001)
    assert len(data_keys(bucket)) == known + 1
    Leader(context_of(db).head, first).lead()
    queue.leave(first)
    thread.join()
    assert store.puts.count(POINTER) == 1
    assert ids(bucket) == [0, 1, 2]


def test_threads_that_append_at_once_lose_nothing(bucket: MemoryBucket) -> None:
    db, _ = opened(bucket, threads=8)
    threads = [
        threading.Thread(target=lambda first=first: [db.table("t").append(rows(first + n)) for n in range(5)])
        for first in range(100, 900, 100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(bucket) == [0, *(first + n for first in range(100, 900, 100) for n in range(5))]


def test_a_change_that_is_refused_uploads_nothing(bucket: MemoryBucket) -> None:
    db, store = opened(bucket)
    late = waiting(db, 1)
    db.drop_table("t")
    store.puts.clear()
    (outcome,) = commit_together(db, late)
    assert isinstance(outcome, TableNotFoundError), outcome
    assert store.puts == []


def test_a_request_that_was_applied_before_uploads_nothing(bucket: MemoryBucket) -> None:
    db, store = opened(bucket)
    db.table("t").append(rows(1), request="r")
    store.puts.clear()
    assert db.table("t").append(rows(1), request="r").already
    assert store.puts == []
    assert ids(bucket) == [0, 1]


def test_a_version_never_refers_to_a_file_that_was_not_stored_when_its_pointer_was_put(bucket: MemoryBucket) -> None:
    """Whatever order the threads take, each pointer finds all objects of its version."""
    db, store = opened(bucket, threads=4)
    missing: list[str] = []

    def check(store: ScriptedStore, perform: Perform) -> object:
        manifest = store.bucket.objects
        missing.extend(key for key in store.puts if key != POINTER and key not in manifest)
        return perform()

    store.script = deque([check] * 20)  # type: ignore[list-item]
    for number in range(10):
        db.table("t").append(rows(10 + number))
        db.table("t").upsert(rows(30 + number))
    assert not store.script
    assert not missing
