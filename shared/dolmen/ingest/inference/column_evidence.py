"""Collects what the cells of one column prove about its values: numbers, Booleans, times and NULL.

``ColumnEvidence`` sees the cells block by block. What it keeps is bounded, and depends neither on the order of the
blocks nor on where they are cut. ``NumberEvidence`` keeps the notations in which all cells are numbers: one is out as
soon as a cell is not a number in it. Cells without a mark are the same number in all notations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.format.dialect import STRICT, THOUSANDS, Decimal, Dialect
from dolmen.format.types import text_bytes
from dolmen.ingest.formats.cell_notation import PLAIN_NUMBERS, CellNotation, NumberNotation
from dolmen.ingest.formats.cells import join_strings
from dolmen.ingest.formats.infer import NOTHING, TEXT, TextShape, non_blank, shape_of_marked_numbers, shape_of_text
from dolmen.ingest.inference.time_evidence import TimeEvidence

NUMERIC = frozenset({"integer", "special", "float"})
NOTATIONS = tuple(
    NumberNotation(mark, other) for mark in get_args(Decimal) for other in (None, *THOUSANDS) if other != mark
)
_MAY_BE_NUMBER = re.compile(r"[+-]?[0-9.,'_ \u00a0\u202f]+(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity|nan)")
_FOUR_DIGITS = 1000
_SURE_SIGNS = {",", "'"}
"""Lists of codes and telephone numbers are not written with these: one value such as 1,234,567 is proof enough."""


@dataclass(slots=True)
class Reading:
    """The cells with marks of a column, as numbers of one notation.

    Args:
        grouped: whether some number has groups.
        short: whether some number begins with a group of less than three digits.
        beside: whether some number has groups and decimal places.
        fewest, most: how many separators of groups a cell with a mark has.
    """

    shape: TextShape = NOTHING
    grouped: bool = False
    short: bool = False
    beside: bool = False
    fewest: int = 1 << 30
    most: int = 0


class NumberEvidence:
    """The notations of numbers that the cells of one column leave possible."""

    def __init__(self) -> None:
        self.readings: dict[NumberNotation, Reading] = {notation: Reading() for notation in NOTATIONS}
        self._plain: TextShape = NOTHING
        self._ungrouped = False

    def observe(self, text: pa.Array, shape: TextShape | None) -> None:
        """Adds cells: trimmed, none blank. ``shape``: theirs as plain numbers, if it is known."""
        if not self.readings:
            return
        is_plain = shape is not None and shape.kind in NUMERIC
        if not (is_plain or _MAY_BE_NUMBER.fullmatch(text[0].as_py())):
            self.readings = {}
            return
        if is_plain:
            assert shape is not None
            marks = {"."} if shape.decimals not in (0, None) else set()
        else:
            data = join_strings(text).to_pybytes()
            marks = {mark for mark in THOUSANDS if mark.encode() in data}
        if marks:
            self._observe_marked(text, marks, shape if is_plain else None)
        else:
            plain = shape if is_plain else shape_of_marked_numbers(text)
            if plain is None or plain.kind not in NUMERIC:
                self.readings = {}
                return
            self._plain = self._plain.join(plain)
            for reading in self.readings.values():
                reading.fewest = 0
        self._find_ungrouped(text, shape if is_plain else None)

    def _find_ungrouped(self, text: pa.Array, shape: TextShape | None) -> None:
        if self._ungrouped or not self.readings:
            return
        if shape is not None and shape.kind == "integer":
            self._ungrouped = max(-shape.low, shape.high) >= _FOUR_DIGITS
        else:
            self._ungrouped = bool(pc.any(pc.match_substring_regex(text, "^[+-]?[0-9]{4}")).as_py())

    def _observe_marked(self, text: pa.Array, marks: set[str], plain: TextShape | None) -> None:
        shapes: dict[tuple[bool, str | None], TextShape | None] = {}
        for notation in list(self.readings):
            decimal, thousands = notation.decimal, notation.thousands
            if not marks <= {decimal, thousands}:
                del self.readings[notation]
                continue
            there = NumberNotation(decimal, thousands if thousands in marks else None)
            key = (decimal in marks, there.thousands)
            if key not in shapes:
                is_known = there == PLAIN_NUMBERS and plain is not None
                shapes[key] = plain if is_known else shape_of_marked_numbers(text, there)
            shape, reading = shapes[key], self.readings[notation]
            if shape is None or shape.kind not in NUMERIC:
                del self.readings[notation]
                continue
            reading.shape = reading.shape.join(shape)
            if there.thousands is None:
                reading.fewest = 0
            else:
                _add_groups(reading, text, notation)

    def shape(self, notation: NumberNotation) -> TextShape | None:
        """The shape of the whole column as numbers of a notation; None if they are none."""
        reading = self.readings.get(notation)
        if reading is None:
            return None
        shape = self._plain.join(reading.shape)
        return replace(shape, grouped=reading.grouped, ungrouped=self._ungrouped)

    def is_proven(self, notation: NumberNotation, *, is_known: bool) -> bool:
        """Whether what separates groups in this notation is sure to do so: codes may look the same.

        ``is_known``: other columns, or the user, show that this sign separates groups.
        """
        reading = self.readings[notation]
        is_sure = is_known or notation.thousands in _SURE_SIGNS or reading.fewest < reading.most
        return not reading.grouped or reading.beside or (reading.short and is_sure)


def _add_groups(reading: Reading, text: pa.Array, notation: NumberNotation) -> None:
    assert notation.thousands is not None
    counts = pc.count_substring(text, notation.thousands)
    ends = pc.min_max(counts)
    reading.grouped = True
    reading.fewest = min(reading.fewest, ends["min"].as_py())
    reading.most = max(reading.most, ends["max"].as_py())
    separator, point = re.escape(notation.thousands), re.escape(notation.decimal)
    if not reading.short:
        reading.short = bool(pc.any(pc.match_substring_regex(text, f"^[+-]?[0-9]{{1,2}}{separator}")).as_py())
    if not reading.beside:
        reading.beside = bool(pc.any(pc.match_substring_regex(text, f"{separator}[0-9]{{3}}{point}")).as_py())


NULL_TEXTS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N", "-", "nan", "NaN")
"""Texts that often stand for NULL."""
NAN_TEXTS = frozenset({"nan", "NaN"})  # those that are values of numbers
PAIRS = (("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"))
_WORDS = frozenset(word for pair in PAIRS for word in pair)
_MAX_WORD = max(map(len, _WORDS))
_WORD_ARRAY, _NULLS = pa.array(sorted(_WORDS)), pa.array(NULL_TEXTS)


def _longest_by_first_byte() -> npt.NDArray[np.int32]:
    longest = np.zeros(256, np.int32)
    for text in NULL_TEXTS:
        longest[ord(text[0])] = max(longest[ord(text[0])], len(text))
    return longest


_LONGEST = _longest_by_first_byte()


class ColumnEvidence:
    """The types and notations that the cells of one column leave possible.

    Args:
        dialect: how its cells are known to be written; by default the strict one.
    """

    def __init__(self, dialect: Dialect = STRICT) -> None:
        self._notation = CellNotation.of(dialect)
        self.nulls: set[str] = set()
        self.shape: TextShape = NOTHING
        self.words: set[str] | None = set()
        self.numbers = NumberEvidence()
        self.times = TimeEvidence()

    def observe(self, cells: pa.Array) -> None:
        """Adds the text of cells, NULL where there is none. A header has names, not cells."""
        cells = self._take_nulls(cells)
        if self.is_text or not len(text := non_blank(cells)):
            return
        shape = None
        if self.shape != TEXT:
            shape = shape_of_text(text, self._notation)
            self.shape = self.shape.join(shape)
        if shape is not None and shape.kind not in (*NUMERIC, "text"):
            self.words, self.numbers.readings = None, {}
            self.times.observe_iso(shape.kind)
            return
        self.numbers.observe(text, shape if self._notation.numbers is None else None)
        if shape is not None and shape != TEXT:
            self.words = None
            self.times.observe_iso(shape.kind)
            return
        self.times.observe(text)
        self._observe_words(text)

    @property
    def is_text(self) -> bool:
        """Whether no other type can hold the values."""
        return self.shape == TEXT and not self.numbers.readings and self.words is None and self.times.is_out

    @property
    def is_empty(self) -> bool:
        """Whether there are no values, except perhaps texts for NULL."""
        return self.shape == NOTHING

    def _take_nulls(self, cells: pa.Array) -> pa.Array:
        """The cells without those that may stand for NULL, which are noted."""
        data, bounds = text_bytes(cells)
        if not len(data):
            return cells
        firsts = data.take(bounds[:-1], mode="clip")
        lengths = np.diff(bounds)
        suspects = np.flatnonzero((lengths <= _LONGEST[firsts]) & (lengths > 0))
        if not len(suspects):
            return cells
        texts = cells.take(pa.array(suspects))
        are_nulls = pc.is_in(texts, _NULLS)
        if not pc.any(are_nulls).as_py():
            return cells
        self.nulls.update(pc.unique(texts.filter(are_nulls)).to_pylist())
        if self.is_text:
            return cells
        others = np.ones(len(cells), np.bool_)
        others[suspects[np.asarray(are_nulls)]] = False
        return cells.filter(pa.array(others))

    def _observe_words(self, text: pa.Array) -> None:
        if self.words is None:
            return
        if text[0].as_py().lower() not in _WORDS or pc.max(pc.binary_length(text)).as_py() > _MAX_WORD:
            self.words = None
            return
        words = pc.unique(pc.ascii_lower(text))
        self.words = self.words | set(words.to_pylist()) if pc.all(pc.is_in(words, _WORD_ARRAY)).as_py() else None
