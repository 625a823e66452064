"""Domains, which say how values compare, and constants: typed values that do not depend on rows, and their arithmetic.

Exact numbers (integers and decimals of any width) compare as in mathematics. If one side is a float, both sides are
rounded to the nearest float of that width, as in DuckDB and Spark. A date compares with timestamps without zone as its
midnight. The domain of a comparison is the widest domain of its sides, and never narrower than any type involved: the
column's when the predicate was bound, the file's, and the literal's.

As in DuckDB, a number with a point is a decimal, and one with an exponent is a double. Integers and decimals compute
exactly (up to 38 digits), ``/`` gives a double, and ``//`` and ``%`` truncate towards zero. Arithmetic that would
silently lose digits is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from decimal import Context, Decimal, InvalidOperation
from enum import Enum
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base.arguments import short_repr
from dolmen.base.units import DAY_US
from dolmen.errors import PredicateError
from dolmen.format.types import Plain, to_scalar, type_of
from dolmen.predicate import temporal
from dolmen.predicate.limits import MAX_NUMBER, check_number
from dolmen.predicate.temporal import Interval

#: A comparison, as it is written in SQL.
Op: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


class Domain(Enum):
    """A set of values with one order. The value is its name in messages."""

    BOOLEAN = "a boolean"
    EXACT = "a number"
    FLOAT32 = "a float"
    FLOAT64 = "a double"
    TEXT = "a string"
    BYTES = "binary"
    DATE = "a date"
    TIME = "a time"
    NAIVE = "a timestamp"
    ZONED = "a timestamp with time zone"

    @property
    def is_float(self) -> bool:
        """Whether NaN and -0.0 are in it."""
        return self in (Domain.FLOAT32, Domain.FLOAT64)


_DOMAINS = dict(Domain.__members__)
_WIDER = {
    frozenset((Domain.EXACT, Domain.FLOAT32)): Domain.FLOAT32,
    frozenset((Domain.EXACT, Domain.FLOAT64)): Domain.FLOAT64,
    frozenset((Domain.FLOAT32, Domain.FLOAT64)): Domain.FLOAT64,
    frozenset((Domain.DATE, Domain.NAIVE)): Domain.NAIVE,
}


def domain_of(arrow_type: pa.DataType) -> Domain | None:
    """The domain of a stored type; None for nested ones."""
    found = type_of(arrow_type)
    return None if found is None or found.domain is None else _DOMAINS[found.domain]


def join(*domains: Domain | None) -> Domain | None:
    """The domain in which all of these compare; None if they can't."""

    def wider(a: Domain | None, b: Domain | None) -> Domain | None:
        return a if a is b else _WIDER.get(frozenset((a, b)))  # type: ignore[arg-type]

    return reduce(wider, domains)


def into(value: Any, own: object, domain: Domain) -> Any:
    """Converts a plain value from domain ``own`` to a wider domain."""
    if own is Domain.DATE and domain is Domain.NAIVE:
        return value * DAY_US
    if domain is Domain.FLOAT64:
        return float(value)
    if domain is Domain.FLOAT32 and own is Domain.EXACT:
        return nearest_float32(value)
    return value


