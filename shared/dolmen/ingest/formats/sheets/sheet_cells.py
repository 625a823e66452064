"""The cells of a sheet: what is in each, and blocks of rows as columns of cells.

A number in a date's format is a date only if it is one: neither negative, nor the 29 February 1900 that Excel believes
in. Times have milliseconds, which is what a sheet's doubles hold and show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import pc
from dolmen.base.units import DAY_US, MIB

EMPTY, NUMBER, BOOL, TEXT, ERROR, DATE, DATETIME, TIME, DURATION, NOT_CALCULATED = range(10)
"""What a cell is. ``ERROR`` is a text such as ``#N/A``; ``NOT_CALCULATED`` a formula whose value the file lacks."""
MAX_ROWS, MAX_SHEET_COLUMNS = 1_048_576, 16_384
DAY_MS = DAY_US // 1000
TEXT_AT_ONCE = 16 * MIB  # how many bytes of text a block has, unless a single row has more
MAX_ROW_TEXT = 256 * MIB
_INT64_END = 2**63

Codes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Cell(Struct, frozen=True):
    """One cell."""

    column: int  # its number, from 0
    kind: int
    # of a BOOL 0 or 1, of a DATE and a DATETIME milliseconds since 1970, of a TIME and a DURATION milliseconds
    number: float = 0.0
    text: str | None = None


class CellColumn(Struct, frozen=True):
    """The cells of one column in some rows."""

    kinds: Codes
    numbers: Numbers
    texts: pa.StringArray

    def slice(self, start: int, stop: int) -> CellColumn:
        return CellColumn(self.kinds[start:stop], self.numbers[start:stop], self.texts[start:stop])

    def as_text(self) -> pa.StringArray:
        """Each cell as text: numbers in their shortest notation, times in ISO 8601; NULL for an empty one."""
        kinds, texts = self.kinds, self.texts
        found = np.unique(kinds)
        for kind in found[~np.isin(found, (EMPTY, TEXT, ERROR, NOT_CALCULATED))]:
            mask = kinds == kind
            written = _WRITERS[int(kind)](self.numbers[mask])
            texts = written if len(found) == 1 else pc.replace_with_mask(texts, pa.array(mask), written)
        return texts


class CellBlock(Struct, frozen=True):
    """Rows that are not empty: their 1-based numbers in the sheet, and their columns by the 0-based number."""

    rows: npt.NDArray[np.int64]
    columns: Mapping[int, CellColumn]

    def column(self, number: int) -> CellColumn:
        found = self.columns.get(number)
        if found is not None:
            return found
        count = len(self.rows)
        return CellColumn(np.zeros(count, np.uint8), np.zeros(count), pa.nulls(count, pa.string()))

    def slice(self, start: int, stop: int) -> CellBlock:
        return CellBlock(
            self.rows[start:stop], {number: each.slice(start, stop) for number, each in self.columns.items()}
        )


class SheetInfo(Struct, frozen=True):
    """A sheet of cells."""

    name: str
    is_visible: bool


class SheetRemarks(Struct):
    """Counts and formats that a sheet has beside the values of its cells, as far as it was read."""

    # formulas, comments: how many there are
    formulas: int = 0
    comments: int = 0
    merged: list[int] = field(default_factory=list)  # the first row of each group of merged cells
    # what the numbers of a column are shown with, ``%`` or a currency, by the 0-based number of the column
    signs: dict[int, str] = field(default_factory=dict)


class Workbook(Protocol):
    """An open workbook."""

    sheets: list[SheetInfo]

    def blocks(self, sheet: str, remarks: SheetRemarks) -> Iterator[CellBlock]:
        """The cells of a sheet, in blocks of rows that are not empty; adds to ``remarks``."""

    def has_rows(self, sheet: str) -> bool:
        """Whether a cell of the sheet has a value."""


