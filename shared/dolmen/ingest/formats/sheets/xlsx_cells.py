"""The cells of a sheet of Excel, parsed from its XML.

Nearly all writers lay cells out alike, so that a regular expression finds them, ten times as fast as a parser of XML
calls functions. It must match all of some rows, to the last byte; else the parser reads them, and names what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.errors import InputError, short_repr
from dolmen.ingest.formats.sheets.sheet_cells import (
    BOOL,
    DATE,
    DATETIME,
    EMPTY,
    ERROR,
    MAX_ROWS,
    MAX_SHEET_COLUMNS,
    NOT_CALCULATED,
    NUMBER,
    TEXT,
    TEXT_AT_ONCE,
    TIME,
    Codes,
    Integers,
    Numbers,
    SheetRemarks,
    column_letters,
)
from dolmen.ingest.formats.sheets.xml_stream import XmlStream
from dolmen.ingest.formats.source_file import ByteStream, read_up_to

SHARED = 100  # the kind of a text that is given by its number, until it is looked up
_CELLS_AT_ONCE = 65_536
_READ_BYTES = 2 * MIB
_MAX_PROLOG_BYTES = MIB
_MAX_ROW_BYTES = 64 * MIB
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_ROW = rb'<row r="[0-9]{1,7}"[^<>&]*>'
_CELL = (
    rb'<c r="([A-Z]{1,3})([0-9]{1,7})"(?: s="([0-9]{1,6})")?(?: t="(n|s|b|e|str|inlineStr)")?'
    rb"(?:/>|>(<f(?:/>|[ >][^<]*</f>| [^<>]*/>))?"
    rb'(?:<v>([^<]*)</v>|<v/>|<is><t(?: xml:space="preserve")?>([^<]*)</t></is>)?</c>)'
)
_CELLS = re.compile(_CELL)
_ROWS = re.compile(rb"(?>" + _ROW + rb"|" + _CELL + rb"|</row>|[\n ])*+")
_MERGED = re.compile(rb'<mergeCell ref="[A-Z]+([0-9]{1,7}):')
_SHEET_DATA, _SHEET_DATA_END, _ROW_END = b"<sheetData>", b"</sheetData>", b"</row>"
_OTHER_ENCODING = re.compile(rb"encoding=[\"'](?!utf-8)", re.IGNORECASE)


class ParsedCells(Struct, frozen=True):
    """Cells in the order of the sheet; ``styles`` are indexes of formats, -1 for none."""

    rows: Integers
    columns: Integers
    kinds: Codes
    styles: Integers
    numbers: Numbers
    texts: pa.StringArray


def parse_cells(stream: ByteStream, what: str, part: str, remarks: SheetRemarks) -> Iterator[ParsedCells]:
    """The cells of a sheet, some rows at a time. Raises InputError; ``what`` and ``part`` name the sheet in it."""
    buffer = read_up_to(stream, _READ_BYTES)
    start = buffer.find(_SHEET_DATA, 0, _MAX_PROLOG_BYTES)
    if start < 0 or _OTHER_ENCODING.search(buffer, 0, start) or b"<!" in buffer[:start] or buffer[:1] != b"<":
        yield from _parse_xml(_Rest(buffer, stream), _CellHandler(what, 0, remarks), part, is_whole=True)
        return
    start += len(_SHEET_DATA)
    prolog, buffer = buffer[:start], buffer[start:]
    last_row, ended = 0, False
    while not ended:
        if b"<!" in buffer:  # comments and the like may hold anything
            rest = _Rest(prolog + buffer, stream)
            yield from _parse_xml(rest, _CellHandler(what, last_row, remarks), part, is_whole=True)
            return
        end = buffer.find(_SHEET_DATA_END)
        ended = end >= 0
        if not ended:
            end = buffer.rfind(_ROW_END) + len(_ROW_END)
            end = end if end >= len(_ROW_END) else 0
        if end:
            rows, buffer = buffer[:end], buffer[end:]
            found = _match_cells(rows, last_row, remarks)
            parser = _CellHandler(what, last_row, remarks)
            for cells in [found] if found else _parse_xml(_Rest(prolog + rows), parser, part, is_whole=False):
                if len(cells.rows):
                    last_row = int(cells.rows[-1])
                    yield cells
        elif len(buffer) > _MAX_ROW_BYTES:
            raise InputError(f"{what} has a row of more than {_MAX_ROW_BYTES:,} bytes")
        if not ended:
            more = read_up_to(stream, _READ_BYTES)
            if not more:
                raise InputError(f"{part} is damaged: it ends within its rows")
            buffer += more
    while data := stream.read(_READ_BYTES):  # to the end, where the archive checks its checksum
        buffer += data if len(buffer) < _READ_BYTES else b""
    remarks.merged += map(int, _MERGED.findall(buffer))


class _Rest:
    """Bytes that were read already, and then those of a stream."""

    def __init__(self, ahead: bytes, stream: ByteStream | None = None) -> None:
        self._ahead, self._stream = ahead, stream

    def read(self, size: int, /) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        return self._stream.read(size) if self._stream is not None else b""


class _Styles(dict[bytes, int]):
    def __missing__(self, text: bytes) -> int:
        self[text] = number = int(text) if text else -1
        return number


_KINDS = {b"": NUMBER, b"n": NUMBER, b"s": SHARED, b"b": BOOL, b"e": ERROR, b"str": TEXT, b"inlineStr": TEXT}


def _match_cells(rows: bytes, last_row: int, remarks: SheetRemarks) -> ParsedCells | None:
    """The cells of some rows, if they are laid out as usual, and all of their values are right; else None."""
    if b"\r" in rows or not _ROWS.fullmatch(rows):
        return None
    found = _CELLS.findall(rows)
    if not found:
        return ParsedCells(*_NO_CELLS)
    letters, digits, style, type_, formula, value, inline = zip(*found, strict=True)
    count = len(found)
    columns = np.fromiter(map(_COLUMNS.__getitem__, letters), np.int64, count)
    row_of = np.array(digits).astype(np.int64)
    steps = np.diff(row_of, prepend=last_row)
    if steps[0] <= 0 or steps.min() < 0 or row_of[-1] > MAX_ROWS or columns.max() >= MAX_SHEET_COLUMNS:
        return None
    kinds = np.fromiter(map(_KINDS.__getitem__, type_), np.uint8, count)
    styles = np.fromiter(map(_STYLES.__getitem__, style), np.int64, count)
    values = pa.array(value, pa.binary())
    has_value = pc.not_equal(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    is_text = (kinds == TEXT) | (kinds == ERROR)
    absent = ~has_value & ~is_text
    if absent.any():
        calculated = np.fromiter(map(bool, formula), bool, count)
        kinds[absent] = np.where(calculated[absent], NOT_CALCULATED, EMPTY)
    numbers = np.zeros(count)
    is_number = has_value & ~is_text
    try:
        numbers[is_number] = values.filter(pa.array(is_number)).cast(pa.string()).cast(pa.float64()).to_numpy()
        texts = pa.nulls(count, pa.string())
        if is_text.any():
            inside = pa.array(is_text)
            if any(inline):
                values = pa.array([one or other for one, other in zip(value, inline, strict=True)], pa.binary())
            texts = pc.replace_with_mask(texts, inside, _unescape_all(values.filter(inside).cast(pa.string())))
    except (pa.ArrowInvalid, ValueError):
        return None
    if not np.isfinite(numbers).all() or not np.isin(numbers[kinds == BOOL], (0, 1)).all():
        return None
    remarks.formulas += count - formula.count(b"")
    return ParsedCells(row_of, columns, kinds, styles, numbers, texts)


_NO_CELLS = (
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0, np.uint8),
    np.zeros(0, np.int64),
    np.zeros(0),
    pa.array([], pa.string()),
)
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ENTITY = re.compile("&(?:#([0-9]{1,7})|#x([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos));|&")


def _unescape_all(texts: pa.StringArray) -> pa.StringArray:
    """Texts without the escapes of XML and of Excel. Raises ValueError for one that XML does not have."""
    escaped = pc.match_substring_regex(texts, "&|_x")
    if not pc.any(escaped).as_py():
        return texts
    plain = [unescape(_ENTITY.sub(_character, text)) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts, escaped, pa.array(plain, pa.string()))


def _character(match: re.Match[str]) -> str:
    if match[3]:
        return _ENTITIES[match[3]]
    number = int(match[1]) if match[1] else int(match[2] or "0", 16)
    if number < ord(" ") and number not in (9, 10, 13):
        raise ValueError(match[0])
    return chr(number)


def unescape(text: str) -> str:
    """Text with characters for escapes such as ``_x000D_``."""
    return _ESCAPE.sub(_escaped, text) if "_x" in text else text


def _escaped(match: re.Match[str]) -> str:
    number = int(match[1], 16)
    return match[0] if 0xD800 <= number < 0xE000 else chr(number)


class _ColumnNumbers(dict[bytes, int]):
    def __missing__(self, letters: bytes) -> int:
        number = 0
        for letter in letters:
            number = number * 26 + letter - ord("A") + 1
        self[letters] = number - 1
        return number - 1


_REFERENCE = re.compile("([A-Z]{1,3})([0-9]{1,7})")
_COLUMNS, _STYLES = _ColumnNumbers(), _Styles()


def _parse_xml(stream: ByteStream, cells: _CellHandler, part: str, *, is_whole: bool) -> Iterator[ParsedCells]:
    """The cells that XML holds; if it is not ``is_whole``, its end is missing."""
    xml = cells.xml = XmlStream(stream, part, cells.start, cells.end)
    for _ in xml.parse(is_whole=is_whole):
        if len(cells.values) >= _CELLS_AT_ONCE or cells.size > TEXT_AT_ONCE:
            yield cells.take()
    if cells.values:
        yield cells.take()


class _CellHandler:
    """Collects the cells of a sheet as its XML is parsed."""

    def __init__(self, what: str, last_row: int, remarks: SheetRemarks) -> None:
        self._what, self._remarks = what, remarks
        self.xml: XmlStream
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.kinds: list[int] = []
        self.styles: list[int] = []
        self.numbers: list[float] = []
        self.values: list[str | None] = []
        self.size = 0
        self._row = self._last_row = last_row
        self._column = 0
        self._type = self._style = ""
        self._value: str | None = None
        self._inline: list[str] | None = None
        self._in_cell = self._has_formula = self._phonetic = False

    def take(self) -> ParsedCells:
        """The cells that were parsed so far, which are forgotten."""
        taken = ParsedCells(
            np.array(self.rows, np.int64),
            np.array(self.columns, np.int64),
            np.array(self.kinds, np.uint8),
            np.array(self.styles, np.int64),
            np.array(self.numbers, np.float64),
            pa.array(self.values, pa.string()),
        )
        self.rows, self.columns, self.kinds, self.styles, self.numbers, self.values = [], [], [], [], [], []
        self.size = 0
        return taken

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "c":
            reference = attributes.get("r")
            if reference is None:
                self._column += 1
            else:
                match = _REFERENCE.fullmatch(reference)
                if match is None or int(match[2]) != self._row:
                    raise self._damage(f"a cell of row {self._row:,} is called {short_repr(reference)}")
                self._column = _COLUMNS[match[1].encode()]
            if self._column >= MAX_SHEET_COLUMNS:
                raise self._damage(f"it has more than {MAX_SHEET_COLUMNS:,} columns")
            self._type, self._style = attributes.get("t", "n"), attributes.get("s", "")
            self._value, self._inline, self._has_formula, self._in_cell = None, None, False, True
        elif name == "v" or (name == "t" and self._in_cell and not self._phonetic):
            self.xml.collect_text()
        elif name == "f":
            self._has_formula = True
            self._remarks.formulas += 1
        elif name == "mergeCell" and (cells := _REFERENCE.match(attributes.get("ref", ""))):
            self._remarks.merged.append(int(cells[2]))
        elif name == "row":
            number = attributes.get("r")
            if number is not None and not number.isdecimal():
                raise self._damage(f"row {short_repr(number)}")
            self._row = int(number) if number is not None else self._row + 1
            if not self._last_row < self._row <= MAX_ROWS:
                raise self._damage(f"row {self._row:,} comes after row {self._last_row:,}, of {MAX_ROWS:,}")
            self._last_row, self._column = self._row, -1
        elif name == "rPh":
            self._phonetic = True

    def end(self, name: str) -> None:
        if name == "v":
            self._value = self.xml.take_text()
        elif name == "c":
            self._in_cell = False
            self._add()
        elif name == "t" and self._in_cell and not self._phonetic:
            text = self.xml.take_text()
            self._inline = [text] if self._inline is None else [*self._inline, text]
        elif name == "rPh":
            self._phonetic = False

    def _add(self) -> None:
        kind, number, value = self._cell()
        if kind == EMPTY:
            return
        self.rows.append(self._row)
        self.columns.append(self._column)
        self.kinds.append(kind)
        self.styles.append(int(self._style) if self._style.isdecimal() else -1)
        self.numbers.append(number)
        self.values.append(value)
        self.size += len(value or "")

    def _cell(self) -> tuple[int, float, str | None]:
        """The kind of the cell that was parsed, its number and its text."""
        kind, value = self._type, self._value
        if kind == "inlineStr":
            return (EMPTY, 0, None) if self._inline is None else (TEXT, 0, unescape("".join(self._inline)))
        if kind == "str":
            return TEXT, 0, unescape(value or "")
        if value is None or value == "":
            return (NOT_CALCULATED, 0, None) if self._has_formula else (EMPTY, 0, None)
        if kind == "n":
            return NUMBER, self._number(value), None
        if kind == "s":
            return SHARED, self._number(value), None
        if kind == "b":
            if value not in ("0", "1", "true", "false"):
                raise self._damage(f"cell {self._name()} is not a Boolean: {short_repr(value)}")
            return BOOL, float(value in ("1", "true")), None
        if kind == "e":
            return ERROR, 0, value
        if kind == "d":
            return self._iso(value)
        raise self._damage(f"cell {self._name()} is of type {short_repr(kind)}")

    def _number(self, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = np.inf
        if not np.isfinite(number) or "_" in value:
            raise self._damage(f"cell {self._name()} is not a number: {short_repr(value)}")
        return number

    def _iso(self, value: str) -> tuple[int, float, str | None]:
        """A date or a time of day that is written as text (ISO 8601)."""
        try:
            if ":" in value and "-" not in value:
                span = np.datetime64(f"1970-01-01T{value.removesuffix('Z')}", "ms")
                return TIME, float(span.astype(np.int64)), None
            moment = np.datetime64(value.removesuffix("Z"), "ms").astype(np.int64)
        except ValueError:
            raise self._damage(f"cell {self._name()} is not a date: {short_repr(value)}") from None
        return (DATETIME if "T" in value else DATE), float(moment), None

    def _name(self) -> str:
        return f"{column_letters(self._column)}{self._row}"

    def _damage(self, reason: str) -> InputError:
        return InputError(f"{self._what} is damaged: {reason}")
