"""Judges a predicate by statistics alone, for one file or for many at once, without reading a row.

It computes which outcomes (TRUE, FALSE, NULL) each node may have for some row. An outcome is excluded only if it is
proven impossible, so "no row is TRUE" and "every row is TRUE" are proofs. A ``Fact`` says what is possible: a bool for
one file, or a mask for many; ``dolmen.entries.segments.row_bounds`` has the statistics of many files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache, reduce
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dolmen.format.entries import UNKNOWN, Bounds
from dolmen.format.schema import type_from_json
from dolmen.predicate import ast, like
from dolmen.predicate.ast import Predicate, Term
from dolmen.predicate.domains import Domain, Op, convert, domain_of, fit, grid, join

Fact: TypeAlias = bool | npt.NDArray[np.bool_]
"""Whether something is possible: in one file, or in each of many files. A bool may be for all of many files."""

_GRIDS = frozenset((Domain.EXACT, Domain.DATE, Domain.TIME, Domain.NAIVE, Domain.ZONED))
"""Domains in which the values of a type are evenly spaced."""


class StatsVerdict(Enum):
    """How statistics judge a predicate: TRUE for no row (NEVER), for every row (ALWAYS), or unknown (MAYBE)."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"


class Outcomes(NamedTuple):
    """Whether a predicate may be TRUE, FALSE or NULL for some row."""

    true: Fact
    false: Fact
    null: Fact


class Spread(NamedTuple):
    """The values that one side of a comparison may have, in the domain of that comparison."""

    # least, greatest: bounds of ordinary values; None if unknown. Each is a plain value, or an object for many files,
    # whose ``<`` and ``<=`` return a mask of the files for which the comparison may hold.
    least: Any
    greatest: Any
    # ordinary, nan, null: whether there may be an ordinary value, NaN, or NULL
    ordinary: Fact
    nan: Fact
    null: Fact


class Statistics(Protocol):
    """Statistics of one file, or of many files."""

    def spread(self, column: ast.Column, domain: Domain | None) -> Spread:
        """The spread of a column, with bounds in a domain; without bounds if that is None."""

    def members(self, spread: Spread, p: ast.In, domain: Domain) -> tuple[Fact, Fact]:
        """Whether an ordinary value of a spread in a domain may be a member of an IN, and whether one may not be."""


def judge(p: Predicate, stats: Mapping[int, Bounds], rows: int) -> StatsVerdict:
    """Judges whether the predicate is TRUE for none, some or all rows of a file; NEVER for a file without rows.

    ``stats``: bounds by column id, as plain values of the column's bound type or of a narrower type of the same domain.
    """
    if rows == 0:
        return StatsVerdict.NEVER
    possible = outcomes(p, _FileStatistics(stats, rows))
    if not possible.true:
        return StatsVerdict.NEVER
    return StatsVerdict.MAYBE if possible.false or possible.null else StatsVerdict.ALWAYS


def outcomes(p: Predicate, statistics: Statistics) -> Outcomes:
    """The outcomes that a predicate may have for some row of a file that is not empty."""
    match p:
        case ast.And():
            return reduce(_and, [outcomes(arg, statistics) for arg in p.args])
        case ast.Or():
            return _not(reduce(_and, [_not(outcomes(arg, statistics)) for arg in p.args]))
        case ast.Not():
            return _not(outcomes(p.arg, statistics))
        case ast.Constant():
            return Outcomes(p.value is True, p.value is False, p.value is None)
        case ast.IsNull():
            spread = _spread(p.column, statistics, None)
            return Outcomes(spread.null, spread.ordinary | spread.nan, False)
        case ast.Compare():
            domain = _common_domain(p.left.type, p.right.type)
            left = _spread(p.left, statistics, domain)
            if isinstance(p.right, ast.Literal):
                return compare(left, p.op, point(convert(p.right.plain, _own_domain(p.right.type), domain)))
            return compare(left, p.op, _spread(p.right, statistics, domain))
        case ast.In():
            return _in(p, statistics)
        case ast.Like():
            return _like(p, _spread(p.column, statistics, Domain.TEXT))
        case ast.Truth():
            return compare(_spread(p.column, statistics, Domain.BOOLEAN), "=", point(True))


def _not(a: Outcomes) -> Outcomes:
    return Outcomes(a.false, a.true, a.null)


def _and(a: Outcomes, b: Outcomes) -> Outcomes:
    """The outcomes of ``a AND b`` for any combination of the outcomes of ``a`` and ``b``."""
    null = (a.null & (b.true | b.null)) | (b.null & a.true)
    return Outcomes(a.true & b.true, a.false | b.false, null)


def point(value: Any) -> Spread:
    nan = value != value
    return Spread(value, value, not nan, nan, False)


def compare(a: Spread, op: Op, b: Spread) -> Outcomes:
    """The outcomes of ``a op b``. NaN equals itself and is greater than every other value."""
    match op:
        case "=":
            return _equal(a, b)
        case "<>":
            return _not(_equal(a, b))
        case "<":
            return _less(a, b)
        case ">=":
            return _not(_less(a, b))
        case ">":
            return _less(b, a)
        case "<=":
            return _not(_less(b, a))


