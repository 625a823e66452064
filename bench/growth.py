"""Costs after years of use: commits to and plans of a table of a million files, and ten thousand commits in a row."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

import dolmen
from bench.places import Local, Ministack
from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.draft import Draft
from dolmen.commit.head import context_of
from dolmen.commit.loop import submit
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.layout import segment_key
from dolmen.format.manifest import Segment
from dolmen.format.segments import encode
from dolmen.maintenance.segment_merging import MOST_ENTRIES
from dolmen.rows.scan.scan import plan_of
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

COLUMNS = 10
FILES = 1_000_000
HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000

SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("user_id", pa.int64()),
        *((f"c{index}", pa.int64()) for index in range(COLUMNS - 2)),
    ]
)


@dataclass(frozen=True)
class AddSegments:
    """A statement that puts segments into a table as if its files had been spilled and merged long ago."""

    uuid: str
    segments: tuple[Segment, ...]
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds them."""
        entry = draft.table("events", self.uuid)
        draft.tables["events"] = msgspec.structs.replace(entry, segments=self.segments)


def database(files: int) -> tuple[Database, CountingStore]:
    """A database in memory with one table of a number of files of an hour each, whose rows are not read."""
    store = CountingStore(MemoryStore(MemoryBucket()))
    db = Database(store, Runtime())
    db.create_table("events", SCHEMA, sort_key="event_time")
    entry = db._context.head.refresh().manifest.table("events")
    segments = []
    for first in range(0, files, MOST_ENTRIES):
        count = min(MOST_ENTRIES, files - first)
        key = segment_key("files", db._context.runtime.uuid())
        segment, body = encode("files", list(_entries(first, count)), key, entry.schema)
        store.put(key, body)
        segments.append(segment)
    submit(db._context.head, "bench", [AddSegments(entry.uuid, tuple(segments))])
    return Database(store, Runtime()), store


def _entries(first: int, count: int) -> Iterator[DataFile]:
    for number in range(first, first + count):
        start = START_US + number * HOUR_US
        stats = {1: ColumnStats(start, start + HOUR_US - 1, 0), 2: ColumnStats(number % 977, 1_000_000 + number, 0)}
        scattered = number * 7_919 % 1_000_003
        stats |= {id_: ColumnStats(scattered, scattered + id_, 0) for id_ in range(3, COLUMNS + 1)}
        yield DataFile(
            path=f"data/events/2026/01/01/00/{number:032x}.parquet",
            size=100_000_000,
            rows=1_000_000,
            footer=(99_990_000, 10_000, 0),
            row_ts=number + 1,
            applied_through=number + 1,
            stats=stats,
        )


@dataclass(frozen=True)
class CommitCost:
    """A delete by predicate: PUTs, bytes of the root, and median processor time in seconds."""

    puts: int
    root_bytes: int
    seconds: float


def commit_cost(db: Database, store: CountingStore, rounds: int = 60) -> CommitCost:
    """What one delete costs; the first ones warm up."""
    table = db.table("events")
    times = []
    for number in range(rounds):
        store.reset()
        began = time.process_time()
        table.delete(f"user_id > {number} AND c0 < {number}")
        times.append(time.process_time() - began)
    return CommitCost(store.puts, context_of(db).head.manifest_bytes, statistics.median(times[10:]))


@dataclass(frozen=True)
class PlanCost:
    """A plan: GETs of segments from nothing, and seconds from nothing and again."""

    gets: int
    cold: float
    warm: float
    files: int


CLAUSES = {
    "one day": "event_time >= TIMESTAMPTZ '2024-01-01 00:00:00Z' AND event_time < TIMESTAMPTZ '2024-01-02 00:00:00Z'",
    "a value that every segment may have": "c0 = 500000",
}


def plan_cost(store: CountingStore, where: str) -> PlanCost:
    """Plans a scan."""
    db = Database(store, Runtime())
    table = db.table("events")
    store.reset()
    began = time.perf_counter()
    plan = plan_of(table.scan(where=where))
    cold = time.perf_counter() - began
    gets = store.gets - 1  # but for the pointer
    times = []
    for _ in range(9):
        began = time.perf_counter()
        _ = plan_of(table.scan(where=where))
        times.append(time.perf_counter() - began)
    return PlanCost(gets, cold, statistics.median(times), len(plan.files))


@dataclass(frozen=True)
class Latencies:
    """Medians of the commits between the first two spills and the last two, in seconds; how many spilled."""

    first: float
    last: float
    spills: int
    commits: int

    @property
    def ratio(self) -> float:
        """Of the last to the first."""
        return self.last / self.first


def latencies(where: Local | Ministack, commits: int, rows: int = 1_000) -> Latencies:
    """Appends one after another; segments are merged from time to time, as maintenance would do."""
    url = where.fresh()
    db = dolmen.open(url)
    db.create_table("events", SCHEMA, sort_key="event_time")
    table = db.table("events")
    columns = [pa.array(range(rows), pa.int64()) for _ in SCHEMA]
    batch = pa.table([columns[0].cast(SCHEMA.field(0).type), *columns[1:]], schema=SCHEMA)
    cycles: list[list[float]] = [[]]
    segments = 0
    for number in range(commits):
        began = time.perf_counter()
        table.append(batch)
        cycles[-1].append(time.perf_counter() - began)
        manifest = db._context.head.refresh().manifest
        known = len(manifest.segments) + len(manifest.table("events").segments)
        if known > segments:
            cycles.append([])
        segments = known
        if number % 1_000 == 999:
            db.merge()
            manifest = db._context.head.refresh().manifest
            segments = len(manifest.segments) + len(manifest.table("events").segments)
    full = [cycle for cycle in cycles[1:-1] if len(cycle) >= 10]
    found = Latencies(statistics.median(full[0]), statistics.median(full[-1]), len(cycles) - 1, commits)
    where.remove(url)
    return found
