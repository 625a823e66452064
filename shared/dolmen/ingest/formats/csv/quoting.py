"""Finds the beginnings and ends of records in delimited text, with line ends inside quotes.

RFC 4180, and what common writers do beyond it: a field that BEGINS with a quote is quoted up to its closing quote (a
doubled one stands for itself), and may hold delimiters and line ends; a quote further inside an unquoted field
stands for itself. Text between a closing quote and the next delimiter has no agreed meaning and is refused.
Lines end in LF, CR LF, or CR alone.

Decides which cells pyarrow's CSV reader may parse itself, and finds text of which it would accept too much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.format.types import TextKind, type_of
from dolmen.ingest.formats.json.json_values import nested_parse
from dolmen.ingest.formats.text.cells import may_be_tiny, native_decimal, precision_check, text_cast, within_years
from dolmen.ingest.formats.text.text_blocks import Broken, count_lone_returns
from dolmen.ingest.formats.text.times import TimeFormat
from dolmen.rows.write.casts import Cast, Misfit

_QUOTE, _LF, _CR = b'"\n\r'


_AFTER_QUOTE = "text follows a closing quote; quotes inside a quoted field are doubled"


Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _QuotedRanges:
    """Quoted stretches of some bytes, in order; the last closes at the end if it is not closed in them."""

    opens: Offsets
    closes: Offsets
    fault: Broken | None = None

    def outside(self, offsets: Offsets) -> Offsets:
        """Selects the offsets that lie outside quotes."""
        stretch = np.searchsorted(self.opens, offsets) - 1
        inside = (stretch >= 0) & (offsets < self.closes[stretch]) if len(self.opens) else np.zeros(len(offsets), bool)
        kept: Offsets = offsets[~inside]
        return kept


def last_record_end(data: bytes, last: bool, delimiter: str) -> int:
    """The end of the last whole record in ``data``, which begins with a record (see ``blocks.FindEnd``).

    Raises:
        Broken: the first record has text after a closing quote, or in a file's last bytes a quote is never closed.
    """
    lone_returns = count_lone_returns(data)
    if b'"' not in data and not lone_returns:
        return len(data) if last else data.rfind(b"\n") + 1
    quoted = _quoted(data, delimiter, last)
    if not (last or lone_returns or quoted.fault):
        return _last_feed_outside(data, quoted) + 1
    ends = _record_ends(data, quoted, last)
    if quoted.fault:
        ends = ends[ends <= quoted.fault.offset]
        if not len(ends):
            raise quoted.fault
    return int(ends[-1]) if len(ends) else 0


def _last_feed_outside(data: bytes, quoted: _QuotedRanges) -> int:
    """The place of the last LF outside quotes; -1 if there is none. Nearly always it is the last LF of all."""
    place = data.rfind(b"\n")
    while place >= 0:
        stretch = int(np.searchsorted(quoted.opens, place)) - 1
        if stretch < 0 or place >= quoted.closes[stretch]:
            break
        place = data.rfind(b"\n", 0, int(quoted.opens[stretch]))
    return place


@dataclass(frozen=True, slots=True)
class Records:
    """The beginning and end of each record of a block, and its delimiters. Made to explain an error.

    Empty lines are records if there is one column (``blank_lines_count``), and no records otherwise.
    """

    starts: Offsets
    ends: Offsets
    delimiters: Offsets

    @classmethod
    def of(cls, data: bytes, delimiter: str, *, blank_lines_count: bool) -> Records:
        """Finds the records of ``data``, a block of whole ones."""
        quoted = _quoted(data, delimiter, True)
        ends = _record_ends(data, quoted, True)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        if not blank_lines_count:
            bytes_ = np.frombuffer(data, np.uint8)
            kept = ~np.isin(bytes_[starts], (_LF, _CR))
            starts, ends = starts[kept], ends[kept]
        delimiters = quoted.outside(np.flatnonzero(np.frombuffer(data, np.uint8) == ord(delimiter)))
        return cls(starts, ends, delimiters)

    @property
    def fields(self) -> Offsets:
        """The number of fields of each record."""
        count: Offsets = np.searchsorted(self.delimiters, self.ends) - np.searchsorted(self.delimiters, self.starts) + 1
        return count

    def place(self, offset: int) -> tuple[int, int]:
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
        if last and array[-1] == _CR:  # of other bytes, the next one may be the LF that belongs to it
            alone = np.append(alone, len(data) - 1)
        breaks = np.sort(np.concatenate((breaks, alone)))
    ends = quoted.outside(breaks) + 1
    if last and not (len(ends) and ends[-1] == len(data)):
        ends = np.append(ends, len(data))
    return ends


def _quoted(data: bytes, delimiter: str, last: bool) -> _QuotedRanges:
    array = np.frombuffer(data, np.uint8)
    quotes: Offsets = np.flatnonzero(array == _QUOTE)
    separates = np.zeros(256, bool)
    separates[[_LF, _CR, ord(delimiter)]] = True
    opens, closes = quotes[0::2], quotes[1::2]
    if len(closes) < len(opens):
        closes = np.append(closes, len(data))
    # The quotes alternate if each opening one begins a field and each closing one ends it, where a closing one and
    # an opening one side by side are a doubled quote. That holds for nearly every file, and is cheap to check.
    doubled = opens[1:] == closes[:-1] + 1
    begins = separates.take(array.take(opens - 1))
    begins[:1] |= opens[:1] == 0
    begins[1:] |= doubled
    followers = closes[: np.searchsorted(closes, len(data) - 1)]
    ends = separates.take(array.take(followers + 1))
    ends[: len(doubled)] |= doubled[: len(ends)]
    if not (begins.all() and ends.all()):
        opens, closes, fault = _quoted_one_by_one(array, quotes, separates)
    else:
        fault = None
    if fault is None and last and len(closes) and closes[-1] == len(data):
        fault = Broken(int(opens[-1]), "a quoted field begins here and is never closed", ends=False)
    return _QuotedRanges(opens, closes, fault)


def _quoted_one_by_one(
    array: npt.NDArray[np.uint8], quotes: Offsets, separates: npt.NDArray[np.bool_]
) -> tuple[Offsets, Offsets, Broken | None]:
    """For files with quotes inside unquoted fields, or faulty ones."""
    places: list[int] = quotes.tolist()
    size, opens, closes, at = len(array), [], [], 0
    while at < len(places):
        place = places[at]
        at += 1
        if place and not separates[array[place - 1]]:
            continue  # stands for itself
        while at + 1 < len(places) and places[at + 1] == places[at] + 1:
            at += 2
        close = places[at] if at < len(places) else size
        at += 1
        opens.append(place)
        closes.append(close)
        if close + 1 < size and not separates[array[close + 1]]:
            fault = Broken(close, _AFTER_QUOTE, ends=True)
            return np.array(opens, np.int64), np.array(closes, np.int64), fault
    return np.array(opens, np.int64), np.array(closes, np.int64), None


_LOWER_CASE = 0x20


def native_type(target: pa.DataType, times: TimeFormat | None) -> pa.DataType | None:
    """The type as which pyarrow's CSV reader reads the cells of a column; None = as text."""
    if times is not None and times.parser(target) is not None:
        asked = times.parser_type(target)
        return asked if asked is not None and t.is_integer(asked) else None
    if not _is_parsed_natively(target):
        return None
    return native_decimal(target) if t.is_decimal(target) else target


