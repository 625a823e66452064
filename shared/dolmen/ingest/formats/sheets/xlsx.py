"""Workbooks of Excel (ISO/IEC 29500: .xlsx, .xlsm), read as a stream: parts of a zip archive, in XML.

Texts and formats of numbers are in tables of their own, which are read first. Formulas have the values that were last
calculated; ``NOT_CALCULATED`` marks one that was never saved with its value, as by libraries that cannot calculate.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import GIB, MIB
from dolmen.errors import InputError, LimitError
from dolmen.ingest.formats.sheets.sheet_cells import (
    DATE,
    DATETIME,
    DAY_MS,
    DURATION,
    MAX_ROW_TEXT,
    NUMBER,
    TEXT,
    TEXT_AT_ONCE,
    TIME,
    CellBlock,
    Codes,
    Integers,
    Numbers,
    SheetInfo,
    SheetRemarks,
    block_of,
)
from dolmen.ingest.formats.sheets.xlsx_cells import SHARED, ParsedCells, parse_cells, unescape
from dolmen.ingest.formats.sheets.xml_stream import XmlStream
from dolmen.ingest.formats.zip_archive import ZipArchive

Shown = Literal["number", "date", "datetime", "time", "duration"]  # what the format of a number shows it as

MAX_SHARED_BYTES = GIB
_SHARED_AT_ONCE = 16 * MIB
_BUILT_IN: dict[int, Shown] = {
    **dict.fromkeys((14, 15, 16, 17, *range(27, 32), 34, 35, 36, *range(50, 59)), "date"),
    **dict.fromkeys((18, 19, 20, 21, 32, 33, 45, 47), "time"),
    22: "datetime",
    46: "duration",
}
_BUILT_IN_SIGNS = {"9": "%", "10": "%"}
_SIGN = re.compile(r"\[\$([^\]-]+)|[%$\u20ac\u00a3\u00a5]")
_LITERAL = re.compile(r'"[^"]*"|\\.|[_*].|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_SHOWN_CODES: dict[Shown, int] = {
    "number": NUMBER,
    "date": DATE,
    "datetime": DATETIME,
    "time": TIME,
    "duration": DURATION,
}
_EPOCH_1900, _EPOCH_1904 = 25_569, 24_107  # the numbers of 1970-01-01
_FALSE_LEAP_DAY = 60  # 29 February 1900, a day that Excel counts and that never was; days before it have a number less
_LAST_DAY = 2_958_465


def shown_as(code: str) -> Shown:
    """The kind that a format such as ``yyyy-mm-dd hh:mm`` shows a number as."""
    plain = _LITERAL.sub("", code.split(";")[0]).lower()
    if re.search(r"\[[hms]+\]", plain):
        return "duration"
    plain = plain.replace("general", "").replace("am/pm", "h").replace("a/p", "h")
    has_day, has_hour = bool(re.search("[yd]", plain)), bool(re.search("[hs]", plain))
    if has_day or ("m" in plain and not has_hour):
        return "datetime" if has_hour else "date"
    return "time" if has_hour else "number"


def _count_comment(remarks: SheetRemarks, name: str, _: Mapping[str, str]) -> None:
    remarks.comments += name == "comment"


class Xlsx:
    """An open workbook. Raises InputError if it is damaged."""

    def __init__(self, archive: ZipArchive, name: str) -> None:
        self._archive, self._name = archive, name
        targets = self._relationships("_rels/.rels")
        book = next((path for kind, path in targets.values() if kind == "officeDocument"), "xl/workbook.xml")
        folder, base = posixpath.split(book)
        parts = self._relationships(posixpath.join(folder, "_rels", f"{base}.rels"))
        by_kind = dict(parts.values())
        self._epoch, self._has_1904 = _EPOCH_1900, False
        self.sheets: list[SheetInfo] = []
        self._paths: dict[str, str] = {}
        self._read_book(book, parts)
        self._signs: dict[int, str] = {}
        self._styles = self._read_styles(by_kind.get("styles"))
        self._strings_part = by_kind.get("sharedStrings")
        self._strings: pa.LargeStringArray | None = None
        self._lengths: Integers

    def blocks(self, sheet: str, remarks: SheetRemarks) -> Iterator[CellBlock]:
        """The cells of a sheet, in blocks of rows that are not empty; adds to ``remarks``."""
        if self._strings is None:
            self._strings = self._read_strings(self._strings_part)
            self._lengths = pc.binary_length(self._strings).to_numpy()
        path = self._paths[sheet]
        with self._archive.open(path) as stream:
            for cells in parse_cells(stream, f"file {self._name!r}, sheet {sheet!r}", self._part(path), remarks):
                for style in self._signs.keys() & set(np.unique(cells.styles).tolist()):
                    shown = np.unique(cells.columns[(cells.styles == style) & (cells.kinds == NUMBER)]).tolist()
                    remarks.signs |= dict.fromkeys(shown, self._signs[style])
                for block in self._blocks(cells):
                    if len(block.rows):
                        yield block
        folder, base = posixpath.split(path)
        for kind, part in self._relationships(posixpath.join(folder, "_rels", f"{base}.rels")).values():
            if kind == "comments" and part in self._archive.members:
                self._parse(part, partial(_count_comment, remarks))

    def has_rows(self, sheet: str) -> bool:
        """Whether a cell of the sheet has a value."""
        return next(self.blocks(sheet, SheetRemarks()), None) is not None

    def _part(self, path: str) -> str:
        return f"file {self._name!r}: its part {path}"

    def _parse(self, path: str, start: object, end: object = None) -> None:
        with self._archive.open(path) as stream:
            XmlStream(stream, self._part(path), start, end or (lambda _: None)).parse_all()  # type: ignore[arg-type]

    def _relationships(self, path: str) -> dict[str, tuple[str, str]]:
        """The kind and the path of each related part, by its id."""
        found: dict[str, tuple[str, str]] = {}
        folder = posixpath.dirname(posixpath.dirname(path))

        def start(name: str, attributes: Mapping[str, str]) -> None:
            if name == "Relationship" and attributes.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, attributes.get("Target", "")))
                kind = attributes.get("Type", "").rpartition("/")[2]
                found[attributes.get("Id", "")] = (kind, target.lstrip("/"))

        if path in self._archive.members:
            self._parse(path, start)
        return found

    def _read_book(self, path: str, parts: Mapping[str, tuple[str, str]]) -> None:
        def start(name: str, attributes: Mapping[str, str]) -> None:
            if name == "workbookPr" and attributes.get("date1904") in ("1", "true"):
                self._epoch, self._has_1904 = _EPOCH_1904, True
            elif name == "sheet":
                id_ = next((value for key, value in attributes.items() if key.endswith(" id")), "")
                kind, target = parts.get(id_, ("", ""))
                if kind == "worksheet":
                    title = attributes.get("name", "")
                    self.sheets.append(SheetInfo(title, attributes.get("state", "visible") == "visible"))
                    self._paths[title] = target

        if path not in self._archive.members:
            if "xl/workbook.bin" in self._archive.members:
                raise InputError(f"file {self._name!r} is a binary workbook (.xlsb): save it as .xlsx")
            raise InputError(f"file {self._name!r} is a zip archive, but not a workbook")
        self._parse(path, start)

    def _read_styles(self, path: str | None) -> list[int]:
        """The kinds of numbers (NUMBER, DATE ...) that the styles of their cells show."""
        formats: dict[str, Shown] = {}
        signs = dict(_BUILT_IN_SIGNS)
        styles: list[int] = []
        inside = False

        def start(name: str, attributes: Mapping[str, str]) -> None:
            nonlocal inside
            if name == "numFmt" and not inside:
                formats[attributes.get("numFmtId", "")] = shown_as(attributes.get("formatCode", ""))
                if sign := _SIGN.search(attributes.get("formatCode", "").split(";")[0]):
                    signs[attributes.get("numFmtId", "")] = sign[1] or sign[0]
            elif name == "cellXfs":
                inside = True
            elif name == "xf" and inside:
                id_ = attributes.get("numFmtId", "0")
                shown = formats.get(id_) or _BUILT_IN.get(int(id_) if id_.isdecimal() else 0, "number")
                if id_ in signs:
                    self._signs[len(styles)] = signs[id_]
                styles.append(_SHOWN_CODES[shown])

        def end(name: str) -> None:
            nonlocal inside
            if name == "cellXfs":
                inside = False

        if path is not None:
            self._parse(path, start, end)
        return styles

    def _read_strings(self, path: str | None) -> pa.StringArray:
        """The texts that cells name by their numbers."""
        chunks: list[pa.StringArray] = []
        strings: list[str] = []
        size = 0
        runs: list[str] = []
        phonetic = False

        def start(name: str, _: Mapping[str, str]) -> None:
            nonlocal phonetic
            if name == "si":
                runs.clear()
            elif name == "rPh":
                phonetic = True
            elif name == "t" and not phonetic:
                xml.collect_text()

        def end(name: str) -> None:
            nonlocal phonetic, size
            if name == "t" and not phonetic:
                runs.append(xml.take_text())
            elif name == "rPh":
                phonetic = False
            elif name == "si":
                text = unescape("".join(runs))
                strings.append(text)
                size += len(text) + 8

        if path is None:
            return pa.array([], pa.large_string())
        with self._archive.open(path) as stream:
            xml = XmlStream(stream, self._part(path), start, end)
            pending = 0
            for _ in xml.parse():
                if size > MAX_SHARED_BYTES:
                    raise LimitError(
                        f"file {self._name!r}: its texts take more than {MAX_SHARED_BYTES:,} bytes: save it as CSV"
                    )
                if size - pending > _SHARED_AT_ONCE:
                    chunks.append(pa.array(strings, pa.large_string()))
                    strings.clear()
                    pending = size
        chunks.append(pa.array(strings, pa.large_string()))
        return pa.concat_arrays(chunks)

    def _blocks(self, cells: ParsedCells) -> Iterator[CellBlock]:
        """Blocks of cells with their texts looked up: one text may be in many cells."""
        assert self._strings is not None
        rows, columns, kinds, styles = cells.rows, cells.columns, cells.kinds, cells.styles
        numbers, texts = cells.numbers, cells.texts
        shared = kinds == SHARED
        indexes = np.where(shared, numbers, 0).astype(np.int64)
        if shared.any() and (indexes.max() >= len(self._strings) or indexes.min() < 0):
            raise InputError(f"file {self._name!r} is damaged: a cell names a text that its table lacks")
        kinds[shared] = TEXT
        formats = np.array([*self._styles, NUMBER], np.uint8)
        styled = (kinds == NUMBER) & (styles < len(self._styles)) & (styles >= 0)
        shown = np.full(len(kinds), NUMBER, np.uint8)
        shown[styled] = formats[styles[styled]]
        if (shown != NUMBER).any():
            kinds, numbers = self._times(kinds, numbers, shown)
        for start, stop in self._cuts(rows, indexes, shared):
            part, looked_up = texts[start:stop], shared[start:stop]
            if looked_up.any():
                found = self._strings.take(pa.array(indexes[start:stop][looked_up])).cast(pa.string())
                part = pc.replace_with_mask(part, pa.array(looked_up), found)
            yield block_of(rows[start:stop], columns[start:stop], kinds[start:stop], numbers[start:stop], part)

    def _cuts(self, rows: Integers, indexes: Integers, shared: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """The ranges of cells, cut between rows, whose texts fit into memory."""
        if not shared.any():
            yield 0, len(rows)
            return
        sizes = np.cumsum(np.where(shared, self._lengths[indexes], 0))
        if sizes[-1] <= TEXT_AT_ONCE:
            yield 0, len(rows)
            return
        ends = np.append(np.flatnonzero(np.diff(rows)) + 1, len(rows))
        start = begin = 0
        for end in ends.tolist():
            size = int(sizes[end - 1])
            if size - begin > TEXT_AT_ONCE:
                if end > start and size - begin > MAX_ROW_TEXT:
                    raise LimitError(
                        f"file {self._name!r}, row {rows[end - 1]:,} of the sheet: its texts take more than "
                        f"{MAX_ROW_TEXT:,} bytes"
                    )
                yield start, end
                start, begin = end, size
        if start < len(rows):
            yield start, len(rows)

    def _times(self, kinds: Codes, numbers: Numbers, shown: Codes) -> tuple[Codes, Numbers]:
        """Turns numbers that are shown as times into what they are."""
        days = numbers.copy()
        least = 0.0
        if not self._has_1904:
            days += (numbers < _FALSE_LEAP_DAY) & (numbers >= 1)
            least = 1.0
        is_time = (shown != NUMBER) & (shown != DURATION)
        within = is_time & (numbers >= least) & (days <= _LAST_DAY - (self._epoch != _EPOCH_1900) * 1462 + 0.99999999)
        if not self._has_1904:
            within &= (numbers < _FALSE_LEAP_DAY) | (numbers >= _FALSE_LEAP_DAY + 1)
        clock = is_time & (shown == TIME) & (numbers >= 0) & (numbers < 1)
        if self._has_1904:
            within &= ~clock
        else:
            clock = is_time & (shown != DATE) & (numbers >= 0) & (numbers < 1)
        moments = np.rint(np.where(within, days - self._epoch, 0) * DAY_MS)
        kinds, numbers = kinds.copy(), numbers.copy()
        on_a_day = within & (shown == DATE) & (moments % DAY_MS == 0)
        kinds[within], numbers[within] = DATETIME, moments[within]
        kinds[on_a_day] = DATE
        spans = np.rint(np.where(clock | (shown == DURATION), numbers, 0) * DAY_MS)
        clock &= spans < DAY_MS
        kinds[clock], numbers[clock] = TIME, spans[clock]
        lasting = (shown == DURATION) & (np.abs(numbers) <= _LAST_DAY)
        kinds[lasting], numbers[lasting] = DURATION, spans[lasting]
        return kinds, numbers