def _less(a: Spread, b: Spread) -> Outcomes:
    both = a.ordinary & b.ordinary
    true = (both & _may_be_less(a.least, b.greatest)) | (a.ordinary & b.nan)
    false = (both & _may_be_at_most(b.least, a.greatest)) | (a.nan & (b.ordinary | b.nan))
    return Outcomes(true, false, a.null | b.null)


def _equal(a: Spread, b: Spread) -> Outcomes:
    both = a.ordinary & b.ordinary
    true = (both & _may_be_at_most(a.least, b.greatest) & _may_be_at_most(b.least, a.greatest)) | (a.nan & b.nan)
    unequal = both & (_may_be_less(a.least, b.greatest) | _may_be_less(b.least, a.greatest))
    return Outcomes(true, unequal | (a.ordinary & b.nan) | (a.nan & b.ordinary), a.null | b.null)


def _may_be_less(a: Any, b: Any) -> Fact:
    may_be: Fact = a is None or b is None or a < b
    return may_be


def _may_be_at_most(a: Any, b: Any) -> Fact:
    may_be: Fact = a is None or b is None or a <= b
    return may_be


def _in(p: ast.In, statistics: Statistics) -> Outcomes:
    domain = _common_domain(p.column.type, p.type)
    spread = _spread(p.column, statistics, domain)
    has_nan = p.plain[-1] != p.plain[-1]
    may_be_member, may_be_other = statistics.members(spread, p, domain)
    may_be_true = (spread.ordinary & may_be_member) | (spread.nan & has_nan)
    may_be_false = (spread.ordinary & may_be_other) | (spread.nan & (not has_nan))
    if p.null:
        return Outcomes(may_be_true, False, spread.null | may_be_false)
    return Outcomes(may_be_true, may_be_false, spread.null)


def sorted_members(p: ast.In, domain: Domain) -> list[Any]:
    """The members of an IN as plain values of a domain, ascending; computed once.

    NULL, NaN, and values that the column's type lacks are left out.
    """
    members: list[Any] | None = p.prepared.get(domain)
    if members is None:
        own = _own_domain(p.type)
        members = [convert(value, own, domain) for value in p.plain if value == value]
        if p.type != p.column.type and domain in _GRIDS:
            cells = grid(p.column.arrow_type, domain)
            members = [member for member in members if isinstance(fit("=", member, cells), tuple)]
        p.prepared[domain] = members
    return members


def _like(p: ast.Like, spread: Spread) -> Outcomes:
    if p.ignore_case:
        return Outcomes(spread.ordinary, spread.ordinary, spread.null)
    pattern = like.pattern(p.pattern, p.escape)
    if pattern.is_text:
        return _equal(spread, point(pattern.prefix))
    inside = _not(_less(spread, point(pattern.prefix)))
    if pattern.after_prefix is not None:
        inside = _and(inside, _less(spread, point(pattern.after_prefix)))
    # Both halves are NULL for the same rows: a row is never NULL in one and FALSE in the other.
    false = inside.false if pattern.is_prefix else inside.false | spread.ordinary
    return Outcomes(inside.true, false, spread.null)


def _spread(term: Term, statistics: Statistics, domain: Domain | None) -> Spread:
    """The spread of a column. Statistics do not cover functions of columns."""
    if isinstance(term, ast.Column):
        return statistics.spread(term, domain)
    own = _own_domain(term.type)
    return Spread(None, None, True, own is None or own.is_float, True)


@lru_cache(4_096)
def _own_domain(type_name: str) -> Domain | None:
    return domain_of(type_from_json(type_name))


@lru_cache(4_096)
def _common_domain(a: str, b: str) -> Domain:
    domain = join(_own_domain(a), _own_domain(b))
    assert domain is not None, "bound predicates compare values of a common domain"
    return domain


class _FileStatistics:
    """Statistics of one file, from plain bounds by column id."""

    def __init__(self, bounds: Mapping[int, Bounds], rows: int) -> None:
        self._bounds, self._rows = bounds, rows

    def spread(self, column: ast.Column, domain: Domain | None) -> Spread:
        least, greatest, nulls, nans = self._bounds.get(column.id, UNKNOWN)
        if nulls is not None and nulls >= self._rows:
            return Spread(None, None, False, False, True)
        own = _own_domain(column.type)
        if own is not None and not own.is_float:
            nans = 0
        ordinary = nulls is None or nans is None or nulls + nans < self._rows
        if domain is not own and domain is not None:
            least = None if least is None else convert(least, own, domain)
            greatest = None if greatest is None else convert(greatest, own, domain)
        if own is None or own.is_float:
            least, greatest = (None if end != end else end for end in (least, greatest))
        return Spread(least, greatest, ordinary, nans is None or nans > 0, nulls is None or nulls > 0)

    def members(self, spread: Spread, p: ast.In, domain: Domain) -> tuple[bool, bool]:
        members, least, greatest = sorted_members(p, domain), spread.least, spread.greatest
        first = 0 if least is None else bisect_left(members, least)
        inside = first < len(members) and (greatest is None or members[first] <= greatest)
        return inside, not (inside and least is not None and least == greatest)
