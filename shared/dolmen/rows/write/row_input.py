"""Turns rows in any form, data frames among them, into a stream of Arrow record batches.

On top of ``lossless_cast``, columns of frames may be cast from float to integer if every value is an integer that the
float holds exactly, and from a naive timestamp to a date if every value is midnight. So
``table.overwrite(table.scan().to_pandas())`` stores the same rows again.

NaN in a pandas column of floats, or among objects, is NULL, because pandas has no other NULL there. Columns that
distinguish them (``Float64``, ``double[pyarrow]``) and Polars frames keep both.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.errors import Error, InputError, RowError, SchemaError, short_repr
from dolmen.format.del_object import Keys, check_not_null, distinct_keys, key_tuples, keys_from_arrow
from dolmen.format.schema import Field, check_nesting, readable_names
from dolmen.format.types import short_type, type_of
from dolmen.rows.write.casts import Cast, FindCast, Misfit, find_refused, lossless_cast, short_value

BATCH_ROWS = 65_536
_ACCEPTED = (
    "a pyarrow Table, RecordBatch, RecordBatchReader, dataset or scanner, an iterable of record batches, "
    "a pandas or Polars DataFrame, a DuckDB relation, a dict of columns, a list of dicts, "
    "or anything with __arrow_c_stream__"
)

PART_KEYS, PART_BYTES = 1_000_000, 128 * MIB
"""The most keys, and Arrow memory, of a part of an upsert. A part stays in memory: a later row may replace any of its
rows."""

_FOLD_ROWS, _FOLD_BYTES = PART_KEYS, PART_BYTES // 4  # replaced rows are dropped whenever this much has been added


class RowStream(Struct, frozen=True):
    """Rows that are a stream already; ``find`` returns the casts of the frame that they were, if they were one."""

    reader: pa.RecordBatchReader
    find: FindCast | None

    @classmethod
    def of(cls, data: Any, schema: pa.Schema) -> RowStream:
        """Takes rows as ``as_batches`` does, for a table with these columns."""
        return cls(as_batches(data, schema), frame_cast(data))

    def without(self, names: Collection[str]) -> RowStream:
        """The same rows without some columns."""
        if not names:
            return self
        kept = [index for index, name in enumerate(self.reader.schema.names) if name not in names]
        schema = pa.schema([self.reader.schema.field(index) for index in kept])
        batches = (batch.select(kept) for batch in self.reader)
        return RowStream(pa.RecordBatchReader.from_batches(schema, batches), self.find)


def as_batches(data: Any, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
    """The rows of ``data`` as a stream.

    An index of pandas with a name is a column, one without is dropped. A key that a dict lacks is NULL. ``schema``: the
    target table's, if known: gives types where Python objects leave them open, and the columns when ``data`` has
    neither rows nor columns, such as ``[]``. Raises InputError: it holds no rows, or Arrow can't find their types;
    SchemaError: a column is nested too deeply.
    """
    try:
        reader = _reader(data, schema)
        with readable_names():
            for field in reader.schema:
                try:
                    check_nesting(field.type)
                except SchemaError as error:
                    raise SchemaError(f"column {field.name!r}: {error}", column=field.name) from None
        if len(reader.schema) == 0:
            return pa.RecordBatchReader.from_batches(schema or reader.schema, [])
        return reader
    except Error:  # some are ValueErrors, too
        raise
    except NOT_ARROW as error:
        raise InputError(f"these rows cannot be taken as Arrow data: {error}") from error


def _reader(data: Any, schema: pa.Schema | None) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, RowStream):
        return data.reader
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return _from_table(data)
    if _is(data, "pyarrow.dataset", "Dataset"):
        return data.scanner().to_reader()
    if _is(data, "pyarrow.dataset", "Scanner"):
        return data.to_reader()
    if is_pandas(data):
        return _from_table(pandas_table(data, schema))
    if _is(data, "duckdb", "DuckDBPyRelation"):  # a stream; its __arrow_c_stream__ takes the whole result first
        stream = getattr(data, "to_arrow_reader", None) or data.fetch_record_batch  # DuckDB before 1.5
        return stream(BATCH_ROWS)
    if _is(data, "polars", "LazyFrame"):  # collected in batches, by Polars' streaming engine
        schema_of_frame = data.collect_schema().to_frame().to_arrow().schema
        tables = (frame.to_arrow() for frame in data.collect_batches(chunk_size=BATCH_ROWS))
        batches = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(schema_of_frame, batches)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return _reader(pa.record_batch(data), schema)
    if isinstance(data, dict):
        return _from_table(_from_columns(data, schema))
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        return _from_items(data, schema)
    hint = " (call .collect() first)" if hasattr(data, "collect") else ""
    if isinstance(data, str):
        hint = " (files are read by `dolmen append`, or by pyarrow.dataset)"
    raise InputError(f"{type(data).__name__} does not hold rows; give {_ACCEPTED}{hint}")


def _from_table(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatchReader:
    _check_columns(rows.num_rows, rows.num_columns)
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.RecordBatchReader.from_batches(rows.schema, batches)


def _check_columns(rows: int, columns: int) -> None:
    if rows and not columns:  # pyarrow would forget that there are rows
        raise InputError(f"these {rows} rows have no columns")


def _from_items(items: Iterable[Any], schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Reads an iterable: record batches or tables one at a time, dicts all at once."""
    try:
        iterator = iter(items)
    except TypeError as error:  # a NumPy array without dimensions
        raise InputError(f"{type(items).__name__} holds no rows; give {_ACCEPTED}") from error
    first = next(iterator, None)
    if first is None:
        return pa.RecordBatchReader.from_batches(pa.schema([]), [])
    if isinstance(first, dict):
        return _from_table(_from_dicts([first, *iterator], schema))
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        return pa.RecordBatchReader.from_batches(first.schema, _flatten(chain([first], iterator)))
    raise InputError(f"{type(items).__name__} of {type(first).__name__} holds no rows; give {_ACCEPTED}")


