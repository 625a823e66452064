"""Domains, which say how values of types compare, and functions of columns with the types of their results.

docs/predicates.md has the rules. The domain of a comparison is the widest domain of its sides, and never narrower than
any type involved: the column's when the predicate was bound, the file's, and the literal's. All functions are total, so
no row stops a reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import DAY_US
from dolmen.errors import PredicateError
from dolmen.format.types import Plain, type_of

#: A comparison, as it is written in SQL.
Op: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

_KERNELS = {
    "negate": "negate", "abs": "abs", "+": "add", "-": "subtract", "*": "multiply", "/": "divide",
    "=": "equal", "<>": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip


def kernel(op: str) -> Callable[..., Any]:
    """Arrow's function for an operator of predicates."""
    return getattr(pc, _KERNELS[op])  # type: ignore[no-any-return]


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
    def is_number(self) -> bool:
        return self is Domain.EXACT or self.is_float

    @property
    def is_float(self) -> bool:
        """Whether NaN and -0.0 are in it."""
        return self in (Domain.FLOAT32, Domain.FLOAT64)


_WIDER = {
    frozenset((Domain.EXACT, Domain.FLOAT32)): Domain.FLOAT32,
    frozenset((Domain.EXACT, Domain.FLOAT64)): Domain.FLOAT64,
    frozenset((Domain.FLOAT32, Domain.FLOAT64)): Domain.FLOAT64,
    frozenset((Domain.DATE, Domain.NAIVE)): Domain.NAIVE,
}


def domain_of(arrow_type: pa.DataType) -> Domain | None:
    """The domain of a stored type; None for nested ones."""
    column_type = type_of(arrow_type)
    return None if column_type is None or column_type.domain is None else Domain[column_type.domain]


def join(*domains: Domain | None) -> Domain | None:
    """The domain in which all of these compare; None if they can't."""

    def wider(a: Domain | None, b: Domain | None) -> Domain | None:
        return a if a is b else _WIDER.get(frozenset((a, b)))  # type: ignore[arg-type]

    return reduce(wider, domains)


def convert(value: Any, own: object, domain: Domain) -> Any:
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

    ``value``: any finite int, float or Decimal.

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


def _numbers_nearest(value: float, domain: Domain) -> tuple[Fraction, Fraction, bool]:
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


_LOOSER_OR_STRICTER: dict[Op, Op] = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def fit_float(op: Op, value: float, domain: Domain) -> tuple[Op, Fraction] | bool:
    """Rewrites ``column op value`` for integers and decimals, which compare as their nearest floats, without a cast.

    ``op``: one of an order. ``=`` is both ``>=`` and ``<=``.

    Returns:
        the operator and the exact number to compare with; or the outcome for every value that is not NULL.
    """
    if not abs(value) < 2e38:  # beyond all numbers of these types, or NaN
        return order(0.0, value) in HOLDS[op]
    least, greatest, inclusive = _numbers_nearest(value, domain)
    return op if inclusive else _LOOSER_OR_STRICTER[op], least if op in (">=", "<") else greatest


def plain_of(raw: int, arrow_type: pa.DataType) -> Plain:
    """The plain value of a raw value of the type's grid."""
    if pa.types.is_decimal(arrow_type):
        return Decimal((raw < 0, tuple(map(int, str(abs(raw)))), -arrow_type.scale))
    return raw


def keep_valid(values: Iterable[Any], arrow_type: pa.DataType, domain: Domain) -> list[Plain]:
    """The plain values of the values that the type has; others are dropped."""
    cells = grid(arrow_type, domain)
    fitted = [fit("=", value, cells) for value in values]
    return [plain_of(each[1], arrow_type) for each in fitted if isinstance(each, tuple)]


def is_exact_float(value: float, domain: Domain) -> bool:
    """Whether integers compare with this float without rounding, which is common."""
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
MAX_DIGITS = 38  # exact numbers with more digits become doubles, as in DuckDB

Function: TypeAlias = Literal[
    "+", "-", "*", "/", "%", "negate", "lower", "upper", "cast", "year", "month", "day", "hour", "minute",
    "abs", "coalesce", "length", "add_interval", "list_contains",
]  # fmt: skip
NEWER_FUNCTIONS = frozenset(("abs", "coalesce", "length", "add_interval"))
"""Functions that the first readers of functions do not know."""


_TIMES = (Domain.NAIVE, Domain.ZONED)
PARTS: dict[str, tuple[Domain, ...]] = {
    "year": (Domain.DATE, *_TIMES), "month": (Domain.DATE, *_TIMES), "day": (Domain.DATE, *_TIMES),
    "hour": _TIMES, "minute": _TIMES,
}  # fmt: skip
NAMES = ("lower", "upper", "length", "abs", *PARTS)  # functions of columns that predicates call by name


