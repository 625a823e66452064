"""Judging many files at once: which may hold rows for which a predicate is TRUE.

The same reasoning as ``dolmen.predicate.prune`` with arrays in the place of values: a node is followed by three masks,
whether it may be TRUE, FALSE, NULL for any row of each file. What is not worth vectorising may be anything, so that
the answer is never too small; whoever wants it sharper judges the files that are left one by one.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

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
    computes,
)
from dolmen.predicate.domain import (
    HOLDS,
    Domain,
    Op,  # fmt: skip
    domain_of,
    into,
    join,
)
from dolmen.predicate.prune import successor
from dolmen.segments.spreads import Mask, Spread, StatsTable, compared, spread

_FEW_MEMBERS = 32


def may_match_mask(where: Predicate, table: StatsTable) -> Mask:
    """Which files may hold rows for which the predicate is TRUE; decodes the bounds of its columns only.

    Files of which statistics are kept elsewhere (column ``odd``) have none here, so they are always among them.
    """
    return _outcomes(where, table).true


def always_mask(where: Predicate, table: StatsTable) -> Mask:
    """Which files certainly hold no row for which the predicate is anything but TRUE."""
    found = _outcomes(where, table)
    return ~found.false & ~found.null


class _May(NamedTuple):
    true: Mask
    false: Mask
    null: Mask


def _outcomes(p: Predicate, table: StatsTable) -> _May:
    if computes(p):  # statistics say nothing of it
        return _May(*(np.ones(len(table), np.bool_) for _ in range(3)))
    match p:
        case And():
            return reduce(_and, (_outcomes(arg, table) for arg in p.args))
        case Or():
            return _not(reduce(_and, (_not(_outcomes(arg, table)) for arg in p.args)))
        case Not():
            return _not(_outcomes(p.arg, table))
        case Constant():
            return _constant(p.value, len(table))
        case IsNull():
            assert isinstance(p.column, Column)
            nulls, rows = table.numbers(f"nulls_{p.column.id}"), table.numbers("rows")
            return _May(nulls != 0, (nulls < 0) | (nulls < rows), _none(table))
        case Compare():
            return _compare_node(p, table)
        case In():
            return _in(p, table)
        case Like():
            return _like(p, table)
        case Truth():
            return _compare(_spread(p.column, table), "=", True, Domain.BOOLEAN)


def _none(table: StatsTable) -> Mask:
    return np.zeros(len(table), np.bool_)


def _constant(value: bool | None, count: int) -> _May:
    return _May(*(np.full(count, value is outcome) for outcome in (True, False, None)))


def _not(a: _May) -> _May:
    return _May(a.false, a.true, a.null)


def _and(a: _May, b: _May) -> _May:
    null = (a.null & (b.true | b.null)) | (b.null & (a.true | a.null))
    return _May(a.true & b.true, a.false | b.false, null)


def _spread(column: Term, table: StatsTable) -> Spread:
    assert isinstance(column, Column), "what is computed was left out before"
    return spread(table, column.id, column.arrow_type)


def _compare_node(p: Compare, table: StatsTable) -> _May:
    left = _spread(p.left, table)
    if isinstance(p.right, Literal):
        own = domain_of(p.right.arrow_type)
        domain = join(domain_of(p.left.arrow_type), own)
        assert domain is not None, "bound predicates compare what can be compared"
        return _compare(left, p.op, into(p.right.plain, own, domain), domain)
    right = _spread(p.right, table)
    # Of two columns only NULL and NaN are looked at here: they are rarely compared.
    some = (left.ordinary | left.nan) & (right.ordinary | right.nan)
    return _May(some, some, left.null | right.null)


def _compare(a: Spread, op: Op, value: object, domain: Domain) -> _May:
    """Outcomes of ``a op value``, from the signs that the comparison may have."""
    count = len(a.ordinary)
    holds = HOLDS[op]
    signs: dict[int, Mask] = {}
    if value != value:  # NaN is greater than all but NaN
        signs = {-1: a.ordinary, 0: a.nan}
    else:
        below, least_unknown = compared(a.least, "<", value, domain, count)
        above, greatest_unknown = compared(a.greatest, ">", value, domain, count)
        too_great, _ = compared(a.least, ">", value, domain, count)
        too_small, _ = compared(a.greatest, "<", value, domain, count)
        signs[-1] = a.ordinary & (below | least_unknown)
        signs[1] = (a.ordinary & (above | greatest_unknown)) | a.nan
        signs[0] = a.ordinary & ~too_great & ~too_small
    true, false = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for sign, where in signs.items():
        if sign in holds:
            true |= where
        else:
            false |= where
    return _May(true, false, a.null)


def _in(p: In, table: StatsTable) -> _May:
    own, values = domain_of(p.arrow_type), [value for value in p.plain if value == value]
    domain = join(domain_of(p.column.arrow_type), own)
    assert domain is not None, "bound predicates compare what can be compared"
    a = _spread(p.column, table)
    inside = np.zeros(len(table), np.bool_)
    members = [into(value, own, domain) for value in values]
    if len(members) <= _FEW_MEMBERS:
        for member in members:
            inside |= _compare(a, "=", member, domain).true
    else:  # between the first and the last is near enough
        low = _compare(a, ">=", members[0], domain).true
        inside = low & _compare(a, "<=", members[-1], domain).true
    has_nan = len(values) < len(p.plain)
    found = (a.ordinary & inside) | (a.nan & has_nan)
    missed = a.ordinary | a.nan
    return _May(found, missed & (not p.null), a.null | (missed & p.null))


def _like(p: Like, table: StatsTable) -> _May:
    a = _spread(p.column, table)
    if p.ignore_case:
        return _May(a.ordinary, a.ordinary, a.null)
    pattern = like.pattern(p.pattern, p.escape)
    if pattern.is_text:
        return _compare(a, "=", pattern.prefix, Domain.TEXT)
    inside = _compare(a, ">=", pattern.prefix, Domain.TEXT)
    end = successor(pattern.prefix)
    if end is not None:
        inside = _and(inside, _compare(a, "<", end, Domain.TEXT))
    if not pattern.is_prefix:
        inside = inside._replace(false=inside.false | a.ordinary)
    return inside
