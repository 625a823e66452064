"""A table of very many data files, all of them in segments: made of columns, as no writer could in a test's time."""

from __future__ import annotations

import random
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.layout import segment_key
from dolmen.format.manifest import EMPTY, Manifest, Segment, TableEntry
from dolmen.format.schema import Schema
from dolmen.format.segments import GROUP_ROWS, to_table
from dolmen.store.base import ObjectStore

ROWS = 1_000
SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("id", pa.int64()),
            ("user", pa.int64()),
            ("name", pa.string()),
            ("price", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
)


def many_files(store: ObjectStore, segments: int, per_segment: int, *, seed: int = 1) -> Manifest:
    """A version with one table ``t``: file n has ids from 1,000 n to 1,000 n + 999, and any 1,000 users in a row."""
    rng = random.Random(seed)
    like = to_table([_file(0)], SCHEMA)
    held = [_segment(store, rng, like, number, per_segment) for number in range(segments)]
    entry = TableEntry(uuid=f"{rng.getrandbits(128):032x}", epoch=1, schema=SCHEMA, segments=tuple(held))
    return msgspec.structs.replace(EMPTY, version=2, commit_ts=10**6, tables={"t": entry})


def _file(number: int) -> DataFile:
    return DataFile(
        path=f"data/t/2026/01/02/03/{number:032x}.parquet",
        size=10**6,
        rows=ROWS,
        footer=(10**6 - 2_000, 2_000, 7),
        row_ts=5,
        applied_through=5,
        stats={
            1: ColumnStats(number * ROWS, number * ROWS + ROWS - 1, 0),
            2: ColumnStats(0, 10**6 + 999, 0),
            3: ColumnStats("a", "zz", 10),
            4: ColumnStats(0.5, 99.5, 0, 0),
            5: ColumnStats(number * 10**6, number * 10**6 + 999_999, 0),
        },
    )


def _segment(store: ObjectStore, rng: random.Random, like: pa.Table, number: int, count: int) -> Segment:
    numbers = np.arange(number * count, (number + 1) * count, dtype=np.int64)
    columns = {name: pa.array(like[name].to_pylist() * count, like[name].type) for name in like.column_names}
    columns["path"] = pa.array([f"data/t/2026/01/02/03/{rng.getrandbits(128):032x}.parquet" for _ in range(count)])
    columns["min_1"], columns["max_1"] = pa.array(numbers * ROWS), pa.array(numbers * ROWS + ROWS - 1)
    users = np.random.default_rng(rng.getrandbits(32)).integers(0, 10**6, count)
    columns["min_2"], columns["max_2"] = pa.array(users), pa.array(users + 999)
    at = like["min_5"].type
    columns["min_5"] = pa.array(numbers * 10**6).view(at)
    columns["max_5"] = pa.array(numbers * 10**6 + 999_999).view(at)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=GROUP_ROWS, compression="zstd", use_dictionary=False)
    body = bytes(sink.getvalue())
    key = segment_key("files", f"{rng.getrandbits(128):032x}")
    store.put(key, body)
    first, last = _file(number * count), _file((number + 1) * count - 1)
    stats = {
        id_: ColumnStats(own.min, last.stats[id_].max, (own.nulls or 0) * count, own.nans)
        for id_, own in first.stats.items()
    }
    return Segment(
        "files", key, len(body), crc32(body), count,
        least=5, greatest=5, least_applied_through=5, rows=ROWS * count, bytes=10**6 * count, stats=stats,
    )  # fmt: skip
