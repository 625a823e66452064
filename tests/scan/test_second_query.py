"""The second query reads the pointer alone: counted exactly, on a timeline on which each response takes 30 ms.

What comes from the cache is what the version names: whatever else the process has read, damaged, deleted or evicted.
"""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from bench.round_trips import TimedRuntime, Timeline, TimelineStore

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, InputError
from dolmen.format.layout import POINTER
from dolmen.store.cache import CacheMemory, ObjectCache
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.proxy import Proxy
from support.tables import World
from support.written import events

COLUMNS = ["user_id", "amount"]
RESPONSE = 0.03
"""Seconds of a response."""


class Distant:
    """A process far from a bucket, whose handles share a runtime."""

    def __init__(self, bucket: MemoryBucket, cache_bytes: int | None = None) -> None:
        self.timeline = Timeline(request=RESPONSE)
        self.runtime = TimedRuntime(threads=32, cores=2, timeline=self.timeline)
        if cache_bytes is not None:
            CacheMemory.of_runtime(self.runtime).resize(cache_bytes)
        self._bucket = bucket

    def open(self) -> Database:
        return Database(TimelineStore(MemoryStore(self._bucket, self.runtime), self.timeline), self.runtime)

    def trips(self, work: Callable[[], object]) -> tuple[int, list[str]]:
        """The round trips that wait for each other, and the keys that were read."""
        before, sent = self.timeline.now, len(self.timeline.sent)
        work()
        return round((self.timeline.now - before) / RESPONSE), [each.what for each in self.timeline.sent[sent:]]


def sums(db: Database) -> object:
    return db.table("t").scan(COLUMNS).to_arrow()


def made(rows: int = 60_000, files: int = 1, *, key: str | None = None) -> MemoryBucket:
    bucket = MemoryBucket()
    runtime = Runtime()
    world = World(MemoryStore(bucket, runtime), runtime)
    world.create(events(rows), files=files, group_rows=4096, key=[key] if key else ())
    if key:
        world.db.table("t").set(index=True)
        world.db.maintain(steps=["index"])
    return bucket


QUERIES: dict[str, Callable[[Database], object]] = {
    "sums": sums,
    "range": lambda db: db.table("t").scan(COLUMNS, where="id BETWEEN 5000 AND 9000").to_arrow(),
    "count": lambda db: db.table("t").scan(where="amount > 3").count(),
    "look-up": lambda db: db.table("t").get(4321),
    "look-ups": lambda db: db.table("t").get_many([7, 30_000, 59_999]),
    "limit": lambda db: db.table("t").scan(COLUMNS, limit=10).to_arrow(),
}


@pytest.mark.parametrize("files", [1, 40])
@pytest.mark.parametrize("query", QUERIES)
def test_the_second_query_is_one_round_trip_by_any_handle(query: str, files: int) -> None:
    process, work = Distant(made(files=files, key="id")), QUERIES[query]
    db = process.open()
    work(db)
    first = process.timeline.now / RESPONSE
    assert first > 2.5
    for handle in (db, process.open()):
        trips, sent = process.trips(lambda handle=handle: work(handle))  # type: ignore[misc]
        assert (trips, len(sent)) == (1, 1)
        assert POINTER in sent[0]


def test_after_a_commit_only_what_is_new_is_read() -> None:
    bucket = made()
    process = Distant(bucket)
    db = process.open()
    sums(db)
    db.table("t").delete("user_id = 7")
    assert process.trips(lambda: sums(process.open()))[0] == 1, "the process knows its own commit"
    Distant(bucket).open().table("t").append(events(50, start=60_000))
    trips, sent = process.trips(lambda: sums(process.open()))
    assert (trips, len(sent)) == (3, 3), "the pointer, the manifest, the new file"


