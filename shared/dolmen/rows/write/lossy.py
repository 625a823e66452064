"""Casts that may lose a part of a value, made where they are asked for (``cast=True``).

A value that fits is stored as it is. Of others:

- numbers are rounded to the nearest number that the column holds, halves to even; one out of its range is refused
- times lose the digits beyond microseconds, timestamps in a date column their time of day
- a timestamp without a zone is taken as UTC, one with a zone becomes its time in UTC where the column has none
- text is parsed, as Arrow parses it, and other values become text; what is no such value is refused

Nothing wraps around, and nothing becomes NULL.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import SchemaError
from dolmen.format.types import is_text, short_type
from dolmen.rows.write.lossless import Cast, Misfit, lossless, shown


def lossy(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """The cast of values without children (see ``lossless.FindCast``)."""
    try:
        exact = lossless(source, target)
        if exact is None:
            return None
    except SchemaError as error:
        exact = None
        try:
            pa.array([], source).cast(target)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise SchemaError(f"values of type {short_type(source)} cannot be cast to {short_type(target)}") from error

    def cast(array: pa.Array) -> pa.Array:
        try:
            if exact is not None:
                return exact(array)
        except Misfit:
            pass
        try:
            return _rounded(array, target)
        except pa.ArrowInvalid:
            raise Misfit(f"{_word(array)} cannot be cast to {short_type(target)}" if len(array) == 1 else "") from None

    return cast


def _rounded(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if is_text(source):
        array = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    elif t.is_decimal(source) and (t.is_decimal(target) or t.is_integer(target)):
        digits = target.scale if t.is_decimal(target) else 0
        array = pc.round(array, ndigits=digits, round_mode="half_to_even") if digits < source.scale else array
    elif t.is_floating(source) and t.is_integer(target):
        array = pc.round(array.cast(pa.float64()), round_mode="half_to_even")
        return _within(array, target).cast(target)
    elif t.is_floating(source) and t.is_floating(target):
        made = array.cast(target, safe=False)
        if pc.any(pc.and_(pc.is_inf(made), pc.is_finite(array))).as_py():
            raise pa.ArrowInvalid("out of range")
        return made
    elif t.is_integer(source) and t.is_floating(target):
        return array.cast(target, safe=False)
    if t.is_timestamp(source) and t.is_date(target):
        array = array.cast(pa.timestamp(source.unit))
    return array.cast(options=pc.CastOptions(target_type=target, allow_time_truncate=True))


def _within(numbers: pa.Array, target: pa.DataType) -> pa.Array:
    """Whole numbers as they are. Raises ArrowInvalid for one that the integer type does not reach: Arrow wraps them."""
    signed = t.is_signed_integer(target)
    low = -(2.0 ** (target.bit_width - 1)) if signed else 0.0
    high = 2.0 ** (target.bit_width - signed)
    if pc.all(pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high))).as_py() is False:
        raise pa.ArrowInvalid("out of range")
    return numbers


def _word(array: pa.Array) -> str:
    try:
        return shown(array[0].as_py())
    except (OverflowError, ValueError):
        return "this value"
