"""Scans from ``open`` to the last batch, compared with ``pyarrow.dataset`` on the same files."""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.dataset as ds

import dolmen
from bench.places import Local, Ministack

COLUMNS = ["amount", "user_id"]


def ours(url: str) -> tuple[float, int]:
    """Sums two columns through dolmen; nothing is cached from an earlier scan."""
    amount, users = 0.0, 0
    for batch in dolmen.open(url).table("events").scan(columns=COLUMNS).to_reader():
        amount += pc.sum(batch["amount"]).as_py() or 0.0
        users += pc.sum(batch["user_id"]).as_py() or 0
    return amount, users


def plain(where: Local | Ministack, url: str) -> tuple[float, int]:
    """Sums the same columns of all data files through ``pyarrow.dataset``, which knows no deletes."""
    filesystem, path = where.filesystem(url)
    amount, users = 0.0, 0
    for batch in ds.dataset(f"{path}/data", filesystem=filesystem, format="parquet").to_batches(columns=COLUMNS):
        amount += pc.sum(batch["amount"]).as_py() or 0.0
        users += pc.sum(batch["user_id"]).as_py() or 0
    return amount, users
