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
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.errors import SchemaError
from dolmen.format.types import type_of

Plain: TypeAlias = bool | int | float | str | bytes | Decimal | None
Json: TypeAlias = bool | int | float | str | None

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def integer_form(arrow_type: pa.DataType) -> pa.DataType | None:
    """The integer type with the same bits, for stored times, whose plain form is an integer; None for all others."""
    found = type_of(arrow_type)
    return None if found is None else found.integers


def to_plain(array: pa.Array) -> list[Plain]:
    """The plain values of an array of a stored, not nested type."""
    integers = integer_form(array.type)
    values: list[Plain] = (array.view(integers) if integers else array).to_pylist()
    return values


def to_array(values: list[Plain], arrow_type: pa.DataType) -> pa.Array:
    """The array of these plain values; the inverse of ``to_plain``."""
    integers = integer_form(arrow_type)
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
    if json is None:
        return None
    found = type_of(arrow_type)
    if found is not None and found.plain is not None:
        forms, read = FROM_JSON[found.plain]
        if type(json) in forms:
            try:
                return read(json)
            except (KeyError, InvalidOperation, binascii.Error):
                pass
    raise SchemaError(f"{json!r} is not a stored value of type {arrow_type}")


def _same(json: Any) -> Any:
    return json


def _float(json: Any) -> float:
    return _NON_FINITE[json] if isinstance(json, str) else float(json)


def _bytes(json: Any) -> bytes:
    return base64.b64decode(json, validate=True)


FROM_JSON: dict[type, tuple[tuple[type, ...], Callable[[Any], Plain]]] = {
    bool: ((bool,), _same),
    int: ((int,), _same),
    float: ((int, float, str), _float),
    str: ((str,), _same),
    bytes: ((str,), _bytes),
    Decimal: ((str,), Decimal),
}
"""By the class of plain values: the classes that their JSON may have, and how one is read."""
