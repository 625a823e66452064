"""Many objects in memory: half of them data files of a table whose entries have spilled, half of them orphans."""

from __future__ import annotations

import msgspec

from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key, segment_key
from dolmen.format.manifest import Segment
from dolmen.format.segments import encode
from dolmen.store.memory import MemoryObject
from support.aging import HOUR_US, SCHEMA, Place

_SEGMENT = 50_000


def fill(place: Place, objects: int) -> int:
    """Puts ``count`` data files with times of 48 hours; returns the number of those that the newest version names."""
    place.db.create_table("t", SCHEMA)
    runtime = place.runtime()
    body = MemoryObject(b"x", '"x"', place.now_us)
    segments: list[Segment] = []
    entries: list[DataFile] = []
    live = 0

    def spill() -> None:
        key = segment_key("files", runtime.uuid())
        segment, encoded = encode("files", entries, key, place.manifest.table("t").schema)
        place.bucket.objects[key] = MemoryObject(encoded, f'"{key}"', place.now_us)
        segments.append(segment)
        entries.clear()

    for number in range(objects):
        key = data_key("t", place.now_us + number * 48 // objects * HOUR_US, runtime.uuid())
        place.bucket.objects[key] = body
        if number % 2:
            entries.append(DataFile(key, 1, 1, (0, 1, 0), row_ts=1, applied_through=1))
            live += 1
        if len(entries) == _SEGMENT:
            spill()
    if entries:
        spill()
    newest = place.manifest
    entry = msgspec.structs.replace(newest.table("t"), segments=tuple(segments))
    there = place.bucket.objects[newest.key]
    filled = msgspec.structs.replace(newest, tables={"t": entry}).encode()
    place.bucket.objects[newest.key] = MemoryObject(filled, there.etag, there.last_modified_us)
    return live
