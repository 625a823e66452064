"""Segments: immutable objects ``segment/<kind>/<uuid>`` with entries that have left the manifest's inline tail.

docs/format.md specifies them: a segment of kind ``files`` is Parquet with a row for each entry, one of another kind is
compressed JSON. Statistics of a column have the columns ``min_<id>``, ``max_<id>``, ``nulls_<id>`` and ``nans_<id>``;
those that the typed columns can't represent are JSON in ``odd``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.base.units import GIB
from dolmen.errors import CorruptionError, SchemaError
from dolmen.format import bloom_filters
from dolmen.format.entries import (
    Bounds,
    ColumnStats,
    ConstantColumn,
    DataFile,
    Overlay,
    Tombstone,
    Vector,
    least_erasing,
)
from dolmen.format.layout import FORMAT_VERSION, build_decoders, check_format_version, seal, unseal
from dolmen.format.manifest import (
    AppliedId,
    Erasure,
    HistoryEntry,
    Released,
    Segment,
    SegmentKind,
    TableEntry,
    check_constants,
    check_references,
)
from dolmen.format.schema import Schema, is_nested
from dolmen.format.types import Json, Plain, from_json, from_json_list, one_array, to_array, to_json, to_plain, type_of

GROUP_ROWS = 4_096

_INTEGERS = (
    "size", "rows", "footer_offset", "footer_length", "footer_crc32", "row_ts", "row_ts_least", "row_ts_greatest",
    "applied_through", "vector_offset", "vector_length", "vector_crc32", "vector_cardinality",
)  # fmt: skip

BASE_COLUMNS: tuple[str, ...] = ("path", "vector_object", "odd", *_INTEGERS)  # columns that every segment has
OPTIONAL_COLUMNS: tuple[str, ...] = ("erasing", "filters")
"""Columns that a segment has only if the value of that name is not 0 in some entry."""
CONSTANTS, PARTITIONS = "constants", "partitions"
"""Columns of JSON, of segments in which an entry has constants, or values of partitions."""
STATS = ("min", "max", "nulls", "nans")
_Odd = dict[int, ColumnStats]
T = TypeVar("T")
V = TypeVar("V")
_Constants = dict[int, ConstantColumn]
_Partitions = dict[str, Json]


def stats_columns(id_: int) -> tuple[str, ...]:
    return tuple(f"{what}_{id_}" for what in STATS)


def stats_ids(names: Collection[str]) -> tuple[int, ...]:
    """Ids of the columns whose statistics have columns of these names."""
    return tuple(int(name.removeprefix("nulls_")) for name in names if name.startswith("nulls_"))


def bound_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """The type of a column's bounds in a segment; None for nested columns, which have none."""
    column_type = type_of(arrow_type)
    if column_type is None or column_type.plain is None:
        return None
    return column_type.bounds or arrow_type


def write_files(entries: Sequence[DataFile], schema: Schema | None) -> bytes:
    """The object's bytes. The table's schema types the statistics."""
    sink, table = pa.BufferOutputStream(), to_table(entries, schema)
    pq.write_table(
        table,
        sink,
        row_group_size=GROUP_ROWS,
        compression="zstd",
        use_dictionary=["vector_object"],
        write_statistics=False,
    )
    body = sink.getvalue()
    if not pq.ParquetFile(body).read(use_threads=False).equals(table):
        raise SchemaError("entries of data files would differ when they are read")
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
        values = [getattr(entry, name) for entry in entries]
        if any(values):
            integers[name] = values
    columns |= {name: pa.array(values, pa.int64()) for name, values in integers.items()}
    for name in (CONSTANTS, PARTITIONS):
        members = [getattr(entry, name) for entry in entries]
        if any(members):
            encoded = [msgspec.json.encode(each).decode() if each else None for each in members]
            columns[name] = pa.array(encoded, pa.string())
    odd: list[_Odd] = [{} for _ in entries]
    for id_ in sorted({id_ for entry in entries for id_ in entry.stats}):
        stats_of_column = [entry.stats.get(id_) for entry in entries]
        field = schema.by_id.get(id_) if schema else None
        typed = _stats_arrays(stats_of_column, None if field is None else bound_type(field.arrow_type))
        for own, stats, back in zip(odd, stats_of_column, _stats(typed), strict=True):
            if stats is not None and not _is_same(stats, back):
                own[id_] = stats
        if any(own.get(id_) for own in odd):
            plain = [None if id_ in own else stats for own, stats in zip(odd, stats_of_column, strict=True)]
            typed = _stats_arrays(plain, typed[0].type)
        columns |= dict(zip(stats_columns(id_), typed, strict=True))
    columns["odd"] = pa.array([msgspec.json.encode(own).decode() if own else None for own in odd], pa.string())
    return pa.table(columns)


