"""Predicates as Python objects: a mapping of columns to the values they must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from dolmen.errors import PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate import bind, constants
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import find_column
from dolmen.predicate.constants import Value
from dolmen.predicate.domain import Domain
from dolmen.predicate.limits import MAX_MEMBERS, check_characters, check_count, shown


def parse_mapping(source: Mapping[str, Any], schema: Schema) -> Predicate:
    """See ``parse``. Raises PredicateError."""
    if not source:
        raise PredicateError("an empty mapping names no rows; to mean every row, write the text TRUE")
    conditions = []
    for name, value in source.items():
        if not isinstance(name, str):
            raise PredicateError(f"a mapping's keys are column names, not {shown(name)}")
        field = find_column(name, schema)
        try:
            if value is None:
                conditions.append(bind.is_null(field))
            elif isinstance(value, (list, tuple, set, frozenset, range)):
                check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
                if any(member is None for member in value):
                    raise PredicateError("NULL in a list equals nothing: for NULL too, write text with OR ... IS NULL")
                conditions.append(bind.one_of(field, [_from_python(member) for member in value]))
            else:
                conditions.append(bind.compare("=", field, _from_python(value)))
        except PredicateError as error:
            raise PredicateError(f"column {field.name!r}: {error.reason}") from None
    return bind.conjunction(conditions)


def _from_python(value: Any) -> Value:
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
            return Value(Domain.TEXT, check_characters(value))
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
    raise PredicateError(f"{shown(value)} ({type(value).__name__}) can't be compared with a column")


def _from_numpy(value: np.generic) -> Any:
    """The Python value of one of numpy's; as it is where there is none that means the same."""
    if not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    moment = value.astype("datetime64[us]") if isinstance(value, np.datetime64) else None
    if moment is not None and moment == value and isinstance(moment.item(), datetime):
        return moment.item()
    return value
