"""Constants: typed values that do not depend on rows, their text forms, and their arithmetic.

As in DuckDB, a number with a point is a decimal, and one with an exponent is a double. Integers and decimals compute
exactly (up to 38 digits), ``/`` gives a double, and ``//`` and ``%`` truncate towards zero. Arithmetic that would
silently lose digits is refused.

Dates and times are integers over the whole stored range. The calendar is the proleptic Gregorian one with a year 0, as
in ISO 8601 and DuckDB; its arithmetic is Howard Hinnant's, https://howardhinnant.github.io/date_algorithms.html.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base.units import DAY_US, HOUR_US, MINUTE_US, SECOND_US, days_since_epoch
from dolmen.errors import PredicateError, short_repr
from dolmen.format.types import Plain, to_scalar
from dolmen.predicate.domains import MAX_DIGITS, Domain, convert, domain_of, fit, grid, join, nearest_float32

MAX_NUMBER = 400
"""Characters of a number, a time or an interval, and the exponent of a number: more than any column can have."""


def check_characters(text: str) -> str:
    """Returns ``text``. Raises PredicateError for halves of surrogate pairs, which cannot be stored."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PredicateError(f"{short_repr(text)} is not text: it has half of a surrogate pair") from None
    return text


def check_number(text: str) -> str:
    """Returns the text of a number, time or interval, stripped. Raises PredicateError if it is too long."""
    text = text.strip()
    if len(text) > MAX_NUMBER:
        raise PredicateError(
            f"{short_repr(text)} has {len(text):,} characters: a number, time or interval has at most {MAX_NUMBER}"
        )
    if not text.isascii():
        raise PredicateError(f"{short_repr(text)}: a number, time or interval is written in ASCII")
    return text


_DATE = r"(?P<year>[+-]?\d{1,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,18}))?)?"
_ZONE = r"(?P<zone>[Zz]|(?i:UTC)|[+-]\d{2}(?::?\d{2})?)"
_TIME_TEXT = re.compile(_TIME, re.ASCII)
_TIMESTAMP_TEXT = re.compile(rf"{_DATE}(?:[ Tt]\s*{_TIME}\s*{_ZONE}?)?", re.ASCII)
_INTERVAL_TEXT = re.compile(r"\s*([+-]?\d{1,18})\s*([A-Za-z]+)", re.ASCII)


class Interval(NamedTuple):
    """An interval of SQL: its months, days and microseconds are added in this order."""

    months: int = 0
    days: int = 0
    us: int = 0

    def times(self, factor: int) -> Interval:
        return _check_interval(Interval(self.months * factor, self.days * factor, self.us * factor))


_MOST = 2**63
"""The greatest value of a part of an interval: more than the time between the first and the last timestamp."""


def _check_interval(span: Interval) -> Interval:
    if any(abs(part) > _MOST for part in span):
        raise PredicateError("the interval is longer than the range of timestamps")
    return span


