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

Segments of data-file entries: one Parquet object, one row per entry, oldest first.

Parquet (zstd, row groups of at most 4,096 entries) with these columns, all but ``path``, ``size``, ``rows``,
``footer_*`` and ``applied_through`` nullable:

==============================================  ==========================================================
``path`` string                                 key of the data file
``size``, ``rows`` int64                        of the data file
``footer_offset``, ``footer_length``,           the entry's ``footer``
``footer_crc32`` int64
``row_ts``, ``row_ts_least``,                   the entry's ``row_ts`` and ``row_ts_bounds``
``row_ts_greatest`` int64
``applied_through`` int64                       as it was when the segment was written
``vector_object`` string, ``vector_offset``,    the entry's ``vector``; NULL where it has none
``vector_length``, ``vector_crc32``,
``vector_cardinality`` int64
``erasing``, ``filters`` int64                  the entry's; there is no such column if all have 0
``min_<id>``, ``max_<id>``                      bounds of a column in its stored type (``fixed_size_binary`` as
                                                binary, as bounds may be cut); NULL = None
``nulls_<id>``, ``nans_<id>`` int64             counts; NULL = unknown
``odd`` string                                  statistics that the typed columns can't say: a JSON object of
                                                ``[min, max, nulls, nans]`` by column id; what stands here has NULL
                                                in the typed columns, and counts instead of them
==============================================  ==========================================================

A column with NULL in all four is absent from the entry's statistics: unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.units import GIB
from dolmen.errors import CorruptionError, SchemaError
from dolmen.format import bloom_filters
from dolmen.format.entries import Bounds, ColumnStats, DataFile, Overlay, Tombstone, Vector, bounds, least_erasing
from dolmen.format.layout import (
    FORMAT_VERSION,
    check_format_version,
    check_reference,
    parse_manifest_key,
    prepare,
    seal,
    unseal,
)
from dolmen.format.manifest import AppliedId, Erasure, HistoryEntry, Released, Segment, SegmentKind, TableEntry
from dolmen.format.schema import Schema, is_nested
from dolmen.format.types import Plain, from_json, one_array, to_array, to_json, to_plain, type_of

ROW_GROUP = 4_096

_INTEGERS = (
    "size", "rows", "footer_offset", "footer_length", "footer_crc32", "row_ts", "row_ts_least", "row_ts_greatest",
    "applied_through", "vector_offset", "vector_length", "vector_crc32", "vector_cardinality",
)  # fmt: skip

BASE_COLUMNS: tuple[str, ...] = ("path", "vector_object", "odd", *_INTEGERS)
"""Columns that every segment has."""
OPTIONAL_COLUMNS: tuple[str, ...] = ("erasing", "filters")
"""Columns of segments in which an entry has another value of that name than 0."""
STATS = ("min", "max", "nulls", "nans")
_Odd = dict[int, ColumnStats]


def stats_columns(id_: int) -> tuple[str, ...]:
    """Names of the columns that hold a column's statistics."""
    return tuple(f"{what}_{id_}" for what in STATS)


def stats_ids(names: Collection[str]) -> tuple[int, ...]:
    """Ids of the columns whose statistics stand among columns of these names."""
    return tuple(int(name.removeprefix("nulls_")) for name in names if name.startswith("nulls_"))


def bound_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """The type in which bounds of a column are held; None for nested columns, which have none."""
    found = type_of(arrow_type)
    if found is None or found.plain is None:
        return None
    return found.bounds or arrow_type


def write_files(entries: Sequence[DataFile], schema: Schema | None) -> bytes:
    """The object's bytes.

    Args:
        schema: the table's, by which statistics are typed.
    """
    sink, table = pa.BufferOutputStream(), to_table(entries, schema)
    pq.write_table(
        table,
        sink,
        row_group_size=ROW_GROUP,
        compression="zstd",
        use_dictionary=["vector_object"],
        write_statistics=False,
    )
    body = sink.getvalue()
    if not pq.ParquetFile(body).read(use_threads=False).equals(table):
        raise SchemaError("entries of data files would be read as others than were written")
    return bytes(body)


