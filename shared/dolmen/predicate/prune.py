"""Judging a whole file by its statistics, without reading it.

Every node is followed by the set of outcomes (TRUE, FALSE, NULL) that any of its rows may have. These sets are never
too small, so "no row can be TRUE" and "no row can be anything else" are proofs. That makes NOT, NULL and NaN simple:
each is just one more outcome that is possible or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from enum import Enum, IntFlag
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa

from dolmen.format.statistics import UNKNOWN, Bounds
from dolmen.predicate import like
from dolmen.predicate.ast import (
    And,
    Column,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Term,
    Truth,
)
from dolmen.predicate.domain import (
    HOLDS,
    Domain,
    Op,  # fmt: skip
    domain_of,
    into,
    join,
)


class Verdict(Enum):
    """What statistics say of a predicate on a file: NEVER = TRUE for no row, ALWAYS = TRUE for every row."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"


class _May(IntFlag):
    BE_FALSE = 1
    BE_TRUE = 2
    BE_NULL = 4


_NOTHING = _May(0)


def judge(p: Predicate, stats: Mapping[int, Bounds], rows: int) -> Verdict:
    """Whether the predicate is TRUE for none, some or all rows of a file, as far as can be known.

    Args:
        stats: by column id; values plain, in the type the column was bound to or a narrower one of the same domain
            (so an int for an int64, whatever the file's width). A column without an entry is unknown.
        rows: number of rows; with none the verdict is NEVER.
    """
    if rows == 0:
        return Verdict.NEVER
    outcomes = _outcomes(p, stats, rows)
    if not outcomes & _May.BE_TRUE:
        return Verdict.NEVER
    return Verdict.ALWAYS if outcomes == _May.BE_TRUE else Verdict.MAYBE


def _outcomes(p: Predicate, stats: Mapping[int, Bounds], rows: int) -> _May:
    match p:
        case And():
            return reduce(_and, (_outcomes(arg, stats, rows) for arg in p.args))
        case Or():
            return _not(reduce(_and, (_not(_outcomes(arg, stats, rows)) for arg in p.args)))
        case Not():
            return _not(_outcomes(p.arg, stats, rows))
        case Constant():
            return _May.BE_NULL if p.value is None else _truth(p.value)
        case IsNull():
            nulls = _bounds(p.column, stats).nulls
            return _May.BE_TRUE | _May.BE_FALSE if nulls is None else _either(nulls > 0, nulls < rows)
        case Compare():
            domain = _domain(p.left, p.right.arrow_type)
            left = _spread(p.left, stats, rows, domain)
            if isinstance(p.right, Literal):
                return _compare(left, p.op, _point(into(p.right.plain, domain_of(p.right.arrow_type), domain)))
            return _compare(left, p.op, _spread(p.right, stats, rows, domain))
        case In():
            return _in(p, stats, rows)
        case Like():
            return _like(p, _spread(p.column, stats, rows, Domain.TEXT))
        case Truth():
            return _compare(_spread(p.column, stats, rows, Domain.BOOLEAN), "=", _point(True))


def _truth(value: bool) -> _May:
    return _May.BE_TRUE if value else _May.BE_FALSE


def _either(true: bool, false: bool) -> _May:
    return (_May.BE_TRUE if true else _NOTHING) | (_May.BE_FALSE if false else _NOTHING)


def _not(a: _May) -> _May:
    return _either(bool(a & _May.BE_FALSE), bool(a & _May.BE_TRUE)) | (a & _May.BE_NULL)


def _and(a: _May, b: _May) -> _May:
    """Outcomes of ``a AND b`` for any pair of rows' outcomes."""
    false = bool((a | b) & _May.BE_FALSE)
    true = bool(a & b & _May.BE_TRUE)
    null = bool((a & _May.BE_NULL and b & ~_May.BE_FALSE) or (b & _May.BE_NULL and a & ~_May.BE_FALSE))
    return _either(true, false) | (_May.BE_NULL if null else _NOTHING)


class _Spread(NamedTuple):
    """The values that one side may have, in the domain of its comparison.

    Args:
        least, greatest: bounds of ordinary values; None = unknown.
        ordinary, nan, null: whether there may be any ordinary value, NaN, NULL.
    """

    least: Any
    greatest: Any
    ordinary: bool
    nan: bool
    null: bool


