"""Upserts the rows of a file of any length, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.transactions.transaction_table import TransactionTable

UPSERT_ROWS = 1_000_000
UPSERT_BYTES = 128 * MIB
"""The most bytes of one upsert, which holds its rows in memory, twice for a moment.

A larger file becomes several upserts of the same commit, in the order of the file: the last row of a key still wins."""


def upsert_in_portions(
    table: TransactionTable,
    rows: pa.RecordBatchReader,
    request: str,
    *,
    max_rows: int = UPSERT_ROWS,
    max_bytes: int = UPSERT_BYTES,
) -> None:
    """Upserts a stream of any length, in bounded memory. Raises as ``Table.upsert`` does."""
    portions = _Portions(rows, max_rows, max_bytes)
    while portions.has_rows():
        taken = portions.taken
        table.upsert(
            pa.RecordBatchReader.from_batches(rows.schema, portions.take()), request=request, leave_out_erased=False
        )
        if portions.taken == taken:
            return  # the transaction has moved to a version in which another delivery has applied the request


def require_keys(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Makes the key's columns not nullable, so that the reader reports the place of a row without a key."""
    return pa.schema([field.with_nullable(False) if field.name in primary_key else field for field in schema])


class _Portions:
    """A stream of batches, taken in portions."""

    def __init__(self, rows: pa.RecordBatchReader, max_rows: int, max_bytes: int) -> None:
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._batches = self._cut(rows)
        self._next: pa.RecordBatch | None = None
        self.taken = 0

    def has_rows(self) -> bool:
        """Whether there are rows left."""
        if self._next is None:
            self._next = next(self._batches, None)
        return self._next is not None

    def take(self) -> Iterator[pa.RecordBatch]:
        """The batches of the next portion."""
        rows = size = 0
        while self.has_rows():
            assert self._next is not None
            rows, size = rows + self._next.num_rows, size + self._next.nbytes
            if rows > self._max_rows or (size > self._max_bytes and rows > self._next.num_rows):
                return
            batch, self._next = self._next, None
            self.taken += 1
            yield batch

    def _cut(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for start in range(0, batch.num_rows, self._max_rows):
                yield batch.slice(start, self._max_rows)