def nearest_float32(value: int | float | Decimal) -> float:
    """The float32 nearest to a number: rounded once, ties to even; infinity beyond the range."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    nearest: float = pa.scalar(str(value)).cast(pa.float32()).as_py()
    return nearest


class Grid(NamedTuple):
    """The values of an exact type: ``raw * unit`` for each raw in ``least..greatest``."""

    unit: Fraction
    least: int
    greatest: int


def grid(arrow_type: pa.DataType, domain: Domain) -> Grid:
    """The grid of an integer, decimal or temporal type among the values of ``domain``."""
    if pa.types.is_decimal(arrow_type):
        greatest = 10**arrow_type.precision - 1
        return Grid(Fraction(10) ** -arrow_type.scale, -greatest, greatest)
    bits = arrow_type.bit_width
    if pa.types.is_unsigned_integer(arrow_type):
        return Grid(Fraction(1), 0, 2**bits - 1)
    unit = DAY_US if pa.types.is_date32(arrow_type) and domain is Domain.NAIVE else 1
    return Grid(Fraction(unit), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def fit(op: Op, value: Any, cells: Grid) -> tuple[Op, int] | bool:
    """Rewrites ``column op value`` with a value of the column's type, so that the column needs no cast.

    Args:
        value: any finite int, float or Decimal, of any size and precision.

    Returns:
        the operator and the raw value to compare with; or the outcome for every value that is not NULL.
    """
    if cells.unit == 1 and type(value) is int:
        raw, on_grid = value, True
    else:
        quotient = Fraction(value) / cells.unit
        raw = math.floor(quotient)
        on_grid = quotient == raw
    if raw < cells.least:
        return op in ("<>", ">", ">=")
    if raw > cells.greatest:
        return op in ("<>", "<", "<=")
    if on_grid:
        return op, raw
    if op in ("=", "<>"):
        return op == "<>"
    return ("<=" if op in ("<", "<=") else ">"), raw


def rounds_to(value: float, domain: Domain) -> tuple[Fraction, Fraction, bool]:
    """The range of numbers whose nearest float is ``value``: least, greatest, and whether the two are included."""
    if domain is Domain.FLOAT64:
        below, above = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
        even = float(value).hex().split("p")[0][-1] in "02468ace"
    else:
        single = np.float32(value)
        below, above = float(np.nextafter(single, np.float32(-np.inf))), float(np.nextafter(single, np.float32(np.inf)))
        even = int(single.view(np.uint32)) % 2 == 0
    least, middle, greatest = Fraction(below), Fraction(value), Fraction(above)
    return (least + middle) / 2, (middle + greatest) / 2, even


def plain_of(raw: int, arrow_type: pa.DataType) -> Plain:
    """The plain value of a raw value of the type's grid."""
    if pa.types.is_decimal(arrow_type):
        return Decimal((raw < 0, tuple(map(int, str(abs(raw)))), -arrow_type.scale))
    return raw


def representable(values: Iterable[Any], arrow_type: pa.DataType, domain: Domain) -> list[Plain]:
    """The plain values of those values that the type has; the others are left out."""
    cells = grid(arrow_type, domain)
    fitted = [fit("=", value, cells) for value in values]
    return [plain_of(each[1], arrow_type) for each in fitted if isinstance(each, tuple)]


def exact_float(value: float, domain: Domain) -> bool:
    """Whether integers compare with this float without rounding, which is the common case."""
    return abs(value) < (2**53 if domain is Domain.FLOAT64 else 2**24)


def order(x: Any, y: Any) -> int:
    """-1, 0 or 1: ``x`` is less than, equal to or greater than ``y`` of the same domain. NaN is the greatest."""
    if x != x or y != y:
        return int(x != x) - int(y != y)
    return int(x > y) - int(x < y)


HOLDS: dict[Op, tuple[int, ...]] = {
    "=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)
}  # fmt: skip
"""The outcomes of ``order`` for which an operator is TRUE."""

MAX_DIGITS = 38
"""Exact numbers with more digits become doubles, as in DuckDB."""

_WIDE = Context(prec=200)
_ESCAPED = re.compile(r"\\x([0-9A-Fa-f]{2})|\\|([^\\])", re.DOTALL)
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

Kind: TypeAlias = Domain | type[Interval] | None


class Value(NamedTuple):
    """A value and its domain. NULL has no domain, and an interval has its class instead."""

    kind: Kind
    value: Plain | Interval

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.kind.value if isinstance(self.kind, Domain) else "an interval" if self.kind else "NULL"


NULL = Value(None, None)


def number(text: str) -> Value:
    """The number that a SQL literal means. Raises PredicateError."""
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
    if not -(10**MAX_DIGITS) < value < 10**MAX_DIGITS or (type(value) is not int and _digits(value) > MAX_DIGITS):
        return Value(Domain.FLOAT64, _nearest_float64(value))
    return Value(Domain.EXACT, value)


def _nearest_float64(value: int | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # of integers: decimals and texts become infinite
        return math.inf if value > 0 else -math.inf


def _digits(value: int | Decimal) -> int:
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), sign
    return max(len(digits), -exponent) + max(exponent, 0)


