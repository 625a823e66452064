"""Turns any holder of rows into a stream of Arrow record batches, and leaves out rows that later ones replace."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base import arguments
from dolmen.base.units import MIB
from dolmen.errors import Error, InputError, LimitError, RowError, SchemaError
from dolmen.format.delete_object import Keys, distinct_keys, key_tuples, keys_from_arrow
from dolmen.format.schema import Field, check_nesting, readable_names
from dolmen.rows.write.frames import NOT_ARROW, array_of, is_pandas, pandas_table

BATCH_ROWS = 65_536
_TAKEN = (
    "a pyarrow Table, RecordBatch, RecordBatchReader, dataset or scanner, an iterable of record batches, "
    "a pandas or Polars DataFrame, a DuckDB relation, a dict of columns, a list of dicts, "
    "or anything with __arrow_c_stream__"
)


MAX_KEYS = 1_000_000

MAX_BYTES = 256 * MIB
"""An upsert holds its rows in memory, since a later row may replace any of them: this much Arrow memory at most."""

#: Replaced rows are dropped whenever so much has been added.
_FOLD_ROWS = MAX_KEYS
_FOLD_BYTES = MAX_BYTES // 4


def as_batches(data: Any, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
    """The rows of ``data`` as a stream.

    pandas: NaN and NaT mean NULL, as everywhere in pandas (see ``frames``); an index with a name is a column, one
    without is dropped. List of dicts: a missing key is NULL.

    Args:
        schema: of the table that the rows are for, if it is known: types of Python objects that cannot be told from
            them, and of the stream when ``data`` has neither rows nor columns, as ``[]``.

    Raises:
        InputError: it is nothing that holds rows, or Arrow can't tell its types.
        SchemaError: a column is nested too deeply.
    """
    try:
        reader = _reader(data, schema)
        _check_nesting(reader.schema)
        if len(reader.schema) == 0:
            return pa.RecordBatchReader.from_batches(schema or reader.schema, [])
        return reader
    except Error:  # some are ValueErrors, too
        raise
    except NOT_ARROW as error:
        raise InputError(f"these rows cannot be taken as Arrow data: {error}") from error


def _check_nesting(schema: pa.Schema) -> None:
    """Raises SchemaError for the first column that is nested too deeply."""
    with readable_names():
        for field in schema:
            try:
                check_nesting(field.type)
            except SchemaError as error:
                raise SchemaError(f"column {field.name!r}: {error}", column=field.name) from None


def _reader(data: Any, schema: pa.Schema | None) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
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
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return _reader(pa.record_batch(data), schema)
    if isinstance(data, dict):
        return _from_table(_from_columns(data, schema))
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        return _from_items(data, schema)
    raise InputError(f"{type(data).__name__} is nothing that rows can be taken from; give {_TAKEN}{_hint(data)}")


def _from_table(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatchReader:
    _check_columns(rows.num_rows, rows.num_columns)
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.RecordBatchReader.from_batches(rows.schema, batches)


def _check_columns(rows: int, columns: int) -> None:
    if rows and not columns:  # pyarrow would forget that there are rows
        raise InputError(f"these {rows} rows have no columns")


def _is(data: Any, module: str, name: str) -> bool:
    """Whether it is an instance of a class of a library that need not be installed."""
    return module in sys.modules and isinstance(data, getattr(sys.modules[module], name))


def _hint(data: Any) -> str:
    if isinstance(data, str):
        return " (files are read by `dolmen append`, or by pyarrow.dataset)"
    return " (call .collect() first)" if hasattr(data, "collect") else ""


def _from_items(items: Iterable[Any], schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Reads an iterable: record batches or tables one at a time, dicts all at once."""
    try:
        iterator = iter(items)
    except TypeError as error:  # a NumPy array without dimensions
        raise InputError(f"{type(items).__name__} holds no rows; give {_TAKEN}") from error
    first = next(iterator, None)
    if first is None:
        return pa.RecordBatchReader.from_batches(pa.schema([]), [])
    if isinstance(first, dict):
        return _from_table(_from_dicts([first, *iterator], schema))
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        return pa.RecordBatchReader.from_batches(first.schema, _flat(chain([first], iterator)))
    raise InputError(f"{type(items).__name__} of {type(first).__name__} holds no rows; give {_TAKEN}")


def _flat(items: Iterator[Any]) -> Iterator[pa.RecordBatch]:
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
    arrays, wanted = {}, {field.name.lower(): field.type for field in schema or ()}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise InputError(f"column name {arguments.short_repr(name)} is no string")
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            arrays[name] = values
        else:
            arrays[name] = array_of(values, name, wanted.get(name.lower()))
    return pa.table(arrays)


def dedupe_last(batches: Iterable[pa.RecordBatch], columns: tuple[Field, ...]) -> tuple[Iterator[pa.RecordBatch], Keys]:
    """The rows without those that a later row of the same key replaces, in their order, and their keys.

    Args:
        batches: taken whole, before this returns.
        columns: the key.

    Raises:
        InputError: a float or nested column, which can't be a key.
        RowError: a NULL in a key; ``row`` counts from 1.
        LimitError: more than 1,000,000 keys, or 256 MB of rows.
    """
    no_rows = pa.schema([field.to_arrow() for field in columns]).empty_table()
    kept, keys = no_rows, keys_from_arrow(no_rows, columns)  # refuses what can't be a key, whatever the rows
    added: list[pa.RecordBatch] = []
    seen = added_rows = added_bytes = 0
    for batch in batches:
        check_not_null(batch, columns, seen)
        added.append(batch)
        seen += batch.num_rows
        added_rows += batch.num_rows
        added_bytes += batch.nbytes
        if added_bytes > _FOLD_BYTES or added_rows > _FOLD_ROWS:
            kept, keys = _fold(kept, added, columns)
            added, added_rows, added_bytes = [], 0, 0
    if added:
        kept, keys = _fold(kept, added, columns)
    return iter(kept.to_batches()), keys


def check_not_null(batch: pa.RecordBatch, columns: tuple[Field, ...], seen: int) -> None:
    """Raises RowError for a NULL in a key, with its row.

    Args:
        columns: the key.
        seen: number of rows before this batch.
    """
    for field in columns:
        values = batch[field.name]
        if values.null_count:
            row = seen + pc.index(pc.is_null(values), True).as_py() + 1
            raise RowError("NULL in a key: it equals nothing", row=row, column=field.name)


def _fold(kept: pa.Table, added: list[pa.RecordBatch], columns: tuple[Field, ...]) -> tuple[pa.Table, Keys]:
    """The last row of each key among both, in the order of the rows, and the keys."""
    rows = pa.Table.from_batches([*(kept.to_batches() if kept.num_rows else ()), *added])
    keys, last = distinct_keys(key_tuples(rows, columns))
    if len(last) < rows.num_rows:
        rows = rows.take(pa.array(np.sort(last)))
    if rows.num_rows > MAX_KEYS:
        raise LimitError(f"an upsert of more than {MAX_KEYS:,} keys: split it, or append what is new")
    if rows.nbytes > MAX_BYTES:
        raise LimitError(f"an upsert of more than {MAX_BYTES >> 20} MB of rows: split it, or append what is new")
    return rows, keys