def _flatten(items: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    schema = None
    for index, item in enumerate(items):
        if not isinstance(item, (pa.RecordBatch, pa.Table)):
            raise InputError(f"item {index} is a {type(item).__name__}, those before it are record batches")
        schema = schema or item.schema
        if item.schema != schema:
            raise InputError(f"item {index} has another schema than those before it")
        yield from item.to_batches() if isinstance(item, pa.Table) else [item]


def _from_dicts(rows: list[Any], schema: pa.Schema | None) -> pa.Table:
    names: dict[str, None] = {}
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"item {index} is a {type(row).__name__}, those before it are dicts")
        names.update(dict.fromkeys(row))
    _check_columns(len(rows), len(names))
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def _from_columns(columns: dict[Any, Any], schema: pa.Schema | None) -> pa.Table:
    arrays, types = {}, {field.name.lower(): field.type for field in schema or ()}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InputError(f"column name {short_repr(name)} is not a string")
        is_arrow = isinstance(values, (pa.Array, pa.ChunkedArray))
        arrays[name] = values if is_arrow else array_of(values, name, types.get(name.lower()))
    return pa.table(arrays)


def distinct_parts(batches: Iterable[pa.RecordBatch], columns: tuple[Field, ...]) -> Iterator[tuple[pa.Table, Keys]]:
    """Rows in parts, each without the rows that a later one of the part with the same key replaces, and its keys.

    A part has about a million keys, or 128 MB. Rows keep their order, so the last row of a key is in the last part.

    Raises:
        InputError: a float or nested column, which can't be a key.
        RowError: a NULL in a key; ``row`` counts from 1.
    """
    no_rows = pa.schema([field.to_arrow() for field in columns]).empty_table()
    latest, keys = no_rows, keys_from_arrow(no_rows, columns)  # refuses what can't be a key, whatever the rows
    added: list[pa.RecordBatch] = []
    rows_before = added_rows = added_bytes = 0
    for batch in batches:
        check_not_null(batch, columns, rows_before)
        added.append(batch)
        rows_before += batch.num_rows
        added_rows += batch.num_rows
        added_bytes += batch.nbytes
        if added_bytes > _FOLD_BYTES or added_rows > _FOLD_ROWS:
            latest, keys = _fold(latest, added, columns)
            added, added_rows, added_bytes = [], 0, 0
            if is_whole_part(latest):
                yield latest, keys
                latest = no_rows
    if added:
        latest, keys = _fold(latest, added, columns)
    if latest.num_rows:
        yield latest, keys