def _point(value: Any) -> _Spread:
    nan = value != value
    return _Spread(value, value, not nan, nan, False)


def _bounds(term: Term, stats: Mapping[int, Bounds]) -> Bounds:
    """What statistics say of a column, which is nothing of what is computed of columns."""
    return stats.get(term.id, UNKNOWN) if isinstance(term, Column) else UNKNOWN


def _spread(column: Term, stats: Mapping[int, Bounds], rows: int, domain: Domain) -> _Spread:
    least, greatest, nulls, nans = _bounds(column, stats)
    own = domain_of(column.arrow_type)
    if own is not None and not own.is_float:
        nans = 0
    if nulls is not None and nulls >= rows:
        return _Spread(None, None, False, False, True)
    ordinary = nulls is None or nans is None or nulls + nans < rows
    least, greatest = (None if v is None or v != v else into(v, own, domain) for v in (least, greatest))
    return _Spread(least, greatest, ordinary, nans is None or nans > 0, nulls is None or nulls > 0)


def _domain(column: Term, other: pa.DataType) -> Domain:
    domain = join(domain_of(column.arrow_type), domain_of(other))
    assert domain is not None, "bound predicates compare what can be compared"
    return domain


def _compare(a: _Spread, op: Op, b: _Spread) -> _May:
    """The outcomes of ``a op b``, from the signs that a comparison of their values may have."""
    signs = set()
    if a.ordinary and b.ordinary:
        if _below(a.least, b.greatest):
            signs.add(-1)
        if _below(b.least, a.greatest):
            signs.add(1)
        if not (_below(a.greatest, b.least, unknown=False) or _below(b.greatest, a.least, unknown=False)):
            signs.add(0)
    if a.nan and b.ordinary:
        signs.add(1)
    if a.ordinary and b.nan:
        signs.add(-1)
    if a.nan and b.nan:
        signs.add(0)
    holds = HOLDS[op]
    outcomes = _either(any(sign in holds for sign in signs), any(sign not in holds for sign in signs))
    return outcomes | (_May.BE_NULL if a.null or b.null else _NOTHING)


def _below(a: Any, b: Any, *, unknown: bool = True) -> bool:
    """Whether ``a < b``, or ``unknown`` when either is not known."""
    return unknown if a is None or b is None else bool(a < b)


def _in(p: In, stats: Mapping[int, Bounds], rows: int) -> _May:
    domain = _domain(p.column, p.arrow_type)
    spread = _spread(p.column, stats, rows, domain)
    members: list[Any] | None = p.prepared.get(domain)
    if members is None:
        own = domain_of(p.arrow_type)
        members = p.prepared[domain] = [into(value, own, domain) for value in p.plain if value == value]
    has_nan = p.plain[-1] != p.plain[-1]
    least, greatest = spread.least, spread.greatest
    first = 0 if least is None else bisect_left(members, least)
    inside = first < len(members) and (greatest is None or members[first] <= greatest)
    one_value = inside and least is not None and least == greatest
    found = (spread.ordinary and inside) or (spread.nan and has_nan)
    missed = (spread.ordinary and not one_value) or (spread.nan and not has_nan)
    null = spread.null or (missed and p.null)
    return _either(found, missed and not p.null) | (_May.BE_NULL if null else _NOTHING)


def _like(p: Like, spread: _Spread) -> _May:
    if not spread.ordinary:
        return _May.BE_NULL
    pattern = like.pattern(p.pattern, p.escape)
    null = _May.BE_NULL if spread.null else _NOTHING
    if p.ignore_case:
        return _either(True, True) | null
    if pattern.is_text:
        return _compare(spread, "=", _point(pattern.prefix))
    end = successor(pattern.prefix)
    from_start = _compare(spread, ">=", _point(pattern.prefix))
    to_end = _compare(spread, "<", _point(end)) if end is not None else _May.BE_TRUE
    inside = _and(from_start, to_end) | null
    return inside if pattern.is_prefix else inside | _May.BE_FALSE


def successor(prefix: str) -> str | None:
    """The least text above all that begin with ``prefix``; None if there is none."""
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1]) + 1
        if code <= 0x10FFFF:
            return prefix[: end - 1] + chr(0xE000 if code == 0xD800 else code)
    return None