_UNITS = {
    "year": Interval(months=12), "yr": Interval(months=12), "y": Interval(months=12),
    "quarter": Interval(months=3), "month": Interval(months=1), "mon": Interval(months=1),
    "week": Interval(days=7), "w": Interval(days=7), "day": Interval(days=1), "d": Interval(days=1),
    "hour": Interval(us=HOUR_US), "hr": Interval(us=HOUR_US), "h": Interval(us=HOUR_US),
    "minute": Interval(us=MINUTE_US), "min": Interval(us=MINUTE_US), "m": Interval(us=MINUTE_US),
    "second": Interval(us=SECOND_US), "sec": Interval(us=SECOND_US), "s": Interval(us=SECOND_US),
    "millisecond": Interval(us=1000), "ms": Interval(us=1000),
    "microsecond": Interval(us=1), "us": Interval(us=1),
}  # fmt: skip


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01."""
    days: int = days_from_months(12 * year + month - 1) + day - 1
    return days


def days_from_months(months: Any) -> Any:
    """Days since 1970-01-01 of the first day of a month, counted from the year 0: an int, or an array of int64."""
    year, month = months // 12, months % 12 + 1
    year = year - (month <= 2)
    era, of_era = year // 400, year % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: Any) -> tuple[Any, Any, Any]:
    """Year, month and day of days since 1970-01-01: an int, or a NumPy array of int64."""
    era, of_era = divmod(days + 719_468, 146_097)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 - 12 * (shifted >= 10)
    return years + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def parse_date(text: str) -> int:
    """Days since the epoch of ``YYYY-MM-DD``. Raises PredicateError, also for a time of day other than midnight."""
    us, _ = parse_timestamp(text)
    if us % DAY_US:
        raise PredicateError(f"{text!r} has a time of day and is compared with dates; write TIMESTAMP {text!r}")
    return us // DAY_US


def parse_time(text: str) -> int:
    """Microseconds since midnight of ``HH:MM[:SS[.ffffff]]``. Raises PredicateError."""
    text = check_number(text)
    match = _TIME_TEXT.fullmatch(text)
    if match is None:
        raise PredicateError(f"{short_repr(text)} is not a time; write HH:MM:SS, with up to 6 digits of fraction")
    return _time_of(match, text)


def parse_timestamp(text: str) -> tuple[int, bool]:
    """Microseconds since the epoch of ``YYYY-MM-DD[ HH:MM[:SS[.ffffff]][zone]]``, and whether there was a zone."""
    text = check_number(text)
    match = _TIMESTAMP_TEXT.fullmatch(text)
    if match is None:
        raise PredicateError(
            f"{short_repr(text)} is not a timestamp; write YYYY-MM-DD HH:MM:SS, optionally with a fraction of up to 6 "
            "digits and an offset such as Z or +02:00"
        )
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= _month_length(year, month)):
        raise PredicateError(f"{text!r}: there is no such day")
    us = days_from_civil(year, month, day) * DAY_US
    if match["hour"] is not None:
        us += _time_of(match, text)
    zone = match["zone"]
    if zone is not None and zone[0] in "+-":
        offset = int(zone[1:3]) * HOUR_US + int(zone[3:].lstrip(":") or 0) * MINUTE_US
        us -= -offset if zone[0] == "-" else offset
    return us, zone is not None


def _time_of(match: re.Match[str], text: str) -> int:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise PredicateError(f"{text!r}: there is no such time of day")
    fraction = (match["fraction"] or "").rstrip("0")
    if len(fraction) > 6:
        raise PredicateError(f"{text!r} has digits beyond microseconds: write at most 6 of them")
    return hour * HOUR_US + minute * MINUTE_US + second * SECOND_US + int(fraction.ljust(6, "0"))


def parse_interval(text: str) -> Interval:
    """A span such as ``3 months 2 days``. Raises PredicateError."""
    text = check_number(text)
    total, end = Interval(), 0
    for match in _INTERVAL_TEXT.finditer(text):
        if match.start() != end:
            break
        total = plus(total, unit(match[2]).times(int(match[1])))
        end = match.end()
    if not end or text[end:].strip():
        raise PredicateError(f"{short_repr(text)} is not an interval: write whole numbers and units, '3 days 2 hours'")
    return total


def unit(name: str) -> Interval:
    name = name.lower()
    span = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if span is None:
        raise PredicateError(f"unknown unit {short_repr(name)}; units are year, month, week, day, hour, minute, ...")
    return span


def plus(a: Interval, b: Interval) -> Interval:
    return _check_interval(Interval(a.months + b.months, a.days + b.days, a.us + b.us))


def shift(us: int, by: Interval) -> int:
    """Adds an interval to a timestamp: months first (capped at the month's last day), then days, then the time."""
    days, time = divmod(us, DAY_US)
    if by.months:
        year, month, day = civil_from_days(days)
        years, month0 = divmod(month - 1 + by.months, 12)
        year, month = year + years, month0 + 1
        days = days_from_civil(year, month, min(day, _month_length(year, month)))
    return (days + by.days) * DAY_US + time + by.us


def truncate(us: int, name: str) -> int:
    """The start of a timestamp's year, quarter, month, week (from Monday), day, hour, ..."""
    span = unit(name)
    days = us // DAY_US
    if span.months:
        year, month, _ = civil_from_days(days)
        return days_from_civil(year, (month - 1) // span.months * span.months + 1, 1) * DAY_US
    if span.days == 7:
        return (days - (days + 3) % 7) * DAY_US  # 1970-01-01 was a Thursday
    step = span.days * DAY_US + span.us
    return us // step * step


def format_date(days: int) -> str:
    year, month, day = civil_from_days(days)
    return f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"


def format_time(us: int) -> str:
    seconds, fraction = divmod(us, SECOND_US)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text


def format_timestamp(us: int) -> str:
    days, time = divmod(us, DAY_US)
    return f"{format_date(days)} {format_time(time)}"


def _month_length(year: int, month: int) -> int:
    return monthrange(year % 400 + 2000, month)[1]  # the calendar repeats every 400 years


_WIDE = Context(prec=200)
_ESCAPED = re.compile(r"\\x([0-9A-Fa-f]{2})|\\|([^\\])", re.DOTALL)
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul, "/": truediv}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

Kind: TypeAlias = Domain | type[Interval] | None


class Value(NamedTuple):
    """A value and its domain. NULL has no domain, and an interval has its class instead."""

    kind: Kind
    value: Plain | Interval

    @property
    def name(self) -> str:
        return self.kind.value if isinstance(self.kind, Domain) else "an interval" if self.kind else "NULL"


NULL = Value(None, None)


def number(text: str) -> Value:
    text = check_number(text)
    try:
        if "e" in text.lower():
            return Value(Domain.FLOAT64, float(text))
        value = Decimal(text)
    except (ValueError, InvalidOperation):
        raise PredicateError(f"{short_repr(text)} is not a number") from None
    return exact(int(text)) if "." not in text else exact(value)


def exact(value: int | Decimal) -> Value:
    """An integer or decimal; a double if it has too many digits."""
    if -(10**MAX_DIGITS) < value < 10**MAX_DIGITS and (type(value) is int or _digits(value) <= MAX_DIGITS):
        return Value(Domain.EXACT, value)
    try:
        return Value(Domain.FLOAT64, float(value))
    except OverflowError:  # of integers: decimals and texts become infinite
        return Value(Domain.FLOAT64, math.inf if value > 0 else -math.inf)


def _digits(value: int | Decimal) -> int:
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits), -exponent) + max(exponent, 0)