def from_text(text: str, arrow_type: pa.DataType) -> Value:
    """The value of a text literal where a value of ``arrow_type`` is expected.

    For a type with a zone, a timestamp without an offset is UTC. For a type without a zone, an offset is refused. So is
    a number that an exact type cannot store exactly; floats take the nearest one.

    Raises:
        PredicateError: the text is not a value of the type.
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
            return Value(domain, temporal.parse_date(text))
        case Domain.TIME:
            return Value(domain, temporal.parse_time(text))
        case Domain.NAIVE | Domain.ZONED:
            us, zoned = temporal.parse_timestamp(text)
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
    """The value of a stored type that is not nested, for a text literal (see ``from_text``).

    Raises:
        PredicateError: the text is not a value of the type.
    """
    value = from_text(text, arrow_type).value
    try:
        if isinstance(value, float) and math.isinf(value) and "inf" not in text.lower():
            raise OverflowError
        return to_scalar(value, arrow_type)  # type: ignore[arg-type]  # only an interval is not plain
    except (OverflowError, pa.ArrowInvalid):
        raise PredicateError(f"{short_repr(text)} is not a value of type {arrow_type}") from None


def _is_reasonable(value: Decimal) -> bool:
    """Whether a decimal is finite and would not become an integer of millions of digits."""
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
    if kind is None:
        return constant
    if kind is Domain.TEXT:
        return from_text(str(value), target)
    if kind is to and kind is not Domain.EXACT:
        return constant
    match kind, to:
        case (Domain.DATE, Domain.NAIVE | Domain.ZONED):
            return Value(to, into(value, Domain.DATE, Domain.NAIVE))
        case (Domain.NAIVE | Domain.ZONED, Domain.DATE):
            return Value(to, value // DAY_US)  # type: ignore[operator]
        case (Domain.NAIVE | Domain.ZONED, Domain.NAIVE | Domain.ZONED):
            return Value(to, value)  # as UTC
    if isinstance(kind, Domain) and (kind is Domain.EXACT or kind.is_float):
        if to is Domain.FLOAT32:
            return Value(to, nearest_float32(value))  # type: ignore[arg-type]
        if to is Domain.FLOAT64:
            return Value(to, float(value))  # type: ignore[arg-type]
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
    """``-a``."""
    if isinstance(a.value, Interval):
        return Value(Interval, a.value.times(-1))
    if a.kind is None:
        return a
    if isinstance(a.kind, Domain) and (a.kind is Domain.EXACT or a.kind.is_float):
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
        if domain is Domain.EXACT or (domain and domain.is_float):
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
    x, y = (into(side.value, side.kind, domain) for side in (a, b))
    if domain is not Domain.EXACT:
        if operator in ("//", "%"):
            raise PredicateError(f"{operator} is only for integers here")
        assert isinstance(x, float)
        assert isinstance(y, float)
        value = _floats(operator, x, y)
        return Value(domain, nearest_float32(value) if domain is Domain.FLOAT32 else value)
    if type(x) is int and type(y) is int:
        whole: dict[str, Callable[[], int]] = {
            "+": lambda: x + y,
            "-": lambda: x - y,
            "*": lambda: x * y,
            "//": lambda: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
            "%": lambda: abs(x) % abs(y) * (-1 if x < 0 else 1),
        }
        return exact(whole[operator]())
    if operator in ("//", "%"):
        raise PredicateError(f"{operator} is only for integers here")
    method = {"+": _WIDE.add, "-": _WIDE.subtract, "*": _WIDE.multiply}[operator]
    return exact(method(Decimal(x), Decimal(y)))


def _floats(operator: str, x: float, y: float) -> float:
    try:
        return x + y if operator == "+" else x - y if operator == "-" else x * y if operator == "*" else x / y
    except OverflowError:
        return math.inf


def _times(operator: str, a: Value, b: Value) -> Value | None:
    """Arithmetic with dates, timestamps and intervals; None if these types have none."""
    sign = -1 if operator == "-" else 1
    x, y = a.value, b.value
    if operator == "*":
        if isinstance(x, Interval) and type(y) is int and b.kind is Domain.EXACT:
            return Value(Interval, x.times(y))
        return None
    if isinstance(y, Interval):
        if isinstance(x, Interval):
            return Value(Interval, temporal.plus(x, y.times(sign)))
        if a.kind in (Domain.DATE, Domain.NAIVE, Domain.ZONED):
            moved = temporal.shift(into(x, a.kind, Domain.NAIVE), y.times(sign))
            return Value(Domain.NAIVE if a.kind is Domain.DATE else a.kind, moved)
    if a.kind is Domain.DATE and type(y) is int and type(x) is int:
        if b.kind is Domain.EXACT:
            return Value(Domain.DATE, x + sign * y)
        if b.kind is Domain.DATE and operator == "-":
            return Value(Domain.EXACT, x - y)
    return None
