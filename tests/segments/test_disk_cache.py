"""The cache on disk: it survives processes, heals itself, and never costs more than itself."""

from __future__ import annotations

import logging
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.manifest import AppliedId
from dolmen.format.segments import encode
from dolmen.store import open_store
from dolmen.store.cache import DiskCache, ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen.store.s3.bucket_store import S3Store
from dolmen_simulator.counting import CountingStore
from support.proxy import Proxy
from support.tables import World

KEY = ("segment", "segment/files/x", 0)


def cache(path: Path, url: str = "s3://bucket/a", max_bytes: int = 1 << 20) -> DiskCache:
    """A cache as a new process would have it."""
    return DiskCache(str(path), url, Runtime(), max_bytes)


def held(path: Path) -> list[Path]:
    """All files in the directory."""
    return sorted(each for each in path.rglob("*") if each.is_file())


def accept(body: bytes) -> None:
    """A check that everything passes."""


def test_what_was_written_is_there_for_the_next_process_and_no_other_database(tmp_path: Path) -> None:
    cache(tmp_path).put(KEY, b"body")
    assert cache(tmp_path).get(KEY) == b"body"
    assert KEY in cache(tmp_path)
    assert cache(tmp_path, "s3://bucket/b").get(KEY) is None
    for other in (("footer", KEY[1], 0), (KEY[0], KEY[1], 1), (KEY[0], "segment/files/y", 0)):
        assert cache(tmp_path).get(other) is None
        assert other not in cache(tmp_path)


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "a/../../b", "\0", "x" * 10_000, "日本"])
def test_no_key_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    key = ("segment", name, 0)
    cache(inside).put(key, b"body")
    assert cache(inside).get(key) == b"body"
    assert held(tmp_path) == held(inside / "dolmen-cache")


def test_a_damaged_entry_is_dropped_wherever_the_damage_is(tmp_path: Path) -> None:
    cache(tmp_path).put(KEY, b"some body")
    (path,) = held(tmp_path)
    whole = path.read_bytes()
    rng = random.Random(1)
    damaged = [whole[:length] for length in (0, 3, 11, 20, len(whole) - 1)] + [whole + b"x"]
    for _ in range(60):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(changed))
    for body in damaged:
        path.write_bytes(body)
        assert cache(tmp_path).get(KEY) is None
        assert held(tmp_path) == []


def test_the_least_recently_used_go_first_and_the_bound_holds(tmp_path: Path) -> None:
    small = cache(tmp_path, max_bytes=20_000)
    for number in range(12):
        small.put(("segment", str(number), 0), bytes(1_000))
        os.utime(held_path(small, number), ns=(number, number))
    assert small.get(("segment", "0", 0)) is not None, "reading makes it the youngest"
    for number in range(12, 24):
        small.put(("segment", str(number), 0), bytes(1_000))
        assert sum(path.stat().st_size for path in held(tmp_path)) <= 20_000
    left = [number for number in range(24) if ("segment", str(number), 0) in small]
    assert 0 in left
    assert 1 not in left
    assert set(range(20, 24)) <= set(left)
    small.put(("segment", "large", 0), bytes(15_000))
    assert ("segment", "large", 0) not in small, "one entry does not push out all others"


def held_path(cache: DiskCache, number: int) -> str:
    """Where an entry is."""
    return cache._path(("segment", str(number), 0))


def test_what_was_read_once_counts_as_used_a_day_earlier(tmp_path: Path) -> None:
    small = cache(tmp_path, max_bytes=20_000)
    for number in range(12):
        small.put(("segment", str(number), 0), bytes(1_000), is_new=number != 3)
    assert small.get(("segment", "5", 0)) is not None
    for number in range(12, 40):
        small.put(("segment", str(number), 0), bytes(1_000), is_new=True)
    left = {number for number in range(40) if ("segment", str(number), 0) in small}
    assert {3, 5} <= left
    assert len(left) < 20


