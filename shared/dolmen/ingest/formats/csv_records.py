"""Finds the records of delimited text, and the columns that its header names.

RFC 4180, but a quote inside an unquoted field is an ordinary character, and lines may end in LF, CR LF, or CR alone.
Text between a closing quote and the next delimiter has no agreed meaning and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.text_blocks import Block, BrokenRecord, count_lone_returns

_QUOTE, _LF, _CR = b'"\n\r'

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _QuotedRanges:
    """Quoted ranges of some bytes, in order. If the last has no closing quote, it closes at the end."""

    opens: Offsets
    closes: Offsets
    problem: BrokenRecord | None = None

    def outside(self, offsets: Offsets) -> Offsets:
        index = np.searchsorted(self.opens, offsets) - 1
        inside = (index >= 0) & (offsets < self.closes[index]) if len(self.opens) else np.zeros(len(offsets), bool)
        result: Offsets = offsets[~inside]
        return result


def last_record_end(data: bytes, last: bool, delimiter: str) -> int:
    """The end of the last whole record in ``data``, which begins with a record (see ``text_blocks.FindEnd``).

    Raises BrokenRecord if text follows a closing quote, or if a quote is still open at the end of the file.
    """
    lone_returns = count_lone_returns(data)
    if b'"' not in data and not lone_returns:
        return len(data) if last else data.rfind(b"\n") + 1
    quoted = _find_quoted_ranges(data, delimiter, last)
    if not (last or lone_returns or quoted.problem):
        return _last_feed_outside(data, quoted) + 1
    ends = _record_ends(data, quoted, last)
    if quoted.problem:
        ends = ends[ends <= quoted.problem.offset]
        if not len(ends):
            raise quoted.problem
    return int(ends[-1]) if len(ends) else 0


def _last_feed_outside(data: bytes, quoted: _QuotedRanges) -> int:
    """The offset of the last LF outside quotes; -1 if there is none. Nearly always it is the last LF of all."""
    offset = data.rfind(b"\n")
    while offset >= 0:
        index = int(np.searchsorted(quoted.opens, offset)) - 1
        if index < 0 or offset >= quoted.closes[index]:
            break
        offset = data.rfind(b"\n", 0, int(quoted.opens[index]))
    return offset


@dataclass(frozen=True, slots=True)
class Records:
    """The start and end of each record of a block, and its delimiters. Errors are explained with it.

    Empty lines are records if there is one column (``blank_lines_count``), and no records otherwise.
    """

    starts: Offsets
    ends: Offsets
    delimiters: Offsets

    @classmethod
    def of(cls, data: bytes, delimiter: str, *, blank_lines_count: bool) -> Records:
        """Finds the records of ``data``, a block of whole ones."""
        quoted = _find_quoted_ranges(data, delimiter, True)
        ends = _record_ends(data, quoted, True)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        array = np.frombuffer(data, np.uint8)
        if not blank_lines_count:
            has_text = ~np.isin(array[starts], (_LF, _CR))
            starts, ends = starts[has_text], ends[has_text]
        return cls(starts, ends, quoted.outside(np.flatnonzero(array == ord(delimiter))))

    @property
    def fields(self) -> Offsets:
        count: Offsets = np.searchsorted(self.delimiters, self.ends) - np.searchsorted(self.delimiters, self.starts) + 1
        return count

    def position(self, offset: int) -> tuple[int, int]:
        """The record and the field in it (both 0-based) that hold the byte at ``offset``."""
        record = int(np.searchsorted(self.starts, offset, side="right")) - 1
        before = np.searchsorted(self.delimiters, (self.starts[record], offset))
        return record, int(before[1] - before[0])


def _record_ends(data: bytes, quoted: _QuotedRanges, last: bool) -> Offsets:
    """Offsets just past each line end outside quotes; the end of a file's last bytes is one too."""
    array = np.frombuffer(data, np.uint8)
    breaks: Offsets = np.flatnonzero(array == _LF)
    if count_lone_returns(data):
        returns = np.flatnonzero(array[:-1] == _CR)
        alone = returns[array[returns + 1] != _LF]
        if last and array[-1] == _CR:  # elsewhere the next byte may be its LF
            alone = np.append(alone, len(data) - 1)
        breaks = np.sort(np.concatenate((breaks, alone)))
    ends = quoted.outside(breaks) + 1
    if last and not (len(ends) and ends[-1] == len(data)):
        ends = np.append(ends, len(data))
    return ends