def test_a_query_of_other_columns_reads_only_these() -> None:
    process = Distant(made())
    sums(process.open())
    assert process.trips(lambda: process.open().table("t").scan(["amount"]).to_arrow())[0] == 1
    trips, sent = process.trips(lambda: process.open().table("t").scan(["amount", "payload"]).to_arrow())
    assert trips == 2
    assert len(sent) > 1
    whole = Distant(made()).open().table("t").scan(["amount", "payload"]).to_arrow()
    assert process.open().table("t").scan(["amount", "payload"]).to_arrow().equals(whole)


@pytest.mark.slow
def test_one_large_scan_evicts_nothing_that_is_used_again_and_again() -> None:
    bucket = made(rows=20_000)
    there = Database(MemoryStore(bucket, Runtime()), Runtime())
    there.create_table("large", events(1).schema).append(events(300_000))
    process = Distant(bucket, cache_bytes=8 << 20)
    for _ in range(2):
        sums(process.open())
    large = process.open().table("large").scan(["payload"])
    assert large.explain().data_fetch.bytes > 8 << 20
    large.to_arrow()
    assert process.trips(lambda: sums(process.open()))[0] == 1
    assert process.trips(lambda: process.open().table("large").scan(["payload"]).to_arrow())[0] > 1


def test_explanations_count_what_is_left_to_read() -> None:
    process = Distant(made())
    db = process.open()
    scan = db.table("t").scan([*COLUMNS, "payload"])
    assert scan.explain().data_fetch.requests > 0
    sums(db)
    told = db.table("t").scan([*COLUMNS, "payload"]).explain().fetch
    assert process.trips(lambda: scan.to_arrow())[1].__len__() == told.requests
    assert db.table("t").scan(COLUMNS).explain().fetch.requests == 0


@pytest.mark.parametrize("cache_bytes", [0, 1_000, 200_000, 3 << 20])
def test_any_size_gives_the_same_rows_and_is_kept(cache_bytes: int) -> None:
    bucket = made(files=3)
    right = sums(Distant(bucket).open())
    process = Distant(bucket, cache_bytes)
    memory = CacheMemory.of_runtime(process.runtime)
    for _ in range(3):
        assert sums(process.open()) == right
        assert memory.bytes <= cache_bytes
    assert (process.trips(lambda: sums(process.open()))[0] == 1) == (cache_bytes > 1 << 20)


# ---- what is never given


def change(bucket: MemoryBucket, key: str, body: bytes) -> None:
    was = bucket.objects[key]
    bucket.objects[key] = MemoryObject(body, was.etag, was.last_modified_us)


def data_file(bucket: MemoryBucket) -> str:
    (key,) = (key for key in bucket.objects if key.startswith("data/"))
    return key


@pytest.mark.parametrize("rows", [2_000, 60_000], ids=["a small file", "a large file"])
def test_bytes_that_came_damaged_are_not_kept(rows: int) -> None:
    bucket = made(rows)
    key = data_file(bucket)
    intact, rng = bucket.objects[key].body, random.Random(3)
    right = sums(Distant(bucket).open())
    process, found = Distant(bucket), 0
    for _ in range(30):
        body = bytearray(intact)
        for place in rng.sample(range(4, len(intact) - 40_000), 40):
            body[place] ^= 1 << rng.randrange(8)
        CacheMemory.of_runtime(process.runtime).remove_objects(context_of(process.open()).store.identity, [key])
        change(bucket, key, bytes(body))
        try:
            assert sums(process.open()) == right
        except CorruptionError as error:
            found += error.key == key
        change(bucket, key, intact)
        assert sums(process.open()) == right, "the store is asked again"
    assert found


def test_a_damaged_cache_is_found_by_the_checksums_and_read_again() -> None:
    bucket = made()
    process = Distant(bucket)
    right = sums(process.open())
    memory = CacheMemory.of_runtime(process.runtime)
    for (identity, key), (value, size) in list(memory._new.items()):
        if isinstance(value, bytes):
            memory.put((identity, key), bytes(len(value)), size, is_new=True)
    with pytest.raises(CorruptionError):
        sums(process.open())
    assert sums(process.open()) == right