def to_table(entries: Sequence[DataFile], schema: Schema | None) -> pa.Table:
    """Entries as rows. ``to_entries`` is the exact inverse."""
    vectors = [entry.vector for entry in entries]
    bounds = [entry.row_ts_bounds or (None, None) for entry in entries]
    columns: dict[str, pa.Array] = {
        "path": pa.array([entry.path for entry in entries], pa.string()),
        "vector_object": pa.array([vector.object if vector else None for vector in vectors], pa.string()),
    }
    integers: dict[str, list[int | None]] = {
        "size": [entry.size for entry in entries],
        "rows": [entry.rows for entry in entries],
        "footer_offset": [entry.footer[0] for entry in entries],
        "footer_length": [entry.footer[1] for entry in entries],
        "footer_crc32": [entry.footer[2] for entry in entries],
        "row_ts": [entry.row_ts for entry in entries],
        "row_ts_least": [least for least, _ in bounds],
        "row_ts_greatest": [greatest for _, greatest in bounds],
        "applied_through": [entry.applied_through for entry in entries],
        "vector_offset": [vector.offset if vector else None for vector in vectors],
        "vector_length": [vector.length if vector else None for vector in vectors],
        "vector_crc32": [vector.crc32 if vector else None for vector in vectors],
        "vector_cardinality": [vector.cardinality if vector else None for vector in vectors],
    }
    for name in OPTIONAL_COLUMNS:
        found = [getattr(entry, name) for entry in entries]
        if any(found):
            integers[name] = found
    columns |= {name: pa.array(values, pa.int64()) for name, values in integers.items()}
    odd: list[_Odd] = [{} for _ in entries]
    for id_ in sorted({id_ for entry in entries for id_ in entry.stats}):
        known = [entry.stats.get(id_) for entry in entries]
        field = schema.by_id.get(id_) if schema else None
        typed = _typed(known, None if field is None else bound_type(field.arrow_type))
        for own, stats, back in zip(odd, known, _stats(typed), strict=True):
            if stats is not None and not _same(stats, back):
                own[id_] = stats
        if any(own.get(id_) for own in odd):
            plain = [None if id_ in own else stats for own, stats in zip(odd, known, strict=True)]
            typed = _typed(plain, typed[0].type)
        columns |= dict(zip(stats_columns(id_), typed, strict=True))
    columns["odd"] = pa.array([_encode_odd(own) if own else None for own in odd], pa.string())
    return pa.table(columns)


def to_entries(table: pa.Table) -> list[DataFile]:
    """The entries in rows that have at least ``BASE_COLUMNS``, with the statistics for which there are columns.

    Those of ``OPTIONAL_COLUMNS`` are taken where they are there.
    """
    ids = stats_ids(table.column_names)
    stats = {id_: _stats([one_array(table[name]) for name in stats_columns(id_)]) for id_ in ids}
    plain: dict[str, list[Any]] = {name: table[name].to_pylist() for name in BASE_COLUMNS}
    for name in OPTIONAL_COLUMNS:
        plain[name] = table[name].to_pylist() if name in table.column_names else [0] * table.num_rows
    entries = []
    for row in range(table.num_rows):
        value = {name: values[row] for name, values in plain.items()}
        own = {id_: found for id_ in ids if (found := stats[id_][row]) is not None}
        if value["odd"] is not None:
            own = dict(sorted((own | decode_odd(value["odd"])).items()))
        vector = None
        if value["vector_object"] is not None:
            vector = Vector(
                value["vector_object"], value["vector_offset"], value["vector_length"],
                value["vector_crc32"], value["vector_cardinality"],
            )  # fmt: skip
        least = value["row_ts_least"]
        entries.append(
            DataFile(
                path=value["path"],
                size=value["size"],
                rows=value["rows"],
                footer=(value["footer_offset"], value["footer_length"], value["footer_crc32"]),
                row_ts=value["row_ts"],
                row_ts_bounds=None if least is None else (least, value["row_ts_greatest"]),
                applied_through=value["applied_through"],
                vector=vector,
                stats=own,
                erasing=value["erasing"],
                filters=value["filters"],
            )
        )
    return entries


def decode_odd(text: str) -> _Odd:
    """Decodes a value of the column ``odd``."""
    return msgspec.json.decode(text, type=_Odd)


