"""Columns of Python objects as Arrow arrays, none of whose values is cut short.

pyarrow finds their type by looking at them. Where it cannot (maps as lists of pairs, integers beyond int64), the type
of the column that they are for is asked for; where it would drop what it has no room for (the time of day of a
datetime among dates, the nanoseconds of a Timestamp, the zone of a time), they are refused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import RowError

NOT_ARROW = pa.ArrowException, ArithmeticError, TypeError, ValueError
"""The exceptions that pyarrow raises for values that it has no type for."""
MOST_DIGITS = 400
"""Digits before or behind the point of a decimal that no type of numbers has room for, of floats either."""


def array_of(values: Any, name: str, target: pa.DataType | None, *, nan_is_null: bool = False) -> Any:
    """The values of a column, a sequence or a pandas Series, as an array or a chunked one.

    Args:
        target: the type of the column that they are for, if it is known; the array may have another.
        nan_is_null: NaN and NaT are NULL where they stand for it, as in pandas.

    Raises:
        RowError: pyarrow has no type for them, or would drop a part of one.
    """
    try:
        array = pa.array(values, from_pandas=nan_is_null)
    except NOT_ARROW as error:
        array = _as_target(values, name, target, error, nan_is_null=nan_is_null)
    _check_whole(values, array.type, name)
    return array


def _as_target(values: Any, name: str, target: pa.DataType | None, why: Exception, *, nan_is_null: bool) -> Any:
    if target is not None and not has_endless_decimal(values):
        try:
            made = pa.array(values, type=target, from_pandas=nan_is_null)
        except NOT_ARROW as error:
            why = error if t.is_nested(target) else why
        else:
            _check_kept(values, target, name)
            return made
    fault = _first_fault(values, nan_is_null=nan_is_null)
    kinds = {type(value).__name__ for value in values[:fault] if value is not None and value == value}  # NaN is not
    [own] = {type(value).__name__ for value in values[fault : fault + 1]}
    if kinds and own not in kinds:
        text = target is not None and t.is_string(target)
        helps = "; .astype('string') helps" if text and nan_is_null else ""
        told = f"a value of type {own} stands below values of type {' and '.join(sorted(kinds))}{helps}"
    elif own == "Decimal" and not next(iter(values[fault : fault + 1])).is_finite():
        told = "a decimal that is no number (NaN, Infinity) cannot be stored; NULL can"
    elif own == "Decimal" or isinstance(why, ArithmeticError):
        told = "a number has too many digits"
    else:
        told = f"pyarrow has no type for this and what stands above it: {why}"
    raise RowError(told, row=fault + 1, column=name) from why


def _check_kept(values: Iterable[Any], target: pa.DataType, name: str) -> None:
    """Raises RowError for the first value of which pyarrow, asked for this type, has left something out."""
    for row, value in enumerate(values, 1):
        if (lost := _lost(value, target)) is not None:
            raise RowError(lost, row=row, column=name)


def _lost(value: Any, kind: pa.DataType) -> str | None:
    """Says which part of a value pyarrow would silently drop in an array of this type; None if none."""
    inner: list[tuple[Any, pa.DataType]] = []
    if isinstance(value, Decimal | Real) and t.is_integer(kind) and value % 1 != 0:
        return f"a number with a fraction stands among values of type {kind}"
    if (lost := _lost_time(value, kind)) is not None:
        return lost
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) or not t.is_nested(kind):
        return None
    if t.is_struct(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        fields = {field.name: field.type for field in kind}
        for key, member in pairs:
            if key not in fields:
                return "a key that the struct has no field for"
            inner.append((member, fields[key]))
    elif t.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        inner = [part for key, member in pairs for part in ((key, kind.key_type), (member, kind.item_type))]
    else:
        inner = [(member, kind.value_type) for member in value]
    return next((lost for part, its in inner if (lost := _lost(part, its)) is not None), None)


def has_endless_decimal(values: Any) -> bool:
    """Whether a decimal stands among values that takes pyarrow minutes, or takes the process down with it."""
    if isinstance(values, Decimal):
        return values.is_finite() and abs(values.adjusted()) > MOST_DIGITS
    if isinstance(values, Mapping):
        values = values.values()
    return (
        not isinstance(values, (str, bytes)) and isinstance(values, Iterable) and any(map(has_endless_decimal, values))
    )


def _first_fault(values: Any, *, nan_is_null: bool) -> int:
    """The number of values at the beginning that can be converted."""
    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            pa.array(values[:middle], from_pandas=nan_is_null)
            good = middle
        except NOT_ARROW:
            bad = middle
    return good


def _check_whole(values: Sequence[Any], made: pa.DataType, name: str) -> None:
    """Raises RowError for the first value of which the array holds a part."""
    if (hasattr(values, "dtype") and values.dtype != object) or not (t.is_temporal(made) or t.is_binary(made)):
        return
    for row, value in enumerate(values, 1):
        if (lost := _lost_time(value, made)) is not None:
            helps = "; .dt.floor('us') cuts them off" if lost == _NANOSECONDS else ""
            raise RowError(f"{lost}{helps}", row=row, column=name)
        if t.is_binary(made) and isinstance(value, str):
            raise RowError("text stands among bytes: encode it", row=row, column=name)


_NANOSECONDS = "nanoseconds cannot be stored"


def _lost_time(value: Any, kind: pa.DataType) -> str | None:
    """Says which part of a date or time pyarrow would silently drop, or take for UTC; None if none."""
    if isinstance(value, dt.datetime) and value != value:  # NaT
        return None
    if t.is_timestamp(kind) and getattr(value, "nanosecond", 0):
        return _NANOSECONDS
    if isinstance(value, dt.datetime):
        if t.is_date(kind) and value.timetz() != dt.time():
            return "a datetime with a time of day stands among dates"
        if t.is_timestamp(kind) and (value.tzinfo is None) != (kind.tz is None):
            return "times with a zone stand among times without: give all of them one, or none"
    if isinstance(value, dt.time) and value.tzinfo is not None:
        return "a time of day with a zone cannot be stored: leave the zone out"
    return None