def test_an_object_is_forgotten_with_all_its_parts_and_no_other(tmp_path: Path) -> None:
    mine = cache(tmp_path)
    keys = [(kind, key, offset) for kind in ("footer", "bytes") for key in ("data/a", "data/ab") for offset in (0, 1)]
    for key in keys:
        mine.put(key, b"body")
        cache(tmp_path, "s3://bucket/b").put(key, b"body")
    mine.remove_objects(["data/a", "data/missing"])
    assert {key for key in keys if key in mine} == {key for key in keys if key[1] == "data/ab"}
    assert all(key in cache(tmp_path, "s3://bucket/b") for key in keys)


def test_left_overs_of_a_killed_process_go_when_they_are_the_oldest(tmp_path: Path) -> None:
    small = cache(tmp_path, max_bytes=20_000)
    small.put(("segment", "0", 0), bytes(100))
    unfinished = Path(held_path(small, 0) + ".1234.tmp")
    unfinished.write_bytes(bytes(3_000))
    os.utime(unfinished, ns=(1, 1))
    for number in range(1, 25):
        small.put(("segment", str(number), 0), bytes(1_000))
    assert not unfinished.exists()


def test_nothing_else_in_the_directory_is_touched(tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.write_bytes(bytes(100_000))
    small = cache(tmp_path, max_bytes=10_000)
    for number in range(30):
        small.put(("segment", str(number), 0), bytes(1_000))
    assert mine.stat().st_size == 100_000


def test_a_directory_that_cannot_be_used_costs_the_cache_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dolmen-cache").write_text("a file stands here")
    unusable = cache(tmp_path)
    with caplog.at_level(logging.WARNING, logger="dolmen"):
        for _ in range(3):
            unusable.put(KEY, b"body")
            assert unusable.get(KEY) is None
    assert len(caplog.records) == 1
    assert "not used" in caplog.text
    assert ObjectCache(disk=unusable).get_or_fetch(KEY, lambda: b"fetched", accept) == b"fetched"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: writing more into a file fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_costs_the_cache_and_leaves_no_half_written_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = cache(tmp_path)
    with caplog.at_level(logging.WARNING, logger="dolmen"), files_of_at_most(10_000):
        full.put(KEY, bytes(50_000))
        full.put(KEY, bytes(50_000))
    assert len(caplog.records) == 1
    assert held(tmp_path) == []
    assert cache(tmp_path).get(KEY) is None


def test_a_body_that_fails_its_check_is_neither_kept_nor_believed(tmp_path: Path) -> None:
    both = ObjectCache(disk=cache(tmp_path))

    def refuse(body: bytes) -> None:
        if body != b"right":
            raise CorruptionError("x", "wrong")

    with pytest.raises(CorruptionError):
        both.get_or_fetch(KEY, lambda: b"wrong", refuse)
    assert held(tmp_path) == []
    cache(tmp_path).put(KEY, b"wrong")
    assert both.get_or_fetch(KEY, lambda: b"right", refuse) == b"right"
    assert cache(tmp_path).get(KEY) == b"right"


_WRITER = """
import sys
from dolmen.base.runtime import Runtime
from dolmen.store.cache import DiskCache
number = int(sys.argv[2])
cache = DiskCache(sys.argv[1], "s3://bucket/a", Runtime(), 200_000)
for step in range(400):
    key = ("segment", str((step * 7 + number) % 50), 0)
    body = cache.get(key)
    assert body is None or body == key[1].encode() * 2000, key
    cache.put(key, key[1].encode() * 2000)
"""


@pytest.mark.slow
def test_processes_share_a_directory_and_read_only_what_is_whole(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(number)], env=environment)
        for number in range(3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert sum(path.stat().st_size for path in held(tmp_path)) <= 2 * 200_000
    assert not [path for path in held(tmp_path) if path.suffix == ".tmp"]


def test_a_second_process_fetches_data_alone(tmp_path: Path) -> None:
    world = World()
    world.create(pa.table({"id": range(400_000)}), files=2, group_rows=50_000)
    table = world.db.table("t")
    table.delete("id = 3", mode="positions")
    table.delete(keys=list(range(10_000, 13_000)), on=["id"])

    def scan() -> tuple[pa.Table, int]:
        world.store.reset()
        own = ObjectCache(disk=cache(tmp_path))
        fresh = world.scan(["id"], cache=own)
        world.store.reset()
        told = fresh.explain()
        predicted = told.fetch.requests
        rest = told.tombstone_fetch.requests + told.vector_fetch.requests + told.footer_fetch.requests
        rows = fresh.to_arrow()
        assert predicted - rest == told.data_fetch.requests
        return rows, rest

    rows, rest = scan()
    assert rest == 4, "two footers, a vector and a list of keys"
    again, rest = scan()
    assert rest == 0
    assert again.equals(rows)


def test_segments_and_bloom_filters_survive_the_process(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    ids = encode("applied", [AppliedId(str(n), "d", n) for n in range(1_000)], "segment/applied/x")
    store.put(ids[0].object, ids[1])
    for gets in (2, 2):
        reader = SegmentReader(store, Runtime(threads=1), ObjectCache(disk=cache(tmp_path)))
        assert reader.applied(ids[0], ["unknown"]) == ()
        assert len(reader.applied(ids[0], ["5", "6"])) == 2
        assert store.gets == gets


def test_the_environment_says_where_and_only_far_stores_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_url: str
) -> None:
    monkeypatch.setenv("DOLMEN_CACHE_DIR", str(tmp_path / "cache"))
    for url in ("memory://x", str(tmp_path / "db"), "file:///tmp/x"):
        assert DiskCache.from_environment(open_store(url), Runtime()) is None
    db = dolmen.open(s3_url)
    db.create_table("t", pa.schema([("id", pa.int64())])).append(pa.table({"id": list(range(10))}))
    assert dolmen.open(s3_url).table("t").scan().to_arrow().num_rows == 10
    assert len(held(tmp_path / "cache")) == 2, "the footer and the file"
    store = open_store(s3_url)
    monkeypatch.setenv("DOLMEN_CACHE_BYTES", "0")
    assert DiskCache.from_environment(store, Runtime()) is None
    monkeypatch.setenv("DOLMEN_CACHE_BYTES", "5000")
    found = DiskCache.from_environment(store, Runtime())
    assert found is not None
    assert found.max_bytes == 5_000
    monkeypatch.delenv("DOLMEN_CACHE_DIR")
    assert DiskCache.from_environment(store, Runtime()) is None
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    monkeypatch.setenv("DOLMEN_CACHE_DIR", str(tmp_path / "cache"))
    assert DiskCache.from_environment(S3Store(bucket, prefix, session=boto3.Session()), Runtime()) is None


@pytest.mark.slow
def test_a_later_process_reads_columns_and_manifests_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Proxy, s3_url: str
) -> None:
    monkeypatch.setenv("DOLMEN_CACHE_DIR", str(tmp_path))
    rows = pa.table({"id": range(200_000), "text": [f"{number * 7919 % 200_003:x}" * 4 for number in range(200_000)]})
    dolmen.open(s3_url, runtime=Runtime()).create_table("t", rows.schema).append(rows)
    requests = []
    for _ in range(2):
        proxy.forget_requests()
        assert dolmen.open(s3_url, runtime=Runtime()).table("t").scan(["text"]).to_arrow().equals(rows.select(["text"]))
        requests.append(len(proxy.requests()))
    assert requests == [3, 1], "the pointer, the manifest and the file; the pointer"
    for path in held(tmp_path):
        body = bytearray(path.read_bytes())
        body[-1] ^= 1
        path.write_bytes(body)
    assert dolmen.open(s3_url, runtime=Runtime()).table("t").scan(["text"]).to_arrow().equals(rows.select(["text"]))
