"""Predicates as Python objects: a mapping of columns to the values they must have, or to operators and values."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.base.arguments import short_repr
from dolmen.errors import PredicateError
from dolmen.format.schema import Field, Schema
from dolmen.predicate import bind, constants
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import find_column
from dolmen.predicate.constants import Domain, Op, Value
from dolmen.predicate.limits import MAX_MEMBERS, check_characters, check_count

LISTS = (list, tuple, set, frozenset, range)
"""The types that count as a list of values."""
_COMPARISONS: dict[str, Op] = {
    "=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="
}  # fmt: skip
OPERATORS = (
    *_COMPARISONS, "in", "not in", "between", "not between", "like", "not like", "ilike", "not ilike", "is", "is not"
)  # fmt: skip


def parse_mapping(source: Mapping[str, Any], schema: Schema) -> Predicate:
    """Binds a mapping of columns to values: see ``parse``. Raises PredicateError."""
    if not source:
        raise PredicateError("an empty mapping names no rows; to mean every row, write the text TRUE")
    conditions = []
    for name, value in source.items():
        if not isinstance(name, str):
            raise PredicateError(f"a mapping's keys are column names, not {short_repr(name)}")
        field = find_column(name, schema)
        try:
            conditions.append(_by_operators(field, value) if isinstance(value, Mapping) else _equal(field, value))
        except PredicateError as error:
            raise PredicateError(f"column {field.name!r}: {error.reason}") from None
    return bind.conjunction(conditions)


def _equal(field: Field, value: Any) -> Predicate:
    if value is None:
        return bind.is_null(field)
    if (listed := _listed(value)) is not None:
        return bind.one_of(field, _members(listed))
    return bind.compare("=", field, from_python(value))


def _by_operators(field: Field, conditions: Mapping[Any, Any]) -> Predicate:
    """The conjunction of the operators in ``{">=": 3, "<": 9}``."""
    if not conditions:
        raise PredicateError('an empty mapping says nothing; write {"column": {">=": 3}}')
    found = []
    for word, value in conditions.items():
        operator = " ".join(word.lower().split()) if isinstance(word, str) else None
        if operator not in OPERATORS:
            raise PredicateError(f"{short_repr(word)} is no operator; there are {', '.join(OPERATORS)}")
        positive = operator.removeprefix("not ")
        p = _operator(field, positive, value)
        found.append(p if positive == operator else bind.negation(p))
    return bind.conjunction(found)


def _operator(field: Field, operator: str, value: Any) -> Predicate:
    if operator in ("is", "is not"):
        if value is not None:
            raise PredicateError(f"{operator!r} takes None alone; use '=' or '<>'")
        return bind.is_null(field) if operator == "is" else bind.negation(bind.is_null(field))
    if value is None:
        raise PredicateError(f'nothing is {operator} NULL; write {{"is": None}} or {{"is not": None}}')
    if operator == "in":
        if (listed := _listed(value)) is None:
            raise PredicateError("'in' takes a list of values")
        return bind.one_of(field, _members(listed))
    if operator == "between":
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise PredicateError("'between' takes a list of two values: the least and the greatest")
        return bind.between(field, *map(from_python, value))
    if _listed(value) is not None:
        raise PredicateError(f"{operator!r} takes one value; 'in' takes a list")
    if operator in ("like", "ilike"):
        return bind.like(field, from_python(value), None, operator == "ilike")
    return bind.compare(_COMPARISONS[operator], field, from_python(value))


def _listed(value: Any) -> Collection[Any] | None:
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


def from_python(value: Any) -> Value:
    """The constant that a Python value means."""
    if isinstance(value, np.generic):
        value = _from_numpy(value)
    if getattr(value, "nanosecond", 0):
        raise PredicateError(f"{value!r} has digits beyond microseconds")
    match value:
        case bool():
            return Value(Domain.BOOLEAN, value)
        case int():
            return constants.exact(value)
        case float():
            # The digits that were written: 0.1 equals the decimal 0.1, and the float32 next to it.
            return constants.exact(Decimal(repr(value))) if value - value == 0 else Value(Domain.FLOAT64, value)
        case Decimal():
            if value.is_finite():
                return constants.exact(value)
            return Value(Domain.FLOAT64, math.nan if value.is_nan() else float(value))
        case str():
            return Value(Domain.TEXT, check_characters(str.__str__(value)))
        case bytes():
            return Value(Domain.BYTES, value)
        case datetime() if value == value:  # pandas' NaT is one too, and equals nothing
            epoch = datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
            return Value(Domain.ZONED if value.tzinfo else Domain.NAIVE, (value - epoch) // timedelta(microseconds=1))
        case date():
            return Value(Domain.DATE, value.toordinal() - date(1970, 1, 1).toordinal())
        case time() if value.tzinfo is None:
            us = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return Value(Domain.TIME, us)
    raise PredicateError(f"{short_repr(value)} ({type(value).__name__}) can't be compared with a column")


def _from_numpy(value: np.generic) -> Any:
    """The Python value of a numpy value; the value itself if Python has none that means the same."""
    if not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    moment = value.astype("datetime64[us]") if isinstance(value, np.datetime64) else None
    if moment is not None and moment == value and isinstance(moment.item(), datetime):
        return moment.item()
    return value