def to_entries(table: pa.Table) -> list[DataFile]:
    """The entries in rows with at least ``BASE_COLUMNS``, and with the statistics that have columns."""
    ids = stats_ids(table.column_names)
    stats = {id_: _stats([one_array(table[name]) for name in stats_columns(id_)]) for id_ in ids}
    plain: dict[str, list[Any]] = {name: table[name].to_pylist() for name in BASE_COLUMNS}
    for name in OPTIONAL_COLUMNS:
        plain[name] = table[name].to_pylist() if name in table.column_names else [0] * table.num_rows
    documents: dict[str, list[str | None]] = {
        name: table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
        for name in (CONSTANTS, PARTITIONS)
    }
    entries = []
    for row in range(table.num_rows):
        value = {name: values[row] for name, values in plain.items()}
        own = {id_: found for id_ in ids if (found := stats[id_][row]) is not None}
        if value["odd"] is not None:
            own = dict(sorted((own | msgspec.json.decode(value["odd"], type=_Odd)).items()))
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
                constants=_members(documents[CONSTANTS][row], _Constants),
                partitions=_members(documents[PARTITIONS][row], _Partitions),
            )
        )
    return entries


def _members(document: str | None, kind: type[dict[T, V]]) -> dict[T, V]:
    return {} if document is None else msgspec.json.decode(document, type=kind)


def _is_same(stats: ColumnStats, back: ColumnStats | None) -> bool:
    """Whether two values have the same JSON: 1, 1.0 and true are equal in Python only."""
    if back is None or stats != back or type(stats.min) is not type(back.min) or type(stats.max) is not type(back.max):
        return False
    # 0.0 and -0.0 are equal too
    return (stats.min != 0 and stats.max != 0) or msgspec.json.encode(stats) == msgspec.json.encode(back)


def _stats_arrays(column_stats: Sequence[ColumnStats | None], arrow_type: pa.DataType | None) -> list[pa.Array]:
    """The four columns; NULL where their types can't represent a value. Without a type, bounds have the type null."""
    least, greatest, nulls, nans = ([stats and getattr(stats, name) for stats in column_stats] for name in STATS)
    if arrow_type is None or pa.types.is_null(arrow_type):
        ends = [pa.nulls(len(column_stats))] * 2
    else:
        ends = [_end(least, arrow_type), _end(greatest, arrow_type)]
    return [*ends, pa.array(nulls, pa.int64()), pa.array(nans, pa.int64())]


