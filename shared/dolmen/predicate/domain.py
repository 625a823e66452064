"""Domains: which values compare with each other, and as what.

Exact numbers (integers and decimals, of whatever width) compare as in mathematics. When one side is a float, both
are taken to the nearest float of that width, as DuckDB and Spark do. A date is its midnight among naive timestamps.
So the domain of a comparison is the widest of its sides' domains, and never narrower than any type involved: that of
the column when the predicate was bound, that of the file, that of the literal.
"""

from __future__ import annotations

import math
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base.units import DAY_US
from dolmen.format.types import type_of
from dolmen.format.values import Plain

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
    """A plain value of domain ``own`` as the value that it is in a wider domain."""
    if own is Domain.DATE and domain is Domain.NAIVE:
        return value * DAY_US
    if domain is Domain.FLOAT64:
        return float(value)
    if domain is Domain.FLOAT32 and own is Domain.EXACT:
        return nearest_float32(value)
    return value


def nearest_float32(value: int | float | Decimal) -> float:
    """The float32 next to a number, ties to even, rounded once; beyond the range infinity."""
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
    """``column op value`` in terms of a value that the column's type has, so that the column needs no cast.

    Args:
        value: any finite int, float or Decimal, however large or fine.

    Returns:
        the operator and raw value to compare with; or the outcome for every value that is not NULL.
    """
    if cells.unit == 1 and type(value) is int:
        raw, on_grid = value, True
    else:
        place = Fraction(value) / cells.unit
        raw = math.floor(place)
        on_grid = place == raw
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
    """The numbers whose nearest float is ``value``: from least to greatest, and whether these two belong to them."""
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
    """The plain value at a place of the type's grid."""
    if pa.types.is_decimal(arrow_type):
        return Decimal((raw < 0, tuple(map(int, str(abs(raw)))), -arrow_type.scale))
    return raw


def exact_float(value: float, domain: Domain) -> bool:
    """Whether an integer compares with this float as with the number it is, rounding or not: the common case."""
    return abs(value) < (2**53 if domain is Domain.FLOAT64 else 2**24)


def order(x: Any, y: Any) -> int:
    """-1, 0 or 1 as ``x`` is less than, equal to or greater than ``y`` of the same domain; NaN is the greatest."""
    if x != x or y != y:
        return int(x != x) - int(y != y)
    return int(x > y) - int(x < y)


HOLDS: dict[Op, tuple[int, ...]] = {
    "=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)
}  # fmt: skip
"""The outcomes of ``order`` for which an operator is TRUE."""
