"""The rows that are measured on Spark: eight columns, in four Parquet files; and which of them are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("user_id", pa.int64()),
        ("amount", pa.float64()),
        ("score", pa.float64()),
        ("items", pa.int32()),
        ("code", pa.string()),
        ("kind", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
    ]
)
FILES = 4
_KINDS = np.array(["view", "click", "buy"], dtype=object)
_START_US = 1_735_689_600_000_000


@dataclass(frozen=True)
class Source:
    """Where the rows lie.

    Args:
        rows: how many.
        files: URLs of Parquet files in a directory of their own, as Spark takes them.
        keys: URL of a Parquet file with the column ``id``: 1 % of all, at random.
    """

    rows: int
    files: tuple[str, ...]
    keys: str

    @property
    def users(self) -> int:
        """Users are numbered up to this; each has about ten rows, all over the table."""
        return max(1, self.rows // 10)

    def tables(self) -> Iterator[pa.Table]:
        """The rows of each file."""
        return (pq.read_table(file.removeprefix("file://")) for file in self.files)


def make(directory: Path, rows: int) -> Source:
    """Writes ``rows`` rows below ``directory``."""
    landing = directory / "landing" / "events"
    landing.mkdir(parents=True)
    bounds = np.linspace(0, rows, FILES + 1).astype(int).tolist()
    files = []
    for number, (first, last) in enumerate(pairwise(bounds)):
        path = landing / f"part-{number}.parquet"
        pq.write_table(_rows(first, last, rows), path, row_group_size=1 << 20)
        files.append(f"file://{path}")
    keys = directory / "keys.parquet"
    some = np.random.default_rng(2).choice(rows, max(1, rows // 100), replace=False)
    pq.write_table(pa.table({"id": some}), keys)
    return Source(rows, tuple(files), f"file://{keys}")


def _rows(first: int, last: int, rows: int) -> pa.Table:
    rng = np.random.default_rng((1, first))
    count = last - first
    ids = np.arange(first, last)
    return pa.table(
        [
            ids,
            rng.integers(0, max(1, rows // 10), count),
            rng.random(count),
            rng.random(count),
            rng.integers(0, 100, count).astype(np.int32),
            pa.array(rng.integers(0, 10**9, count)).cast(pa.string()),
            pa.array(_KINDS[rng.integers(0, len(_KINDS), count)], pa.string()),
            pa.array(_START_US + ids * 1000).view(pa.timestamp("us", tz="UTC")),
        ],
        schema=SCHEMA,
    )
