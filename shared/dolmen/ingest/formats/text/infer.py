"""Infers the type that holds every value of a column, from all of them.

What is remembered of a column is its *shape*: the narrowest kind of text seen in all its cells, and between which
bounds its integers lie. Shapes join, in any order and grouping, to the shape of all their cells: so the type does
not depend on how a file is cut into blocks, and a surprise in the last line counts like one in the first.

=========================================================  =======================================================
all cells (but NULL) are                                   type
=========================================================  =======================================================
nothing, or of no common kind below                        string
``true``, ``false`` in any case                            bool
integers                                                   int64; uint64, decimal128(38, 0) or string where that
                                                           does not hold them
integers and decimal numbers, ``nan``, ``inf``             float64; string if it would change an integer (>2^53)
``2024-02-29``                                             date32
timestamps without an offset, dates among them             timestamp[us]
timestamps with an offset                                  timestamp[us, UTC]
=========================================================  =======================================================

Numbers that begin with ``+`` or a superfluous 0 (``007``) are codes, not numbers: string. So are timestamps with
digits beyond microseconds. Numbers are never times, whatever unit is given for these; a pattern given for times counts
beside the forms above. Spaces around a value do not count, unless the column ends as string. Times of day,
durations and binary stay string unless a schema says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.ingest.formats.text.cells import parse_text
from dolmen.ingest.formats.text.times import TimeFormat
from dolmen.write.lossless import Misfit

Kind = Literal["nothing", "bool", "integer", "float", "date", "timestamp", "zoned", "text"]

MAX_EXACT_FLOAT = 2**53
_BOOLS = re.compile("(?i:true|false)")
_DECIMAL = pa.decimal128(38, 0)
_MAX_DECIMAL = 10**38 - 1
_ZONED = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class TextShape:
    """The types that some cells fit. ``low`` and ``high`` are bounds of the integers among them, and of 0."""

    kind: Kind
    low: int = 0
    high: int = 0

    def join(self, other: TextShape) -> TextShape:
        """The shape of the cells of both."""
        kinds = {self.kind, other.kind} - {"nothing"}
        kind: Kind
        if len(kinds) <= 1:
            kind = max(self.kind, other.kind, key=lambda one: one != "nothing")
        elif kinds == {"integer", "float"}:
            kind = "float"
        elif kinds == {"date", "timestamp"}:
            kind = "timestamp"
        else:
            return TEXT
        return TextShape(kind, min(self.low, other.low), max(self.high, other.high))

    @property
    def arrow_type(self) -> pa.DataType:
        """The type that holds all cells of this shape."""
        if self.kind == "integer":
            if self.low >= -(2**63) and self.high < 2**63:
                return pa.int64()
            if self.low == 0 and self.high < 2**64:
                return pa.uint64()
            return _DECIMAL if max(-self.low, self.high) <= _MAX_DECIMAL else pa.string()
        if self.kind == "float":
            return pa.float64() if max(-self.low, self.high) <= MAX_EXACT_FLOAT else pa.string()
        return _TYPES[self.kind]


_TYPES: dict[Kind, pa.DataType] = {
    "nothing": pa.string(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "zoned": _ZONED,
    "text": pa.string(),
}

NOTHING = TextShape("nothing")
TEXT = TextShape("text")


def shape_of_cells(cells: pa.Array, times: TimeFormat | None = None) -> TextShape:
    """The shape of text cells that may say numbers, bools or times (CSV); NULL and blank ones say nothing."""
    text = _non_blank(cells)
    if not len(text):
        return NOTHING
    return _shape_of_numbers(text) or _shape_of_bools(text) or _shape_of_times(text, times) or TEXT


def shape_of_numbers(text: pa.Array) -> TextShape:
    """The shape of JSON numbers, given as their text; TEXT if no type of number holds them all."""
    return _shape_of_numbers(text) or TEXT


def shape_of_strings(cells: pa.Array, times: TimeFormat | None = None) -> TextShape:
    """The shape of text cells that may say times, where numbers and bools are not written as text (JSON)."""
    text = cells.drop_null()
    return NOTHING if not len(text) else _shape_of_times(text, times) or TEXT


def shape_of_integers(low: int, high: int) -> TextShape:
    """The shape of integers between these bounds."""
    return TextShape("integer", min(low, 0), max(high, 0))


def _non_blank(cells: pa.Array) -> pa.Array:
    text = pc.ascii_trim_whitespace(cells.drop_null())
    return text.filter(pc.not_equal(text, ""))


def _cast(text: pa.Array, target: pa.DataType, times: TimeFormat | None = None) -> pa.Array | None:
    parse = (times and times.parser(target)) or partial(parse_text, target=target)
    try:
        parse(text[:1])  # most types are refused by the first value, and to refuse a million takes long
        return parse(text)
    except Misfit:
        return None


def _shape_of_numbers(text: pa.Array) -> TextShape | None:
    try:
        text[:1].cast(pa.int64())
        integers = text.cast(pa.int64())
    except pa.ArrowInvalid:
        integers = None
    if integers is not None:
        bounds = pc.min_max(integers)
        shape = shape_of_integers(bounds["min"].as_py(), bounds["max"].as_py())
    else:
        floats = _cast(text, pa.float64())
        if floats is None:
            return None
        shape = _shape_of_floats(text, floats)
    return None if _any_code(text) else shape


def _any_code(text: pa.Array) -> bool:
    """Whether some numeric text has more to it than its value: ``+49``, ``007``, ``0x1F``."""
    suspects = text.filter(
        pc.or_(pc.starts_with(text, "0"), pc.or_(pc.starts_with(text, "-0"), pc.starts_with(text, "+")))
    )
    return bool(pc.any(pc.match_substring_regex(suspects, r"^(\+|-?0[0-9xX])")).as_py())


def _shape_of_floats(text: pa.Array, floats: pa.Array) -> TextShape:
    """The shape of numeric text, not all of it int64."""
    large = text.filter(pc.greater_equal(pc.abs(floats), MAX_EXACT_FLOAT))
    whole = large.filter(pc.match_substring_regex(large, r"^-?[0-9]+$"))
    if not len(whole):
        return TextShape("float")
    integers = _cast(whole, _DECIMAL)
    if integers is None:
        return TEXT
    bounds = pc.min_max(integers)
    shape = shape_of_integers(int(bounds["min"].as_py()), int(bounds["max"].as_py()))
    if pc.all(pc.match_substring_regex(text, r"^-?[0-9]+$")).as_py():
        rest = text.filter(pc.less(pc.abs(floats), MAX_EXACT_FLOAT)).cast(pa.int64())
        low = pc.min_max(rest)["min"].as_py() if len(rest) else 0
        return shape.join(shape_of_integers(low, 0))
    return TextShape("float", shape.low, shape.high)


def _shape_of_bools(text: pa.Array) -> TextShape | None:
    if not _BOOLS.fullmatch(text[0].as_py()):
        return None
    return TextShape("bool") if pc.all(pc.match_substring_regex(text, f"^{_BOOLS.pattern}$")).as_py() else None


def _shape_of_times(text: pa.Array, times: TimeFormat | None) -> TextShape | None:
    if _cast(text, pa.date32(), times) is not None:
        return TextShape("date")
    if _cast(text, pa.timestamp("us"), times) is not None:
        return TextShape("timestamp")
    # What has no offset is UTC only where a column is declared so: here it would depend on what stands beside it.
    return TextShape("zoned") if _cast(text, _ZONED, times if times and times.has_zone else None) is not None else None
