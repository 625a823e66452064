"""Index objects: what is written is read, with few requests, and damage is never taken for an answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.base.runtime import Runtime
from dolmen.entries.index import pages, table_index
from dolmen.entries.index.key_encoding import KeyEncoding, key_order
from dolmen.entries.index.pages import LeafPage
from dolmen.entries.index.table_index import IndexHead, IndexReader, write_part
from dolmen.errors import CorruptionError
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.manifest import Segment
from dolmen.format.page_locations import ChunkSums
from dolmen.rows.scan.data_objects import DataFileFooter
from dolmen.store import MemoryBucket, MemoryStore, ObjectStore
from dolmen.store.cache import ObjectCache
from dolmen_simulator.counting import CountingStore
from support.trees import find
from support.written import Written, events, write

KEY = "segment/index/x"
ENCODING = KeyEncoding.of([pa.int64()])


def written(
    store: ObjectStore, numbers: list[int], files: tuple[str, ...] = ("a",), *, places: bool = False
) -> Segment:
    keys = ENCODING.encode([pa.array(numbers, pa.int64())])
    found = key_order(keys)
    known = ChunkLocations.collect(*footer_facts(write(events(10)))) if places else None
    kept = {"a": known} if known else {}
    part = write_part(store, KEY, (1,), ENCODING, files, [LeafPage(keys[found], found.astype(np.uint64))], kept)
    assert part is not None
    return part


FILES = {"a": 10, "b": 20}


def footer_facts(made: Written) -> tuple[pq.FileMetaData, ChunkSums | None]:
    (file,) = made.files
    footer = DataFileFooter.parse(made.body()[file.footer[0] :], file)
    return footer.metadata, footer.sums


def read_again(store: ObjectStore, files: tuple[str, ...], places: dict[str, ChunkLocations]) -> IndexHead:
    keys = ENCODING.encode([pa.array([1], pa.int64())])
    part = write_part(store, KEY, (1,), ENCODING, files, [LeafPage(keys, np.zeros(1, np.uint64))], places)
    assert part is not None
    head = reader(store).open(part).head
    store.delete([KEY])
    return head


def reader(store: ObjectStore, cache_bytes: int = 1 << 20) -> IndexReader:
    return IndexReader(store, Runtime(threads=1), ObjectCache(cache_bytes))


def positions(index: IndexReader, part: Segment, number: int) -> list[int]:
    keys = ENCODING.encode([pa.array([number], pa.int64())])
    return [place for _, places in find(index.open(part).tree, keys) for place in places.tolist()]


def test_a_part_says_what_it_is_of_and_finds_its_rows() -> None:
    store = MemoryStore(MemoryBucket())
    part = written(store, [5, -3, 5, 9], ("a", "b"))
    body = store.get(KEY).body
    assert (part.kind, part.count, part.size, part.crc32) == ("index", 4, len(body), crc32(body))
    index = reader(store)
    head = index.open(part).head
    assert (head.columns, head.kinds, head.files) == ((1,), ("signed",), ("a", "b"))
    assert sorted(positions(index, part, 5)) == [0, 2]
    assert positions(index, part, 4) == []


def test_a_look_up_takes_two_requests_and_then_none() -> None:
    store = CountingStore(MemoryStore(MemoryBucket()))
    numbers = np.random.default_rng(1).integers(-(2**63), 2**63, 100_000, endpoint=False).tolist()
    part = written(store, numbers)
    index = reader(store)
    store.reset()
    assert positions(index, part, numbers[70_000]) == [70_000]
    assert store.gets == 2
    assert store.bytes_down < 64 << 10
    assert positions(index, part, numbers[70_000]) == [70_000]
    assert store.gets == 2
    assert sum(len(leaf.keys) for leaf in reader(store).open(part).tree.leaves()) == 100_000
    assert store.gets == 4, "neighbouring pages are fetched together"


def test_the_cache_is_bounded() -> None:
    store = MemoryStore(MemoryBucket())
    part = written(store, list(range(0, 10**8, 500)))
    index = reader(store, 300_000)
    assert sum(len(leaf.keys) for leaf in index.open(part).tree.leaves()) == 200_000
    assert 0 < index.cache.memory.bytes <= 300_000


@pytest.mark.slow
def test_every_flipped_byte_is_found_or_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 100)
    monkeypatch.setattr(pages, "MOST_ROWS", 8)
    store = MemoryStore(MemoryBucket())
    numbers = list(range(0, 3_000, 50))
    part = written(store, numbers, places=True)
    body = store.get(KEY).body
    expected = [[row] for row in range(len(numbers))]
    harmless = []
    for at in range(len(body)):
        damaged = MemoryStore(MemoryBucket())
        damaged.put(KEY, body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :])
        index = reader(damaged)
        with suppress(CorruptionError):
            assert [positions(index, part, number) for number in numbers] == expected
            harmless.append(at)
    assert harmless == [0, 1, 2, 3], "no reader needs the magic"


def test_places_of_column_chunks_come_back_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(MemoryBucket())
    places = {uuid: ChunkLocations.collect(*footer_facts(write(events(rows)))) for uuid, rows in FILES.items()}
    kept = {uuid: known for uuid, known in places.items() if known is not None}
    other = ChunkLocations.collect(*footer_facts(write(pa.table({"x": [1]}))))
    assert other is not None
    kept["d"] = other
    files = ("a", "b", "c", "d")
    found = read_again(store, files, kept)
    assert (len(found.schemas), [known is None for known in found.chunks]) == (2, [False, False, True, False])
    for uuid, there in found.all_locations().items():
        assert there.encode() == kept[uuid].encode()
        assert there.schema == kept[uuid].schema
    monkeypatch.setattr(table_index, "MOST_CHUNKS", kept["a"].states.size + 1)
    assert [known is None for known in read_again(store, files, kept).chunks] == [False, True, True, False]
    monkeypatch.setattr(table_index, "MOST_CHUNKS", 0)
    assert read_again(store, files, kept).chunks == ()


@pytest.mark.parametrize(
    "wrong", [{"chunks": ((0, b"x"),)}, {"chunks": ((1, b""),)}, {"schemas": (b"x",)}, {"chunks": (None, None)}]
)
def test_places_that_nothing_can_be_read_by_are_damage(wrong: dict[str, Any]) -> None:
    places = ChunkLocations.collect(*footer_facts(write(events(10))))
    assert places is not None
    head = IndexHead(1, (1,), ("signed",), ("a",), (places.schema,), ((0, places.encode()),))
    head.check()
    with pytest.raises(ValueError, match=r"."):
        msgspec.structs.replace(head, **wrong).check()


def test_a_cut_object_is_damage() -> None:
    store = MemoryStore(MemoryBucket())
    part = written(store, list(range(1_000)))
    cut = MemoryStore(MemoryBucket())
    cut.put(KEY, store.get(KEY).body[:-1])
    with pytest.raises(CorruptionError, match="checksum"):
        reader(cut).open(part)


def test_a_missing_object_is_damage() -> None:
    part = written(MemoryStore(MemoryBucket()), [1])
    with pytest.raises(CorruptionError, match="missing") as caught:
        reader(MemoryStore(MemoryBucket())).open(part)
    assert caught.value.is_missing


def test_without_entries_nothing_is_written() -> None:
    store = MemoryStore(MemoryBucket())
    assert write_part(store, KEY, (1,), ENCODING, (), [], {}) is None
    assert list(store.list("")) == []