NATIVE: dict[TextKind, bool] = {
    "string": True,
    "bool": True,
    "integer": True,
    "float": True,
    "decimal": True,
    "date": True,
    "timestamp": True,
    "time": False,
    "base64": False,
    "json": False,
}
"""Whether pyarrow's CSV reader understands text of a grammar (``ColumnType.text``) as dolmen does, or refuses it."""


def _is_parsed_natively(target: pa.DataType) -> bool:
    found = type_of(target)
    return found is not None and found.text is not None and NATIVE[found.text]


@dataclass(frozen=True)
class Suspect:
    """Text that pyarrow's CSV reader may take for more than ``text`` does: columns are then asked for as text.

    Args:
        concerns: whether it does so where it reads values of this type.
        is_in: whether a block of text may hold some; seldom wrong, and cheap.
    """

    concerns: Callable[[pa.DataType], bool]
    is_in: Callable[[bytes], bool]


def without_doubts(native: dict[str, pa.DataType], doubts: Sequence[Suspect]) -> dict[str, pa.DataType]:
    """The types without those of columns that pyarrow may misread, given these doubts about a block."""
    return {name: kind for name, kind in native.items() if not any(doubt.concerns(kind) for doubt in doubts)}


def _may_be_hexadecimal(data: bytes) -> bool:
    """Whether there is a 0x anywhere, which pyarrow would take for the beginning of an integer."""
    if b"x" not in data and b"X" not in data:
        return False
    array = np.frombuffer(data, np.uint8)
    return bool(((array[1:] | _LOWER_CASE == ord("x")) & (array[:-1] == ord("0"))).any())


def _may_have_payload(data: bytes) -> bool:
    """Whether there is a nan(1) anywhere, which pyarrow would take for NaN."""
    return b"(" in data and _PAYLOAD.search(data) is not None


def _may_be_hour_alone(data: bytes) -> bool:
    """Whether there is a 2024-02-29T13 anywhere, which pyarrow would take for 13:00."""
    array = np.frombuffer(data + b"\n\n\n", np.uint8)
    marks = np.flatnonzero((array[1:-3] == ord("T")) | (array[1:-3] == ord(" "))) + 1
    for place in (-1, 1, 2):
        marks = marks[array[marks + place] - ord("0") < 10]  # unsigned: what is below 0 is far above
    return bool((array[marks + 3] != ord(":")).any())


_PAYLOAD = re.compile(rb"[nN]\(")


SUSPECTS = (
    Suspect(lambda kind: bool(t.is_integer(kind) or t.is_decimal(kind)), _may_be_hexadecimal),
    Suspect(t.is_decimal, may_be_tiny),
    Suspect(t.is_floating, _may_have_payload),
    Suspect(t.is_timestamp, _may_be_hour_alone),
)


def cell_cast(source: pa.DataType, target: pa.DataType, *, times: TimeFormat | None, ignore_extra: bool) -> Cast | None:
    """The cast of cells, parsed to ``target`` or to numbers already, or text (see ``FindCast``)."""
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        if t.is_timestamp(target) or t.is_date(target):
            return within_years
        return _not_infinite if t.is_floating(target) else precision_check(target)
    if times is not None and (numbers := times.number_cast(source, target)) is not None:
        return numbers
    if t.is_nested(target):
        return text_cast(target, empty_is_null=True, parse=nested_parse(target, times, ignore_extra))
    return text_cast(target, empty_is_null=True, parse=times.parser(target) if times is not None else None)


def _not_infinite(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():
        raise Misfit("infinite, or too large a number: its text tells")
    return values
