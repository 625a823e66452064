"""Finds the notations in which the cells of a column are numbers: the decimal mark, and what separates groups.

A notation is out as soon as one cell is no number in it. Cells without a mark are the same number in all notations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.dialect import THOUSANDS, Decimal
from dolmen.ingest.formats.cell_notation import PLAIN_NUMBERS, NumberNotation
from dolmen.ingest.formats.cells import join_strings
from dolmen.ingest.formats.infer import NOTHING, TextShape, shape_of_marked_numbers

NUMERIC = frozenset({"integer", "special", "float"})
NOTATIONS = tuple(
    NumberNotation(mark, other) for mark in get_args(Decimal) for other in (None, *THOUSANDS) if other != mark
)
_MAY_BE_NUMBER = re.compile(r"[+-]?[0-9.,'_ \u00a0\u202f]+(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity|nan)")
_FOUR_DIGITS = 1000
_SURE_SIGNS = {",", "'"}
"""Lists of codes and telephone numbers are not written with these: a single number of several groups is one."""


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

        ``is_known``: it does in other columns.
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