def _find_quoted_ranges(data: bytes, delimiter: str, last: bool) -> _QuotedRanges:
    array = np.frombuffer(data, np.uint8)
    quotes: Offsets = np.flatnonzero(array == _QUOTE)
    separates = np.zeros(256, bool)
    separates[[_LF, _CR, ord(delimiter)]] = True
    opens, closes = quotes[0::2], quotes[1::2]
    if len(closes) < len(opens):
        closes = np.append(closes, len(data))
    # Quotes alternate if each opening quote begins a field and each closing quote ends one. A closing quote right
    # before an opening quote is a doubled quote. Nearly every file is like that, and the check is cheap.
    doubled = opens[1:] == closes[:-1] + 1
    begins = separates.take(array.take(opens - 1))
    begins[:1] |= opens[:1] == 0
    begins[1:] |= doubled
    followers = closes[: np.searchsorted(closes, len(data) - 1)]
    ends = separates.take(array.take(followers + 1))
    ends[: len(doubled)] |= doubled[: len(ends)]
    problem = None
    if not (begins.all() and ends.all()):
        opens, closes, problem = _walk_quotes(array, quotes.tolist(), separates)
    if problem is None and last and len(closes) and closes[-1] == len(data):
        problem = BrokenRecord(int(opens[-1]), "a quoted field begins here and is never closed", ends=False)
    return _QuotedRanges(opens, closes, problem)


def _walk_quotes(
    array: npt.NDArray[np.uint8], quotes: list[int], separates: npt.NDArray[np.bool_]
) -> tuple[Offsets, Offsets, BrokenRecord | None]:
    """Finds quoted ranges quote by quote, in malformed files and files with quotes inside unquoted fields."""
    size, opens, closes, index = len(array), list[int](), list[int](), 0
    problem = None
    while index < len(quotes) and problem is None:
        start = quotes[index]
        index += 1
        if start and not separates[array[start - 1]]:
            continue  # an ordinary character
        while index + 1 < len(quotes) and quotes[index + 1] == quotes[index] + 1:
            index += 2
        close = quotes[index] if index < len(quotes) else size
        index += 1
        opens.append(start)
        closes.append(close)
        if close + 1 < size and not separates[array[close + 1]]:
            reason = "text follows a closing quote; quotes inside a quoted field are doubled"
            problem = BrokenRecord(close, reason, ends=True)
    return np.array(opens, np.int64), np.array(closes, np.int64), problem


def columns_by_name(
    header: Block, delimiter: str, name: str, table: list[str] | None, ignore_others: bool, max_columns: int
) -> list[str | None]:
    """The columns that a header names; None for one that is ignored. Raises LimitError, RowError, SchemaError.

    ``table`` has the table's columns, which match in any case; None infers them.
    """
    where = f"file {name!r}, line {header.line}"
    try:
        header.data.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: {error.reason}", file=name, line=header.line) from None
    count = int(Records.of(header.data, delimiter, blank_lines_count=True).fields[0])
    check_columns(count, max_columns, name)
    numbers = [str(number) for number in range(count)]
    cells = csv.read_csv(
        pa.BufferReader(header.data),
        csv.ReadOptions(column_names=numbers, block_size=len(header.data) + 1, use_threads=False),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
    )
    spellings: list[str] = [column[0].as_py() for column in cells.columns]
    names = own_names(spellings, table or ())
    columns = [None if ignore_others and column not in (table or ()) else column for column in names]
    if columns.count(None) == len(columns):
        raise SchemaError(f"{where}: no column is one of the table's; there are: {', '.join(table or ())}")
    spelled: dict[str, str] = {}
    for number, (column, spelling) in enumerate(zip(columns, spellings, strict=True), 1):
        if column is None:
            continue
        if column == "":
            hint = " (an index that pandas wrote? leave it out with index=False)" if number == 1 else ""
            raise SchemaError(f"{where}: column {number} has no name{hint}")
        if column in spelled and spelled[column] != spelling:
            reason = f"columns {spelled[column]!r} and {spelling!r} differ in case only: rename one, or drop it"
            raise SchemaError(f"{where}: {reason}", column=column)
        if column in spelled:
            raise SchemaError(f"{where}: column {column!r} is there twice", column=column)
        spelled[column] = spelling
    return columns


def columns_by_position(fields: int, table: list[str] | None) -> tuple[Sequence[str | None], str]:
    """The columns of a file whose first record has ``fields`` fields, and what fixes that number, in words.

    ``table`` has the table's columns, if others are ignored; None invents names.
    """
    if table is None:
        return [f"column_{number}" for number in range(1, fields + 1)], "the first line"
    if fields > len(table):
        return [*table, *[None] * (fields - len(table))], "the first line"
    return table, "the table"