def _encode_odd(odd: _Odd) -> str:
    return msgspec.json.encode(odd).decode()


def _same(stats: ColumnStats, back: ColumnStats | None) -> bool:
    """Whether two values have the same JSON: 1, 1.0 and true are equal in Python only."""
    return stats == back and msgspec.json.encode(stats) == msgspec.json.encode(back)


def _typed(found: Sequence[ColumnStats | None], arrow_type: pa.DataType | None) -> list[pa.Array]:
    """The four columns, as far as their types can say it; NULL bounds of type null for a column without a type."""
    ends = []
    for end in ("min", "max"):
        if arrow_type is None or pa.types.is_null(arrow_type):
            ends.append(pa.nulls(len(found)))
        else:
            ends.append(_end([None if stats is None else getattr(stats, end) for stats in found], arrow_type))
    counts = [
        pa.array([None if stats is None else getattr(stats, what) for stats in found], pa.int64())
        for what in ("nulls", "nans")
    ]
    return [*ends, *counts]


def _end(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Bounds in JSON form as an array; NULL for those that are none of this type."""
    plain = []
    for value in values:
        try:
            plain.append(from_json(value, arrow_type))
        except SchemaError:
            plain.append(None)
    try:
        return to_array(plain, arrow_type)
    except (pa.ArrowException, OverflowError):  # some does not fit: find out which, one by one
        return pa.concat_arrays([_fitting(value, arrow_type) for value in plain])


def _fitting(value: Any, arrow_type: pa.DataType) -> pa.Array:
    try:
        return to_array([value], arrow_type)
    except (pa.ArrowException, OverflowError):
        return pa.nulls(1, arrow_type)


def _stats(columns: Sequence[pa.Array]) -> list[ColumnStats | None]:
    """Statistics from their four columns."""
    least, greatest = (_json(column) for column in columns[:2])
    nulls, nans = (column.to_pylist() for column in columns[2:])
    return [
        None if known == (None, None, None, None) else ColumnStats(*known)
        for known in zip(least, greatest, nulls, nans, strict=True)
    ]


def _json(column: pa.Array) -> list[Any]:
    plain = to_plain(column)
    found = type_of(column.type)
    if found is not None and found.plain in (bool, int, str):
        return plain
    return [to_json(value) for value in plain]


prepare(_Odd)

_HEAD = struct.Struct("<4sQQ")
_MAGIC = b"DSG1"

_MOST_BYTES = GIB
"""JSON longer than this is no segment's: guards against a forged length."""


def bounds_of_all(entries: Sequence[DataFile], schema: Schema) -> dict[int, ColumnStats]:
    """Bounds by column id that hold for all of these files; a column that any of them lacks is left out."""
    known = set(entries[0].stats) & schema.by_id.keys()
    for entry in entries:
        known &= entry.stats.keys()
    found: dict[int, ColumnStats] = {}
    for id_ in sorted(known):
        arrow_type = schema.by_id[id_].arrow_type
        if is_nested(arrow_type):
            continue
        try:
            each = [bounds(entry.stats[id_], arrow_type) for entry in entries]
            found[id_] = _together(each, [entry.rows for entry in entries])
        except SchemaError:
            continue  # not of this type, hence unknown
    return found


def _together(each: Sequence[Bounds], rows: Sequence[int]) -> ColumnStats:
    valued = [own for own, count in zip(each, rows, strict=True) if not _is_empty(own, count)]
    return ColumnStats(
        to_json(_extreme([own.min for own in valued], least=True)),
        to_json(_extreme([own.max for own in valued], least=False)),
        _sum([own.nulls for own in each]),
        _sum([own.nans for own in each]),
    )


def _is_empty(own: Bounds, rows: int) -> bool:
    """Whether it is certain that there is no value but NULL and NaN."""
    return own.nulls is not None and own.nans is not None and own.nulls + own.nans >= rows


def _extreme(ends: Sequence[Plain], *, least: bool) -> Plain:
    if not ends or None in ends:
        return None
    return min(ends) if least else max(ends)  # type: ignore[type-var]


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(counts)  # type: ignore[arg-type]


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
        ids = bloom_filters.build([entry.id for entry in entries])
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
