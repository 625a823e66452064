"""Reports bad rows one by one, while the good ones around them are read."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.errors import RowError
from dolmen.ingest.formats.options import BadRow, OnBadRow

_ROWS_AFTER_BAD = 64


class BlockRows(Protocol):
    """The rows of one block, by their place in it."""

    def __len__(self) -> int: ...

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """Converts the rows from ``start`` to before ``stop``.

        Raises:
            RowError: for the first that is bad; its ``row`` is its number in the file.
        """

    def text(self, place: int) -> bytes | None:
        """One row, as ``BadRow`` wants it."""


def good_rows(rows: BlockRows, first_row: int, on_bad_row: OnBadRow) -> list[pa.RecordBatch]:
    """Returns the good rows of a block in order, and reports the bad ones.

    After a bad row a few rows are tried, then more and more: so a row is converted a few times at most, however many of
    its neighbours are bad.

    Args:
        first_row: the 1-based number in the file of the block's first row.
    """
    made: list[pa.RecordBatch] = []
    start, count = 0, len(rows)
    while start < len(rows):
        stop = min(start + count, len(rows))
        try:
            made.append(rows.convert(start, stop))
            start, count = stop, 2 * count
            continue
        except RowError as error:
            fault = error
        assert fault.row is not None
        place = fault.row - first_row
        assert start <= place < stop, (start, place, stop)
        if place > start:
            made.append(rows.convert(start, place))
        on_bad_row(BadRow(fault.reason, fault.row, fault.line, fault.column, rows.text(place)))
        start, count = place + 1, _ROWS_AFTER_BAD
    return made


class RowNumbers:
    """Numbers the good rows of a file, from 1, between the bad ones.

    Args:
        on_bad_row: called with each bad row; None: the first one is an error of the reader.
    """

    def __init__(self, on_bad_row: OnBadRow | None) -> None:
        self._on_bad_row = on_bad_row
        self._next = 1
        self._skipped: set[int] = set()

    @property
    def for_reader(self) -> OnBadRow | None:
        """The function that the reader calls with each row that it cannot read."""
        return None if self._on_bad_row is None else self.add

    def add(self, bad: BadRow) -> None:
        """Adds a row that could not be read."""
        assert self._on_bad_row is not None
        if bad.row is not None:
            self._skipped.add(bad.row)
        self._on_bad_row(bad)

    def next(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the file of the next ``count`` rows that could be read."""
        numbers = np.arange(self._next, self._next + count + len(self._skipped))
        if self._skipped:
            numbers = numbers[~np.isin(numbers, list(self._skipped))]
        numbers = numbers[:count]
        if count:
            self._next = int(numbers[-1]) + 1
            self._skipped = {row for row in self._skipped if row >= self._next}
        return numbers