def block_of(
    row_of: Integers, column_of: Integers, kind_of: Codes, number_of: Numbers, texts: pa.StringArray
) -> CellBlock:
    """A block of cells that are given by rows: ``row_of`` ascends. Empty cells are left out."""
    there = np.flatnonzero(kind_of != EMPTY)
    distinct, row_index = np.unique(row_of[there], return_inverse=True)
    order = there[np.argsort(column_of[there], kind="stable")]
    index_of = np.zeros(len(row_of), np.int64)
    index_of[there] = row_index
    found, starts = np.unique(column_of[order], return_index=True)
    made = {}
    for number, cells in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        at = index_of[cells]
        block_kinds, block_numbers = np.zeros(len(distinct), np.uint8), np.zeros(len(distinct))
        block_kinds[at], block_numbers[at] = kind_of[cells], number_of[cells]
        source = np.zeros(len(distinct), np.int64)
        source[at] = cells
        missing = np.ones(len(distinct), bool)
        missing[at] = False
        made[number] = CellColumn(block_kinds, block_numbers, texts.take(pa.array(source, mask=missing)))
    return CellBlock(distinct, made)


def blocks_of(rows: Iterable[tuple[int, Sequence[Cell]]], cells_at_once: int) -> Iterator[CellBlock]:
    """Blocks of rows that are given as cells, with their numbers."""
    numbers: list[int] = []
    cells: list[Cell] = []
    size = 0
    for row, row_cells in rows:
        cells += row_cells
        numbers += [row] * len(row_cells)
        size += sum(len(cell.text) for cell in row_cells if cell.text is not None)
        if len(cells) >= cells_at_once or size > TEXT_AT_ONCE:
            yield _block_of_cells(numbers, cells)
            numbers, cells, size = [], [], 0
    if cells:
        yield _block_of_cells(numbers, cells)


def _block_of_cells(rows: list[int], cells: list[Cell]) -> CellBlock:
    return block_of(
        np.array(rows, np.int64),
        np.array([cell.column for cell in cells], np.int64),
        np.array([cell.kind for cell in cells], np.uint8),
        np.array([cell.number for cell in cells]),
        pa.array([cell.text for cell in cells], pa.string()),
    )


def column_letters(number: int) -> str:
    """The name that a sheet gives a 0-based column: A, B ... Z, AA."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def number_texts(numbers: Numbers) -> pa.StringArray:
    """Numbers in the shortest notation that gives back the same double; whole ones without a point."""
    whole = (np.abs(numbers) < _INT64_END) & (numbers == np.rint(numbers))
    if whole.all():
        return pa.array(numbers.astype(np.int64)).cast(pa.string())
    texts = pa.array(numbers).cast(pa.string())
    if not whole.any():
        return texts
    return pc.replace_with_mask(texts, pa.array(whole), pa.array(numbers[whole].astype(np.int64)).cast(pa.string()))


def days_of(numbers: Numbers) -> pa.Array:
    return pa.array((numbers // DAY_MS).astype(np.int32)).view(pa.date32())


def moments_of(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.astype(np.int64) * 1000).view(pa.timestamp("us"))


def times_of(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.astype(np.int64) * 1000).view(pa.time64("us"))


def _time_texts(times: pa.Array) -> pa.StringArray:
    """Times as text: all have six decimal places, of which those that are 0 are left out."""
    texts = times.cast(pa.string())
    return pc.ascii_rtrim(pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+$", r"\1"), ".")


def _duration_texts(numbers: Numbers) -> pa.StringArray:
    """Hours, which may be more than 24, minutes and seconds, as a sheet shows them."""
    texts = []
    for number in numbers.tolist():
        sign, rest = "-" if number < 0 else "", abs(int(number))
        seconds, part = divmod(rest, 1000)
        text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        texts.append(f"{text}.{part:03}".rstrip("0") if part else text)
    return pa.array(texts, pa.string())


_WRITERS = {
    NUMBER: number_texts,
    BOOL: lambda numbers: pa.array(numbers != 0).cast(pa.string()),
    DATE: lambda numbers: days_of(numbers).cast(pa.string()),
    DATETIME: lambda numbers: _time_texts(moments_of(numbers)),
    TIME: lambda numbers: _time_texts(times_of(numbers)),
    DURATION: _duration_texts,
}
