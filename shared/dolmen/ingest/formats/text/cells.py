"""Text cells as values of a declared type: what CSV cells and JSON strings may say.

====================  ==============================================================================================
type                  text
====================  ==============================================================================================
string                itself, spaces and leading zeros included
bool                  ``true`` or ``false`` in any case, ``1`` or ``0``
integers              decimal digits; also any decimal number of exactly that value: ``12.0``, ``1.2e1``, ``+12``
float32, float64      a decimal number, rounded to the nearest; ``nan``, ``inf``, ``infinity`` in any case and sign
decimal128            a decimal number that needs no rounding
date32                ``2024-02-29``
timestamp             ``2024-02-29``, then ``T`` or a space, ``13:45``, ``13:45:10`` or with up to 6 digits ``.123456``
                      (or more, if all zero); a date alone is its midnight
timestamp with zone   the same with a time and its offset: ``Z``, ``+02``, ``+0200`` or ``+02:00``; stored as UTC
time64                ``13:45``, ``13:45:10`` or ``13:45:10.123456``
binary, fixed size    base64 (RFC 4648, padded), as in dolmen's own JSON
====================  ==============================================================================================

Spaces around anything but a string do not count. Dates and timestamps lie within the years 1 to 9999 (UTC), exponents
of integers and decimals within -1000 to 1000. Arrow's parsers take more than this in places: ``nan(1)``, an hour
without minutes, the year 0; that is refused here.

Decimal numbers in text, exactly.

Arrow's own casts and parsers of decimals wrap around where rescaling a number takes more than 128 bits, and give zero
for one with too small an exponent, without a word. So text is taken apart here, and the parsers are asked only for what
cannot go wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.base.units import DAY_US
from dolmen.format.types import TextKind, type_of
from dolmen.rows.write.casts import Cast, Misfit, short_value

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


Parse: TypeAlias = Callable[[pa.Array], pa.Array]


_EXACT_INTEGER = pa.decimal128(38, 0)


_HOUR_ALONE = "[T ][0-9]{2}([Z+-]|$)"


FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day of year 1 and the last of 9999, in days since 1970: the range of Python, and of ISO 8601."""


def text_cast(target: pa.DataType, *, empty_is_null: bool, parse: Parse | None = None) -> Cast:
    """The cast from strings to ``target``, which is not string itself.

    Args:
        empty_is_null: whether text of nothing (but spaces) is NULL. Of binary, an empty cell that was not NULL before
            (it was in quotes) is no bytes at all.
        parse: turns trimmed text into values of ``target``, or raises ``Misfit``; for types that text does not hold.
    """

    def cast(array: pa.Array) -> pa.Array:
        text = pc.ascii_trim_whitespace(array)
        if empty_is_null:
            blank = pc.equal(text, "")
            if t.is_binary(target):
                blank = pc.and_(blank, pc.not_equal(array, ""))
            text = pc.if_else(blank, pa.scalar(None, pa.string()), text)
        return parse(text) if parse else parse_text(text, target)

    return cast


def precision_check(target: pa.DataType) -> Cast | None:
    """The check of values that pyarrow parsed to ``target``: its CSV and JSON parsers let 1000 into decimal(5, 2)."""
    if not t.is_decimal(target):
        return None
    wide = pa.decimal128(38, target.scale)

    def check(values: pa.Array) -> pa.Array:
        try:
            return values.cast(wide).cast(target)
        except pa.ArrowInvalid:
            raise Misfit("too many digits") from None

    return check


