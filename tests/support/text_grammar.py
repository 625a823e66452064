"""The meaning of text as docs/ingest.md defines it: a slow, strict reference implementation in exact Python numbers."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

REFUSED = object()
_SPACES = " \t\n\v\f\r"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE](?P<exponent>[+-]?[0-9]+))?")
_SPECIAL = re.compile(r"(?P<sign>[+-]?)(?P<word>nan|inf|infinity)", re.IGNORECASE)
_DATE = r"(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"
_TIME = r"(?P<H>[0-9]{2}):(?P<M>[0-9]{2})(:(?P<S>[0-9]{2})(\.(?P<f>[0-9]{1,6}0*))?)?"
_ZONE = r"(Z|(?P<zs>[+-])(?P<zh>[0-9]{2})(:?(?P<zm>[0-9]{2}))?)"
_EPOCH = dt.datetime(1970, 1, 1)


def meaning(text: str, kind: pa.DataType) -> Any:
    """The Python value of a text in a column; ``REFUSED`` if it has none."""
    if pa.types.is_string(kind):
        return text
    text = text.strip(_SPACES)
    if pa.types.is_boolean(kind):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), REFUSED)
    if pa.types.is_integer(kind):
        return _integer(text, kind)
    if pa.types.is_decimal(kind):
        return _decimal(text, kind)
    if pa.types.is_floating(kind):
        return _float(text, kind)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _binary(text, kind)
    try:
        return _temporal(text, kind)
    except (ValueError, OverflowError):
        return REFUSED


def _exact(text: str) -> Fraction | None:
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    exponent = found["exponent"] or "0"
    if len(exponent) > 8 or abs(int(exponent)) > 1000:
        return None
    with localcontext() as context:
        context.prec = 5000
        return Fraction(Decimal(text))


def _integer(text: str, kind: pa.DataType) -> Any:
    value = _exact(text)
    bits = kind.bit_width
    low, high = (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return int(value) if value is not None and value.denominator == 1 and low <= value <= high else REFUSED


def _decimal(text: str, kind: pa.DataType) -> Any:
    value = _exact(text)
    if value is None:
        return REFUSED
    unscaled = value * 10**kind.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**kind.precision:
        return REFUSED
    with localcontext() as context:
        context.prec = 100
        return Decimal(int(unscaled)).scaleb(-kind.scale)


def _float(text: str, kind: pa.DataType) -> Any:
    if special := _SPECIAL.fullmatch(text):
        value = math.nan if special["word"].lower() == "nan" else math.inf
        return -value if special["sign"] == "-" else value
    if not _NUMBER.fullmatch(text):
        return REFUSED
    with np.errstate(over="ignore"):
        value = float(text) if kind == pa.float64() else float(np.float32(text))
    return REFUSED if math.isinf(value) else value


def _binary(text: str, kind: pa.DataType) -> Any:
    try:
        value = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return REFUSED
    if len(text) % 4:  # Python lets too much padding pass
        return REFUSED
    return value if pa.types.is_binary(kind) or len(value) == kind.byte_width else REFUSED


def _temporal(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_date(kind):
        found = re.fullmatch(_DATE, text)
        return dt.date(int(found["Y"]), int(found["m"]), int(found["d"])) if found else REFUSED
    if pa.types.is_time(kind):
        found = re.fullmatch(_TIME, text)
        return _time(found) if found else REFUSED
    if kind.tz is None:
        found = re.fullmatch(rf"{_DATE}([T ]{_TIME})?", text)
        if not found:
            return REFUSED
        day = dt.datetime(int(found["Y"]), int(found["m"]), int(found["d"]))
        return day if found["H"] is None else dt.datetime.combine(day.date(), _time(found))
    found = re.fullmatch(rf"{_DATE}[T ]{_TIME}{_ZONE}", text)
    if not found:
        return REFUSED
    local = dt.datetime.combine(dt.date(int(found["Y"]), int(found["m"]), int(found["d"])), _time(found))
    if int(found["zh"] or 0) > 23 or int(found["zm"] or 0) > 59:
        return REFUSED
    offset = dt.timedelta(hours=int(found["zh"] or 0), minutes=int(found["zm"] or 0))
    return (local + offset if found["zs"] == "-" else local - offset).replace(tzinfo=dt.UTC)


def _time(found: re.Match[str]) -> dt.time:
    fraction = (found["f"] or "").ljust(6, "0")
    return dt.time(int(found["H"]), int(found["M"]), int(found["S"] or 0), int(fraction[:6]))
