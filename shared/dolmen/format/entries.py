"""Entries of a manifest: data files, deletion vectors and tombstones, with statistics of columns.

All timestamps (``row_ts``, ``applied_through``, ``ts``) are commit timestamps. Entries made by a writer before its
commit have ``UNSTAMPED``; applying the change stamps them, so uploaded objects never contain a timestamp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from dolmen.format.layout import uuid_of
from dolmen.format.types import Json, Plain, from_json, to_json

UNSTAMPED = 0


class ColumnStats(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """Bounds of one column in one data file, as ``[min, max, nulls, nans]``."""

    min: Json = None  # least value in JSON form (format/types.py), or a lower bound of it; None = unknown or no value
    max: Json = None  # greatest value or an upper bound of it. NaN is in neither; -0.0 is stored as 0.0 and equals it.
    nulls: int | None = None  # how many values are NULL; None = unknown
    nans: int | None = 0  # how many values are NaN; None = unknown; 0 for types without NaN


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A byte range of a ``.del`` object, with the CRC-32 of these bytes. The cycle collector does not track it."""

    object: str
    offset: int
    length: int
    crc32: int


class Vector(msgspec.Struct, frozen=True, gc=False):
    """A data file's deletion vector: portable Roaring bytes in a ``.del`` object, with its number of positions."""

    object: str
    offset: int
    length: int
    crc32: int
    cardinality: int


