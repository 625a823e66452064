"""Reads predicates that are mappings: of columns to values, or to operators and values."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dolmen.errors import PredicateError, short_repr
from dolmen.format.schema import Field, Schema
from dolmen.predicate import bind
from dolmen.predicate.ast import MAX_MEMBERS, Predicate, check_count
from dolmen.predicate.constants import LISTS, Value, from_python
from dolmen.predicate.domains import Op
from dolmen.predicate.names import find_key

if TYPE_CHECKING:
    pass


_SIGNS: dict[str, Op] = {
    "=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="
}  # fmt: skip
OPERATORS = (
    *_SIGNS, "in", "not in", "between", "not between", "like", "not like", "ilike", "not ilike", "is", "is not"
)  # fmt: skip


def parse_mapping(source: Mapping[str, Any], schema: Schema) -> Predicate:
    if not source:
        raise PredicateError("an empty mapping names no rows; to mean every row, write the text TRUE")
    conditions = []
    for name, value in source.items():
        if not isinstance(name, str):
            raise PredicateError(f"a mapping's keys are column names, not {short_repr(name)}")
        field = find_key(name, schema)
        try:
            conditions.append(_read_pairs(field, value) if isinstance(value, Mapping) else _equal(field, value))
        except PredicateError as error:
            raise PredicateError(f"column {field.name!r}: {error.reason}") from None
    return bind.conjunction(conditions)


def _equal(field: Field, value: Any) -> Predicate:
    if value is None:
        return bind.is_null(field)
    if (listed := _list_values(value)) is not None:
        return bind.one_of(field, _members(listed))
    return bind.compare("=", field, from_python(value))


def _read_pairs(field: Field, conditions: Mapping[Any, Any]) -> Predicate:
    if not conditions:
        raise PredicateError('an empty mapping has no condition; write {"column": {">=": 3}}')
    predicates = []
    for word, value in conditions.items():
        operator = " ".join(word.lower().split()) if isinstance(word, str) else None
        if operator not in OPERATORS:
            raise PredicateError(f"{short_repr(word)} is not an operator; there are: {', '.join(OPERATORS)}")
        positive = operator.removeprefix("not ")
        p = _operator(field, positive, value)
        predicates.append(p if positive == operator else bind.negation(p))
    return bind.conjunction(predicates)


def _operator(field: Field, operator: str, value: Any) -> Predicate:
    if operator in ("is", "is not"):
        if value is not None:
            raise PredicateError(f"{operator!r} takes None alone; use '=' or '<>'")
        return bind.is_null(field) if operator == "is" else bind.negation(bind.is_null(field))
    if value is None:
        raise PredicateError(f'nothing is {operator} NULL; write {{"is": None}} or {{"is not": None}}')
    if operator == "in":
        if (listed := _list_values(value)) is None:
            raise PredicateError("'in' takes a list of values")
        return bind.one_of(field, _members(listed))
    if operator == "between":
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise PredicateError("'between' takes a list of two values: the least and the greatest")
        return bind.between(field, *map(from_python, value))
    if _list_values(value) is not None:
        raise PredicateError(f"{operator!r} takes one value; 'in' takes a list")
    if operator in ("like", "ilike"):
        return bind.like(field, from_python(value), None, operator == "ilike")
    return bind.compare(_SIGNS[operator], field, from_python(value))


def _list_values(value: Any) -> Collection[Any] | None:
    """The values of a list, a Series, or an Arrow or NumPy array; None if it is one value."""
    if isinstance(value, LISTS):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
        try:
            return list(value.to_pylist())
        except (OverflowError, ValueError):
            raise PredicateError("a date or time outside of Python's years 1 to 9999: write it as text") from None
    for library in ("pandas", "polars"):
        module = sys.modules.get(library)
        if module and isinstance(value, (module.Series, getattr(module, "Index", module.Series))):
            missing = value.isna() if library == "pandas" else [False] * len(value)
            return [None if null else each for each, null in zip(value.to_list(), missing, strict=True)]
    return None


def _members(values: Any) -> list[Value]:
    check_count(len(values), MAX_MEMBERS, "members of a list", "split it")
    if any(value is None for value in values):
        raise PredicateError("NULL in a list equals nothing: for NULL too, write text with OR ... IS NULL")
    return [from_python(value) for value in values]
