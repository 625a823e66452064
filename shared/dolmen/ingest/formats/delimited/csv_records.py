"""Finds the records of delimited text, whatever its dialect.

RFC 4180, but a quote inside an unquoted field is an ordinary character, and lines may end in LF, CR LF, or CR alone.
Text between a closing quote and the next delimiter has no agreed meaning and is refused. The character after an escape
is literal, even a line end, in quoted fields and in others; quotes in quoted fields may be doubled nevertheless.
A comment is a line that begins with the comment's sign where a record would; nothing in it has another meaning.
With ``trim``, spaces may stand around the quotes of a field.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.text_blocks import BrokenRecord, count_lone_returns, line_ends, offsets_of

_LF, _CR, _BACKSLASH, _SPACE = b"\n\r\\ "
_NEVER_CLOSED = (
    "a quoted field begins here and is never closed; if quotes are ordinary characters, say so (--quote none, or the "
    "setting ingest_quote)"
)
_TEXT_AFTER_QUOTE = "text follows a closing quote; quotes inside a quoted field are doubled"
_MAY_BE_ESCAPED = ", unless the setting ingest_escape gives the character that is before them"

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
_NONE: Offsets = np.zeros(0, np.int64)


class Signs(Struct, frozen=True, dict=True):
    """The characters of a ``Dialect`` that split text into fields, or None. ``CellNotation`` is for their values."""

    delimiter: str
    quote: str | None = '"'
    escape: str | None = None
    comment: str | None = None
    trim: bool = False

    @classmethod
    def of(cls, dialect: Dialect, delimiter: str) -> Signs:
        escape = None if dialect.escape == dialect.quote else dialect.escape  # a doubled quote
        return cls(delimiter, dialect.quote, escape, dialect.comment, dialect.trim)

    @cached_property
    def separates(self) -> Mask:
        """For each byte: does it end a field?"""
        separates = np.zeros(256, bool)
        separates[[_LF, _CR, ord(self.delimiter)]] = True
        return separates

    def has_quote(self, data: bytes) -> bool:
        return self.quote is not None and self.quote.encode() in data

    def has_escape(self, data: bytes) -> bool:
        return self.escape is not None and self.escape.encode() in data

    def has_comment(self, data: bytes) -> bool:
        """Whether a comment may be in some text."""
        sign = (self.comment or "").encode()
        return bool(sign) and (data.startswith(sign) or b"\n" + sign in data or b"\r" + sign in data)

    def without_line_end(self, record: bytes) -> bytes:
        """A record without its line end; one that is escaped stays."""
        end = len(record) - record.endswith(b"\n")
        if end < len(record) and self._is_escaped(record, end):
            return record
        if record[:end].endswith(b"\r") and not self._is_escaped(record, end - 1):
            end -= 1
        return record[:end]

    def ends_with_line(self, record: bytes) -> bool:
        """Whether a line end after the record would end it: no quote is open, and the last byte is no escape."""
        layout = find_layout(record + b"\n", self, True)
        return len(layout.outside(np.array([len(record)]))) > 0

    def _is_escaped(self, record: bytes, offset: int) -> bool:
        if self.escape is None:
            return False
        before = record[:offset]
        return (len(before) - len(before.rstrip(self.escape.encode()))) % 2 == 1


class Layout(Struct, frozen=True):
    """Where quoted ranges and comments are in some bytes, in order."""

    # opens, closes: of quotes. If the last has no closing quote, it closes at the end.
    opens: Offsets
    closes: Offsets
    # comments, comment_ends: where comments begin and end, their line ends included
    comments: Offsets
    comment_ends: Offsets
    # marks each character that an escape makes literal, and the end after a final escape; None: no escapes
    literal: Mask | None = None
    problem: BrokenRecord | None = None  # the first thing that makes a record malformed

    def is_quoted(self, offsets: Offsets) -> Mask:
        """Which offsets are inside quotes; an opening quote's own is not."""
        index = np.searchsorted(self.opens, offsets) - 1
        inside = (index >= 0) & (offsets < self.closes[index]) if len(self.opens) else np.zeros(len(offsets), bool)
        result: Mask = inside
        return result

    def outside(self, offsets: Offsets) -> Offsets:
        """The offsets where a character is neither quoted nor escaped."""
        result: Offsets = offsets[~self.is_quoted(offsets)]
        return result if self.literal is None else result[~self.literal[result]]


def last_record_end(data: bytes, last: bool, signs: Signs) -> int:
    """The end of the last whole record in ``data``, which begins with a record (see ``text_blocks.FindEnd``).

    Raises BrokenRecord if text follows a closing quote, or if a quote is still open at the end of the file.
    """
    lone_returns, escapes = count_lone_returns(data), signs.has_escape(data)
    if not (lone_returns or escapes or signs.has_quote(data)):
        return len(data) if last else data.rfind(b"\n") + 1
    layout = find_layout(data, signs, last)
    if not (last or lone_returns or escapes or layout.problem):
        return _last_feed_outside(data, layout) + 1
    ends = record_ends(data, layout, last)
    if layout.problem:
        ends = ends[ends <= layout.problem.offset]
        if not len(ends):
            raise layout.problem
    return int(ends[-1]) if len(ends) else 0


