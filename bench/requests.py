"""Counts the requests that each operation sends to S3, with objects in memory.

Requests that depend on sizes are counted at two sizes. The difference gives the requests per file, row group or
expired version, and the rest is the requests of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.ingest.announcements import Drop
from dolmen.ingest.delete_requests import apply_deletes, parse_request
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.store.base import ObjectInfo, ObjectStore, Stored
from dolmen.store.input import open_pinned
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

LIST_PAGE = 1_000
"""Keys of a page: each page is a request (docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html)."""

DAY_US = 86_400_000_000
_START_US = 1_790_000_000_000_000
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user_id", pa.int64()), ("payload", pa.string())])
_FILES = 3
_GROUPS = 3
_OTHERS = 4
_GROUP_ROWS = 65_000
"""About a full row group."""


@dataclass(frozen=True)
class Requests:
    """Requests by their price: ``puts`` are PUT, POST and LIST, ``gets`` are GET and HEAD; deleting is free."""

    puts: float
    gets: float

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets)

    def __sub__(self, other: Requests) -> Requests:
        return Requests(self.puts - other.puts, self.gets - other.gets)

    def __mul__(self, times: float) -> Requests:
        return Requests(self.puts * times, self.gets * times)


@dataclass(frozen=True)
class Measured:
    """What was counted.

    Args:
        ingest, ingest_file: of a batch of files, and of each file in it.
        delete, delete_message: of a batch of delete messages, and of each message in it.
        lost_race: more, when another commit was faster.
        query_cold, query_warm: of a query on a database just opened, and of one more on the same.
        query_file_cold, query_file_warm: for each file that it reads.
        query_group: for each row group that it reads two narrow columns of.
        compact, compact_file: of a compaction of one group, and for each small file read. What is larger is reckoned
            by its bytes: ranges that are read, parts that are uploaded.
        resolve, resolve_file, resolve_group: of a resolution: for each file, and each row group, looked into.
        idle_round: of a round of maintenance that finds nothing to do.
        gc, gc_version: of a collection, and for each version that goes.
    """

    ingest: Requests
    ingest_file: Requests
    delete: Requests
    delete_message: Requests
    lost_race: Requests
    query_cold: Requests
    query_warm: Requests
    query_file_cold: Requests
    query_file_warm: Requests
    query_group: Requests
    compact: Requests
    compact_file: Requests
    resolve: Requests
    resolve_file: Requests
    resolve_group: Requests
    idle_round: Requests
    gc: Requests
    gc_version: Requests


class Meter(CountingStore):
    """Counts as S3 sends its bill: pages of listings, and the reads of an opened object."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.pages = 0.0

    @property
    def sent(self) -> Requests:
        """All requests so far."""
        return Requests(self.puts + self.pages, self.gets + self.heads)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.pages += 1
        for info in super().list(prefix, start_after):
            self.pages += 1 / LIST_PAGE  # the share of a further page, so that small numbers tell of large ones
            yield info

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        return open_pinned(self, key, etag=etag, version=version)


class _World:
    """A database in memory whose clock is moved by hand, and a landing bucket."""

    def __init__(self) -> None:
        self.now_us = _START_US
        self.bucket = MemoryBucket(lambda: self.now_us, "cost")
        self.landing = MemoryStore(MemoryBucket(lambda: self.now_us, "landing"), self._runtime())
        self.open().create_table("events", _SCHEMA, primary_key="id", sort_key="id")

    def _runtime(self) -> Runtime:
        """The runtime of another process."""
        return Runtime(clock_us=lambda: self.now_us, monotonic=lambda: self.now_us / 1e6, threads=1)

    def open(self) -> Database:
        runtime = self._runtime()
        return Database(MemoryStore(self.bucket, runtime), runtime)

    def metered(self) -> tuple[Database, Meter]:
        """The database as opened by a process that has just read the newest version."""
        runtime = self._runtime()
        meter = Meter(MemoryStore(self.bucket, runtime))
        database = Database(meter, runtime)
        database.refresh()
        return database, meter


@dataclass(frozen=True, kw_only=True)
class _Landing(Landing):
    """A landing place that is metered."""

    meter: ObjectStore

    def _open(self, url: str) -> ObjectStore:
        return self.meter


def measure() -> Measured:
    """Counts everything; takes a few seconds."""
    one, four = _ingest(1), _ingest(4)
    ingest_file = (four - one) * (1 / 3)
    ten, hundred = _delete(10), _delete(100)
    message = (hundred - ten) * (1 / 90)
    small, tall, wide = _reads(1, 1), _reads(1, _GROUPS), _reads(_FILES, 1)
    found: dict[str, Requests] = {}
    compact_file = (wide["compact"] - small["compact"]) * (1 / (_FILES - 1))
    resolve_group = (tall["resolve"] - small["resolve"]) * (1 / (_GROUPS - 1))
    resolve_file = (wide["resolve"] - small["resolve"]) * (1 / (_FILES - 1))
    group = (tall["warm"] - small["warm"]) * (1 / (_GROUPS - 1))
    for state in ("cold", "warm"):
        file = (wide[state] - small[state]) * (1 / (_FILES - 1))
        found |= {f"query_file_{state}": file - group, f"query_{state}": small[state] - file}
    few, many = _gc(20), _gc(40)
    version = (many - few) * (1 / 20)
    return Measured(
        ingest=one - ingest_file,
        ingest_file=ingest_file,
        delete=ten - message * 10,
        delete_message=message,
        lost_race=_lost_race(),
        query_group=group,
        compact=small["compact"] - compact_file * (1 + _OTHERS),
        compact_file=compact_file,
        resolve=small["resolve"] - resolve_file,
        resolve_file=resolve_file - resolve_group,
        resolve_group=resolve_group,
        idle_round=small["idle"],
        gc=few - version * 20,
        gc_version=version,
        **found,
    )


