"""A million data files: what planning fetches, and the memory it takes."""

from __future__ import annotations

import tracemalloc

import msgspec
import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.format.entries import Overlay, Vector
from dolmen.format.layout import POINTER, Pointer
from dolmen.format.manifest import Manifest
from dolmen.maintenance.health.file_figures import FilesSurvey
from dolmen.predicate.parse import parse
from dolmen.rows.scan.plan import ScanPlan, plan
from dolmen.rows.scan.scan import Scan, plan_of
from dolmen.store.cache import ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.many_files import ROWS, SCHEMA, many_files
from support.tables import view

SEGMENTS, PER_SEGMENT = 20, 50_000
FILES = SEGMENTS * PER_SEGMENT


@pytest.fixture(scope="module")
def million() -> tuple[CountingStore, Manifest]:
    """A table of a million files, all in segments, and its store."""
    store = CountingStore(MemoryStore())
    return store, many_files(store, SEGMENTS, PER_SEGMENT)


def planned(store: CountingStore, manifest: Manifest, text: str, cache: ObjectCache | None = None) -> ScanPlan:
    """The plan of a scan; the store has counted what it took."""
    store.reset()
    return plan(view(store, Runtime(threads=1), cache or ObjectCache(), manifest), where=parse(text, SCHEMA, now_us=0))


@pytest.mark.slow
def test_a_selective_scan_by_a_clustered_column_fetches_few_segments_once(
    million: tuple[CountingStore, Manifest],
) -> None:
    store, manifest = million
    cache = ObjectCache()
    first = 123_400 * ROWS
    for gets in (1, 0):
        found = planned(store, manifest, f"id BETWEEN {first + 10} AND {first + 90_000}", cache)
        assert [file.file.stats[1].min for file in found.files] == list(range(first, first + 91_000, ROWS))
        assert [file.needs_filter for file in found.files] == [True] + [False] * 89 + [True]
        assert found.pruned == {"filter": FILES - 91}
        assert store.gets == found.segments.requests == gets
        assert store.bytes_down == found.segments.bytes
        assert (found.segments.read, found.segments.pruned) == (1, SEGMENTS - 1)
    spread = planned(store, manifest, f"id IN (5, {500_000 * ROWS}, {999_999 * ROWS})")
    assert len(spread.files) == store.gets == 3
    assert "3 of 1,000,000" in repr(spread)
    assert "3 of 20 looked into, fetched with 3 requests" in repr(spread)


@pytest.mark.slow
def test_a_count_of_everything_fetches_nothing_and_one_with_a_border_a_segment(
    million: tuple[CountingStore, Manifest],
) -> None:
    store, manifest = million
    store.reset()

    def count(where: str | None) -> int:
        predicate = where and parse(where, SCHEMA, now_us=0)
        return Scan(view(store, Runtime(threads=1), ObjectCache(), manifest), where=predicate or None).count()

    assert count(None) == FILES * ROWS
    assert store.gets == 0
    assert count(f"id >= {70_000 * ROWS}") == (FILES - 70_000) * ROWS
    assert store.gets == 1


@pytest.mark.slow
def test_changes_of_files_are_found_among_a_million(million: tuple[CountingStore, Manifest]) -> None:
    store, manifest = million
    entry = manifest.table("t")
    reader = SegmentReader(store, Runtime(threads=1), ObjectCache())
    part = next(LiveFiles.of(entry, reader).live_segments([entry.segments[11]]))
    names = [file.uuid for file in part.entries(part.positions()[:4_000])]
    vector = Vector("tombstone/t/x.del", 4, 5, 6, 10)
    changed = msgspec.structs.replace(
        entry, removed=tuple(names[:1_000]), overlays=tuple(Overlay(name, 9, vector) for name in names[1_000:2_000])
    )
    manifest = msgspec.structs.replace(manifest, tables={"t": changed})
    first = 11 * PER_SEGMENT * ROWS
    found = planned(store, manifest, f"id BETWEEN {first} AND {first + 2_999 * ROWS}", reader.cache)
    assert [file.file.uuid for file in found.files] == names[1_000:3_000]
    assert [file.file.live_rows for file in found.files] == [ROWS - 10] * 1_000 + [ROWS] * 1_000
    assert found.pruned == {"filter": FILES - 1_000 - 2_000}
    scan = Scan(view(store, Runtime(threads=1), reader.cache, manifest))
    assert scan.count() == (FILES - 1_000) * ROWS - 1_000 * 10


@pytest.mark.slow
def test_a_column_is_added_with_two_puts_and_planned_from_the_root_alone(
    million: tuple[CountingStore, Manifest],
) -> None:
    store, manifest = million
    named = msgspec.structs.replace(manifest, version=1, attempt="0" * 8, commit_id="0" * 32)
    store.put(named.key, named.encode())
    store.put(POINTER, Pointer(1, named.key, named.commit_id).encode())
    db = Database(store, Runtime(threads=1))
    table = db.table("t")
    store.reset()
    table.add_column("extra", pa.int64(), 7)
    assert (store.puts, store.lists, store.heads) == (2, 0, 0)
    assert store.gets <= 2  # pointer and manifest
    store.reset()
    assert plan_of(table.scan(where="extra <> 7 OR extra IS NULL")).files == ()
    assert table.count("extra = 7") == FILES * ROWS
    assert table.count("extra IS NULL") == 0
    assert (store.gets, store.puts) == (3, 0)  # the pointer, each time
    found = plan_of(table.scan(["extra"], where=f"extra = 7 AND id < {ROWS}"))
    assert (len(found.files), found.segments.requests) == (1, 1)


@pytest.mark.slow
def test_planning_takes_no_more_memory_than_the_cache_and_the_segment_at_hand(
    million: tuple[CountingStore, Manifest],
) -> None:
    store, manifest = million
    cache = ObjectCache(4 << 20)
    tracemalloc.start()
    try:
        found = planned(store, manifest, "user = 500000", cache)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.files) > 100
    assert found.segments.requests >= SEGMENTS
    assert cache.memory.bytes <= 4 << 20
    assert peak < 64 << 20


@pytest.mark.slow
def test_the_health_of_the_table_reads_each_segment_once_in_bounded_memory(
    million: tuple[CountingStore, Manifest],
) -> None:
    store, manifest = million
    entry = msgspec.structs.replace(manifest.table("t"), sort_key=(2,))
    reader = SegmentReader(store, Runtime(threads=1), ObjectCache(4 << 20))
    store.reset()
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        survey = FilesSurvey.of(entry, (), 256 << 20, reader)
        held = pa.total_allocated_bytes() - before
        overlap = survey.overlap
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (store.gets, store.lists, store.heads) == (SEGMENTS, 0, 0)
    assert (survey.sums.files, survey.sums.rows, survey.sizes.counts) == (FILES, FILES * ROWS, {19: FILES})
    assert overlap is not None
    assert (overlap.files, overlap.unknown) == (FILES, 0)
    assert len(overlap.depths) == 120
    assert 900 < overlap.mean < 1_100 < overlap.deepest  # each has a thousand users of a million
    assert held < 40 << 20
    assert peak < 200 << 20