def _last_feed_outside(data: bytes, layout: Layout) -> int:
    """The offset of the last LF outside quotes; -1 if there is none. Nearly always it is the last LF of all."""
    offset = data.rfind(b"\n")
    while offset >= 0:
        index = int(np.searchsorted(layout.opens, offset)) - 1
        if index < 0 or offset >= layout.closes[index]:
            break
        offset = data.rfind(b"\n", 0, int(layout.opens[index]))
    return offset


class Records(Struct, frozen=True):
    """The start and end of each record of a block, and its delimiters: also for finding the place of an error.

    Empty lines are records only if there is one column (``blank_lines_count``). Comments are no records.
    """

    starts: Offsets
    ends: Offsets
    delimiters: Offsets
    layout: Layout

    @classmethod
    def of(cls, data: bytes, signs: Signs, *, blank_lines_count: bool) -> Records:
        """Finds the records of ``data``, a block of whole ones."""
        layout = find_layout(data, signs, True)
        ends = record_ends(data, layout, True)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        array = np.frombuffer(data, np.uint8)
        if not blank_lines_count:
            has_text = ~np.isin(array[starts], (_LF, _CR))
            starts, ends = starts[has_text], ends[has_text]
        if len(layout.comments):
            is_row = ~np.isin(starts, layout.comments)
            starts, ends = starts[is_row], ends[is_row]
        return cls(starts, ends, layout.outside(np.flatnonzero(array == ord(signs.delimiter))), layout)

    @property
    def fields(self) -> Offsets:
        count: Offsets = np.searchsorted(self.delimiters, self.ends) - np.searchsorted(self.delimiters, self.starts) + 1
        return count

    def position(self, offset: int) -> tuple[int, int]:
        """The record and the field in it (both 0-based) that hold the byte at ``offset``."""
        record = max(int(np.searchsorted(self.starts, offset, side="right")) - 1, 0)
        before = np.searchsorted(self.delimiters, (self.starts[record], offset))
        return record, int(before[1] - before[0])

    def text_ends(self, array: Bytes) -> Offsets:
        """Where the text of each record ends, before its line end."""
        ends = self.ends.copy()
        for sign in (_LF, _CR):
            last = np.maximum(ends - 1, 0)
            is_end = (ends > self.starts) & (array[last] == sign)
            if self.layout.literal is not None:
                is_end &= ~self.layout.literal[last]
            ends -= is_end
        return ends


def record_ends(data: bytes, layout: Layout, last: bool) -> Offsets:
    """Offsets just past each line end outside quotes; the end of a file's last bytes is one too."""
    array = np.frombuffer(data, np.uint8)
    breaks: Offsets = np.flatnonzero(array == _LF)
    if count_lone_returns(data):
        breaks = line_ends(array) - 1
        if not last and array[-1] == _CR:  # the next byte may be its LF
            breaks = breaks[:-1]
    ends = layout.outside(breaks) + 1
    if last and not (len(ends) and ends[-1] == len(data)):
        ends = np.append(ends, len(data))
    return ends


def find_layout(data: bytes, signs: Signs, last: bool) -> Layout:
    """Finds what is quoted, escaped and a comment in bytes that begin with a record."""
    array = np.frombuffer(data, np.uint8)
    literal = _find_literal(array, ord(signs.escape or "")) if signs.has_escape(data) else None
    lines = _lines_with(array, (signs.comment or "").encode()) if signs.has_comment(data) else (_NONE, _NONE)
    quotes = _NONE if signs.quote is None else offsets_of(signs.quote, data)
    if literal is not None:
        quotes = quotes[~literal[quotes]]
    around = _find_neighbours(array, quotes, literal, signs.trim)
    layout = _find_alternating(array, quotes, around, literal, lines, signs.separates)
    if layout is None:
        layout = _walk(array, quotes, around, literal, (lines[0].tolist(), lines[1].tolist()), signs.separates)
    if literal is not None and len(layout.comments):
        at = np.flatnonzero(literal)
        index = np.searchsorted(layout.comments, at) - 1
        literal[at[(index >= 0) & (at <= layout.comment_ends[index])]] = False
    problem = layout.problem
    if problem is None and last:
        if len(layout.closes) and layout.closes[-1] == len(data):
            problem = BrokenRecord(int(layout.opens[-1]), _NEVER_CLOSED, ends=False)
        elif literal is not None and literal[-1]:
            problem = BrokenRecord(
                len(data) - 1, "the file ends with an escape character that escapes nothing", ends=True
            )
    return Layout(layout.opens, layout.closes, layout.comments, layout.comment_ends, literal, problem)


def _find_literal(array: Bytes, escape: int) -> Mask:
    """Marks the character after each escape that is not literal itself: every second one of a run."""
    escapes = np.flatnonzero(array == escape)
    begins = np.ones(len(escapes), bool)
    begins[1:] = escapes[1:] != escapes[:-1] + 1
    firsts = np.flatnonzero(begins)
    in_run = np.arange(len(escapes)) - np.repeat(firsts, np.diff(np.append(firsts, len(escapes))))
    literal = np.zeros(len(array) + 1, bool)
    literal[escapes[in_run % 2 == 0] + 1] = True
    return literal