def _ingest(files: int) -> Requests:
    world = _World()
    drops = []
    for number in range(files):
        body = f"id,user_id,payload\n{number},1,x\n".encode()
        stored = world.landing.put(f"landing/events/{number}.csv", body)
        assert isinstance(stored, Stored)
        key, etag, later = f"landing/events/{number}.csv", stored.etag.strip('"'), 2**62  # than the table was created
        drops.append(Drop("b", key, len(body), etag, sequencer="1", created_us=later))
    database, meter = world.metered()
    landing = Meter(world.landing)
    before = meter.sent
    done = ingest_drops(database, _Landing("s3://elsewhere/db", meter=landing), drops)
    assert [outcome.status for outcome in done.outcomes] == ["ingested"] * files, done
    return meter.sent - before + landing.sent


def _delete(messages: int) -> Requests:
    world = _World()
    database, meter = world.metered()
    before = meter.sent
    requests = [parse_request({"table": "events", "where": {"user_id": n}}, f"m{n}") for n in range(messages)]
    assert {outcome.status for outcome in apply_deletes(database, requests).outcomes} == {"applied"}
    return meter.sent - before


def _lost_race() -> Requests:
    world = _World()
    database, meter = world.metered()
    world.open().table("events").append(_rows(0, 1))
    before = meter.sent
    commit = database.table("events").append(_rows(1, 1))
    assert commit.attempts == 2
    alone = meter.sent
    database.table("events").append(_rows(2, 1))
    return (alone - before) - (meter.sent - alone)


def _rows(first: int, count: int) -> pa.Table:
    rng = np.random.default_rng(first)
    letters = rng.integers(ord("a"), ord("z") + 1, count * 60, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * 60
    payload = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    users = rng.integers(0, 1 << 40, count)
    return pa.table([np.arange(first, first + count), users, payload], schema=_SCHEMA)


def _reads(files: int, groups: int) -> dict[str, Requests]:
    """Requests of queries, a resolution and a compaction, for a number of files and of row groups per file."""
    world = _World()
    rows = groups * _GROUP_ROWS
    table = world.open().table("events")
    for number in range(files):
        table.append(_rows(number * rows, rows))
    assert {len(_metadata(world, key)) for key in world.bucket.objects if key.startswith("data/")} == {groups}
    database, meter = world.metered()
    found: dict[str, Requests] = {}

    def note(what: str, action: Callable[[], object]) -> None:
        before = meter.sent
        action()
        found[what] = meter.sent - before

    def query(some: Database) -> None:
        some.table("events").scan(["id", "user_id"]).to_arrow()

    before = meter.sent
    query(database)
    found["cold"] = meter.sent - before + Requests(0, 1)  # the manifest, which is read after the pointer
    database, meter = world.metered()
    database.table("events").scan(["id", "user_id"]).explain()  # it reads the footers
    note("warm", lambda: query(database))
    users = _rows(0, 2)["user_id"].to_pylist()[1:]
    database.table("events").delete(keys=users, on=["user_id"])
    fresh, meter = world.metered()
    note("resolve", lambda: fresh.resolve("events"))
    for number in range(_OTHERS):  # so that there is something to merge with
        world.open().table("events").append(_rows((files + number) * rows, rows))
    return found | _compaction(world)


def _metadata(world: _World, key: str) -> range:
    """The row groups of a data file."""
    return range(pq.ParquetFile(pa.BufferReader(world.bucket.objects[key].body)).num_row_groups)


def _compaction(world: _World) -> dict[str, Requests]:
    database, meter = world.metered()
    before = meter.sent
    done = database.compact("events")["events"]
    assert done.groups == 1, done
    compacted = meter.sent - before
    before = meter.sent
    database.maintain()
    return {"compact": compacted, "idle": meter.sent - before}


def _gc(versions: int) -> Requests:
    """Requests of a collection that expires a number of versions."""
    world = _World()
    database = world.open()
    database.set(keep_versions=1, retention="1d")
    table = database.table("events")
    for number in range(versions):
        table.append(_rows(number, 1))
    for _ in range(3):
        world.now_us += 9 * DAY_US
        table.append(_rows(0, 1))
        database, meter = world.metered()
        before = meter.sent
        collected = database.gc()
        if collected.objects >= versions:
            return meter.sent - before
    raise AssertionError("the versions do not go")
