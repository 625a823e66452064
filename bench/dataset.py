"""The table that is measured: an event log of wide and narrow, ordered and random columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("user_id", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("country", pa.string()),
        ("kind", pa.string()),
        ("amount", pa.float64()),
        ("payload", pa.string()),
    ]
)
_COUNTRIES = ["DE", "FR", "GB", "IN", "JP", "NG", "US", "BR", "CN", "ZA"]
_KINDS = ["view", "click", "cart", "buy", "refund"]
_PAYLOAD = 60
_STEP_US = 250_000
_START_US = 1_735_689_600_000_000


def events(rows: int, seed: int = 1) -> pa.Table:
    """``rows`` events: sequential ``id``, log-uniform ``user_id``, increasing ``event_time``, random payload."""
    return pa.Table.from_batches([_batch(first, min(1 << 20, rows - first), seed) for first in range(0, rows, 1 << 20)])


def _batch(first: int, rows: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng((seed, first))
    ids = np.arange(first, first + rows, dtype=np.int64)
    users = np.exp(rng.uniform(0, np.log(1e9), rows)).astype(np.int64)
    times = _START_US + ids * _STEP_US + rng.integers(0, _STEP_US, rows)
    letters = rng.integers(ord("a"), ord("z") + 1, rows * _PAYLOAD, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * _PAYLOAD
    payload = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(users),
            pa.array(times).view(pa.timestamp("us", tz="UTC")),
            pa.array(np.array(_COUNTRIES, dtype=object)[rng.integers(0, len(_COUNTRIES), rows)], pa.string()),
            pa.array(np.array(_KINDS, dtype=object)[rng.integers(0, len(_KINDS), rows)], pa.string()),
            pa.array(np.round(rng.gamma(2.0, 20.0, rows), 2)),
            payload,
        ],
        schema=SCHEMA,
    )
