"""Decimal numbers in text, exactly.

Arrow's own casts and parsers of decimals wrap around where rescaling a number takes more than 128 bits, and give zero
for one with too small an exponent, without a word. So text is taken apart here, and the parsers are asked only for what
cannot go wrong.
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.rows.write.lossless import Misfit

_DIGITS = 38
_MAX_EXPONENT, _EXPONENT_DIGITS = 1000, 8
_PLAIN = r"^(?P<sign>[+-]?)0*(?P<whole>[0-9]*)\.?(?P<part>[0-9]*?)0*$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"
_WITH_EXPONENT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+$"
_MARK_BYTES = 48
_SMALL_NUMBER = re.compile(rb"(?:^|[^0-9A-Za-z-])[-+]?[0-9.]+[eE]-$")
_STRING_OR_SMALL = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?)((?:0|[1-9][0-9]*)(?:\.[0-9]+)?)[eE]-([0-9]+)')
_QUOTED_SMALL = re.compile(rb'"\s*[+-]?[0-9.]+[eE]-[0-9]{3,}\s*"')
_LOWER_CASE = 0x20


def native_decimal(target: pa.DataType) -> pa.DataType | None:
    """The type to ask a parser for instead of a decimal one; None: there is none, ask for text.

    It has so few digits that numbers cannot overflow on being brought to the scale. Those with more are refused by the
    parser, and so read as text.
    """
    digits = min(target.precision, _DIGITS - target.scale)
    return pa.decimal128(digits, target.scale) if digits > 0 else None


def may_be_tiny(data: bytes) -> bool:
    """Whether there is a number with a negative exponent anywhere, which parsers might take for zero."""
    array = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero((array[1:] == ord("-")) & (array[:-1] | _LOWER_CASE == ord("e"))) + 2
    return any(_SMALL_NUMBER.search(data[max(0, mark - _MARK_BYTES) : mark]) for mark in marks.tolist())


def has_decimals(kind: pa.DataType) -> bool:
    """Whether values of a type are decimals, or hold some."""
    if t.is_nested(kind):
        return any(has_decimals(kind.field(place).type) for place in range(kind.num_fields))
    return bool(t.is_decimal(kind))


def without_tiny(lines: bytes) -> bytes:
    """JSON with its numbers that have negative exponents written out: parsers take them for what they are."""
    return _STRING_OR_SMALL.sub(_write_out, lines)


def has_quoted_tiny(lines: bytes) -> bool:
    """Whether a text in JSON is a number of so small an exponent that pyarrow's parser of decimals may crash on it."""
    return _QUOTED_SMALL.search(lines) is not None


def _write_out(found: re.Match[bytes]) -> bytes:
    token = found[0]
    if token.startswith(b'"'):
        return token
    sign, mantissa, exponent = found[1], found[2], found[3].lstrip(b"0")
    if not mantissa.strip(b"0."):
        return sign + b"0"
    too_small = len(exponent) > _EXPONENT_DIGITS or int(exponent or b"0") > _MAX_EXPONENT
    number = Decimal((b"1e-%d" % _MAX_EXPONENT if too_small else mantissa + b"e-" + (exponent or b"0")).decode())
    return sign + format(number, "f").encode()


def parse_decimal(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Trimmed text as decimals; NULL stays NULL.

    Raises:
        Misfit: some text is no number, or needs rounding or more digits.
    """
    if pc.all(pc.match_substring_regex(text, _NUMBER)).as_py() is False:
        text = _without_exponents(text)
    parts = pc.extract_regex(text, _PLAIN)
    sign, whole, part = (pc.struct_field(parts, name) for name in ("sign", "whole", "part"))
    if (pc.max(pc.binary_length(part)).as_py() or 0) > target.scale:
        raise Misfit("it needs rounding")
    if (pc.max(pc.binary_length(whole)).as_py() or 0) > max(target.precision - target.scale, 0):
        raise Misfit("too many digits")
    digits = pc.binary_join_element_wise(sign, "0", whole, pc.utf8_rpad(part, target.scale, "0"), "")
    unscaled = digits.cast(pa.decimal128(_DIGITS, 0)).cast(pa.decimal128(target.precision, 0))
    return pa.Array.from_buffers(target, len(unscaled), unscaled.buffers(), offset=unscaled.offset)


def _without_exponents(text: pa.Array) -> pa.Array:
    """The same numbers written out; they are few. Raises Misfit if one is no number, or far too large or small."""
    scientific = pc.match_substring_regex(text, _WITH_EXPONENT)
    plain = pc.match_substring_regex(text, _NUMBER)
    if pc.all(pc.or_(scientific, plain)).as_py() is False:
        raise Misfit("not a number")
    written = []
    for number in text.filter(scientific).to_pylist():
        exponent = number.lower().partition("e")[2]
        if len(exponent) > _EXPONENT_DIGITS or abs(int(exponent)) > _MAX_EXPONENT:
            raise Misfit("too large an exponent")
        written.append(format(Decimal(number), "f"))
    return pc.replace_with_mask(text, pc.fill_null(scientific, False), pa.array(written, pa.string()))
