"""Random entries of data files that nobody will read, with statistics as the writer makes them, or with gaps."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from dolmen.format.entries import ColumnStats, DataFile, Vector, column_stats
from dolmen.format.schema import Schema, is_nested
from dolmen.format.types import to_plain

Rng = random.Random


def uuid(rng: Rng) -> str:
    """32 hexadecimal digits."""
    return f"{rng.getrandbits(128):032x}"


def stats_of(column: pa.ChunkedArray) -> ColumnStats:
    """The statistics of all values of a column."""
    values = to_plain(pa.concat_arrays(column.chunks)) if column.num_chunks else []
    known = [value for value in values if value is not None]
    ordinary: list[Any] = [value for value in known if value == value]
    return column_stats(
        min(ordinary, default=None), max(ordinary, default=None), len(values) - len(known), len(known) - len(ordinary)
    )


def with_gaps(rng: Rng, stats: ColumnStats) -> ColumnStats | None:
    """Removes some of the statistics at random."""
    kind = rng.random()
    if kind < 0.6:
        return stats
    if kind < 0.7:
        return None
    least, greatest, nulls, nans = stats.min, stats.max, stats.nulls, stats.nans
    return ColumnStats(
        rng.choice([least, None]), rng.choice([greatest, None]), rng.choice([nulls, None]), rng.choice([nans, None])
    )


def random_file(rng: Rng, rows: pa.Table, schema: Schema, *, gaps: bool = True) -> DataFile:
    """The entry of a file with these rows."""
    stats = {}
    for field in schema.fields:
        if is_nested(field.arrow_type):
            if rng.random() < 0.3:
                stats[field.id] = ColumnStats(nulls=rows[field.name].null_count)
            continue
        own: ColumnStats | None = stats_of(rows[field.name])
        assert own is not None
        if gaps:
            own = with_gaps(rng, own)
        if own is not None:
            stats[field.id] = own
    stored = rng.random() < 0.3
    ts = rng.randrange(1, 1_000)
    return DataFile(
        path=f"data/t/2026/01/02/03/{uuid(rng)}.parquet",
        size=rng.randrange(100, 2**40),
        rows=rows.num_rows,
        footer=(rng.randrange(2**40), rng.randrange(8, 1000), rng.getrandbits(32)),
        row_ts=None if stored else ts,
        row_ts_bounds=(ts, ts + rng.randrange(100)) if stored else None,
        applied_through=ts + rng.randrange(100),
        vector=random_vector(rng, rows.num_rows) if rows.num_rows and rng.random() < 0.3 else None,
        stats=stats,
        erasing=ts if rng.random() < 0.1 else 0,
    )


def random_vector(rng: Rng, rows: int) -> Vector:
    """Makes a deletion vector of some rows, in an object that does not exist."""
    key = f"tombstone/t/2026/01/02/03/{uuid(rng)}.del"
    return Vector(key, rng.randrange(4, 1000), rng.randrange(1, 1000), rng.getrandbits(32), rng.randint(1, rows))
