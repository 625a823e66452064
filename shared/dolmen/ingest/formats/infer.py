"""Infers the type that holds every value of a column, from all of them. docs/ingest.md has the rules (Inferred types).

Only the *shape* of a column is kept: the narrowest kind of text in its cells, and the bounds of its integers.
Shapes join in any order and grouping, so the type does not depend on how a file is cut into blocks.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.ingest.formats.cell_notation import CellNotation, NumberNotation
from dolmen.ingest.formats.cells import NUMBER, TimeFormat, changes_digits, join_strings, may_have, parse_text
from dolmen.rows.write.casts import Misfit

Kind = Literal["nothing", "bool", "integer", "special", "float", "date", "timestamp", "zoned", "text"]

MAX_EXACT_FLOAT = 2**53
_BOOLS = re.compile("(?i:true|false)")
_SPECIAL = "^(?i:nan|-?inf|-?infinity)$"
_MIXED = -1
_DECIMAL = pa.decimal128(38, 0)
_MAX_DECIMAL = 10**38 - 1
_ZONED = pa.timestamp("us", tz="UTC")


class TextShape(Struct, frozen=True):
    """The types that some cells fit."""

    kind: Kind  # ``special`` means only ``nan`` and ``inf``
    # low, high: bounds of the integers among them and of 0
    low: int = 0
    high: int = 0
    # the number of decimal places of all numbers, ``_MIXED`` if they differ; None without numbers
    decimals: int | None = None
    padded: bool = False  # whether a number ends with a superfluous 0: ``1.50``, but not ``1.0``
    # grouped, ungrouped: whether some number of four digits or more has groups, and some has none
    grouped: bool = False
    ungrouped: bool = False

    def join(self, other: TextShape) -> TextShape:
        kinds = {self.kind, other.kind} - {"nothing"}
        kind: Kind
        if len(kinds) <= 1:
            kind = max(self.kind, other.kind, key=lambda one: one != "nothing")
        elif kinds <= {"integer", "special", "float"}:
            kind = "float"
        elif kinds == {"date", "timestamp"}:
            kind = "timestamp"
        else:
            return TEXT
        decimals = {self.decimals, other.decimals} - {None}
        return TextShape(
            kind,
            min(self.low, other.low),
            max(self.high, other.high),
            _MIXED if len(decimals) > 1 else next(iter(decimals), None),
            self.padded or other.padded,
            self.grouped or other.grouped,
            self.ungrouped or other.ungrouped,
        )

    @property
    def arrow_type(self) -> pa.DataType:
        if self.grouped and self.ungrouped:
            return pa.string()
        if self.kind == "integer":
            if self.low >= -(2**63) and self.high < 2**63:
                return pa.int64()
            if self.low == 0 and self.high < 2**64:
                return pa.uint64()
            return _DECIMAL if max(-self.low, self.high) <= _MAX_DECIMAL else pa.string()
        if self.kind == "float":
            exact = max(-self.low, self.high) <= MAX_EXACT_FLOAT and not (self.padded and self.decimals == _MIXED)
            return pa.float64() if exact else pa.string()
        return _TYPES[self.kind]


_TYPES: dict[Kind, pa.DataType] = {
    "nothing": pa.string(),
    "bool": pa.bool_(),
    "special": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "zoned": _ZONED,
    "text": pa.string(),
}

NOTHING = TextShape("nothing")
TEXT = TextShape("text")


def shape_of_cells(cells: pa.Array, notation: CellNotation | None = None) -> TextShape:
    """The shape of text cells that may be numbers, bools or times (CSV); NULL and blank cells are ignored."""
    text = non_blank(cells)
    return shape_of_text(text, notation or CellNotation()) if len(text) else NOTHING


def shape_of_text(text: pa.Array, notation: CellNotation) -> TextShape:
    """The shape of cells as ``non_blank`` returns them; at least one."""
    if (shape := shape_of_marked_numbers(text, notation.numbers)) is not None:
        return shape
    return _shape_of_bools(text, notation) or _shape_of_times(text, notation.times) or TEXT


def shape_of_marked_numbers(text: pa.Array, notation: NumberNotation | None = None) -> TextShape | None:
    """The shape of trimmed text if all of it is numbers of a notation; None if it is not."""
    plain = text
    if notation is not None:
        try:
            notation.rewrite(text[:1])
            plain = notation.rewrite(text)
        except Misfit:
            return None
    shape = _shape_of_numbers(plain)
    if shape is None or shape.kind == "text":
        return shape
    shape = _add_decimal_places(shape, plain)
    if notation is None or notation.thousands is None:
        return shape
    groups = pc.match_substring(text, notation.thousands)
    others = plain if plain is text else text.filter(pc.invert(groups))
    return replace(
        shape,
        grouped=bool(pc.any(groups).as_py()),
        ungrouped=bool(pc.any(pc.match_substring_regex(others, "^[+-]?[0-9]{4}")).as_py()),
    )


def shape_of_numbers(text: pa.Array) -> TextShape:
    """The shape of JSON numbers, passed as text; TEXT if no type of number holds them all."""
    return _shape_of_numbers(text) or TEXT


def shape_of_strings(cells: pa.Array, times: TimeFormat | None = None) -> TextShape:
    """The shape of text cells that may be times, in formats that do not write numbers and bools as text (JSON)."""
    text = cells.drop_null()
    return NOTHING if not len(text) else _shape_of_times(text, times) or TEXT


def shape_of_integers(low: int, high: int) -> TextShape:
    return TextShape("integer", min(low, 0), max(high, 0))


def non_blank(cells: pa.Array) -> pa.Array:
    """The trimmed text of cells that are neither NULL nor blank."""
    text = cells.drop_null()
    if may_have(text, b" \t\n\v\f\r"):
        text = pc.ascii_trim_whitespace(text)
    return text.filter(pc.not_equal(text, ""))


def _cast(text: pa.Array, target: pa.DataType, times: TimeFormat | None = None) -> pa.Array | None:
    parse = (times and times.parser(target)) or partial(parse_text, target=target)
    try:
        parse(text[:1])  # the first value rules out most types, which is faster than trying a million
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
    if _has_codes(text):
        return None
    if shape.kind == "integer" and pc.any(pc.equal(text, "-0")).as_py():
        return replace(shape, kind="float")
    return shape


def _has_codes(text: pa.Array) -> bool:
    """Whether some numeric text looks like a code, not a value: ``+49``, ``007``, ``0x1F``, ``1.``."""
    if may_have(text, b".") and pc.any(pc.ends_with(text, ".")).as_py():
        return True
    are_suspects = pc.starts_with(text, "0")
    for sign, start in ((b"-", "-0"), (b"+", "+")):
        if may_have(text, sign):
            are_suspects = pc.or_(are_suspects, pc.starts_with(text, start))
    suspects = text.filter(are_suspects)
    return bool(pc.any(pc.match_substring_regex(suspects, r"^(\+|-?0[0-9xX])")).as_py())


def _shape_of_floats(text: pa.Array, floats: pa.Array) -> TextShape:
    """The shape of numeric text that does not all fit int64."""
    finite = pc.is_finite(floats)
    if not pc.all(finite).as_py():
        if not pc.all(pc.match_substring_regex(text.filter(pc.invert(finite)), _SPECIAL)).as_py():
            return TEXT
        text, floats = text.filter(finite), floats.filter(finite)
        return _shape_of_floats(text, floats).join(TextShape("special")) if len(text) else TextShape("special")
    if may_have(text, b"+eE"):
        whole = pc.match_substring_regex(text, r"^-?[0-9]+$")
    else:
        whole = pc.invert(pc.match_substring(text, "."))
    is_large = pc.greater_equal(pc.abs(floats), MAX_EXACT_FLOAT)
    large = text.filter(pc.and_(whole, is_large))
    others = pc.invert(whole)
    if changes_digits(text.filter(others), floats.filter(others)):
        return TEXT
    if not len(large):
        return TextShape("float")
    integers = _cast(large, _DECIMAL)
    if integers is None:
        return TEXT
    bounds = pc.min_max(integers)
    shape = shape_of_integers(int(bounds["min"].as_py()), int(bounds["max"].as_py()))
    if pc.all(whole).as_py():
        rest = text.filter(pc.invert(is_large)).cast(pa.int64())
        low = pc.min_max(rest)["min"].as_py() if len(rest) else 0
        return shape.join(shape_of_integers(low, 0))
    return TextShape("float", shape.low, shape.high)


def _add_decimal_places(shape: TextShape, text: pa.Array) -> TextShape:
    """Adds the decimal places of cells that are numbers to their shape."""
    if shape.kind == "integer":
        return replace(shape, decimals=0)
    if shape.kind != "float":
        return shape
    if join_strings(text).to_pybytes().translate(None, b"-.0123456789"):
        text = pc.replace_substring_regex(text, "[eE].*$", "")
        text = text.filter(pc.match_substring_regex(text, "[0-9]$"))  # not nan and inf
    point = pc.find_substring(text, ".")
    decimals = pc.if_else(pc.less(point, 0), 0, pc.subtract(pc.subtract(pc.binary_length(text), point), 1))
    ends = pc.min_max(decimals)
    same = ends["min"].as_py() == ends["max"].as_py()
    zeros = text.filter(pc.ends_with(text, "0"))
    padded = pc.any(pc.match_substring_regex(zeros, r"\.[0-9]+0$")).as_py()
    return replace(shape, decimals=ends["min"].as_py() if same else _MIXED, padded=bool(padded))


def _shape_of_bools(text: pa.Array, notation: CellNotation) -> TextShape | None:
    if notation.booleans:
        return TextShape("bool") if notation.are_booleans(text[:1]) and notation.are_booleans(text) else None
    if not _BOOLS.fullmatch(text[0].as_py()):
        return None
    return TextShape("bool") if pc.all(pc.match_substring_regex(text, f"^{_BOOLS.pattern}$")).as_py() else None


def _shape_of_times(text: pa.Array, times: TimeFormat | None) -> TextShape | None:
    if times is not None and times.digits is not None:
        times = None  # a unit of numbers is not a pattern of text
    if times is not None and pc.any(pc.match_substring_regex(text, NUMBER)).as_py():
        return None
    if _cast(text, pa.date32(), times) is not None:
        return TextShape("date")
    if _cast(text, pa.timestamp("us"), times) is not None:
        return TextShape("timestamp")
    # Times without an offset are UTC only in a declared column: here that would depend on the other values.
    return TextShape("zoned") if _cast(text, _ZONED, times and times.zoned) is not None else None