def _end(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Bounds in JSON form as an array; NULL for those that are not of this type."""
    try:
        plain = from_json_list(values, arrow_type)
    except SchemaError:
        plain = [_plain_or_none(value, arrow_type) for value in values]
    try:
        return to_array(plain, arrow_type)
    except (pa.ArrowException, OverflowError):  # one does not fit: try them one by one
        return pa.concat_arrays([_to_array_or_null(value, arrow_type) for value in plain])


def _plain_or_none(value: Json, arrow_type: pa.DataType) -> Plain:
    try:
        return from_json(value, arrow_type)
    except SchemaError:
        return None


def _to_array_or_null(value: Any, arrow_type: pa.DataType) -> pa.Array:
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
    column_type = type_of(column.type)
    return plain if column_type and column_type.plain in (bool, int, str) else list(map(to_json, plain))


build_decoders(_Odd, _Constants, _Partitions)

_HEAD = struct.Struct("<4sQQ")
_MAGIC = b"DSG1"

_MOST_BYTES = GIB  # no segment has longer JSON: guards against a forged length


def bounds_of_all(entries: Sequence[DataFile], schema: Schema) -> dict[int, ColumnStats]:
    """Bounds by column id that hold for all of these files; a column that any of them lacks is left out."""
    ids = schema.by_id.keys() & set.intersection(*(set(entry.stats) for entry in entries))
    rows = [entry.rows for entry in entries]
    bounds_by_id: dict[int, ColumnStats] = {}
    for id_ in sorted(ids):
        arrow_type = schema.by_id[id_].arrow_type
        if not is_nested(arrow_type):
            with suppress(SchemaError):  # bounds that are not of this type are unknown
                stats = [entry.stats[id_] for entry in entries]
                least, greatest = (
                    from_json_list(ends, arrow_type)
                    for ends in ([each.min for each in stats], [each.max for each in stats])
                )
                counts = ([each.nulls for each in stats], [each.nans for each in stats])
                bounds_by_id[id_] = join_bounds([*map(Bounds, least, greatest, *counts)], rows)
    return bounds_by_id


def join_bounds(several: Sequence[Bounds], rows: Sequence[int]) -> ColumnStats:
    """Bounds that hold for all of several files with these numbers of rows."""
    valued = [
        own
        for own, count in zip(several, rows, strict=True)
        if own.nulls is None or own.nans is None or own.nulls + own.nans < count
    ]
    least: list[Any] = [own.min for own in valued]
    greatest: list[Any] = [own.max for own in valued]
    nulls, nans = ([getattr(own, name) for own in several] for name in ("nulls", "nans"))
    return ColumnStats(
        None if None in least else to_json(min(least, default=None)),
        None if None in greatest else to_json(max(greatest, default=None)),
        None if None in nulls else sum(nulls),
        None if None in nans else sum(nans),
    )


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
    """A segment of entries, oldest first, and the object's bytes; ``schema`` types the statistics of ``files``."""
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
    bloom = None
    if kind == "applied":
        ids = bloom_filters.build([entry.id for entry in entries])
        bloom = (len(body), len(ids), crc32(ids))
        body += ids
    times = [_time(kind, entry) for entry in entries]
    segment = Segment(
        kind, key, len(body), crc32(body), len(entries), least=min(times), greatest=max(times), bloom=bloom
    )
    return segment, body


def encode_checked(
    kind: SegmentKind, entries: Sequence[Any], key: str, schema: Schema | None = None
) -> tuple[Segment, bytes]:
    """Encodes entries, and checks that they are the same when they are read. Raises CorruptionError."""
    segment, body = encode(kind, entries, key, schema)
    if kind != "files":  # write_files checks those itself
        as_read = decode(segment, body)
        if as_read != tuple(entries) and msgspec.json.encode(as_read) != msgspec.json.encode(tuple(entries)):
            raise CorruptionError(key, f"its {kind} would differ when they are read")
    return segment, body


def check(segment: Segment, body: bytes) -> None:
    """Compares an object with its reference in the manifest. Raises CorruptionError."""
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

    Raises CorruptionError and UnsupportedFormatError.
    """
    key, kind = segment.object, segment.kind
    try:
        magic, length, compressed = _HEAD.unpack_from(body)
        if magic != _MAGIC or length > _MOST_BYTES:
            raise CorruptionError(key, "it is not a segment")
        frame = body[_HEAD.size : _HEAD.size + compressed]
        document = unseal(pa.Codec("zstd").decompress(frame, length, asbytes=True), key)
        check_format_version(document, key)
        read = msgspec.json.decode(document, type=_DOCUMENTS[kind])
    except (struct.error, pa.ArrowException, OSError, msgspec.DecodeError) as error:
        raise CorruptionError(key, f"not a segment of {kind}: {error}") from error
    if read.kind != kind or len(read.entries) != segment.count:
        raise CorruptionError(key, f"it holds {len(read.entries)} {read.kind}, not {segment.count} {kind}")
    for entry in read.entries:
        if isinstance(entry, Released):
            entry.check(key)
        else:
            check_references(entry, key)
        if isinstance(entry, TableEntry):
            check_constants(entry.files, key, entry.schema.next_id)
    return tuple(read.entries)


def _time(kind: SegmentKind, entry: Any) -> int:
    """The values that ``least`` and ``greatest`` of a ``Segment`` bound."""
    if kind in ("tombstones", "erasures"):
        return int(entry.ts)
    if kind == "overlays":
        return int(entry.applied_through)
    return int(entry.version) if kind in ("applied", "released", "history") else 0


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


build_decoders(*_DOCUMENTS.values())
