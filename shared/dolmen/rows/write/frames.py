"""Rows of pandas and Polars frames: what these libraries keep in another type than a table does, and lose nothing by.

On top of the casts of ``lossless``, made for frames alone:

==========================  ==================================================================================
from                        to
==========================  ==================================================================================
float                       integer: when every value is an integer that the float holds exactly
naive timestamp             date: when every value is midnight
nothing but NULL            any type
==========================  ==================================================================================

So ``table.overwrite(table.scan().to_pandas())`` stores what was there, NULLs in columns of integers included, of which
pandas makes floats with NaN.

NaN in a pandas column of floats, or among objects, is NULL, as everywhere in pandas, which has no other NULL
there: reading a table whose floats hold NaN into pandas and writing it back makes them NULL. Columns that can tell
(``Float64``, ``double[pyarrow]``: ``to_pandas(types_mapper=pandas.ArrowDtype)``) and Polars frames keep both.

Anything else is refused, with the call of the library that helps, or made by ``cast=True`` (``lossy``).

Columns of Python objects as Arrow arrays, none of whose values is cut short.

pyarrow finds their type by looking at them. Where it cannot (maps as lists of pairs, integers beyond int64), the type
of the column that they are for is asked for; where it would drop what it has no room for (the time of day of a
datetime among dates, the nanoseconds of a Timestamp, the zone of a time), they are refused.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.types import short_type, type_of
from dolmen.rows.write.casts import Cast, FindCast, Misfit, lossless, shown

NOT_ARROW = pa.ArrowException, ArithmeticError, TypeError, ValueError
"""The exceptions that pyarrow raises for values that it has no type for."""

MOST_DIGITS = 400
"""Digits before or behind the point of a decimal that no type of numbers has room for, of floats either."""

_NANOSECONDS = "nanoseconds cannot be stored"
_MAX_EXACT = {16: 2**11, 32: 2**24, 64: 2**53}
_HINTS = {
    ("text", "number"): ("pandas.to_numeric(column)", ".cast(polars.Int64)"),
    ("text", "timestamp"): ("pandas.to_datetime(column, utc=True)", '.str.to_datetime(time_zone="UTC")'),
    ("text", "naive timestamp"): ("pandas.to_datetime(column)", ".str.to_datetime()"),
    ("text", "date"): ("pandas.to_datetime(column).dt.date", ".str.to_date()"),
    ("text", "bytes"): (".str.encode('utf-8')", ".cast(polars.Binary)"),
    ("number", "text"): (".astype('string')", ".cast(polars.String)"),
    ("number", "bool"): (".astype('boolean')", ".cast(polars.Boolean)"),
    ("number", "timestamp"): ("pandas.to_datetime(column, unit='s', utc=True)", "polars.from_epoch(column)"),
    ("bool", "number"): (".astype('Int64')", ".cast(polars.Int64)"),
    ("naive timestamp", "timestamp"): (".dt.tz_localize('UTC')", ".dt.replace_time_zone('UTC')"),
    ("timestamp", "naive timestamp"): (".dt.tz_convert('UTC').dt.tz_localize(None)", ".dt.replace_time_zone(None)"),
    ("timestamp", "date"): (".dt.tz_convert('UTC').dt.date", ".dt.date()"),
    ("naive timestamp", "date"): (".dt.date", ".dt.date()"),
    ("duration", "number"): (".dt.total_seconds()", ".dt.total_seconds()"),
}
_MICROSECONDS = ".dt.floor('us')", ".dt.truncate('1us')"


def array_of(values: Any, name: str, target: pa.DataType | None, *, nan_is_null: bool = False) -> Any:
    """The values of a column, a sequence or a pandas Series, as an array or a chunked one.

    Args:
        target: the type of the column that they are for, if it is known; the array may have another.
        nan_is_null: NaN and NaT mean NULL, as in pandas.

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
        reason = f"a value of type {own} stands below values of type {' and '.join(sorted(kinds))}{helps}"
    elif own == "Decimal" and not next(iter(values[fault : fault + 1])).is_finite():
        reason = "a decimal that is no number (NaN, Infinity) cannot be stored; NULL can"
    elif own == "Decimal" or isinstance(why, ArithmeticError):
        reason = "a number has too many digits"
    else:
        reason = f"pyarrow has no type for this and what stands above it: {why}"
    raise RowError(reason, row=fault + 1, column=name) from why


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


def frame_cast(data: Any) -> FindCast | None:
    """How casts are found of the columns of a frame; None: ``data`` is no frame."""
    if is_pandas(data):
        return _by_library(0)
    if is_polars(data):
        return _by_library(1)
    return None


def is_pandas(data: Any) -> bool:
    """Whether it is a pandas DataFrame; pandas need not be installed."""
    return "pandas" in sys.modules and isinstance(data, sys.modules["pandas"].DataFrame)


def is_polars(data: Any) -> bool:
    """Whether it is a Polars DataFrame; Polars need not be installed."""
    return "polars" in sys.modules and isinstance(data, sys.modules["polars"].DataFrame)


