"""Segments that are damaged, missing or somebody else's: always an error that names the object."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.entries.segments.erasures_in_force import RememberedKeys
from dolmen.entries.segments.row_bounds import recorded_predicate
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError, UnsupportedFormatError
from dolmen.format.entries import Blob, DataFile, Overlay, Vector, WhereTombstone
from dolmen.format.layout import seal
from dolmen.format.manifest import AppliedId, Segment, SegmentKind, TableEntry
from dolmen.format.schema import Schema
from dolmen.format.segments import encode
from dolmen.store.cache import ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.random_entries import random_file

ROWS = pa.table({"x": [1, 2, 3], "s": ["a", "b", "c"]})
SCHEMA = Schema.from_arrow(ROWS.schema)


class Place:
    """A store with some segments, read by a reader that has seen none."""

    def __init__(self) -> None:
        self.store = CountingStore(MemoryStore())
        self.runtime = Runtime(threads=1)
        self.reader = SegmentReader(self.store, self.runtime, ObjectCache())

    def put(self, kind: SegmentKind, entries: list[Any], *, flip: int | None = None) -> Segment:
        """Uploads a segment, one bit of it wrong if ``flip`` is given."""
        segment, body = encode(kind, entries, f"segment/{kind}/x", SCHEMA)
        if flip is not None:
            changed = bytearray(body)
            changed[flip // 8] ^= 1 << flip % 8
            body = bytes(changed)
        self.store.put(segment.object, body)
        return segment

    def forged(self, segment: Segment, body: bytes) -> Segment:
        """Uploads another body, and a reference that fits it."""
        self.store.put("segment/forged/x", body)
        return msgspec.structs.replace(segment, object="segment/forged/x", size=len(body), crc32=crc32(body))


def files(count: int = 20) -> list[DataFile]:
    """Entries of files."""
    rng = random.Random(3)
    return [random_file(rng, ROWS, SCHEMA) for _ in range(count)]


@pytest.mark.slow
def test_one_flipped_bit_anywhere_in_a_segment_is_an_error_that_names_it() -> None:
    size = Place().put("files", files()).size * 8
    for flip in random.Random(5).sample(range(size), 100):
        place = Place()
        segment = place.put("files", files(), flip=flip)
        with pytest.raises(CorruptionError, match=r"segment/files/x.*checksum differs"):
            place.reader.files(segment)
    entries = [Overlay("a", 1), Overlay("b", 2)]
    for flip in range(Place().put("overlays", entries).size * 8):
        place = Place()
        segment = place.put("overlays", entries, flip=flip)
        with pytest.raises(CorruptionError, match=r"segment/overlays/x.*checksum differs"):
            place.reader.overlays(segment)


def test_one_flipped_bit_in_a_bloom_filter_is_an_error_and_not_an_unknown_id() -> None:
    entries = [AppliedId(str(n), "d", 1) for n in range(30)]
    known = Place().put("applied", entries)
    assert known.bloom is not None
    for flip in range(known.bloom[0] * 8, known.size * 8, 7):
        place = Place()
        segment = place.put("applied", entries, flip=flip)
        with pytest.raises(CorruptionError, match="bloom"):
            place.reader.applied(segment, ["3"])


def test_missing_truncated_and_longer_segments_are_told_from_another() -> None:
    place = Place()
    segment, body = encode("files", files(), "segment/files/gone", SCHEMA)
    with pytest.raises(CorruptionError, match=r"segment/files/gone.*missing"):
        place.reader.files(segment)
    place.store.put(segment.object, body + b"x")
    with pytest.raises(CorruptionError, match=f"{len(body) + 1}.* {len(body)}"):
        place.reader.files(segment)


def test_a_damaged_segment_is_not_kept_and_read_again() -> None:
    place = Place()
    segment = place.put("files", files(), flip=1_000)
    for gets in (1, 2):
        with pytest.raises(CorruptionError):
            place.reader.files(segment)
        assert place.store.gets == gets


def test_a_segment_of_another_kind_or_count_is_refused() -> None:
    removed, body = encode("removed", ["a", "b"], "segment/removed/x")
    parquet = encode("files", files(), "segment/files/x", SCHEMA)[1]
    for wrong in ({"kind": "overlays"}, {"count": 3}):
        place = Place()
        with pytest.raises(CorruptionError, match="segment/forged/x"):
            place.reader._entries(place.forged(msgspec.structs.replace(removed, **wrong), body))
    for other in (b"", b"DSG1", b"x" * 100, parquet, b"DSG1" + bytes([0, 0, 0, 0, 0, 1, 0, 0]) + body[12:]):
        place = Place()
        with pytest.raises(CorruptionError, match="segment/forged/x"):
            place.reader.removed(place.forged(removed, other))
    kept = msgspec.structs.replace(encode("files", files(2), "segment/files/x", SCHEMA)[0])
    for other in (b"", body, parquet):
        place = Place()
        with pytest.raises(CorruptionError, match="segment/forged/x"):
            place.reader.files(place.forged(kept, other))


def test_a_segment_of_a_newer_format_is_refused_as_that() -> None:
    place = Place()
    segment = encode("removed", ["a"], "segment/removed/x")[0]
    document = seal(b'{"format_version":2,"kind":"removed","entries":["a"]}')
    frame = pa.Codec("zstd").compress(document, asbytes=True)
    body = b"DSG1" + len(document).to_bytes(8, "little") + len(frame).to_bytes(8, "little") + frame
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        place.reader.removed(place.forged(segment, body))


_VECTOR = Vector("tombstone/../../etc/passwd", 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("files", msgspec.structs.replace(files(1)[0], path="data/../../etc/passwd")),
        ("files", msgspec.structs.replace(files(1)[0], path="https://elsewhere/x.parquet")),
        ("files", msgspec.structs.replace(files(1)[0], vector=_VECTOR)),
        ("overlays", Overlay("a", 1, _VECTOR)),
        ("tombstones", WhereTombstone((1,), Blob("/etc/passwd", 1, 2, 3))),
        ("table", TableEntry("u", 1, SCHEMA, segments=(Segment("removed", "../x", 1, 2, 3),))),
    ],
)
def test_what_a_segment_refers_to_can_only_be_an_object_of_the_database(kind: SegmentKind, entry: Any) -> None:
    place = Place()
    segment = place.put(kind, [entry])
    with pytest.raises(CorruptionError, match=f"segment/{kind}/x"):
        list(place.reader.files(segment).entries()) if kind == "files" else place.reader._entries(segment)


def test_an_idle_table_s_section_must_be_its_own() -> None:
    place = Place()
    entry = TableEntry("mine", 3, SCHEMA, primary_key=(1,), files=tuple(files(2)), last_delete_ts=4)
    section = place.put("table", [entry])
    stub = TableEntry("mine", 3, Schema(fields=(), next_id=9), last_delete_ts=4, section=section)
    assert place.reader.whole(stub) == entry
    assert place.reader.whole(entry) is entry
    with pytest.raises(CorruptionError, match=r"segment/table/x.*other"):
        place.reader.whole(msgspec.structs.replace(stub, uuid="other"))


def test_an_unknown_id_costs_the_bloom_filter_alone_and_that_once() -> None:
    place = Place()
    segment = place.put("applied", [AppliedId(f"id {n}", f"digest {n}", n) for n in range(5_000)])
    assert segment.bloom is not None
    for _ in range(2):
        assert place.reader.applied(segment, ["never"]) == ()
    assert (place.store.gets, place.store.bytes_down) == (1, segment.bloom[1])
    assert place.reader.applied(segment, ["never", "id 7"]) == (AppliedId("id 7", "digest 7", 7),)
    assert (place.store.gets, place.store.bytes_down) == (2, segment.bloom[1] + segment.size)
    assert len(place.reader.applied(segment)) == 5_000
    assert place.store.gets == 2


def test_a_record_of_a_delete_that_is_no_predicate_is_damage_and_not_a_mistake_of_the_reader() -> None:
    body = b'{"kind":"unheard of"}'
    blob = Blob("tombstone/x", 4, len(body), crc32(body))
    memory = RememberedKeys("m", TableEntry("m", 0, SCHEMA), TableEntry("t", 0, SCHEMA))
    with pytest.raises(CorruptionError, match=r"tombstone/x.*predicate at byte 4"):
        recorded_predicate(body, blob)
    with pytest.raises(CorruptionError, match=r"tombstone/x.*predicate at byte 4"):
        memory.predicate(WhereTombstone((1,), blob), lambda _: body)