def parse_text(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Trimmed text as values of a type without children; NULL stays NULL.

    Raises:
        Misfit: some text says no value of this type; the reason is right for an array of one.
    """
    try:
        return _parse(text, target)
    except (pa.ArrowInvalid, Misfit):
        raise Misfit(_why_not(text[0].as_py(), target) if len(text) == 1 else "") from None


def _parse(text: pa.Array, target: pa.DataType) -> pa.Array:
    found = type_of(target)
    assert found is not None, target
    assert found.text is not None, target
    return PARSERS[found.text](text, target)


def _parse_natively(text: pa.Array, target: pa.DataType) -> pa.Array:
    return text.cast(target)


def _parse_date(text: pa.Array, target: pa.DataType) -> pa.Array:
    return within_years(text.cast(target))


def _parse_time(text: pa.Array, target: pa.DataType) -> pa.Array:
    moments = _cast_timestamp(pc.binary_join_element_wise("1970-01-01", text, "T"), pa.timestamp("us"))
    return moments.cast(target)


def _parse_timestamp(text: pa.Array, target: pa.DataType) -> pa.Array:
    return within_years(_cast_timestamp(text, target))


def _parse_base64(text: pa.Array, target: pa.DataType) -> pa.Array:
    return decode_base64(text).cast(target)


def _parse_integer(text: pa.Array, target: pa.DataType) -> pa.Array:
    if pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():
        raise Misfit("hexadecimal")  # Arrow would take 0x1F for 31
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return parse_decimal(text, _EXACT_INTEGER).cast(target)


def _parse_float(text: pa.Array, target: pa.DataType) -> pa.Array:
    if pc.any(pc.match_substring(text, "(")).as_py():
        raise Misfit("NaN with a payload")  # Arrow would take nan(1) for NaN
    values = text.cast(target)
    infinite = pc.is_inf(values)
    if (
        pc.any(infinite).as_py()
        and not pc.all(pc.match_substring(text.filter(infinite), "inf", ignore_case=True)).as_py()
    ):
        raise Misfit("overflow")  # Arrow would take 1e400 for infinity
    return values


def within_years(values: pa.Array) -> pa.Array:
    """Dates or timestamps as they are. Raises Misfit unless all lie within the years 1 to 9999, UTC."""
    unit = pa.int32() if t.is_date(values.type) else pa.int64()
    ends = pc.min_max(values.view(unit)).as_py()
    scale = 1 if t.is_date(values.type) else DAY_US
    if ends["min"] is not None and (ends["min"] < FIRST_DAY * scale or ends["max"] >= (LAST_DAY + 1) * scale):
        raise Misfit("not within the years 1 to 9999")
    return values


def _cast_timestamp(text: pa.Array, target: pa.DataType) -> pa.Array:
    if pc.any(pc.match_substring_regex(text, _HOUR_ALONE)).as_py():
        raise Misfit("an hour without minutes")  # Arrow would take 01 for 01:00
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(text, r"(\.\d{6})0+", r"\1").cast(target)


PARSERS: dict[TextKind, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "string": _parse_natively,
    "bool": _parse_natively,
    "integer": _parse_integer,
    "float": _parse_float,
    "decimal": parse_decimal,
    "date": _parse_date,
    "time": _parse_time,
    "timestamp": _parse_timestamp,
    "base64": _parse_base64,
}
"""How trimmed text is parsed, by the kind of its grammar (``ColumnType.text``); ``json.values`` parses JSON."""


def _why_not(text: str, target: pa.DataType) -> str:
    reason = f"{short_value(text)} is not a valid {target}"
    if t.is_timestamp(target):
        other = pa.timestamp("us", None if target.tz else "UTC")
        try:
            _cast_timestamp(pa.array([text]), other)
        except pa.ArrowInvalid:
            return reason
        return f"{reason}: it has no UTC offset" if target.tz else f"{reason}: it has a UTC offset"
    if t.is_integer(target) or t.is_decimal(target):
        try:
            pa.array([text]).cast(pa.float64())
        except pa.ArrowInvalid:
            return reason
        return f"{reason}: it does not fit without loss"
    return reason


_BASE64 = np.full(256, 255, np.uint8)


_BASE64[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)


_PADDING, _FOREIGN = 64, 255


_BASE64[ord("=")] = _PADDING


def decode_base64(text: pa.Array) -> pa.Array:
    """Binary values of base64 strings (RFC 4648, section 4, padded), all at once.

    Raises:
        Misfit: some string is not base64.
    """
    filled = pc.fill_null(text, "")
    _, offset_buffer, data_buffer = filled.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    characters = np.frombuffer(data_buffer or b"", np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    if (bounds % 4).any():
        raise Misfit("not a multiple of four characters")
    sixes = _BASE64[characters].reshape(-1, 4)
    pads = (sixes == _PADDING).sum(axis=1)
    quad_bounds = bounds // 4
    last_quads = quad_bounds[1:][quad_bounds[1:] > quad_bounds[:-1]] - 1
    may_pad = np.zeros(len(sixes), bool)
    may_pad[last_quads] = True
    misplaced = (sixes[:, :2] == _PADDING).any() or ((sixes[:, 2] == _PADDING) & (sixes[:, 3] != _PADDING)).any()
    if (sixes == _FOREIGN).any() or misplaced or (pads[~may_pad] > 0).any():
        raise Misfit("not base64")
    sixes[sixes == _PADDING] = 0
    octets = np.empty((len(sixes), 3), np.uint8)
    octets[:, 0] = sixes[:, 0] << 2 | sixes[:, 1] >> 4
    octets[:, 1] = sixes[:, 1] << 4 | sixes[:, 2] >> 2
    octets[:, 2] = sixes[:, 2] << 6 | sixes[:, 3]
    kept = np.arange(3) < (3 - pads)[:, None]
    sizes = np.concatenate(([0], np.cumsum(3 - pads)))
    made = pa.BinaryArray.from_buffers(
        pa.binary(), len(filled), [None, pa.py_buffer(sizes[quad_bounds].astype(np.int32)), pa.py_buffer(octets[kept])]
    )
    return pc.if_else(text.is_valid(), made, pa.scalar(None, pa.binary()))