def values_of(data: Any, name: str, target: pa.DataType) -> tuple[Any, FindCast] | None:
    """The values of an Arrow or NumPy array, or of a Series, as an array, and how their casts are found.

    Args:
        name: the column that they are for.
        target: its type.

    Returns:
        None: it is none of these.

    Raises:
        InputError: an array of several dimensions.
        SchemaError, RowError: values that no column holds.
    """
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data, lossless
    if isinstance(data, np.ndarray):
        if data.ndim != 1:
            raise InputError(f"an array of {data.ndim} dimensions is no list of values")
        return array_of(data, name, target), _by_library(0)
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas and isinstance(data, (pandas.Series, pandas.Index, pandas.api.extensions.ExtensionArray)):
        return _column(pandas.Series(data), name, target), _by_library(0)
    if polars and isinstance(data, polars.Series):
        return data.to_arrow(), _by_library(1)
    return None


def _by_library(library: int) -> FindCast:
    return lambda source, target: _frame_cast(source, target, library)


def pandas_table(frame: Any, schema: pa.Schema | None) -> pa.Table:
    """The columns of a pandas frame, and its index if that has a name.

    Args:
        schema: of the table that they are for, if it is known; the columns may have other types.

    Raises:
        InputError: a column is there twice.
        RowError: values of a column are of no one type.
    """
    try:
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index()
    except ValueError as error:  # a column has the name already
        raise InputError(f"this DataFrame cannot be taken as Arrow data: {error}") from error
    names = [str(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"this DataFrame cannot be taken as Arrow data: column {twice[0]!r} is there twice")
    if len(frame) and not names:
        raise InputError(f"these {len(frame)} rows have no columns")
    wanted = {field.name.lower(): field.type for field in schema} if schema is not None else {}
    columns = [_column(frame.iloc[:, index], name, wanted.get(name.lower())) for index, name in enumerate(names)]
    return pa.table(columns, names)


def _column(values: Any, name: str, target: pa.DataType | None) -> Any:
    if hasattr(values.dtype, "sparse_type") or str(values.dtype).startswith("Sparse"):
        values = values.sparse.to_dense()
    if str(values.dtype).startswith("period"):
        raise SchemaError(f"column {name!r}: periods cannot be stored; .dt.to_timestamp() helps")
    if str(values.dtype).startswith("complex"):
        raise SchemaError(f"column {name!r}: complex numbers cannot be stored; store .real and .imag")
    array = array_of(values, name, target, nan_is_null=True)
    if len(array) == array.null_count and target is not None:
        return pa.nulls(len(array))  # pandas has no type for nothing
    return array


def _frame_cast(source: pa.DataType, target: pa.DataType, library: int) -> Cast | None:
    if t.is_floating(source) and t.is_integer(target):
        return _integral(target)
    if t.is_timestamp(source) and source.tz is None and t.is_date(target):
        return _with_hint(_midnight, _HINTS["naive timestamp", "date"][library])
    try:
        cast = lossless(source, target)
        finer = t.is_timestamp(source) and t.is_timestamp(target) and source.unit == "ns" != target.unit
        return _with_hint(cast, _MICROSECONDS[library]) if cast is not None and finer else cast
    except SchemaError as error:
        hint = _HINTS.get((_family(source), _family(target)))
        helps = f"{hint[library]} helps; or cast=True" if hint else "cast=True asks for it"
        raise SchemaError(
            f"values of type {short_type(source)} are never stored as {short_type(target)}; {helps}"
        ) from error


def _with_hint(cast: Cast, hint: str) -> Cast:
    def hinted(array: pa.Array) -> pa.Array:
        try:
            return cast(array)
        except Misfit as misfit:
            raise Misfit(f"{misfit}; {hint} helps, or cast=True" if str(misfit) else "") from None

    return hinted


def _integral(target: pa.DataType) -> Cast:
    def cast(array: pa.Array) -> pa.Array:
        exact = pc.less_equal(pc.abs(array), float(_MAX_EXACT[array.type.bit_width]))  # NaN is not
        if pc.all(exact).as_py() is not False:
            try:
                return array.cast(pa.float64()).cast(target)
            except pa.ArrowInvalid:
                pass  # decimal places, or out of range
        raise Misfit(_no_integer(array[0].as_py(), array.type, target) if len(array) == 1 else "")

    return cast


def _no_integer(value: float, source: pa.DataType, target: pa.DataType) -> str:
    """Why a float is none of an integer type's values, and what helps where something does."""
    width = target.bit_width
    least, beyond = (0, 2**width) if t.is_unsigned_integer(target) else (-(2 ** (width - 1)), 2 ** (width - 1))
    if value != value:
        return f"{shown(value)} cannot be stored as {target}; NULL can"
    if not least <= value < beyond:
        return f"{shown(value)} cannot be stored as {target}: it is out of its range"
    if value.is_integer():
        return f"{shown(value)} is an integer of which a {source} may have lost digits; cast=True stores it as {target}"
    return f"{shown(value)} cannot be stored as {target} without loss; .round() helps, or cast=True"


def _midnight(array: pa.Array) -> pa.Array:
    days = array.cast(pa.date32())
    if pc.all(pc.equal(days.cast(pa.timestamp("s")), array)).as_py() is False:
        raise Misfit(f"{shown(str(array[0]))} has a time of day" if len(array) == 1 else "")
    return days


def _family(kind: pa.DataType) -> str:
    if t.is_duration(kind) or t.is_float16(kind):  # types of frames alone
        return "duration" if t.is_duration(kind) else "number"
    found = type_of(kind)
    return str(kind) if found is None else found.family
