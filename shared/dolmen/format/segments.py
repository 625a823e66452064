"""Segments: immutable objects ``segment/<kind>/<uuid>`` with entries that have left the manifest's inline tail.

A segment of kind ``files`` is Parquet (format/segment_files.py). Those of every other kind are JSON, compressed::

    "DSG1"                   4 bytes
    length of the JSON       8 bytes, little-endian
    length of the frame      8 bytes, little-endian
    frame                    one Zstandard frame: the sealed JSON (format/checksum.py)
    bloom filter             kind ``applied`` only (format/bloom.py); the manifest says where it is

The JSON is ``{"format_version": 1, "kind": <kind>, "entries": [...]}``, the entries as they stood in the manifest,
oldest first. There are no other checksums in a segment: the manifest has one of the whole object and one of its
bloom filter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
import pyarrow as pa

from dolmen.base.units import GIB
from dolmen.errors import CorruptionError
from dolmen.format import bloom
from dolmen.format.checksum import crc32, seal, unseal
from dolmen.format.decoding import prepare
from dolmen.format.entries import DataFile, Overlay, Tombstone, least_erasing
from dolmen.format.erasures import Erasure
from dolmen.format.layout import check_reference, parse_manifest_key
from dolmen.format.manifest import AppliedId, HistoryEntry, Released, Segment, SegmentKind, TableEntry
from dolmen.format.pointer import FORMAT_VERSION, check_format_version
from dolmen.format.schema import Schema
from dolmen.format.segment_bounds import bounds_of_all
from dolmen.format.segment_files import write_files

_HEAD = struct.Struct("<4sQQ")
_MAGIC = b"DSG1"
_MOST_BYTES = GIB
"""JSON longer than this is no segment's: guards against a forged length."""

E = TypeVar("E")


class _SegmentDocument(msgspec.Struct, Generic[E]):
    kind: str
    entries: list[E]


_DOCUMENTS: dict[str, Any] = {
    "overlays": _SegmentDocument[Overlay],
    "removed": _SegmentDocument[str],
    "tombstones": _SegmentDocument[Tombstone],
    "applied": _SegmentDocument[AppliedId],
    "released": _SegmentDocument[Released],
    "history": _SegmentDocument[HistoryEntry],
    "table": _SegmentDocument[TableEntry],
    "erasures": _SegmentDocument[Erasure],
}


def encode(kind: SegmentKind, entries: Sequence[Any], key: str, schema: Schema | None = None) -> tuple[Segment, bytes]:
    """A segment of entries, oldest first, and the object's bytes.

    Args:
        key: what the object will be called.
        schema: the table's; needed for ``files`` alone, whose statistics are typed by it.
    """
    assert entries, "a segment has entries"
    if kind == "files":
        body = write_files(entries, schema)
        return _of_files(entries, key, body, schema), body
    document = seal(
        b'{"format_version":%d,"kind":"%s","entries":%s}'
        % (FORMAT_VERSION, kind.encode(), msgspec.json.encode(list(entries)))
    )
    frame = pa.Codec("zstd").compress(document, asbytes=True)
    body = _HEAD.pack(_MAGIC, len(document), len(frame)) + frame
    place = None
    if kind == "applied":
        ids = bloom.build([entry.id for entry in entries])
        place = (len(body), len(ids), crc32(ids))
        body += ids
    times = [_time(kind, entry) for entry in entries]
    segment = Segment(
        kind, key, len(body), crc32(body), len(entries), least=min(times), greatest=max(times), bloom=place
    )
    return segment, body


def encode_checked(
    kind: SegmentKind, entries: Sequence[Any], key: str, schema: Schema | None = None
) -> tuple[Segment, bytes]:
    """``encode``, once the code that reads it has read the same entries. Raises CorruptionError if it does not."""
    segment, body = encode(kind, entries, key, schema)
    if kind != "files":  # write_files looks at those itself
        as_read = decode(segment, body)
        if as_read != tuple(entries) and msgspec.json.encode(as_read) != msgspec.json.encode(tuple(entries)):
            raise CorruptionError(key, f"as {kind} others would be read than were written")
    return segment, body


