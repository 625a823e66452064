"""Erasures of rows in a place, and searches for what is left of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.records import replace
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.gc.collection import Collected, collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.store.base import ObjectStore
from support.aging import Place

SCHEMA = pa.schema([("who", pa.string()), ("n", pa.int64())])


def people(*names: str) -> pa.Table:
    """Rows about people, ten for each."""
    return pa.table({"who": [name for name in names for _ in range(10)], "n": list(range(10 * len(names)))})


def maintain(place: Place, store: ObjectStore | None = None) -> None:
    """Resolves, compacts and merges all tables, in a new process."""
    context = place.context(store)
    for name in sorted(context.head.refresh().manifest.tables):
        resolve(context, name)
        compact(context, name)
    merge_segments(context)


def collect_own(place: Place, store: ObjectStore | None = None) -> Collected:
    """Collects by the database's own settings, in a new process."""
    return collect(place.context(store))


def days(place: Place, number: int, hours: int = 6) -> None:
    """Lets days pass, with upkeep every some hours."""
    for _ in range(number * 24 // hours):
        place.pass_hours(hours)
        maintain(place)
        collect_own(place)


def settings(place: Place, **changes: int) -> DatabaseSettings:
    """The database's settings, with changes."""
    return replace(DatabaseSettings.of(place.manifest), **changes)


def unpacked(key: str, body: bytes) -> Iterator[bytes]:
    """All that can be read in an object: its key, its bytes, and what these say once they are decompressed."""
    yield key.encode()
    yield body
    if key.startswith(("data/", "segment/files/")):
        yield from _of_parquet(body)
    elif key.startswith("iceberg/") and key.endswith(".avro"):
        yield str(list(fastavro.reader(io.BytesIO(body)))).encode()
    elif key.startswith("iceberg/") and key.endswith(".parquet"):
        yield from _of_parquet(body)
    elif key.startswith("segment/"):
        length, compressed = int.from_bytes(body[4:12], "little"), int.from_bytes(body[12:20], "little")
        yield pa.Codec("zstd").decompress(body[20 : 20 + compressed], length, asbytes=True)
    elif key.startswith("tombstone/"):
        start = body.find(b"PAR1")
        while start >= 0:  # keys are Parquet inside
            end = body.find(b"PAR1", start + 4)
            if end < 0:
                break
            with suppress(pa.ArrowException):
                yield from _of_parquet(body[start : end + 4])
            start = body.find(b"PAR1", start + 4)


def _of_parquet(body: bytes) -> Iterator[bytes]:
    """Every value of every column, dictionaries included, and the statistics."""
    file = pq.ParquetFile(io.BytesIO(body))
    metadata = file.metadata
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            yield str(metadata.row_group(group).column(column).statistics).encode()
            yield from _pages(body, metadata.row_group(group).column(column))
    yield str(file.read().to_pylist()).encode()


def _pages(body: bytes, chunk: pq.ColumnChunkMetaData) -> Iterator[bytes]:
    """The bytes of a column chunk, decompressed wherever a frame of Zstandard begins."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    held = body[start : start + chunk.total_compressed_size]
    yield held
    at = held.find(b"\x28\xb5\x2f\xfd")
    while at >= 0:
        with suppress(pa.ArrowException, OSError):
            yield pa.CompressedInputStream(io.BytesIO(held[at:]), "zstd").read()
        at = held.find(b"\x28\xb5\x2f\xfd", at + 4)


def holding(objects: Iterator[tuple[str, bytes]], marker: str) -> list[str]:
    """Keys of the objects in which a text stands anywhere."""
    wanted = marker.encode()
    return sorted({key for key, body in objects for part in unpacked(key, body) if wanted in part})


def holders(place: Place, marker: str) -> list[str]:
    """Keys of the objects of a place in which a text stands anywhere."""
    return holding(((key, stored.body) for key, stored in sorted(place.bucket.objects.items())), marker)