def parts(memory: CacheMemory, kind: str = "") -> set[str]:
    """The keys of the objects of which there are parts."""
    return {key[1] for _, key in (*memory._used, *memory._new) if key[0].startswith(kind)}


@pytest.mark.slow
def test_what_collection_deletes_leaves_the_cache_and_its_disk(
    tmp_path: Any, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_CACHE_DIR", str(tmp_path))
    runtime = Runtime()
    db = dolmen.open(s3_url, runtime=runtime)
    table = db.create_table("t", pa.schema([("name", pa.string())]))
    table.append({"name": ["Ada", "Bob"]})
    assert table.scan().to_arrow().num_rows == 2
    memory, before = CacheMemory.of_runtime(runtime), table.files()["path"].to_pylist()
    assert set(before) <= parts(memory, "bytes")
    table.erase("name = 'Ada'")
    assert table.scan().to_arrow()["name"].to_pylist() == ["Bob"], "hidden at once, in cached bytes, too"
    assert set(before) <= parts(memory, "bytes")
    from dolmen.maintenance.gc.deletion import ObjectDeleter

    context = context_of(db)
    held = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert ObjectDeleter(context.store, context.cache).delete("released", before) == set()
    assert not parts(memory) & set(before)
    assert len(held - {path.name for path in tmp_path.rglob("*") if path.is_file()}) == 2, "the footer and the file"
    assert ObjectDeleter(context.store, dry_run=True).delete("released", before) == set()


def test_a_database_made_again_at_its_place_has_nothing_of_the_old_one(tmp_path: Any) -> None:
    bucket, runtime = MemoryBucket(), Runtime()
    for url in (str(tmp_path / "db"), None):
        for text in ("old", "new"):
            db = dolmen.open(url, runtime=runtime) if url else Database(MemoryStore(bucket, runtime), runtime)
            db.create_table("t", pa.schema([("n", pa.int64()), ("text", pa.string())]), primary_key="n")
            db.table("t").append({"n": [1], "text": [text]})
            for _ in range(2):
                assert db.table("t").scan().to_arrow()["text"].to_pylist() == [text]
                assert db.table("t").get(1)["text"] == text
            bucket.objects.clear()
            if url:
                os.rename(url, tmp_path / f"gone-{text}")


def test_two_accounts_endpoints_buckets_and_prefixes_share_nothing(s3_url: str, s3_endpoint: str) -> None:
    runtime, base = Runtime(), {"aws_secret_access_key": "s", "aws_endpoint_url": s3_endpoint}
    settings = [
        {"aws_access_key_id": "one"},
        {"aws_access_key_id": "two"},
        {"aws_access_key_id": "one", "aws_endpoint_url": s3_endpoint.replace("127.0.0.1", "localhost")},
        {"aws_access_key_id": "one", "aws_region": "eu-central-1"},
    ]
    handles = [dolmen.open(s3_url, storage_options={**base, **own}, runtime=runtime) for own in settings]
    handles += [dolmen.open(url, runtime=runtime) for url in (s3_url, s3_url + "/x", s3_url.replace("test-", "other-"))]
    identities = [context_of(each).store.identity for each in handles]
    assert len(set(identities)) == len(handles)
    again = dolmen.open(s3_url, storage_options={**base, **settings[1]}, runtime=runtime)
    assert context_of(again).store.identity == identities[1]
    assert not any(secret in str(identities) for secret in ("testtest", "one", "two"))


@pytest.mark.slow
def test_accounts_read_for_themselves(proxy: Proxy, s3_url: str) -> None:
    runtime = Runtime()
    dolmen.open(s3_url).create_table("t", {"n": [1]}).append({"n": list(range(1000))})
    base = {"aws_secret_access_key": "testtest", "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL_S3"]}

    def gets(account: str) -> int:
        proxy.forget_requests()
        options = {**base, "aws_access_key_id": account}
        table = dolmen.open(s3_url, storage_options=options, runtime=runtime).table("t")
        assert table.scan().to_arrow().num_rows == 1001
        return len([request for request in proxy.requests() if request.method == "GET"])

    assert [gets(account) for account in ("test", "test", "other", "other")] == [4, 1, 4, 1]


