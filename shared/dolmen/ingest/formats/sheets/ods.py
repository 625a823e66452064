"""Workbooks of OpenDocument (ISO/IEC 26300: .ods), as LibreOffice writes them, read as a stream.

Cells and rows may be repeated by a count; what is repeated without a value takes no memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dolmen.errors import InputError, LimitError, short_repr
from dolmen.ingest.formats.sheets.sheet_cells import (
    BOOL,
    DATE,
    DATETIME,
    DAY_MS,
    DURATION,
    EMPTY,
    ERROR,
    MAX_ROW_TEXT,
    MAX_ROWS,
    MAX_SHEET_COLUMNS,
    NOT_CALCULATED,
    NUMBER,
    TEXT,
    TIME,
    Cell,
    CellBlock,
    SheetInfo,
    SheetRemarks,
    blocks_of,
    column_letters,
)
from dolmen.ingest.formats.sheets.xml_stream import XmlStream
from dolmen.ingest.formats.zip_archive import ZipArchive

_CONTENT, _MANIFEST = "content.xml", "META-INF/manifest.xml"
_CELLS_AT_ONCE = 16_384
_DURATION = re.compile(r"(-?)P(?:([0-9]+)D)?T?(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9.]+)S)?")
_NUMBERS = {"float", "percentage", "currency"}
_CELLS = {"table-cell", "covered-table-cell"}
_NOTES = {"annotation", "shapes", "tracked-changes"}


class Ods:
    """An open workbook. Raises InputError if it is damaged."""

    def __init__(self, archive: ZipArchive, name: str) -> None:
        self._archive, self._name = archive, name
        self._check_encryption()
        hidden: set[str] = set()
        style = ""
        self.sheets: list[SheetInfo] = []
        self._with_rows: set[str] = set()
        depth = 0

        def start(element: str, attributes: Mapping[str, str]) -> None:
            nonlocal style, depth
            if element == "style":
                style = _attribute(attributes, "name")
            elif element == "table-properties" and _attribute(attributes, "display") == "false":
                hidden.add(style)
            elif element == "table":
                if not depth:
                    visible = _attribute(attributes, "style-name") not in hidden
                    self.sheets.append(SheetInfo(_attribute(attributes, "name"), visible))
                depth += 1
            elif element == "table-cell" and depth and any(key.endswith(" value-type") for key in attributes):
                self._with_rows.add(self.sheets[-1].name)

        def end(element: str) -> None:
            nonlocal depth
            depth -= element == "table"

        with archive.open(_CONTENT) as stream:
            XmlStream(stream, self._part(_CONTENT), start, end).parse_all()

    def has_rows(self, sheet: str) -> bool:
        """Whether a cell of the sheet has a value."""
        return sheet in self._with_rows

    def blocks(self, sheet: str, remarks: SheetRemarks) -> Iterator[CellBlock]:
        """The cells of a sheet, in blocks of rows that are not empty; adds to ``remarks``."""
        yield from blocks_of(self._rows(sheet, remarks), _CELLS_AT_ONCE)

    def _rows(self, sheet: str, remarks: SheetRemarks) -> Iterator[tuple[int, Sequence[Cell]]]:
        with self._archive.open(_CONTENT) as stream:
            rows = _SheetRows(f"file {self._name!r}, sheet {sheet!r}", sheet, remarks)
            xml = rows.xml = XmlStream(stream, self._part(_CONTENT), rows.start, rows.end)
            for _ in xml.parse():
                for first, count, cells in rows.done:
                    for row in range(first, first + count):
                        yield row, cells
                rows.done.clear()
                if rows.is_over:
                    return

    def _part(self, path: str) -> str:
        return f"file {self._name!r}: its part {path}"

    def _check_encryption(self) -> None:
        def start(element: str, _: Mapping[str, str]) -> None:
            if element == "encryption-data":
                raise InputError(f"file {self._name!r} is encrypted with a password: save it without one")

        if _MANIFEST in self._archive.members:
            with self._archive.open(_MANIFEST) as stream:
                XmlStream(stream, self._part(_MANIFEST), start, lambda _: None).parse_all()


def _attribute(attributes: Mapping[str, str], name: str) -> str:
    """The attribute of this name in any namespace."""
    return next((value for key, value in attributes.items() if key.rpartition(" ")[2] == name), "")


class _SheetRows:
    """Collects the rows of one sheet as its XML is parsed: the number of each, its repetitions, and its cells."""

    def __init__(self, what: str, sheet: str, remarks: SheetRemarks) -> None:
        self._what, self._sheet, self._remarks = what, sheet, remarks
        self.xml: XmlStream
        self.done: list[tuple[int, int, list[Cell]]] = []
        self.is_over = False
        self._depth = self._notes = 0
        self._is_inside = False
        self._row, self._repeat, self._column, self._size = 0, 1, 0, 0
        self._cells: list[Cell] = []
        self._attributes: dict[str, str] = {}
        self._in_cell = False
        self._lines: list[str] = []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "table":
            self._depth += 1
            if self._depth == 1:
                self._is_inside = _attribute(attributes, "name") == self._sheet and not self.is_over
        if not self._is_inside or self._depth != 1:
            return
        if name in _NOTES:
            self._notes += 1
            self._remarks.comments += name == "annotation"
        elif self._notes:
            return
        elif name == "table-row":
            self._row += 1
            self._repeat = self._count(_attribute(attributes, "number-rows-repeated"))
            self._cells, self._column, self._size = [], 0, 0
        elif name in _CELLS:
            self._attributes = {key.rpartition(" ")[2]: value for key, value in _by_office(attributes)}
            self._in_cell, self._lines = True, []
            self._remark(self._attributes)
        elif name == "p" and self._in_cell:
            self.xml.collect_text()
        elif name in ("s", "tab", "line-break") and self._in_cell:
            text = self.xml.take_text()
            count = self._count(_attribute(attributes, "c")) if name == "s" else 1
            more = {"s": " ", "tab": "\t", "line-break": "\n"}[name] * min(count, MAX_ROWS)
            self.xml.collect_text(text + more)

    def end(self, name: str) -> None:
        if name == "table":
            if self._depth == 1 and self._is_inside:
                self.is_over, self._is_inside = True, False
            self._depth -= 1
        if not self._is_inside or self._depth != 1:
            return
        if name in _NOTES:
            self._notes -= 1
        elif self._notes:
            return
        elif name == "p" and self._in_cell:
            self._lines.append(self.xml.take_text())
        elif name in _CELLS:
            self._in_cell = False
            self._end_cell(is_covered=name != "table-cell")
        elif name == "table-row":
            if self._cells and self._row + self._repeat - 1 > MAX_ROWS:
                raise LimitError(f"{self._what} has more than {MAX_ROWS:,} rows")
            if self._cells:
                self.done.append((self._row, self._repeat, self._cells))
            self._row += self._repeat - 1

    def _remark(self, attributes: Mapping[str, str]) -> None:
        self._remarks.formulas += bool(attributes.get("formula"))
        if attributes.keys() & {"number-columns-spanned", "number-rows-spanned"}:
            self._remarks.merged.append(self._row)
        sign = {"percentage": "%", "currency": attributes.get("currency", "a currency")}
        if (kind := attributes.get("value-type", "")) in sign:
            self._remarks.signs[self._column] = sign[kind]

    def _end_cell(self, *, is_covered: bool) -> None:
        count = self._count(self._attributes.get("number-columns-repeated", ""))
        kind, number, text = (EMPTY, 0.0, None) if is_covered else self._cell()
        if kind != EMPTY:
            if self._column + count > MAX_SHEET_COLUMNS:
                raise LimitError(f"{self._what} has more than {MAX_SHEET_COLUMNS:,} columns")
            self._size += count * len(text or "")
            if self._size > MAX_ROW_TEXT:
                raise LimitError(f"{self._what}, row {self._row:,}: its texts take more than {MAX_ROW_TEXT:,} bytes")
            self._cells += [Cell(self._column + index, kind, number, text) for index in range(count)]
        self._column += count

    def _count(self, text: str) -> int:
        if not text:
            return 1
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
            raise self._damage(f"{short_repr(text)} is not a count of rows or columns")
        return int(text)

    def _cell(self) -> tuple[int, float, str | None]:
        attributes, text = self._attributes, "\n".join(self._lines)
        kind = attributes.get("value-type")
        if attributes.get("shown-type") == "error":
            return ERROR, 0.0, text or "#VALUE!"
        if kind is None:
            return (NOT_CALCULATED, 0.0, None) if attributes.get("formula") else (EMPTY, 0.0, None)
        if kind == "string":
            return TEXT, 0.0, attributes.get("string-value") or text
        try:
            if kind in _NUMBERS:
                number = float(attributes["value"])
                if np.isfinite(number):
                    return NUMBER, number, None
            elif kind == "boolean":
                return BOOL, float({"true": 1, "false": 0}[attributes["boolean-value"]]), None
            elif kind == "date":
                return _moment(attributes["date-value"])
            elif kind == "time":
                return _span(attributes["time-value"])
        except (KeyError, ValueError):
            pass
        name = f"{column_letters(self._column)}{self._row}"
        raise self._damage(f"the value of cell {name} is not of its type {short_repr(kind)}")

    def _damage(self, reason: str) -> InputError:
        return InputError(f"{self._what} is damaged: {reason}")


def _by_office(attributes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Attributes, with LibreOffice's own type of a cell as ``shown-type``."""
    for key, value in attributes.items():
        is_extension = key.endswith(" value-type") and "calcext" in key
        yield ("shown-type" if is_extension else key), value


def _moment(text: str) -> tuple[int, float, None]:
    moment = float(np.datetime64(text.removesuffix("Z"), "ms").astype(np.int64))
    if not np.isfinite(moment) or not -62_135_596_800_000 <= moment < 253_402_300_800_000:
        raise ValueError(text)
    return (DATETIME if "T" in text else DATE), moment, None


def _span(text: str) -> tuple[int, float, None]:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, *parts = match.groups()
    days, hours, minutes, seconds = (float(part or 0) for part in parts)
    span = float(np.rint((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000))
    kind = TIME if not sign and span < DAY_MS else DURATION
    return kind, -span if sign else span, None