class ConstantColumn(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of a column in all rows of a file: the type that the column had, and the value's JSON form in it."""

    type: str
    value: Json


class DataFile(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An immutable Parquet file with rows of one table: see "A data-file entry" in docs/format.md."""

    path: str
    size: int
    rows: int  # physical rows, deleted ones included
    # (offset, length, CRC-32) of the Parquet footer, with the 8 bytes after the Thrift metadata
    footer: tuple[int, int, int]
    # commit timestamp of all its rows, or None when the file has the column ``_commit_ts``
    row_ts: int | None = UNSTAMPED
    # (least, greatest) commit timestamp of its rows when ``row_ts`` is None
    row_ts_bounds: tuple[int, int] | None = None
    applied_through: int = UNSTAMPED  # tombstones with a timestamp <= this do not apply to the file any more
    vector: Vector | None = None  # deleted rows, by position
    stats: dict[int, ColumnStats] = {}  # bounds by column id; a column that is absent here is unknown
    # timestamp of the earliest erasure that matched rows which the file still physically holds; 0 = there is none. It
    # is replaced together with ``applied_through`` and ``vector``.
    erasing: int = 0
    filters: int = 0  # first byte of its Bloom filters; 0 = it has none, or only its footer has their offset
    # by column id, the columns that have one value in all rows, which is not read from the file
    constants: dict[int, ConstantColumn] = {}
    partitions: dict[str, Json] = {}  # values of partitions that bounds do not prove (``dolmen.entries.partitions``)

    @property
    def uuid(self) -> str:
        return uuid_of(self.path)

    @property
    def greatest_row_ts(self) -> int:
        """Commit timestamp of its newest row."""
        return self.row_ts if self.row_ts is not None else (self.row_ts_bounds or (0, 0))[1]

    @property
    def least_row_ts(self) -> int:
        """Commit timestamp of its oldest row."""
        return self.row_ts if self.row_ts is not None else (self.row_ts_bounds or (0, 0))[0]

    @property
    def live_rows(self) -> int:
        """Rows that the vector does not delete; tombstones are not applied."""
        return self.rows - (self.vector.cardinality if self.vector else 0)

    @property
    def live_bytes(self) -> int:
        """Estimated size without the deleted rows."""
        return self.size * self.live_rows // max(1, self.rows)

    def stamp(self, ts: int) -> DataFile:
        """A new file's entry with its statement's timestamp."""
        return msgspec.structs.replace(self, row_ts=ts, applied_through=ts)

    def is_older_than(self, applied_through: int, vector: Vector | None) -> bool:
        """Whether this pair is newer than the file's, so that it may replace it. A file's pair never goes back."""
        return pair_of(self) < _pair(applied_through, vector)


class Overlay(msgspec.Struct, frozen=True, omit_defaults=True):
    """A newer (``applied_through``, vector) pair for a data file whose entry is in a segment, and its ``erasing``."""

    file: str
    applied_through: int
    vector: Vector | None = None
    erasing: int = 0


def pair_of(file: DataFile | Overlay) -> tuple[int, int]:
    """A pair's order: the greater one of two pairs of a file is newer."""
    return _pair(file.applied_through, file.vector)


def _pair(applied_through: int, vector: Vector | None) -> tuple[int, int]:
    return applied_through, vector.cardinality if vector else 0


def least_erasing(timestamps: Iterable[int]) -> int:
    """The least of some values of ``erasing``; 0 if all are 0."""
    return min((ts for ts in timestamps if ts), default=0)


class WhereTombstone(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag="where"):
    """Hides the rows for which a predicate is TRUE, in files with ``applied_through`` < ``ts``."""

    columns: tuple[int, ...]
    blob: Blob  # the predicate's JSON in the commit's ``.del`` object: the record
    # the same predicate, inline when it is small, so that readers fetch nothing
    predicate: dict[str, Any] | None = None
    ts: int = UNSTAMPED
    needs: tuple[str, ...] = ()  # features of the format that its predicate uses; the manifest names them

    def stamp(self, ts: int) -> WhereTombstone:
        return msgspec.structs.replace(self, ts=ts)


class KeysTombstone(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag="keys"):
    """Hides the rows whose tuple of column values is one of a list, in files with ``applied_through`` < ``ts``."""

    columns: tuple[int, ...]  # ids of the columns of the tuple, ascending
    types: tuple[str, ...]  # stored type of each column when the tombstone was written
    count: int
    bounds: tuple[tuple[Json, Json], ...]  # per column [min, max] in JSON form (rounded outwards for long strings)
    blob: Blob  # Parquet of the distinct tuples, sorted, in the commit's ``.del`` object: the record
    values: tuple[tuple[Json, ...], ...] | None = None  # per column its values in JSON form, inline when small
    ts: int = UNSTAMPED

    def stamp(self, ts: int) -> KeysTombstone:
        return msgspec.structs.replace(self, ts=ts)


Tombstone = WhereTombstone | KeysTombstone

TEXT_LIMIT = 16  # strings (in code points) and binaries (in bytes) longer than this are cut, the maximum rounded up


class Bounds(NamedTuple):
    """Bounds of a column's values in one file, and counts; None = unknown.

    ``min`` <= every value <= ``max`` (plain values; None also without any value). NaN is outside both.
    """

    min: Plain = None
    max: Plain = None
    nulls: int | None = None
    nans: int | None = None


UNKNOWN = Bounds()


def column_stats(least: Plain, greatest: Plain, nulls: int | None, nans: int | None = 0) -> ColumnStats:
    """The stored form of exact bounds, without NULL and NaN; long ones are cut outwards or left out.

    ``least``, ``greatest``: None = no value or unknown.
    """
    if type(least) is int and type(greatest) is int:
        return ColumnStats(least, greatest, nulls, nans)
    if isinstance(least, float) and (math.isnan(least) or math.isnan(float(greatest or 0))):
        raise AssertionError("NaN is in neither minimum nor maximum")
    cut_least = least[:TEXT_LIMIT] if isinstance(least, (str, bytes)) else least
    least, greatest = (0.0 if end == 0 and isinstance(end, float) else end for end in (cut_least, _round_up(greatest)))
    return ColumnStats(to_json(least), to_json(greatest), nulls, nans)


def bounds(stats: ColumnStats | None, arrow_type: pa.DataType) -> Bounds:
    """The plain bounds of stored statistics; everything unknown for absent ones."""
    if stats is None:
        return UNKNOWN
    return Bounds(from_json(stats.min, arrow_type), from_json(stats.max, arrow_type), stats.nulls, stats.nans)


def constant_bounds(json: Json, arrow_type: pa.DataType, rows: int) -> Bounds:
    """The bounds of a column with one value, in JSON form, in all of its rows."""
    if json is None:
        return Bounds(nulls=rows, nans=0)
    value = from_json(json, arrow_type)
    if isinstance(value, float) and math.isnan(value):
        return Bounds(nulls=0, nans=rows)
    return Bounds(value, value, 0, 0)


def _round_up(value: Plain) -> Plain:
    """The shortest upper bound of a long value: its prefix with the last possible unit incremented."""
    if isinstance(value, str) and len(value) > TEXT_LIMIT:
        for end in range(TEXT_LIMIT, 0, -1):
            code = ord(value[end - 1]) + 1
            if code == 0xD800:  # surrogates are no characters
                code = 0xE000
            if code <= 0x10FFFF:
                return value[: end - 1] + chr(code)
        return None
    if isinstance(value, bytes) and len(value) > TEXT_LIMIT:
        head = value[:TEXT_LIMIT].rstrip(b"\xff")
        return head[:-1] + bytes([head[-1] + 1]) if head else None
    return value