def from_text(text: str, arrow_type: pa.DataType) -> Value:
    """The value of a text literal where a value of ``arrow_type`` is expected.

    For a type with a zone, a timestamp without an offset is UTC. Raises PredicateError, also for an offset without a
    zone in the type, and for a number that an exact type cannot store.
    """
    domain = domain_of(arrow_type)
    if domain is Domain.TEXT:
        return Value(domain, text)
    if domain is Domain.BYTES:
        return Value(domain, _bytes(text))
    text = check_number(text)
    match domain:
        case Domain.BOOLEAN:
            if text.lower() in _BOOLEANS:
                return Value(domain, _BOOLEANS[text.lower()])
            raise PredicateError(f"{text!r} is not a boolean; write TRUE or FALSE")
        case Domain.DATE:
            return Value(domain, parse_date(text))
        case Domain.TIME:
            return Value(domain, parse_time(text))
        case Domain.NAIVE | Domain.ZONED:
            us, zoned = parse_timestamp(text)
            if zoned and domain is Domain.NAIVE:
                raise PredicateError(f"{text!r} has an offset, but is compared with timestamps without zone: remove it")
            return Value(domain, us)
    assert domain is not None
    try:
        parsed = float(text) if domain.is_float else Decimal(text)
    except (ValueError, InvalidOperation):
        raise PredicateError(f"{short_repr(text)} is not a value of type {arrow_type}") from None
    if isinstance(parsed, float):
        return Value(domain, nearest_float32(parsed) if domain is Domain.FLOAT32 else parsed)
    if _is_reasonable(parsed):
        value = int(parsed) if parsed == parsed.to_integral_value(context=_WIDE) else parsed
        if isinstance(fit("=", value, grid(arrow_type, domain)), tuple):
            return Value(domain, value)
    raise PredicateError(f"{short_repr(text)} is not a value of type {arrow_type}; write the number without quotes")


