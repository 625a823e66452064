"""Single values, as statistics, predicates and keys hold them: one *plain* Python form and one JSON form per type.

============================  =======================================  =================================
stored type                   plain                                    JSON
============================  =======================================  =================================
bool                          bool                                     true, false
int8 ... uint64               int                                      number (exact: not a double!)
float32, float64              float                                    number, "NaN", "Infinity", "-Infinity"
string                        str                                      string
binary, fixed_size_binary     bytes                                    base64 string (RFC 4648, padded)
decimal128                    decimal.Decimal                          string
date32                        int, days since 1970-01-01               number
time64[us]                    int, microseconds since midnight         number
timestamp[us]                 int, microseconds since the epoch        number
null                          None                                     null
============================  =======================================  =================================

Plain values of one type compare with ``<`` as dolmen orders them (strings by code point, which is also the byte
order of UTF-8; NaN must be handled by the caller).
"""

from __future__ import annotations

import base64
import binascii
import math
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

import pyarrow as pa

from dolmen.errors import SchemaError

Plain: TypeAlias = bool | int | float | str | bytes | Decimal | None
Json: TypeAlias = bool | int | float | str | None

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _integer_form(arrow_type: pa.DataType) -> pa.DataType | None:
    """The integer type with the same bits, for the temporal types whose plain form is an integer."""
    if pa.types.is_date32(arrow_type):
        return pa.int32()
    if pa.types.is_time64(arrow_type) or pa.types.is_timestamp(arrow_type):
        return pa.int64()
    return None


def to_plain(array: pa.Array) -> list[Plain]:
    """The plain values of an array of a stored, not nested type."""
    integers = _integer_form(array.type)
    values: list[Plain] = (array.view(integers) if integers else array).to_pylist()
    return values


def to_array(values: list[Plain], arrow_type: pa.DataType) -> pa.Array:
    """The array of these plain values; the inverse of ``to_plain``."""
    integers = _integer_form(arrow_type)
    if integers:
        return pa.array(values, integers).view(arrow_type)
    return pa.array(values, arrow_type)


def to_scalar(value: Plain, arrow_type: pa.DataType) -> pa.Scalar:
    """The Arrow scalar of one plain value."""
    return to_array([value], arrow_type)[0]


def to_json(value: Plain) -> Json:
    """The JSON form of one plain value."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return value


def from_json(json: Json, arrow_type: pa.DataType) -> Plain:
    """The plain value of a JSON form.

    Raises:
        SchemaError: the JSON does not fit the type.
    """
    t = pa.types
    try:
        if json is None:
            return None
        if t.is_boolean(arrow_type) and isinstance(json, bool):
            return json
        if t.is_floating(arrow_type) and not isinstance(json, bool):
            return _NON_FINITE[json] if isinstance(json, str) else float(json)
        if (t.is_integer(arrow_type) or _integer_form(arrow_type)) and type(json) is int:
            return json
        if t.is_string(arrow_type) and isinstance(json, str):
            return json
        if (t.is_binary(arrow_type) or t.is_fixed_size_binary(arrow_type)) and isinstance(json, str):
            return base64.b64decode(json, validate=True)
        if t.is_decimal(arrow_type) and isinstance(json, str):
            return Decimal(json)
    except (KeyError, InvalidOperation, binascii.Error):
        pass
    raise SchemaError(f"{json!r} is not a stored value of type {arrow_type}")
