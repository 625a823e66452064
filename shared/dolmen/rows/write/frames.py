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

NaN in a pandas column of floats, or among objects, is NULL, as everywhere in pandas, which has no other word for NULL
there: reading a table whose floats hold NaN into pandas and writing it back makes them NULL. Columns that can tell
(``Float64``, ``double[pyarrow]``: ``to_pandas(types_mapper=pandas.ArrowDtype)``) and Polars frames keep both.

Anything else is refused, with the call of the library that helps, or made by ``cast=True`` (``lossy``).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import InputError, SchemaError
from dolmen.format.types import short_type, type_of
from dolmen.rows.write.lossless import Cast, FindCast, Misfit, lossless, shown
from dolmen.rows.write.python_values import array_of

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
    columns = [_column(frame.iloc[:, place], name, wanted.get(name.lower())) for place, name in enumerate(names)]
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