def _lines_with(array: Bytes, comment: bytes) -> tuple[Offsets, Offsets]:
    """The starts and ends of lines that begin with a comment's sign, and may be inside quotes."""
    starts = np.flatnonzero(array == comment[0])
    starts = starts[(starts == 0) | np.isin(array[starts - 1], (_LF, _CR))]
    for index, sign in enumerate(comment[1:], 1):
        starts = starts[starts + index < len(array)]
        starts = starts[array[starts + index] == sign]
    ends = line_ends(array)
    if not len(ends) or ends[-1] != len(array):
        ends = np.append(ends, len(array))
    return starts, ends[np.searchsorted(ends, starts, side="right")]


def _find_neighbours(array: Bytes, quotes: Offsets, literal: Mask | None, past_spaces: bool) -> tuple[Offsets, Offsets]:
    """The offsets before and after each quote: -1 before the first byte, the size after the last.

    ``past_spaces``: those of the nearest bytes that are no space, or an escaped one.
    """
    if not (past_spaces and len(quotes)):
        return quotes - 1, quotes + 1
    is_text = array != _SPACE
    if literal is not None:
        is_text |= literal[:-1]
    texts = np.concatenate(([-1], np.flatnonzero(is_text), [len(array)]))
    at = np.searchsorted(texts, quotes)
    return texts[at - 1], texts[at + 1]


def _find_alternating(
    array: Bytes,
    quotes: Offsets,
    around: tuple[Offsets, Offsets],
    literal: Mask | None,
    lines: tuple[Offsets, Offsets],
    separates: Mask,
) -> Layout | None:
    """The layout if every line that may be a comment is one, and each other quote opens or closes a field in turn.

    A closing quote right before an opening quote is a doubled quote. Nearly every file is like that, and the check is
    cheap. Returns None if it is not.
    """
    starts, ends = lines
    if len(starts):
        index = np.searchsorted(starts, quotes) - 1
        is_in_record = (index < 0) | (quotes >= ends[index])
        quotes, around = quotes[is_in_record], (around[0][is_in_record], around[1][is_in_record])
    opens, closes = quotes[0::2], quotes[1::2]
    before, after = around[0][0::2], around[1][1::2]
    if len(closes) < len(opens):
        closes = np.append(closes, len(array))
    doubled = opens[1:] == closes[:-1] + 1
    begins = separates.take(array.take(before))
    if literal is not None:
        begins &= ~literal[before]
    begins[:1] |= before[:1] == -1
    begins[1:] |= doubled
    follows = separates.take(array.take(after[: np.searchsorted(after, len(array))]))
    follows[: len(doubled)] |= doubled[: len(follows)]
    if not (begins.all() and follows.all()):
        return None
    layout = Layout(opens, closes, starts, ends)
    if layout.is_quoted(starts).any() or (literal is not None and literal[starts[starts > 0] - 1].any()):
        return None
    return layout


def _walk(
    array: Bytes,
    offsets: Offsets,
    around: tuple[Offsets, Offsets],
    literal: Mask | None,
    lines: tuple[list[int], list[int]],
    separates: Mask,
) -> Layout:
    """Finds the layout quote by quote: of malformed files, with quotes in unquoted fields, or with odd comments."""
    quotes, befores, afters = offsets.tolist(), around[0].tolist(), around[1].tolist()
    size, index, line, after = len(array), 0, 0, -1
    opens, closes, comments, comment_ends = list[int](), list[int](), list[int](), list[int]()
    problem = None
    while problem is None:
        start = quotes[index] if index < len(quotes) else size
        if line < len(lines[0]) and lines[0][line] < start:
            begin, end = lines[0][line], lines[1][line]
            line += 1
            if begin in (0, after) or literal is None or not literal[begin - 1]:
                comments.append(begin)
                comment_ends.append(end)
                after = end
                index = bisect_left(quotes, end, index)
            continue
        if start == size:
            break
        before = befores[index]
        index += 1
        is_first = before in (-1, after - 1) or (
            separates[array[before]] and not (literal is not None and literal[before])
        )
        if not is_first:
            continue  # an ordinary character
        while index + 1 < len(quotes) and quotes[index + 1] == quotes[index] + 1:
            index += 2
        close, follower = (quotes[index], afters[index]) if index < len(quotes) else (size, size)
        index += 1
        opens.append(start)
        closes.append(close)
        line = bisect_left(lines[0], close, line)
        if follower < size and not separates[array[follower]]:
            is_escaped = literal is None and close > start + 1 and array[close - 1] == _BACKSLASH
            problem = BrokenRecord(close, _TEXT_AFTER_QUOTE + (_MAY_BE_ESCAPED if is_escaped else ""), ends=True)
    lists = [np.array(each, np.int64) for each in (opens, closes, comments, comment_ends)]
    return Layout(lists[0], lists[1], lists[2], lists[3], None, problem)
