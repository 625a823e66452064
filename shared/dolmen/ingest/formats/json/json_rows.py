"""Finds the rows of JSON files of every shape, and yields them as blocks of JSON lines, which ``jsonl`` reads.

A dialect's ``json_rows`` says where rows are:

- ``lines``: one in each line.
- ``values``: the values at the top of the file, and the items of the arrays there. Between values there may be white
  space, commas, the separator RS of RFC 7464, or nothing.
- a path such as ``detail.items``: in each object that ``values`` finds, the list, or the one object, that its keys lead
  to. All else in these objects is skipped. If there is ``null``, the object has no rows; without such a key it is an
  error. ``$.lines`` and ``$.values`` are paths, too.

Rows are objects. If the first is not, none may be: each row is the value of a column ``value``, if there may be one.
A row is written on one line, its line ends as spaces; ``Block.lines`` has the lines on which rows begin. What is not
a value between rows becomes a row too, which the reader refuses.

Only brackets and strings are examined, chunk by chunk. Of what is still open at the end of a chunk, only the
outer levels and the text of a row are kept. So memory depends on the longest row, not on arrays.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.base.units import MIB
from dolmen.errors import RowError
from dolmen.ingest.formats.source_file import VALUE_COLUMN, SourceFile
from dolmen.ingest.formats.text_blocks import MAX_RECORD_BYTES, Block, line_blocks, skip_nulls

Offsets = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH, _COMMA, _COLON, _LF, _CR, _SPACE, _CONTROL = b'"\\,:\n\r \x01'
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = b"[]{}"
_LOWER_CASE = 0x20  # the bit that turns a square bracket into a curly one
_BOUNDARY = re.compile(rb"[\[\]{},\n]")
_BETWEEN = np.zeros(256, bool)
_BETWEEN[list(b" \t\r\n,\x1e[]")] = True
"""What may be between rows. Brackets that are there begin or end an array of rows."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_BEGIN_VALUES = frozenset(b'["-0123456789tf')
_NONE = np.zeros(0, np.int64)

# What brackets are for. Objects on the way to the rows are _WAY, plus the number of keys that lead to them.
_OTHER, _ARRAY, _LIST, _ITEM, _SINGLE, _WAY = range(6)
_ROWS = (_ITEM, _SINGLE)


def json_blocks(source: SourceFile, *, may_be_values: bool = True) -> Iterator[Block]:
    """The rows of a file as JSON lines, in blocks. Raises RowError for text that never ends, or has no rows.

    Args:
        may_be_values: whether rows that are no objects are values of ``VALUE_COLUMN``; else the reader refuses them.
    """
    shape, skips_nulls = source.options.dialect.json_rows, source.options.null_lines == "skip"
    with source.text() as stream:
        if shape == "lines":
            found = line_blocks(stream.read, source.name, source.block_bytes)
        else:
            path = () if shape == "values" else tuple(shape.removeprefix("$.").split("."))
            found = _row_blocks(stream.read, source.name, source.block_bytes, path, may_be_values)
        for block in found:
            yield skip_nulls(block) if skips_nulls else block


def _row_blocks(
    read: Callable[[int], bytes], name: str, block_bytes: int, path: tuple[str, ...], may_be_values: bool
) -> Iterator[Block]:
    splitter, data = _RowSplitter(name, path, may_be_values), b""
    while True:
        more = read(block_bytes)
        data += more
        if more and not _BOUNDARY.search(more):
            splitter.check_size(len(data))
            continue
        chunk = _JsonChunk(data, splitter.position.depth)
        end = splitter.last_boundary(chunk) if more else len(data)
        yield from _split(splitter, chunk, end)
        data = data[end:]
        splitter.check_size(len(data))
        if not more:
            splitter.finish()
            return


def _split(splitter: _RowSplitter, chunk: _JsonChunk, end: int) -> Iterator[Block]:
    """Yields the rows of a chunk. If its shape is wrong somewhere, those before come first: they may have errors."""
    try:
        block = splitter.split(chunk, end)
    except _WrongShapeError as wrong:
        before = _JsonChunk(chunk.data[: wrong.offset], splitter.position.depth)
        yield from _split(splitter, before, splitter.last_boundary(before))
        raise wrong.error from None
    if block:
        yield block