def result_of(function: Function, types: Sequence[pa.DataType], target: pa.DataType | None = None) -> pa.DataType:
    """The type of a function's result, by its arguments' types, or by the target of a cast. Raises PredicateError."""
    domains = [domain_of(arrow_type) for arrow_type in types]
    if function == "coalesce" and len(types) > 1:
        return _common_type(types)
    if len(types) != _ARGUMENTS.get(function, 1):
        raise PredicateError(f"{function} does not take {len(types)} arguments")
    if function == "list_contains":
        if not pa.types.is_list(types[0]) or join(domain_of(types[0].value_type), domains[1]) is None:
            raise PredicateError(f"list_contains does not take {types[0]} and {types[1]}")
        return pa.bool_()
    if function == "add_interval":
        if domains[0] not in PARTS["year"] or types[1:] != [pa.int64()] * 3:
            raise PredicateError(f"an INTERVAL is added to dates and timestamps, not to {types[0]}")
        return pa.timestamp("us", "UTC" if domains[0] is Domain.ZONED else None)
    if function == "cast":
        if target is None or not _has_cast(types[0], target):
            raise PredicateError(
                f"a column of type {types[0]} cannot be cast to {target}: engines do not agree on the result; "
                "integers can be cast to numbers and VARCHAR, timestamps to DATE, and numbers to types that keep "
                "every digit"
            )
        return target
    if function in ("lower", "upper", "length"):
        if domains[0] is not Domain.TEXT:
            raise PredicateError(f"{function} is for strings, not for {types[0]}")
        return pa.int64() if function == "length" else pa.string()
    if function in PARTS:
        if domains[0] not in PARTS[function]:
            raise PredicateError(f"{function} is for {' and '.join(d.value for d in PARTS[function])}, not {types[0]}")
        return pa.int64()
    return _number_type(function, types)


def _number_type(function: Function, types: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a number that is computed: exact numbers get the digits that every result needs."""
    domain = join(*map(domain_of, types))
    if domain is None or not domain.is_number:
        if function == "abs":
            raise PredicateError(f"abs is for numbers, not for {types[0]}")
        raise PredicateError(f"can't compute {f' {function} '.join(map(str, types))}: + - * / % are for numbers")
    if function == "%":
        if not all(pa.types.is_signed_integer(t) or (pa.types.is_integer(t) and t != pa.uint64()) for t in types):
            raise PredicateError("% is for integers of up to 64 bits with sign")
        return _exact_type(min(_bound(types[0]), _bound(types[1]) - 1), 0)
    if domain.is_float or function == "/":
        return pa.float32() if domain is Domain.FLOAT32 else pa.float64()
    bounds, scales = [_bound(t) for t in types], [scale_of(t) for t in types]
    if function in ("negate", "abs"):
        return _exact_type(bounds[0], scales[0])
    if function == "*":
        return _exact_type(bounds[0] * bounds[1], sum(scales))
    scale = max(scales)
    return _exact_type(sum(bound * 10 ** (scale - own) for bound, own in zip(bounds, scales, strict=True)), scale)


_ARGUMENTS: dict[str, int] = {**dict.fromkeys(("+", "-", "*", "/", "%", "list_contains"), 2), "add_interval": 4}
"""The number of arguments of functions that take more than one."""
_COMMON = {
    Domain.BOOLEAN: pa.bool_(), Domain.TEXT: pa.string(), Domain.BYTES: pa.binary(), Domain.DATE: pa.date32(),
    Domain.TIME: pa.time64("us"), Domain.NAIVE: pa.timestamp("us"), Domain.ZONED: pa.timestamp("us", "UTC"),
    Domain.FLOAT32: pa.float32(), Domain.FLOAT64: pa.float64(),
}  # fmt: skip


def _common_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """A type with the values of all these types. Raises PredicateError if there is none."""
    domain = join(*map(domain_of, types))
    if domain is None:
        raise PredicateError(f"coalesce takes values that can be compared, not {' and '.join(map(str, types))}")
    if domain is not Domain.EXACT:
        return _COMMON[domain]
    scale = max(map(scale_of, types))
    return _exact_type(max(_bound(t) * 10 ** (scale - scale_of(t)) for t in types), scale)


def _bound(arrow_type: pa.DataType) -> int:
    """The greatest absolute value of a type, without the decimal point."""
    cells = grid(arrow_type, Domain.EXACT)
    return max(-cells.least, cells.greatest)


def scale_of(arrow_type: pa.DataType) -> int:
    """The digits after the point of an integer or decimal type."""
    return int(arrow_type.scale) if pa.types.is_decimal(arrow_type) else 0


def precision_of(arrow_type: pa.DataType) -> int:
    """The digits that all values of an integer or decimal type need."""
    return int(arrow_type.precision) if pa.types.is_decimal(arrow_type) else len(str(2**arrow_type.bit_width))


def _exact_type(bound: int, scale: int) -> pa.DataType:
    if scale == 0:
        for candidate in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
            if bound < 2 ** (candidate.bit_width - 1):
                return candidate
    digits = max(len(str(bound)), scale)
    if digits > MAX_DIGITS:
        raise PredicateError(
            f"the result may have {digits} digits, and at most {MAX_DIGITS} are supported: "
            "compute with fewer or smaller numbers, or with a double, as in 2e0 * n"
        )
    return pa.decimal128(digits, scale)


def _has_cast(own: pa.DataType, target: pa.DataType) -> bool:
    kind, to = domain_of(own), domain_of(target)
    if kind is Domain.EXACT:
        if to is Domain.EXACT:
            return scale_of(target) >= scale_of(own) and not (pa.types.is_decimal(own) and pa.types.is_integer(target))
        return to in (Domain.FLOAT32, Domain.FLOAT64) or (to is Domain.TEXT and pa.types.is_integer(own))
    allowed: dict[Domain | None, tuple[Domain, ...]] = {
        Domain.FLOAT32: (Domain.FLOAT64,),
        Domain.BOOLEAN: (Domain.TEXT,),
        Domain.NAIVE: (Domain.DATE, Domain.ZONED),
        Domain.ZONED: (Domain.DATE, Domain.NAIVE),
    }
    return to in allowed.get(kind, ())
