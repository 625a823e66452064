"""Predicates that were bound to columns of dates, for columns that have become timestamps.

Both are compared as midnights, so the predicate is TRUE for the same rows. But bounds of such a column are timestamps.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from dolmen.format.types import TIMESTAMP, type_of
from dolmen.format.widening import is_date_to_timestamp
from dolmen.predicate.ast import Call, Column, Compare, Constant, Literal, Not, Predicate, Term, all_columns, children


def days_to_timestamps(p: Predicate, types: Mapping[int, pa.DataType]) -> Predicate:
    """The predicate with its columns of dates bound as timestamps, where they are that now.

    Args:
        types: the types of now of columns that had a narrower one, by id.
    """
    if not any(type_of(now) is TIMESTAMP for now in types.values()):
        return p
    changed = {
        column: Column(column.id, str(types[column.id]))
        for column in all_columns(p)
        if column.id in types and is_date_to_timestamp(column.arrow_type, types[column.id])
    }
    return _with_columns(p, changed) if changed else p


def _with_columns(p: Predicate, changed: Mapping[Column, Column]) -> Predicate:
    if isinstance(p, Constant):
        return p
    if isinstance(p, Not):
        return Not(_with_columns(p.arg, changed))
    if children(p):
        return msgspec.structs.replace(p, args=tuple(_with_columns(arg, changed) for arg in children(p)))
    if isinstance(p, Compare):
        right = p.right if isinstance(p.right, Literal) else _term(p.right, changed)
        return Compare(p.op, _term(p.left, changed), right)
    return msgspec.structs.replace(p, column=_term(p.column, changed))  # type: ignore[union-attr]


def _term(term: Term, changed: Mapping[Column, Column]) -> Term:
    if isinstance(term, Call):
        args = tuple(arg if isinstance(arg, Literal) else _term(arg, changed) for arg in term.args)
        return msgspec.structs.replace(term, args=args)
    return changed.get(term, term)
