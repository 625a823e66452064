"""Prepares an upsert: the keys of its rows, and only the last of several rows with equal keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.errors import LimitError, RowError
from dolmen.format.keys import Keys, distinct_keys, key_tuples, keys_from_arrow
from dolmen.format.schema import Field

MAX_KEYS = 1_000_000
MAX_BYTES = 256 * MIB
"""An upsert holds its rows in memory, since a later row may replace any of them: this much Arrow memory at most."""

#: Replaced rows are dropped whenever so much has been added.
_FOLD_ROWS = MAX_KEYS
_FOLD_BYTES = MAX_BYTES // 4


def dedupe_last(batches: Iterable[pa.RecordBatch], columns: tuple[Field, ...]) -> tuple[Iterator[pa.RecordBatch], Keys]:
    """The rows without those that a later row of the same key replaces, in their order, and their keys.

    Args:
        batches: taken whole, before this returns.
        columns: the key.

    Raises:
        InputError: a float or nested column, which can't be a key.
        RowError: a NULL in a key; ``row`` counts from 1.
        LimitError: more than 1,000,000 keys, or 256 MB of rows.
    """
    no_rows = pa.schema([field.to_arrow() for field in columns]).empty_table()
    kept, keys = no_rows, keys_from_arrow(no_rows, columns)  # refuses what can't be a key, whatever the rows
    added: list[pa.RecordBatch] = []
    seen = added_rows = added_bytes = 0
    for batch in batches:
        check_not_null(batch, columns, seen)
        added.append(batch)
        seen += batch.num_rows
        added_rows += batch.num_rows
        added_bytes += batch.nbytes
        if added_bytes > _FOLD_BYTES or added_rows > _FOLD_ROWS:
            kept, keys = _fold(kept, added, columns)
            added, added_rows, added_bytes = [], 0, 0
    if added:
        kept, keys = _fold(kept, added, columns)
    return iter(kept.to_batches()), keys


def check_not_null(batch: pa.RecordBatch, columns: tuple[Field, ...], seen: int) -> None:
    """Raises RowError for a NULL in a key, with its row.

    Args:
        columns: the key.
        seen: number of rows before this batch.
    """
    for field in columns:
        values = batch[field.name]
        if values.null_count:
            row = seen + pc.index(pc.is_null(values), True).as_py() + 1
            raise RowError("NULL in a key: it equals nothing", row=row, column=field.name)


def _fold(kept: pa.Table, added: list[pa.RecordBatch], columns: tuple[Field, ...]) -> tuple[pa.Table, Keys]:
    """The last row of each key among both, in the order of the rows, and the keys."""
    rows = pa.Table.from_batches([*(kept.to_batches() if kept.num_rows else ()), *added])
    keys, last = distinct_keys(key_tuples(rows, columns))
    if len(last) < rows.num_rows:
        rows = rows.take(pa.array(np.sort(last)))
    if rows.num_rows > MAX_KEYS:
        raise LimitError(f"an upsert of more than {MAX_KEYS:,} keys: split it, or append what is new")
    if rows.nbytes > MAX_BYTES:
        raise LimitError(f"an upsert of more than {MAX_BYTES >> 20} MB of rows: split it, or append what is new")
    return rows, keys
