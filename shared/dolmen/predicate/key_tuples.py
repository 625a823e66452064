"""Predicates that only name tuples of values: they become ``keys`` tombstones, one hash lookup for all."""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import pyarrow as pa

from dolmen.format.types import Plain
from dolmen.predicate.ast import And, Column, Compare, In, IsNull, Literal, Not, Or, Predicate, Term
from dolmen.predicate.constants import Domain, domain_of, exact_float, fit, grid, into, join, plain_of

MAX_KEYS = 1_000_000

Tuples: TypeAlias = tuple[tuple[int, ...], list[tuple[Plain, ...]]]


def as_keys(p: Predicate) -> Tuples | None:
    """The tuples of values that a predicate names, if it says nothing else.

    That is so for ``=`` and IN over the columns of ONE tuple (none of them a float) that are joined by AND, and for
    several of these over the same columns that are joined by OR; IS NOT NULL of these columns adds nothing. NULL
    members, and values that the column's type lacks, equal nothing and are dropped.

    Returns:
        ids of the columns, ascending, and the distinct tuples of plain values in the columns' bound types; None when
        the predicate says more than that, or when there are more than 1,000,000 tuples.
    """
    match p:
        case Compare(op="=", right=Literal() as literal):
            return _values(p.left, [literal.plain], literal.arrow_type)
        case In():
            return _values(p.column, p.plain, p.arrow_type)
        case And():
            return _all_of(p)
        case Or():
            return _any_of(p)
    return None


def _values(column: Term, values: list[Plain], own: pa.DataType) -> Tuples | None:
    if not isinstance(column, Column):
        return None
    arrow_type = column.arrow_type
    domain = join(domain_of(arrow_type), domain_of(own))
    if domain is None or pa.types.is_floating(arrow_type) or len(values) > MAX_KEYS:
        return None
    if domain.is_float and not (
        pa.types.is_integer(arrow_type) and all(exact_float(value, domain) for value in values)  # type: ignore[arg-type]
    ):
        return None
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        width = arrow_type.byte_width if pa.types.is_fixed_size_binary(arrow_type) else None
        return (column.id,), [(v,) for v in values if width is None or len(v) == width]  # type: ignore[arg-type]
    cells = grid(arrow_type, Domain.EXACT if domain.is_float else domain)
    placed = [fit("=", into(v, domain_of(own), domain), cells) for v in values]
    return (column.id,), [(plain_of(place[1], arrow_type),) for place in placed if isinstance(place, tuple)]


def _all_of(p: And) -> Tuples | None:
    """The product of the operands' tuples: operands over the same columns must agree, others must share no column."""
    by_columns: dict[tuple[int, ...], dict[tuple[Plain, ...], None]] = {}
    not_null = set()
    for arg in p.args:
        if isinstance(arg, Not) and isinstance(arg.arg, IsNull):
            if not isinstance(arg.arg.column, Column):
                return None
            not_null.add(arg.arg.column.id)
            continue
        part = as_keys(arg)
        if part is None:
            return None
        ids, tuples = part
        known = by_columns.get(ids)
        by_columns[ids] = dict.fromkeys(t for t in tuples if known is None or t in known)
    ids = tuple(column for columns in by_columns for column in columns)
    size = 1
    for tuples_of in by_columns.values():
        size *= len(tuples_of)
    if not ids or len(set(ids)) < len(ids) or not not_null <= set(ids) or size > MAX_KEYS:
        return None
    places = sorted(range(len(ids)), key=ids.__getitem__)
    joined = (sum(parts, ()) for parts in product(*by_columns.values()))
    return tuple(ids[place] for place in places), [tuple(row[place] for place in places) for row in joined]


def _any_of(p: Or) -> Tuples | None:
    """The union of the operands' tuples, which must be over the same columns."""
    ids: tuple[int, ...] | None = None
    union: dict[tuple[Plain, ...], None] = {}
    for arg in p.args:
        part = as_keys(arg)
        if part is None or (ids is not None and part[0] != ids):
            return None
        ids = part[0]
        union.update(dict.fromkeys(part[1]))
        if len(union) > MAX_KEYS:
            return None
    assert ids is not None
    return ids, list(union)