class _WrongShapeError(Exception):
    """The shape of a file is wrong at an offset of a chunk."""

    def __init__(self, offset: int, error: RowError) -> None:
        self.offset, self.error = offset, error


class _JsonChunk:
    """The brackets and strings of some bytes that begin outside strings.

    Args:
        depth: how many brackets are open at the beginning.
    """

    def __init__(self, data: bytes, depth: int) -> None:
        self.data, self.array = data, np.frombuffer(data, np.uint8)
        self._is_quote = self._unescaped_quotes()
        self._in_string = np.cumsum(self._is_quote.view(np.uint8), dtype=np.uint8) & 1
        folded = self.array | _LOWER_CASE
        brackets = np.flatnonzero((folded == _OPEN) | (folded == _CLOSE))
        self.brackets: Offsets = brackets[self._in_string[brackets] == 0]
        is_open = folded[self.brackets] == _OPEN
        depths = depth + np.cumsum(np.where(is_open, 1, -1))
        self.depths = depths
        """After each bracket."""
        self.opens, self.open_depths = self.brackets[is_open], depths[is_open] - 1
        self.closes, self.close_depths = self.brackets[~is_open], depths[~is_open]

    def _unescaped_quotes(self) -> npt.NDArray[np.bool_]:
        is_quote: npt.NDArray[np.bool_] = self.array == _QUOTE
        if b'\\"' in self.data:
            slashes = np.flatnonzero(self.array == _BACKSLASH)
            begins = np.append(True, np.diff(slashes) != 1)
            sizes = slashes - slashes[np.flatnonzero(begins)][np.cumsum(begins) - 1] + 1
            after = slashes[sizes % 2 == 1] + 1
            is_quote[after[after < len(self.array)]] = False
        return is_quote

    @cached_property
    def quotes(self) -> Offsets:
        """The quotes around strings."""
        return np.flatnonzero(self._is_quote)

    @cached_property
    def _feeds(self) -> Offsets:
        return np.flatnonzero(self.array == _LF)

    def count_feeds(self, offsets: Offsets) -> Offsets:
        """The line ends before each offset."""
        counts: Offsets = np.searchsorted(self._feeds, offsets)
        return counts

    def begins_string(self, offset: int) -> bool:
        return bool(self._is_quote[offset] and self._in_string[offset])

    def is_in_string(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = self._in_string[offsets] == 1
        return result

    def last_boundary(self, *, feeds: bool) -> int:
        """The end of the last bracket, comma or, if ``feeds``, line end outside strings; 0 if there is none."""
        start = int(self.brackets[-1]) + 1 if len(self.brackets) else 0
        rest = self.array[start:]
        signs = start + np.flatnonzero((rest == _COMMA) | (rest == _LF) if feeds else rest == _COMMA)
        signs = signs[~self.is_in_string(signs)]
        return int(signs[-1]) + 1 if len(signs) else start

    @cached_property
    def text(self) -> bytes:
        """The bytes on one line; a line end in a string, which is not valid JSON, becomes a control character."""
        breaks = np.flatnonzero((self.array == _LF) | (self.array == _CR))
        if not self.is_in_string(breaks).any():
            return self.data.translate(_ONE_LINE)
        array = self.array.copy()
        array[breaks] = np.where(self.is_in_string(breaks), _CONTROL, _SPACE)
        return array.tobytes()

    def keys(self, opens: Offsets) -> tuple[Offsets, Offsets]:
        """The start and end of the key before each bracket in an object; an empty one if there is no key."""
        if len(self.quotes) < 2:
            return np.zeros_like(opens), np.zeros_like(opens)
        after = np.maximum(np.searchsorted(self.quotes, opens), 2)
        starts, ends = self.quotes[after - 2] + 1, self.quotes[after - 1]
        has_colon = self.array[np.minimum(ends + 1, opens)] == _COLON
        for index in np.flatnonzero(~has_colon).tolist():
            has_colon[index] = self.data[ends[index] + 1 : opens[index]].strip() == b":"
        return starts, np.where(has_colon & (ends < opens), ends, starts)


class _Key(Struct, frozen=True):
    """One name of a path, as JSON may write it."""

    name: str
    forms: frozenset[bytes]
    with_scalar: re.Pattern[bytes]

    @classmethod
    def of(cls, name: str) -> _Key:
        forms = frozenset({name.encode(), json.dumps(name)[1:-1].encode()})
        keys = b"|".join(map(re.escape, sorted(forms)))
        return cls(name, forms, re.compile(rb'"(?:%b)"\s*:\s*([^\s\[{,}\]]+)' % keys))

    def matches(self, chunk: _JsonChunk, starts: Offsets, ends: Offsets) -> npt.NDArray[np.bool_]:
        """Marks the keys in a chunk that are this one."""
        found = np.zeros(len(starts), bool)
        for form in self.forms:
            same = np.flatnonzero(ends - starts == len(form))
            for index, byte in enumerate(form):
                same = same[chunk.array[starts[same] + index] == byte]
            found[same] = True
        if b"\\" in chunk.data:
            for other in np.flatnonzero(~found).tolist():
                key = chunk.data[starts[other] : ends[other]]
                found[other] = b"\\" in key and _decode(key) == self.name
        return found


def _decode(key: bytes) -> str | None:
    try:
        return str(json.loads(b'"%b"' % key))
    except ValueError:
        return None


class _BracketLevel(Struct, frozen=True):
    """The brackets of one level, in order: where they open, what they are for, and where they close."""

    opens: Offsets
    kinds: Offsets
    closes: Offsets


class _Intervals(Struct, frozen=True):
    """Pairs of brackets in order. One that was open before the chunk opens at -1; one that stays open closes at -1."""

    opens: Offsets
    closes: Offsets

    def join(self, other: _Intervals) -> _Intervals:
        opens, closes = np.append(self.opens, other.opens), np.append(self.closes, other.closes)
        order = np.argsort(opens, kind="stable")
        return _Intervals(opens[order], closes[order])


class _Position(Struct, frozen=True):
    """A position between two chunks."""

    depth: int = 0  # how many brackets are open
    line: int = 1  # the line of the file
    # kinds, lines: what the outer ones of these brackets are for, and the lines on which they are
    kinds: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()

    @property
    def is_between_rows(self) -> bool:
        """Whether a row, or an object that leads to rows, may begin here."""
        return not self.depth or (self.depth == len(self.kinds) and self.kinds[-1] in (_ARRAY, _LIST))

    @property
    def is_in_row(self) -> bool:
        return _ITEM in self.kinds or _SINGLE in self.kinds


class _RowSplitter:
    """Splits a file, a chunk after the other."""

    def __init__(self, name: str, path: tuple[str, ...], may_be_values: bool) -> None:
        self.position = _Position()
        self._name, self._path, self._may_be_values = name, ".".join(path), may_be_values
        self._keys = [_Key.of(each) for each in path]
        self._row: list[bytes] = []
        self._row_line, self._row_bytes = 1, 0
        self._found = 0  # how often the object that is open has the path
        self._arrays = 0
        self._are_values: bool | None = None
        self._are_in_array = False

    def _error(self, reason: str, line: int) -> RowError:
        return RowError(reason, file=self._name, line=line)

    def _wrong(self, chunk: _JsonChunk, offset: int, reason: str, line: int | None = None) -> _WrongShapeError:
        """The error about an offset of a chunk, named by its own line or by another one."""
        return _WrongShapeError(offset, self._error(reason, line or self._line_at(chunk, offset)))

    def last_boundary(self, chunk: _JsonChunk) -> int:
        """The offset at which a chunk can be cut; after a line end only if no key can be cut off from its value."""
        return chunk.last_boundary(feeds=not self._path)

    def check_size(self, waiting: int) -> None:
        """Raises RowError if the open row, or the value that waits for its end, is too long."""
        if self._row_bytes + waiting > MAX_RECORD_BYTES:
            line = self._row_line if self._row else self.position.line
            raise self._error(f"a value is longer than {MAX_RECORD_BYTES // MIB} MiB; is a quote never closed?", line)

    def finish(self) -> None:
        """Raises RowError if a bracket is still open at the end of the file."""
        if self.position.depth:
            outer = [each for each in zip(self.position.kinds, self.position.lines, strict=True) if each[0] != _OTHER]
            kind, line = outer[-1]
            what = "row" if self._row else "array" if kind in (_ARRAY, _LIST) else "object"
            raise self._error(
                f"the {what} that begins here has no end: the file is cut off, or a bracket or quote is missing",
                self._row_line if self._row else line,
            )

    def split(self, chunk: _JsonChunk, end: int) -> Block | None:
        """Takes the bytes of a chunk up to ``end``, which is outside strings; returns the rows that end in them."""
        if len(chunk.depths) and chunk.depths.min() < 0:
            wrong = int(chunk.brackets[np.argmax(chunk.depths < 0)])
            raise self._wrong(chunk, wrong, f"{chr(chunk.array[wrong])!r} has no opening bracket")
        levels = self._levels(chunk)
        before, after = self.position, self._position_after(chunk, levels, end)
        rows = self._intervals(chunk, levels, *_ROWS)
        arrays, lists = (self._intervals(chunk, levels, kind, close=_CLOSE_LIST) for kind in (_ARRAY, _LIST))
        outer = rows
        if self._path:
            objects = self._intervals(chunk, levels, _WAY, close=_CLOSE)
            self._check_path(chunk, levels, objects, end)
            outer = objects.join(self._intervals(chunk, levels, _ITEM))
        gap_starts = np.concatenate(
            ([0] * before.is_between_rows, outer.closes[outer.closes >= 0] + 1, lists.opens[lists.opens >= 0] + 1)
        )
        gap_ends = np.concatenate(
            (outer.opens[outer.opens >= 0], lists.closes[lists.closes >= 0], [end] * after.is_between_rows)
        )
        tokens = _tokens(chunk, np.sort(gap_starts).astype(np.int64), np.sort(gap_ends).astype(np.int64))
        if self._path and len(tokens.opens):
            self._check_tokens(chunk, levels, tokens)
        rows = rows.join(tokens)
        self._check_values(chunk, levels, rows, arrays)
        block = self._block(chunk, end, rows)
        self.position = after
        return block

    def _line_at(self, chunk: _JsonChunk, offset: int) -> int:
        return self.position.line + int(chunk.count_feeds(np.array([offset]))[0])

    def _levels(self, chunk: _JsonChunk) -> list[_BracketLevel]:
        """The brackets of the outer levels, as far down as rows begin."""
        levels: list[_BracketLevel] = []
        for depth in range(len(self._keys) + 3 if self._keys else 2):
            opens, closes = chunk.opens[chunk.open_depths == depth], chunk.closes[chunk.close_depths == depth]
            if depth == 0:
                kinds = np.where(chunk.array[opens] == _OPEN_LIST, _ARRAY, _WAY if self._path else _ITEM)
            else:
                kinds = self._kinds_under(chunk, opens, self._kinds_at(levels, depth - 1, opens))
            levels.append(_BracketLevel(opens, kinds, closes))
        return levels

    def _kinds_at(self, levels: list[_BracketLevel], depth: int, offsets: Offsets) -> Offsets:
        """Finds what the last brackets of a level before some offsets are for."""
        before = self.position.kinds[depth] if depth < len(self.position.kinds) else _OTHER
        kinds: Offsets = np.append(before, levels[depth].kinds)[np.searchsorted(levels[depth].opens, offsets)]
        return kinds

    def _kinds_under(self, chunk: _JsonChunk, opens: Offsets, parents: Offsets) -> Offsets:
        """Finds what brackets are for, by what the brackets around them are for."""
        kinds = np.full(len(opens), _OTHER)
        kinds[parents == _LIST] = _ITEM
        kinds[parents == _ARRAY] = _WAY if self._path else _ITEM
        for place, key in enumerate(self._keys):
            inside = np.flatnonzero(parents == _WAY + place)
            if not len(inside):
                continue
            inside = inside[key.matches(chunk, *chunk.keys(opens[inside]))]
            is_list = chunk.array[opens[inside]] == _OPEN_LIST
            if key is self._keys[-1]:
                kinds[inside] = np.where(is_list, _LIST, _SINGLE)
            elif is_list.any():
                reason = f"{key.name!r} is a list here, so {self._path!r} leads to no rows"
                raise self._wrong(chunk, int(opens[inside[is_list]][0]), reason)
            else:
                kinds[inside] = _WAY + place + 1
        return kinds

    def _position_after(self, chunk: _JsonChunk, levels: list[_BracketLevel], end: int) -> _Position:
        depth = int(chunk.depths[-1]) if len(chunk.depths) else self.position.depth
        kinds, lines = [*self.position.kinds[:depth]], [*self.position.lines[:depth]]
        for level, brackets in enumerate(levels[:depth]):
            if len(brackets.opens):
                kinds[level:], lines[level:] = (
                    [int(brackets.kinds[-1])],
                    [self._line_at(chunk, int(brackets.opens[-1]))],
                )
        return _Position(depth, self._line_at(chunk, end), tuple(kinds), tuple(lines))

    def _intervals(
        self, chunk: _JsonChunk, levels: list[_BracketLevel], *kinds: int, close: int | None = None
    ) -> _Intervals:
        """The brackets that are for one of ``kinds``. Raises RowError for one that ``close`` does not close."""
        found = _Intervals(_NONE, _NONE)
        for depth, level in enumerate(levels):
            opens = level.opens[np.isin(level.kinds, kinds)]
            if depth < len(self.position.kinds) and self.position.kinds[depth] in kinds:
                opens = np.append(-1, opens)
            if not len(opens):
                continue
            closes = np.append(level.closes, -1)[np.searchsorted(level.closes, opens)]
            ends = closes[closes >= 0]
            if close is not None and len(wrong := ends[chunk.array[ends] != close]):
                offset = int(wrong.min())
                raise self._wrong(chunk, offset, f"{chr(chunk.array[offset])!r} where {chr(close)!r} is due")
            found = found.join(_Intervals(opens, closes)) if len(found.opens) else _Intervals(opens, closes)
        return found

    def _check_path(self, chunk: _JsonChunk, levels: list[_BracketLevel], objects: _Intervals, end: int) -> None:
        """Raises an error unless each object has the path once; one that stays open may get it later."""
        if not len(objects.opens):
            return
        lists = [level.opens[np.isin(level.kinds, (_LIST, _SINGLE))] for level in levels]
        found = np.sort(np.concatenate((*lists, self._nulls(chunk, levels, end))))
        owners = np.searchsorted(objects.opens, found) - 1
        counts = np.bincount(owners, minlength=len(objects.opens))
        was_open, stays_open = objects.opens[0] < 0, objects.closes[-1] < 0
        counts[0] += self._found * was_open
        wrong = (counts > 1) | ((counts == 0) & (objects.closes >= 0))
        if wrong.any():
            index = int(np.argmax(wrong))
            start = int(objects.opens[index])
            line = self.position.lines[self.position.kinds.index(_WAY)] if start < 0 else self._line_at(chunk, start)
            if counts[index] == 0:
                reason = f"{self._path!r} is not in the object that begins here"
                raise self._wrong(chunk, int(objects.closes[index]), reason, line)
            again = found[owners == index][0 if start < 0 and self._found else 1]
            raise self._wrong(chunk, int(again), f"{self._path!r} occurs twice in the object that begins here", line)
        self._found = int(counts[-1]) * stays_open

    def _nulls(self, chunk: _JsonChunk, levels: list[_BracketLevel], end: int) -> Offsets:
        """The offsets of keys of the path that are null. Raises RowError if it has another value that is no object."""
        found: list[int] = []
        for place, key in enumerate(self._keys):
            for match in key.with_scalar.finditer(chunk.data, 0, end):
                if (
                    not chunk.begins_string(match.start())
                    or self._kind_around(chunk, levels, match.start()) != _WAY + place
                ):
                    continue
                if match[1] != b"null":
                    reason = f"{key.name!r} is not a list or object here, so {self._path!r} leads to no rows"
                    raise self._wrong(chunk, match.start(), reason)
                found.append(match.start())
        return np.array(found, np.int64)

    def _kind_around(self, chunk: _JsonChunk, levels: list[_BracketLevel], offset: int) -> int:
        """Finds what the innermost bracket around an offset is for."""
        index = int(np.searchsorted(chunk.brackets, offset))
        depth = int(chunk.depths[index - 1]) if index else self.position.depth
        if not 0 < depth <= len(levels):
            return _OTHER
        return int(self._kinds_at(levels, depth - 1, np.array([offset]))[0])

    def _check_tokens(self, chunk: _JsonChunk, levels: list[_BracketLevel], tokens: _Intervals) -> None:
        """Raises RowError for what is between the objects that have the path."""
        for start in tokens.opens.tolist():
            if self._kind_around(chunk, levels, start) != _LIST:
                raise self._wrong(chunk, start, f"no object, so it has no {self._path!r}")

    def _check_values(
        self, chunk: _JsonChunk, levels: list[_BracketLevel], rows: _Intervals, arrays: _Intervals
    ) -> None:
        """Decides by the first row whether rows are objects. Raises RowError if other values are in several arrays."""

        if self._are_values is None and len(rows.opens):
            first = int(rows.opens[0])
            self._are_values = self._may_be_values and chunk.data[first] in _BEGIN_VALUES
            self._are_in_array = self._kind_around(chunk, levels, first) == _ARRAY
        begun = arrays.opens[arrays.opens >= 0]
        if self._are_values and not self._path:
            wrong = begun[max(0, self._are_in_array - self._arrays) :]
            if self._are_in_array:
                closed = arrays.closes[arrays.closes >= 0]
                is_over = not self.position.depth and not len(begun)
                last = -1 if is_over else int(closed[0]) if len(closed) else len(chunk.data)
                wrong = np.append(wrong, rows.opens[(rows.opens > last) & (rows.opens >= 0)])
            if len(wrong):
                reason = "several arrays, or an array beside other values: is each array a row, or each value in it? "
                raise self._wrong(chunk, int(wrong.min()), reason + "jq -c '{value: .}' makes objects of them")
        self._arrays += len(begun)

    def _block(self, chunk: _JsonChunk, end: int, rows: _Intervals) -> Block | None:
        """The rows of a chunk that end in it. Keeps the text of one that stays open."""
        text = chunk.text
        starts, ends = np.maximum(rows.opens, 0).tolist(), (rows.closes + 1).tolist()
        if self._row and not (starts and rows.opens[0] < 0 < ends[0]):
            self._keep(text[:end])
            return None
        lines = self.position.line + chunk.count_feeds(rows.opens)
        texts = [text[start:stop] for start, stop in zip(starts, ends, strict=True)]
        if self._row:
            texts[0], lines[0] = b"".join((*self._row, texts[0])), self._row_line
            self._row, self._row_bytes = [], 0
        if ends and ends[-1] == 0:
            self._row_line = int(lines[-1])
            self._keep(text[starts[-1] : end])
            texts, lines = texts[:-1], lines[:-1]
        if not texts:
            return None
        if self._are_values:
            texts = [b'{"%b":%b}' % (VALUE_COLUMN.encode(), each) for each in texts]
        return Block(b"\n".join(texts) + b"\n", int(lines[0]), lines=lines)

    def _keep(self, text: bytes) -> None:
        self._row.append(text)
        self._row_bytes += len(text)


def _tokens(chunk: _JsonChunk, starts: Offsets, ends: Offsets) -> _Intervals:
    """Finds all that is neither white space nor a separator in the gaps between rows."""
    sizes = ends - starts
    firsts = np.cumsum(sizes) - sizes
    offsets = np.repeat(starts - firsts, sizes) + np.arange(int(sizes.sum()))
    offsets = offsets[~_BETWEEN[chunk.array[offsets]] | chunk.is_in_string(offsets)]
    if not len(offsets):
        return _Intervals(_NONE, _NONE)
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    opens, closes = offsets[np.append(0, breaks + 1)], offsets[np.append(breaks, len(offsets) - 1)]
    marks = np.flatnonzero((chunk.array[opens] == BOM_UTF8[0]) & (closes - opens == len(BOM_UTF8) - 1))
    marked = [index for index in marks if chunk.data[opens[index] : closes[index] + 1] == BOM_UTF8]
    return _Intervals(np.delete(opens, marked), np.delete(closes, marked))
