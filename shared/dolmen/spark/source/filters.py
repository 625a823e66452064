"""Turns Spark's pushed filters into dolmen predicates with the same truth for every row.

Spark has cast a filter's value to the column's own type before it pushes it, so that both sides have one domain.
What dolmen and Spark do not understand alike is not translated, and Spark evaluates it: IN over floats, which Spark
compares by their bits, and everything about nested columns.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as filters

from dolmen.errors import InputError
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.predicate import Predicate, bind
from dolmen.predicate.constants import NULL, Value
from dolmen.predicate.domain import Domain, Op, domain_of

_OPS: dict[str, Op] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}
_ESCAPE = "\\"


def to_predicate(filter_: Any, schema: Schema) -> Predicate | None:
    """The predicate; None for a filter that is left to Spark."""
    name = type(filter_).__name__
    if name == "Not":
        inner = to_predicate(filter_.child, schema)
        return None if inner is None else bind.negation(inner)
    if not isinstance(filter_, filters.Filter) or len(filter_.attribute) != 1:
        return None
    field = next((field for field in schema.fields if field.name == filter_.attribute[0]), None)
    if field is None or is_nested(field.arrow_type):
        return None
    try:
        return _of_column(name, field, filter_)
    except InputError:  # a value that the column can't be compared with: what Spark makes of it is Spark's
        return None


def _of_column(name: str, field: Field, filter_: Any) -> Predicate | None:
    if name == "IsNull":
        return bind.is_null(field)
    if name == "IsNotNull":
        return bind.negation(bind.is_null(field))
    if name in _PATTERNS:
        escaped = "".join(_ESCAPE + c if c in "%_" + _ESCAPE else c for c in filter_.value)
        return bind.like(field, Value(Domain.TEXT, _PATTERNS[name].format(escaped)), _ESCAPE, False)
    if name == "In":
        if pa.types.is_floating(field.arrow_type):
            return None
        values = [_value(each, field) for each in filter_.value]
        return None if None in values else bind.one_of(field, [value for value in values if value is not None])
    value = _value(filter_.value, field)
    if value is None:
        return None
    if name == "EqualNullSafe":
        return bind.negation(bind.distinct_from(field, value))
    return bind.compare(_OPS[name], field, value) if name in _OPS else None


def _value(value: Any, field: Field) -> Value | None:
    """Spark's value as a constant of the column's own domain; None if it is of another."""
    domain = domain_of(field.arrow_type)
    match value:
        case None:
            return NULL
        case bool():
            found = Value(Domain.BOOLEAN, value)
        case int() | Decimal():
            found = Value(Domain.EXACT, value)
        case float():  # of a float column it is the float, told in full
            return Value(Domain.FLOAT64, value) if domain and domain.is_float else None
        case str():
            found = Value(Domain.TEXT, value)
        case bytes() | bytearray():
            found = Value(Domain.BYTES, bytes(value))
        case datetime():
            epoch = datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
            kind = Domain.ZONED if value.tzinfo else Domain.NAIVE
            found = Value(kind, (value - epoch) // timedelta(microseconds=1))
        case date():
            found = Value(Domain.DATE, value.toordinal() - date(1970, 1, 1).toordinal())
        case _:
            return None
    return found if found.kind is domain else None