# ---- threads, processes, settings


def test_threads_share_a_small_cache_and_get_their_own_rows() -> None:
    bucket, runtime = made(files=6), Runtime(threads=8)
    CacheMemory.of_runtime(runtime).resize(1 << 20)
    right, wrong = sums(Database(MemoryStore(bucket, Runtime()), Runtime())), []

    def work() -> None:
        for _ in range(5):
            found = sums(Database(MemoryStore(bucket, runtime), runtime))
            if found != right:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < CacheMemory.of_runtime(runtime).bytes <= 1 << 20


def test_a_forked_process_begins_empty_whatever_thread_holds_the_lock() -> None:
    memory = CacheMemory(1_000)
    memory.put("key", b"parent", 10)
    reading, writing = os.pipe()
    with memory._lock:
        if not (child := os.fork()):
            found = memory.get("key") is None and memory.bytes == 0
            memory.put("key", b"child", 5)
            os.write(writing, b"empty" if found and memory.get("key") == b"child" else b"full!")
            os._exit(0)
        assert os.read(reading, 5) == b"empty"
    os.waitpid(child, 0)
    assert memory.get("key") == b"parent"


def test_a_pickled_handle_takes_no_cache_along(tmp_path: Any) -> None:
    runtime = Runtime()
    db = dolmen.open(str(tmp_path / "db"), runtime=runtime)
    db.create_table("t", events(1).schema).append(events(20_000))
    before = len(pickle.dumps(db))
    sums(db)
    assert CacheMemory.of_runtime(runtime).bytes > 0
    assert len(pickle.dumps(db)) == before
    other = pickle.loads(pickle.dumps(db))
    assert context_of(other).cache.memory is not CacheMemory.of_runtime(runtime)
    assert sums(other) == sums(db)


def test_the_size_is_an_argument_a_variable_or_a_tenth_of_a_functions_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(**variables: str) -> int:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return CacheMemory.of_runtime(Runtime()).max_bytes

    monkeypatch.delenv("DOLMEN_CACHE_MEMORY", raising=False)
    assert size() == 256 << 20
    assert size(AWS_LAMBDA_FUNCTION_MEMORY_SIZE="1769") == (1769 << 20) // 10
    assert size(DOLMEN_CACHE_MEMORY="5000", AWS_LAMBDA_FUNCTION_MEMORY_SIZE="1769") == 5000
    assert size(DOLMEN_CACHE_MEMORY="a lot") == 256 << 20
    runtime = Runtime()
    dolmen.open("memory://sized", cache_bytes=77, runtime=runtime)
    dolmen.open("memory://sized", runtime=runtime)
    assert CacheMemory.of_runtime(runtime).max_bytes == 77
    for wrong in (-1, 1.5, "1GB", True):
        with pytest.raises(InputError, match="cache_bytes"):
            dolmen.open("memory://sized", cache_bytes=wrong)  # type: ignore[arg-type]


def test_maintenance_fills_no_cache_with_columns() -> None:
    bucket, runtime = made(files=4), Runtime()
    db = Database(CountingStore(MemoryStore(bucket, runtime)), runtime)
    db.table("t").delete("user_id = 3")
    db.resolve("t")
    db.compact("t")
    assert not parts(CacheMemory.of_runtime(runtime), "bytes")


def test_a_cache_of_its_own_is_not_the_processs() -> None:
    assert ObjectCache().memory is not ObjectCache().memory