def check(segment: Segment, body: bytes) -> None:
    """Compares an object with what the manifest says of it. Raises CorruptionError."""
    if len(body) != segment.size:
        raise CorruptionError(segment.object, f"it has {len(body)} bytes, not the {segment.size} of its reference")
    if crc32(body) != segment.crc32:
        raise CorruptionError(segment.object, "checksum differs")


def check_bloom(segment: Segment, body: bytes) -> None:
    """The same for the range with its bloom filter."""
    assert segment.bloom is not None
    if len(body) != segment.bloom[1] or crc32(body) != segment.bloom[2]:
        raise CorruptionError(segment.object, "the bloom filter's length or checksum differs")


def decode(segment: Segment, body: bytes) -> tuple[Any, ...]:
    """The entries of a segment of any kind but ``files``; ``body`` has passed ``check``.

    Raises:
        CorruptionError: the object does not hold what its reference says.
        UnsupportedFormatError: written by a newer dolmen.
    """
    key, kind = segment.object, segment.kind
    try:
        magic, length, compressed = _HEAD.unpack_from(body)
        if magic != _MAGIC or length > _MOST_BYTES:
            raise CorruptionError(key, "it is no segment")
        frame = body[_HEAD.size : _HEAD.size + compressed]
        document = unseal(pa.Codec("zstd").decompress(frame, length, asbytes=True), key)
        check_format_version(document, key, frozenset())
        held = msgspec.json.decode(document, type=_DOCUMENTS[kind])
    except (struct.error, pa.ArrowException, OSError, msgspec.DecodeError) as error:
        raise CorruptionError(key, f"not a segment of {kind}: {error}") from error
    if held.kind != kind or len(held.entries) != segment.count:
        raise CorruptionError(key, f"it holds {len(held.entries)} {held.kind}, not {segment.count} {kind}")
    for entry in held.entries:
        for path in _references(kind, entry):
            check_reference(path, key)
    return tuple(held.entries)


def _time(kind: SegmentKind, entry: Any) -> int:
    """The values that ``least`` and ``greatest`` of a ``Segment`` bound."""
    if kind in ("tombstones", "erasures"):
        return int(entry.ts)
    if kind == "overlays":
        return int(entry.applied_through)
    return int(entry.version) if kind in ("applied", "released", "history") else 0


def _references(kind: SegmentKind, entry: Any) -> Iterable[str]:
    """Every object that an entry names."""
    if kind == "tombstones":
        return (entry.blob.object,)
    if kind == "overlays":
        return (entry.vector.object,) if entry.vector else ()
    if kind == "erasures":
        return tuple(erased.tombstone.blob.object for erased in entry.tables)
    if kind == "released":
        return (*(path for path in entry.objects if parse_manifest_key(path) is None), *(s.object for s in entry.trees))
    return cast("set[str]", entry.objects()) if kind == "table" else ()


def _of_files(entries: Sequence[DataFile], key: str, body: bytes, schema: Schema | None) -> Segment:
    least = [entry.row_ts_bounds[0] if entry.row_ts_bounds else entry.row_ts or 0 for entry in entries]
    return Segment(
        "files",
        key,
        len(body),
        crc32(body),
        len(entries),
        least=min(least),
        greatest=max(entry.greatest_row_ts for entry in entries),
        least_applied_through=min(entry.applied_through for entry in entries),
        rows=sum(entry.rows for entry in entries),
        bytes=sum(entry.size for entry in entries),
        deleted=sum(entry.vector.cardinality for entry in entries if entry.vector),
        stats=bounds_of_all(entries, schema) if schema else {},
        erasing=least_erasing(entry.erasing for entry in entries),
    )


prepare(*_DOCUMENTS.values())
