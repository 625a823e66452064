"""Types that a column may change to without a change of any file, and values of the older type in the newer one.

As in Iceberg 3, "Schema Evolution": https://iceberg.apache.org/spec/#schema-evolution. Every value of the older type is
one of the newer type, so that a file written before is read exactly. Pure.

The names that a table's columns had: a file that was dropped before a rename has the names of its time.

A table knows its columns by ids, and a file has names. Both meet when the file is read. So a schema records each name
that a column loses, and when: ``former``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from dolmen.base.units import DAY_US
from dolmen.format.arrow_arrays import to_mask
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.erasures import CLOCK_STEP_US
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import FormerName, Schema
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
    return pa.array(days * DAY_US, mask=to_mask(values.is_null())).cast(wide)


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
        before: the columns at that time; None if they are the present ones.
    """
    changes = changed_forms(before, now) if before is not None else {}
    if not changes:
        return files
    return tuple(msgspec.structs.replace(file, stats=widened_stats(file.stats, changes)) for file in files)


MOST_FORMER_NAMES = 256
"""The most former names of a table that are kept: they are in each manifest."""


Names: TypeAlias = Mapping[int, str]
"""Names of columns at one time, by id. A column that was not there has none."""


def record_names(before: Schema, after: Schema, ts: int) -> Schema:
    """The later one of two schemas of a table, with the names and places that columns lost between them.

    Args:
        ts: timestamp of the statement that made it.
    """
    names = {field.id: field.name for field in after.fields}
    lost = (FormerName(field.id, field.name, ts) for field in before.fields if names.get(field.id) != field.name)
    former, since = (*before.former, *lost), named_since(before)
    if excess := former[:-MOST_FORMER_NAMES]:
        former, since = former[-MOST_FORMER_NAMES:], max(since, excess[-1].until_ts)
    places, placed = [field.id for field in before.fields], placed_since(before)
    if placed is None or places != [field.id for field in after.fields][: len(places)]:
        placed = ts
    return msgspec.structs.replace(after, former=former, named_since=since, placed_since=placed)


def named_since(schema: Schema) -> int:
    """Timestamp from which on all names of a table's columns are known.

    An older dolmen records none: there, all that is known is when the columns were last altered.
    """
    return schema.altered_ts if schema.named_since is None else schema.named_since


def placed_since(schema: Schema) -> int | None:
    """Timestamp from which on all columns are in the places that they have now; None if that is not known.

    Columns that are added at the end move no others.
    """
    if schema.named_since is not None:
        return schema.placed_since
    ids = [field.id for field in schema.fields]
    return schema.altered_ts if ids == sorted(ids) else None


def names_at(schema: Schema, ts: int) -> Names:
    """The names that columns had at a time, as far as they are known.

    A column that was added later has its name already, unless another column had it: producers may be ahead.
    """
    latest = 2**63
    claims: dict[int, tuple[int, str]] = {field.id: (latest, field.name) for field in schema.fields}
    for name in reversed(schema.former):
        if name.until_ts > ts:
            claims[name.id] = name.until_ts, name.name
    owners: dict[str, tuple[int, int]] = {}
    for id_, (until, claimed) in claims.items():
        owners[claimed] = min(owners.get(claimed, (until, id_)), (until, id_))
    return {id_: name for name, (_, id_) in owners.items()}


def names_around(schema: Schema, at_us: int | None) -> tuple[Names, ...]:
    """The different names that columns had at a time by the server's clock, which tells whole seconds.

    Args:
        at_us: None = the time is not known, so it may be any.
    """
    first, last = (0, 2**63 - 1) if at_us is None else (at_us - CLOCK_STEP_US, at_us + CLOCK_STEP_US)
    between = (name.until_ts for name in schema.former if first < name.until_ts <= last)
    return distinct_names(names_at(schema, ts) for ts in (first, *between, last))


def distinct_names(several: Iterable[Names]) -> tuple[Names, ...]:
    """Leaves out repetitions."""
    found: list[Names] = []
    for names in several:
        if names not in found:
            found.append(names)
    return tuple(found)