def scalar_from_text(text: str, arrow_type: pa.DataType) -> pa.Scalar:
    """The value of a stored type that is not nested, for a text literal (see ``from_text``). Raises PredicateError."""
    value = from_text(text, arrow_type).value
    try:
        if isinstance(value, float) and math.isinf(value) and "inf" not in text.lower():
            raise OverflowError
        return to_scalar(value, arrow_type)  # type: ignore[arg-type]  # only an interval is not plain
    except (OverflowError, pa.ArrowInvalid):
        raise PredicateError(f"{short_repr(text)} is not a value of type {arrow_type}") from None


def _is_reasonable(value: Decimal) -> bool:
    """Whether a decimal is finite and does not become an integer of millions of digits."""
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and len(digits) <= MAX_NUMBER and abs(exponent) <= MAX_NUMBER


def _bytes(text: str) -> bytes:
    """Reads DuckDB's text form of bytes: ASCII characters as they are, other bytes as ``\\xAA``."""
    out = bytearray()
    for match in _ESCAPED.finditer(text):
        if match[1]:
            out += bytes.fromhex(match[1])
        elif match[2] and match[2].isascii():
            out += match[2].encode()
        else:
            raise PredicateError(f"{short_repr(text)} is not binary: write bytes as \\xAA, ASCII as it is")
    return bytes(out)


def cast(constant: Value, target: pa.DataType) -> Value:
    """CAST of a constant; numbers are rounded only to floats. Raises PredicateError."""
    to, kind, value = domain_of(target), constant.kind, constant.value
    assert to is not None
    if kind is None or (kind is to and kind not in (Domain.TEXT, Domain.EXACT)):
        return constant
    if kind is Domain.TEXT:
        return from_text(str(value), target)
    match kind, to:
        case (Domain.DATE, Domain.NAIVE | Domain.ZONED):
            return Value(to, convert(value, Domain.DATE, Domain.NAIVE))
        case (Domain.NAIVE | Domain.ZONED, Domain.DATE):
            return Value(to, value // DAY_US)  # type: ignore[operator]
        case (Domain.NAIVE | Domain.ZONED, Domain.NAIVE | Domain.ZONED):
            return Value(to, value)  # as UTC
    if isinstance(kind, Domain) and kind.is_number:
        if to.is_float:
            return Value(to, float(value) if to is Domain.FLOAT64 else nearest_float32(value))  # type: ignore[arg-type]
        if to is Domain.EXACT:
            if isinstance(value, float) and not math.isfinite(value):
                raise PredicateError(f"{value!s} is not a value of type {target}")
            fitted = fit("=", value, grid(target, to))
            if isinstance(fitted, tuple):
                return Value(to, _decimal(grid(target, to).unit * fitted[1]))
            raise PredicateError(f"{value!s} does not fit {target} without loss")
    raise PredicateError(f"no cast from {constant.name} to {target} here")


def _decimal(value: Fraction) -> int | Decimal:
    if value.denominator == 1:
        return value.numerator
    return _WIDE.divide(Decimal(value.numerator), Decimal(value.denominator))


def negate(a: Value) -> Value:
    if isinstance(a.value, Interval):
        return Value(Interval, a.value.times(-1))
    if a.kind is None:
        return a
    if isinstance(a.kind, Domain) and a.kind.is_number:
        value = a.value
        assert isinstance(value, (int, float, Decimal))
        return Value(a.kind, value.copy_negate() if isinstance(value, Decimal) else -value)
    raise PredicateError(f"no minus before {a.name}")


def arithmetic(operator: str, a: Value, b: Value) -> Value:
    """``a operator b`` for ``+ - * / // %``. Raises PredicateError."""
    if a.kind is None or b.kind is None:
        return NULL
    if isinstance(a.kind, Domain) and isinstance(b.kind, Domain):
        domain = join(a.kind, b.kind)
        if domain and domain.is_number:
            return _numbers(operator, a, b, domain)
    result = _times(operator, a, b) if operator in "+-*" else None
    if result is None and operator in "+*":
        result = _times(operator, b, a)
    if result is None:
        dated = any(side.kind in (Domain.DATE, Domain.NAIVE, Domain.ZONED) for side in (a, b))
        hint = "; write spans of time as in now() - INTERVAL 7 DAY" if dated else ""
        raise PredicateError(f"can't compute {a.name} {operator} {b.name}{hint}")
    return result


def _numbers(operator: str, a: Value, b: Value, domain: Domain) -> Value:
    if operator in ("/", "//", "%") and not b.value:
        raise PredicateError("division by zero")
    if operator == "/" and domain is Domain.EXACT:
        domain = Domain.FLOAT64
    x, y = (convert(side.value, side.kind, domain) for side in (a, b))
    if domain is not Domain.EXACT:
        if operator in ("//", "%"):
            raise PredicateError(f"{operator} is only for integers here")
        value = _floats(operator, x, y)
        return Value(domain, nearest_float32(value) if domain is Domain.FLOAT32 else value)
    if type(x) is int and type(y) is int:
        match operator:
            case "//":
                return exact(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))
            case "%":
                return exact(abs(x) % abs(y) * (-1 if x < 0 else 1))
        return exact(_OPERATIONS[operator](x, y))
    if operator in ("//", "%"):
        raise PredicateError(f"{operator} is only for integers here")
    method = {"+": _WIDE.add, "-": _WIDE.subtract, "*": _WIDE.multiply}[operator]
    return exact(method(Decimal(x), Decimal(y)))


