"""Tries a predicate before it is committed: one that no reader could evaluate must never hide rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dolmen.errors import Error, PredicateError
from dolmen.format.values import to_array
from dolmen.predicate.ast import Column, Predicate, all_columns, from_json, to_json
from dolmen.predicate.domain import Domain, domain_of
from dolmen.predicate.evaluate import evaluate
from dolmen.predicate.prune import judge

_SAMPLES: dict[Domain | None, Any] = {Domain.BOOLEAN: True, Domain.TEXT: "a", Domain.BYTES: b"a"}


def check_evaluates(p: Predicate) -> None:
    """Stores, reads back, evaluates and judges a predicate as readers will: on no row, on a row of NULLs, on values.

    Raises:
        PredicateError: one of these fails.
    """
    try:
        stored = from_json(to_json(p))
        by_id = {column.id: column for column in all_columns(p)}
        for make in (_none, _null, _value):
            rows = 0 if make is _none else 1
            evaluate(stored, {id_: make(column) for id_, column in by_id.items()}, rows)
        judge(stored, {}, 1)
    except (Error, pa.ArrowException, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        reason = error.reason if isinstance(error, PredicateError) else str(error)
        raise PredicateError(f"this predicate could not be evaluated by any reader: {reason}") from error
    if stored != p:
        raise PredicateError("this predicate would be read back as another one")


def _none(column: Column) -> pa.Array:
    return pa.array([], column.arrow_type)


def _null(column: Column) -> pa.Array:
    return pa.nulls(1, column.arrow_type)


def _value(column: Column) -> pa.Array:
    arrow_type = column.arrow_type
    sample = _SAMPLES.get(domain_of(arrow_type), 0)
    if pa.types.is_fixed_size_binary(arrow_type):
        sample = bytes(arrow_type.byte_width)
    return to_array([sample], arrow_type)
