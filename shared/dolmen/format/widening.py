"""Types that a column may change to without a change of any file, and values of the older type in the newer one.

As in Iceberg 3, "Schema Evolution": https://iceberg.apache.org/spec/#schema-evolution. Every value of the older type is
one of the newer type, so that a file written before is read exactly. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dolmen.base.units import DAY_US
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema
from dolmen.format.types import DATE, DECIMAL, TIMESTAMP, type_of

LAST_DAY = (2**63 - 1) // DAY_US
"""The last day, counted from 1970-01-01, whose midnight is a timestamp; the first one is as far before."""


def narrowing(narrow: pa.DataType, wide: pa.DataType) -> str:
    """Why a column of one type can't change to another; "" where it can, and for the same type."""
    t = pa.types
    if narrow == wide or is_date_to_timestamp(narrow, wide):
        return ""
    for same in (t.is_signed_integer, t.is_unsigned_integer, t.is_floating):
        if same(narrow) and same(wide):
            return "" if wide.bit_width > narrow.bit_width else "values that it has may not fit"
    if type_of(narrow) is DECIMAL and type_of(wide) is DECIMAL:
        if narrow.scale != wide.scale:
            return "the number of digits after the point can't change"
        return "" if wide.precision > narrow.precision else "values that it has may not fit"
    if t.is_integer(narrow) and t.is_integer(wide):
        return "signed and unsigned integers are written differently"
    return "integers, floats, decimals and dates change to wider ones of their kind only"


def is_date_to_timestamp(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values of the older type are days, and those of the newer one their midnights."""
    return type_of(narrow) is DATE and type_of(wide) is TIMESTAMP


def widened(value: Any, narrow: pa.DataType, wide: pa.DataType) -> Any:
    """A plain value of the older type, or its JSON form, as that of the newer type; None stays None.

    Days beyond all timestamps become the first or last midnight.
    """
    if value is None or not is_date_to_timestamp(narrow, wide):
        return value
    return max(-LAST_DAY, min(LAST_DAY, value)) * DAY_US


def has_widened(value: Any, narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a plain value of the older type, or its JSON form, is one of the newer type. None is."""
    return value is None or not is_date_to_timestamp(narrow, wide) or abs(value) <= LAST_DAY


def widened_ends(values: pa.Array, wide: pa.DataType) -> pa.Array:
    """Bounds in the older type as bounds in the newer one. See ``widened``."""
    if not is_date_to_timestamp(values.type, wide):
        return values
    days = np.clip(values.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64), -LAST_DAY, LAST_DAY)
    return pa.array(days * DAY_US, mask=values.is_null().to_numpy(zero_copy_only=False)).cast(wide)


def widened_keys(keys: pa.Table, wide: pa.Schema) -> pa.Table:
    """Tuples of the older types in the newer ones, without those that no row of the newer types has."""
    for field, column in zip(wide, keys.columns, strict=True):
        if is_date_to_timestamp(column.type, field.type):
            days = column.cast(pa.int32()).to_numpy()
            keep = (days >= -LAST_DAY) & (days <= LAST_DAY)
            if not keep.all():
                return widened_keys(keys.filter(pa.array(keep)), wide)
    return keys.cast(wide)


def widened_stats(
    stats: Mapping[int, ColumnStats], changes: Mapping[int, tuple[pa.DataType, pa.DataType]]
) -> dict[int, ColumnStats]:
    """Statistics in the JSON forms of the older types as those of the newer types.

    Args:
        changes: the older and the newer type of columns, by id.
    """
    found = dict(stats)
    for id_ in stats.keys() & changes.keys():
        own, (narrow, wide) = stats[id_], changes[id_]
        ends = {"min": widened(own.min, narrow, wide), "max": widened(own.max, narrow, wide)}
        found[id_] = msgspec.structs.replace(own, **ends)
    return found


def changed_forms(before: Schema, now: Schema) -> dict[int, tuple[pa.DataType, pa.DataType]]:
    """The columns whose values have another JSON form now: their older and newer type, by id."""
    if before is now or before.fields == now.fields:
        return {}
    found = {}
    for field in before.fields:
        there = now.by_id.get(field.id)
        if there is None or there.type == field.type:
            continue
        if is_date_to_timestamp(field.arrow_type, there.arrow_type):
            found[field.id] = (field.arrow_type, there.arrow_type)
    return found


def widened_entry(entry: TableEntry, changes: Mapping[int, tuple[pa.DataType, pa.DataType]]) -> TableEntry:
    """A table's entry with all statistics in the JSON forms of columns' newer types. See ``widened_stats``."""
    if not changes:
        return entry
    return msgspec.structs.replace(
        entry,
        files=tuple(msgspec.structs.replace(file, stats=widened_stats(file.stats, changes)) for file in entry.files),
        segments=tuple(
            msgspec.structs.replace(segment, stats=widened_stats(segment.stats, changes)) for segment in entry.segments
        ),
    )


def widened_files(files: tuple[DataFile, ...], before: Schema | None, now: Schema) -> tuple[DataFile, ...]:
    """Entries of files that were written under other columns, with their statistics in the form of these.

    Args:
        before: the columns then; None if they are those of now.
    """
    changes = changed_forms(before, now) if before is not None else {}
    if not changes:
        return files
    return tuple(msgspec.structs.replace(file, stats=widened_stats(file.stats, changes)) for file in files)
