"""Predicates that only list tuples of values. They become ``keys`` tombstones: one hash lookup for all of them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TypeAlias

import pyarrow as pa

from dolmen.format.types import Plain
from dolmen.predicate.ast import And, Column, Compare, In, IsNull, Literal, Not, Or, Predicate, Term
from dolmen.predicate.constants import Domain, domain_of, exact_float, into, join, representable
from dolmen.predicate.limits import MAX_MEMBERS

KeyTuples: TypeAlias = tuple[tuple[int, ...], list[tuple[Plain, ...]]]


def as_keys(p: Predicate) -> KeyTuples | None:
    """The tuples of values that a predicate lists, if it has no other conditions.

    Such a predicate consists of ``=`` and IN over columns that are not floats, joined by AND, or of several such
    conditions over the same columns, joined by OR. IS NOT NULL of these columns is allowed and has no effect. NULL
    members, and values that the column's type lacks, equal nothing and are dropped.

    Returns:
        the ids of the columns, ascending, and the distinct tuples of plain values in the columns' bound types; None if
        the predicate has other conditions, or more than 1,000,000 tuples.
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


def _values(column: Term, values: list[Plain], own: pa.DataType) -> KeyTuples | None:
    if not isinstance(column, Column):
        return None
    arrow_type = column.arrow_type
    domain = join(domain_of(arrow_type), domain_of(own))
    if domain is None or pa.types.is_floating(arrow_type) or len(values) > MAX_MEMBERS:
        return None
    if domain.is_float and not (
        pa.types.is_integer(arrow_type) and all(exact_float(value, domain) for value in values)  # type: ignore[arg-type]
    ):
        return None
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        width = arrow_type.byte_width if pa.types.is_fixed_size_binary(arrow_type) else None
        return (column.id,), [(v,) for v in values if width is None or len(v) == width]  # type: ignore[arg-type]
    converted = (into(value, domain_of(own), domain) for value in values)
    stored = representable(converted, arrow_type, Domain.EXACT if domain.is_float else domain)
    return (column.id,), [(value,) for value in stored]


def _all_of(p: And) -> KeyTuples | None:
    """The product of the operands' tuples. Operands over the same columns intersect; others must share no column."""
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
        others = by_columns.get(ids)
        by_columns[ids] = dict.fromkeys(t for t in tuples if others is None or t in others)
    ids = tuple(column for columns in by_columns for column in columns)
    size = prod(map(len, by_columns.values()))
    if not ids or len(set(ids)) < len(ids) or not not_null <= set(ids) or size > MAX_MEMBERS:
        return None
    order = sorted(range(len(ids)), key=ids.__getitem__)
    rows = (sum(parts, ()) for parts in product(*by_columns.values()))
    return tuple(ids[index] for index in order), [tuple(row[index] for index in order) for row in rows]


def _any_of(p: Or) -> KeyTuples | None:
    """The union of the operands' tuples, which must be over the same columns."""
    ids: tuple[int, ...] | None = None
    union: dict[tuple[Plain, ...], None] = {}
    for arg in p.args:
        part = as_keys(arg)
        if part is None or (ids is not None and part[0] != ids):
            return None
        ids = part[0]
        union.update(dict.fromkeys(part[1]))
        if len(union) > MAX_MEMBERS:
            return None
    assert ids is not None
    return ids, list(union)
