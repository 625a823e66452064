"""Column metrics of a data file in Iceberg's form: counts and bounds that prune and never lose a row.

See "Data file fields" and "Binary single-value serialization" (appendix D) of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal

import pyarrow as pa

from dolmen.entries.segments.judging import column_bounds
from dolmen.format.entries import DataFile
from dolmen.format.schema import Field, is_nested
from dolmen.format.statistics import Bounds
from dolmen.format.types import type_of
from dolmen.format.values import Plain

_LITTLE_ENDIAN = {"bool": "<?", "int8": "<i", "int16": "<i", "int32": "<i", "float": "<f", "double": "<d", "date": "<i"}
"""The layout of values; integers of 64 bits and timestamps are ``<q``."""

_EXACT = Context(prec=80)


@dataclass(frozen=True)
class Metrics:
    """Metrics of a data file, by field id.

    Args:
        values: number of values, NULL and NaN included.
        nulls: number of NULLs.
        nans: number of NaNs. It is absent where there are any, as readers then lose rows for ``x > bound``.
        lower, upper: serialised bounds, without NULL.
    """

    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def metrics(file: DataFile, columns: Mapping[int, Field]) -> Metrics:
    """The metrics of a file's published columns, as far as its entry knows them.

    DuckDB and Spark lose rows of ``x > 1`` in a file with NaN if there is an upper bound, or a count of NaN: NaN is
    greater than each number for them, and outside of the bounds. So neither is given for a column with NaN, or
    with an unknown number of them. A lower bound of 0.0 is written as -0.0, which is less than 0.0 for some readers.
    Bounds of ``fixed[n]`` that were cut are left out, as they have another length than the type.
    """
    found = Metrics()
    for id_, column in columns.items():
        arrow_type = column.arrow_type
        if is_nested(arrow_type):
            continue
        known = column_bounds(file, column)
        if known.nulls is None and known.min is None and known.max is None:
            continue
        _add(found, id_, known, file.rows, arrow_type)
    return found


def _add(found: Metrics, id_: int, known: Bounds, rows: int, arrow_type: pa.DataType) -> None:
    found.values[id_] = rows
    if known.nulls is not None:
        found.nulls[id_] = known.nulls
    least, greatest = known.min, known.max
    if pa.types.is_floating(arrow_type):
        if known.nans == 0:
            found.nans[id_] = 0
        else:
            greatest = None
        if least == 0:
            least = -0.0
    if (lower := single_value(least, arrow_type)) is not None:
        found.lower[id_] = lower
    if (upper := single_value(greatest, arrow_type)) is not None:
        found.upper[id_] = upper


def single_value(value: Plain, arrow_type: pa.DataType) -> bytes | None:
    """A value as bytes; None for no value, and for one that does not fit the type, as bounds that were cut do."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        cut = pa.types.is_fixed_size_binary(arrow_type) and len(value) != arrow_type.byte_width
        return None if cut else value
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(arrow_type.scale, _EXACT))
        return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    kind = type_of(arrow_type)
    assert kind is not None
    return struct.pack(_LITTLE_ENDIAN.get(kind.name, "<q"), value)