def _floats(operator: str, x: float, y: float) -> float:
    try:
        result: float = _OPERATIONS[operator](x, y)
        return result
    except OverflowError:
        return math.inf


def _times(operator: str, a: Value, b: Value) -> Value | None:
    """Arithmetic with dates, timestamps and intervals; None if there is none for these types."""
    sign = -1 if operator == "-" else 1
    x, y = a.value, b.value
    if operator == "*":
        if isinstance(x, Interval) and type(y) is int and b.kind is Domain.EXACT:
            return Value(Interval, x.times(y))
        return None
    if isinstance(y, Interval):
        if isinstance(x, Interval):
            return Value(Interval, plus(x, y.times(sign)))
        if a.kind in (Domain.DATE, Domain.NAIVE, Domain.ZONED):
            moved = shift(convert(x, a.kind, Domain.NAIVE), y.times(sign))
            return Value(Domain.NAIVE if a.kind is Domain.DATE else a.kind, moved)
    if a.kind is Domain.DATE and type(y) is int and type(x) is int:
        if b.kind is Domain.EXACT:
            return Value(Domain.DATE, x + sign * y)
        if b.kind is Domain.DATE and operator == "-":
            return Value(Domain.EXACT, x - y)
    return None


LISTS = (list, tuple, set, frozenset, range)  # the types that are a list of values


def from_python(value: Any) -> Value:
    if isinstance(value, np.generic):
        value = from_numpy(value)
    if getattr(value, "nanosecond", 0):
        raise PredicateError(f"{value!r} has digits beyond microseconds")
    match value:
        case bool():
            return Value(Domain.BOOLEAN, value)
        case int():
            return exact(value)
        case float():
            # Its shortest digits: 0.1 equals the decimal 0.1, and the float32 next to it.
            return exact(Decimal(repr(value))) if value - value == 0 else Value(Domain.FLOAT64, value)
        case Decimal():
            if value.is_finite():
                return exact(value)
            return Value(Domain.FLOAT64, math.nan if value.is_nan() else float(value))
        case str():
            return Value(Domain.TEXT, check_characters(str.__str__(value)))
        case bytes():
            return Value(Domain.BYTES, value)
        case datetime() if value == value:  # pandas' NaT is one too, and equals nothing
            epoch = datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
            return Value(Domain.ZONED if value.tzinfo else Domain.NAIVE, (value - epoch) // timedelta(microseconds=1))
        case date():
            return Value(Domain.DATE, days_since_epoch(value))
        case time() if value.tzinfo is None:
            us = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return Value(Domain.TIME, us)
    raise PredicateError(f"{short_repr(value)} ({type(value).__name__}) can't be compared with a column")


def from_numpy(value: np.generic) -> Any:
    """The Python value of a NumPy value; the value itself if there is none, as of nanoseconds and NaT."""
    if not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    rounded = value.astype("datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]")
    return rounded.item() if rounded == value and isinstance(rounded.item(), (datetime, timedelta)) else value