def is_whole_part(rows: pa.Table) -> bool:
    """Whether further rows belong to another part of an upsert."""
    return rows.num_rows > PART_KEYS or bool(rows.nbytes > PART_BYTES)


def _fold(latest: pa.Table, added: list[pa.RecordBatch], columns: tuple[Field, ...]) -> tuple[pa.Table, Keys]:
    """The last row of each key among both, in the order of the rows, and the keys."""
    rows = pa.Table.from_batches([*(latest.to_batches() if latest.num_rows else ()), *added])
    keys, last = distinct_keys(key_tuples(rows, columns))
    if len(last) < rows.num_rows:
        rows = rows.take(pa.array(np.sort(last)))
    return rows, keys


NOT_ARROW = pa.ArrowException, ArithmeticError, TypeError, ValueError
"""The exceptions that pyarrow raises for values that it has no type for."""

MOST_DIGITS = 400  # decimals with more digits before or after the point fit no type of numbers, not even floats

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

    ``target`` is the type of their column, if it is known. With ``nan_is_null``, NaN and NaT mean NULL, as in pandas.
    Raises RowError if pyarrow has no type for them, or would drop a part of one.
    """
    try:
        array = pa.array(values, from_pandas=nan_is_null)
    except NOT_ARROW as error:
        array = _convert(values, name, target, error, nan_is_null=nan_is_null)
    _check_whole(values, array.type, name)
    return array


def _convert(values: Any, name: str, target: pa.DataType | None, why: Exception, *, nan_is_null: bool) -> Any:
    if target is not None and not has_endless_decimal(values):
        try:
            array = pa.array(values, type=target, from_pandas=nan_is_null)
        except NOT_ARROW as error:
            why = error if t.is_nested(target) else why
        else:
            for row, value in enumerate(values, 1):
                if (loss := _loss(value, target)) is not None:
                    raise RowError(loss, row=row, column=name)
            return array
    index = find_refused(len(values), lambda n: pa.array(values[:n], from_pandas=nan_is_null), NOT_ARROW)
    kinds = {type(value).__name__ for value in values[:index] if value is not None and value == value}  # NaN is not
    [refused] = values[index : index + 1]
    kind = type(refused).__name__
    if kinds and kind not in kinds:
        text = target is not None and t.is_string(target)
        helps = "; .astype('string') helps" if text and nan_is_null else ""
        reason = f"a value of type {kind} is below values of type {' and '.join(sorted(kinds))}{helps}"
    elif kind == "Decimal" and not refused.is_finite():
        reason = "a decimal that is not a number (NaN, Infinity) cannot be stored; NULL can"
    elif kind == "Decimal" or isinstance(why, ArithmeticError):
        reason = "a number has too many digits"
    else:
        reason = f"pyarrow has no type for this and the values above it: {why}"
    raise RowError(reason, row=index + 1, column=name) from why


def _loss(value: Any, kind: pa.DataType) -> str | None:
    """The part of a value that pyarrow would silently drop in an array of this type; None if it drops nothing."""
    inner: list[tuple[Any, pa.DataType]] = []
    if isinstance(value, Decimal | Real) and t.is_integer(kind) and value % 1 != 0:
        return f"a number with a fraction is among values of type {kind}"
    if (loss := _time_loss(value, kind)) is not None:
        return loss
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
    return next((loss for part, part_kind in inner if (loss := _loss(part, part_kind)) is not None), None)


def has_endless_decimal(values: Any) -> bool:
    """True if a value is a decimal on which pyarrow takes minutes, or crashes the process."""
    if isinstance(values, Decimal):
        return values.is_finite() and abs(values.adjusted()) > MOST_DIGITS
    if isinstance(values, Mapping):
        values = values.values()
    return (
        not isinstance(values, (str, bytes)) and isinstance(values, Iterable) and any(map(has_endless_decimal, values))
    )


def _check_whole(values: Sequence[Any], kind: pa.DataType, name: str) -> None:
    """Raises RowError for the first value that an array of this type would truncate."""
    if (hasattr(values, "dtype") and values.dtype != object) or not (t.is_temporal(kind) or t.is_binary(kind)):
        return
    for row, value in enumerate(values, 1):
        if (loss := _time_loss(value, kind)) is not None:
            helps = "; .dt.floor('us') cuts them off" if loss == _NANOSECONDS else ""
            raise RowError(f"{loss}{helps}", row=row, column=name)
        if t.is_binary(kind) and isinstance(value, str):
            raise RowError("text is among bytes: encode it", row=row, column=name)


def _time_loss(value: Any, kind: pa.DataType) -> str | None:
    """The part of a date or time that pyarrow would silently drop, or take for UTC; None if it drops nothing."""
    if isinstance(value, dt.datetime) and value != value:  # NaT
        return None
    if t.is_timestamp(kind) and getattr(value, "nanosecond", 0):
        return _NANOSECONDS
    if isinstance(value, dt.datetime):
        if t.is_date(kind) and value.timetz() != dt.time():
            return "a datetime with a time of day is among dates"
        if t.is_timestamp(kind) and (value.tzinfo is None) != (kind.tz is None):
            return "times with a zone are among times without: give all of them one, or none"
    if isinstance(value, dt.time) and value.tzinfo is not None:
        return "a time of day with a zone cannot be stored: leave the zone out"
    return None


def frame_cast(data: Any) -> FindCast | None:
    """Finds the casts of the columns of a frame; None if ``data`` is not a frame."""
    if isinstance(data, RowStream):
        return data.find
    return _find_cast(0) if is_pandas(data) else _find_cast(1) if is_polars(data) else None


def is_repeatable(data: Any) -> bool:
    """True if rows or keys can be read twice: values, Arrow data in memory and frames, but no reader or iterator."""
    repeatable = (str, bytes, Mapping, Sequence, Set, pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, np.ndarray)
    return data is None or isinstance(data, repeatable) or type(data).__name__ in ("DataFrame", "LazyFrame", "Series")


def is_pandas(data: Any) -> bool:
    """True for a pandas DataFrame; pandas need not be installed."""
    return _is(data, "pandas", "DataFrame")


def is_polars(data: Any) -> bool:
    """True for a Polars DataFrame; Polars need not be installed."""
    return _is(data, "polars", "DataFrame")


def _is(data: Any, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(data, getattr(sys.modules[module], name))


def values_of(data: Any, name: str, target: pa.DataType) -> tuple[Any, FindCast] | None:
    """The values of an Arrow or NumPy array, or of a Series, and a function that finds their casts; None for others.

    Raises InputError for an array of several dimensions; SchemaError, RowError for values that no column holds.
    """
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data, lossless_cast
    if isinstance(data, np.ndarray):
        if data.ndim != 1:
            raise InputError(f"an array of {data.ndim} dimensions is not a list of values")
        return array_of(data, name, target), _find_cast(0)
    pandas = sys.modules.get("pandas")
    if pandas and isinstance(data, (pandas.Series, pandas.Index, pandas.api.extensions.ExtensionArray)):
        return _column(pandas.Series(data), name, target), _find_cast(0)
    if _is(data, "polars", "Series"):
        return data.to_arrow(), _find_cast(1)
    return None


def _find_cast(library: int) -> FindCast:
    return lambda source, target: _frame_cast(source, target, library)


def pandas_table(frame: Any, schema: pa.Schema | None) -> pa.Table:
    """The columns of a pandas frame, and its index if that has a name; ``schema`` is the table's, if it is known.

    Raises InputError if a column occurs twice, RowError if the values of a column have no common type.
    """
    try:
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index()
    except ValueError as error:  # a column has the name already
        raise InputError(f"this DataFrame cannot be taken as Arrow data: {error}") from error
    names = [str(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"this DataFrame cannot be taken as Arrow data: column {twice[0]!r} occurs twice")
    _check_columns(len(frame), len(names))
    types = {field.name.lower(): field.type for field in schema or ()}
    columns = [_column(frame.iloc[:, index], name, types.get(name.lower())) for index, name in enumerate(names)]
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
        return pa.nulls(len(array))  # whatever type pandas gives a column without values
    return array


def _frame_cast(source: pa.DataType, target: pa.DataType, library: int) -> Cast | None:
    if t.is_floating(source) and t.is_integer(target):
        return _integral(target)
    if t.is_timestamp(source) and source.tz is None and t.is_date(target):
        return _with_hint(_midnight, _HINTS["naive timestamp", "date"][library])
    try:
        cast = lossless_cast(source, target)
        is_finer = t.is_timestamp(source) and t.is_timestamp(target) and source.unit == "ns" != target.unit
        return _with_hint(cast, _MICROSECONDS[library]) if cast is not None and is_finer else cast
    except SchemaError as error:
        hint = _HINTS.get((_family(source), _family(target)))
        helps = f"{hint[library]} helps; or cast=True" if hint else "cast=True asks for it"
        raise SchemaError(
            f"values of type {short_type(source)} are never stored as {short_type(target)}; {helps}"
        ) from error


def _with_hint(cast: Cast, hint: str) -> Cast:
    def cast_or_hint(array: pa.Array) -> pa.Array:
        try:
            return cast(array)
        except Misfit as misfit:
            raise Misfit(f"{misfit}; {hint} helps, or cast=True" if str(misfit) else "") from None

    return cast_or_hint


def _integral(target: pa.DataType) -> Cast:
    def cast(array: pa.Array) -> pa.Array:
        exact = pc.less_equal(pc.abs(array), float(_MAX_EXACT[array.type.bit_width]))  # NaN is not
        if pc.all(exact).as_py() is not False:
            try:
                return array.cast(pa.float64()).cast(target)
            except pa.ArrowInvalid:
                pass  # decimal places, or out of range
        raise Misfit(_not_integer_reason(array[0].as_py(), array.type, target) if len(array) == 1 else "")

    return cast


def _not_integer_reason(value: float, source: pa.DataType, target: pa.DataType) -> str:
    width = target.bit_width
    least, beyond = (0, 2**width) if t.is_unsigned_integer(target) else (-(2 ** (width - 1)), 2 ** (width - 1))
    text = short_value(value)
    if value != value:
        return f"{text} cannot be stored as {target}; NULL can"
    if not least <= value < beyond:
        return f"{text} cannot be stored as {target}: it is out of its range"
    if value.is_integer():
        return f"{text} is an integer of which a {source} may have lost digits; cast=True stores it as {target}"
    return f"{text} cannot be stored as {target} without loss; .round() helps, or cast=True"


def _midnight(array: pa.Array) -> pa.Array:
    days = array.cast(pa.date32())
    if pc.all(pc.equal(days.cast(pa.timestamp("s")), array)).as_py() is False:
        raise Misfit(f"{short_value(str(array[0]))} has a time of day" if len(array) == 1 else "")
    return days


def _family(kind: pa.DataType) -> str:
    if t.is_duration(kind) or t.is_float16(kind):  # only frames have these
        return "duration" if t.is_duration(kind) else "number"
    found = type_of(kind)
    return str(kind) if found is None else found.family
