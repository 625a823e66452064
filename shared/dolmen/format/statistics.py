"""Column statistics: from exact minima and maxima to what an entry stores, and back to bounds in plain values."""

from __future__ import annotations

import math
from typing import NamedTuple

import pyarrow as pa

from dolmen.format.entries import ColumnStats
from dolmen.format.values import Json, Plain, from_json, to_json

TEXT_LIMIT = 16
"""Strings (in code points) and binaries (in bytes) longer than this are cut, the maximum rounded up."""


class Bounds(NamedTuple):
    """The facts known about a column's values in one file.

    ``min`` <= every value <= ``max`` (plain values; None = unknown, or no value at all when ``nulls`` says so);
    NaN lies outside both and is counted by ``nans``. A count of None is unknown.
    """

    min: Plain = None
    max: Plain = None
    nulls: int | None = None
    nans: int | None = None


UNKNOWN = Bounds()


def column_stats(least: Plain, greatest: Plain, nulls: int | None, nans: int | None = 0) -> ColumnStats:
    """The stored form of exact bounds; long ones are cut outwards, those that can't be are left out.

    Args:
        least, greatest: exact minimum and maximum without NULL and NaN; None = no value or unknown.
        nulls, nans: exact counts, or None if unknown.
    """
    if isinstance(least, float) and (math.isnan(least) or math.isnan(float(greatest or 0))):
        raise AssertionError("NaN is in neither minimum nor maximum")
    return ColumnStats(_normal(_cut(least)), _normal(_cut_up(greatest)), nulls, nans)


def bounds(stats: ColumnStats | None, arrow_type: pa.DataType) -> Bounds:
    """The plain bounds of stored statistics; everything unknown for absent ones."""
    if stats is None:
        return UNKNOWN
    return Bounds(from_json(stats.min, arrow_type), from_json(stats.max, arrow_type), stats.nulls, stats.nans)


def constant_bounds(json: Json, arrow_type: pa.DataType, rows: int) -> Bounds:
    """The bounds of one value, in JSON form, in so many rows."""
    if json is None:
        return Bounds(nulls=rows, nans=0)
    value = from_json(json, arrow_type)
    if isinstance(value, float) and math.isnan(value):
        return Bounds(nulls=0, nans=rows)
    return Bounds(value, value, 0, 0)


def _normal(value: Plain) -> bool | int | float | str | None:
    return to_json(0.0 if isinstance(value, float) and value == 0 else value)


def _cut(value: Plain) -> Plain:
    return value[:TEXT_LIMIT] if isinstance(value, (str, bytes)) else value


def _cut_up(value: Plain) -> Plain:
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
