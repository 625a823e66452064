"""Rows as data frames of pandas and Polars, with every value as it is stored, or an error; scans as lazy frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dolmen.base import pc
from dolmen.base.late_imports import optional
from dolmen.errors import InputError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.engines.polars_expressions import predicate_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


_NOT_A_TIME = -(2**63)


def to_pandas(rows: pa.Table, **options: Any) -> pd.DataFrame:
    """The rows as a pandas frame, from which the same rows can be made again.

    Integers with NULLs become ``Int64`` and the like, where Arrow would make floats; floats with NaN ``Float64``, which
    distinguishes NaN from NULL; nested values with NULL numbers lists and dicts of Python. ``options``: for
    ``pyarrow.Table.to_pandas``, which then makes the whole frame. Raises InputError: a type, or a date or time, that
    Python or pandas does not have; its column is named.
    """
    pandas = optional("pandas", "pandas")
    if options:
        return rows.to_pandas(**options)
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            columns[name] = _series(column, pandas)
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"column {name!r}: pandas does not take {column.type}; to_arrow() has all types"
            ) from error
        except (OverflowError, ValueError) as error:
            raise InputError(
                f"column {name!r} holds dates or times outside of Python's years 1 to 9999 ({error}): "
                "to_pandas(date_as_object=False) makes datetime64 of dates, to_arrow() and to_polars() hold all of them"
            ) from error
    frame = pandas.DataFrame(dict(enumerate(columns.values())), index=pandas.RangeIndex(rows.num_rows), copy=False)
    frame.columns = list(columns)
    return frame


def _series(column: pa.ChunkedArray, pandas: Any) -> Any:
    t, arrow_type = pa.types, column.type
    if t.is_integer(arrow_type) and column.null_count:
        return _nullable_series(column, pandas)
    if t.is_floating(arrow_type) and arrow_type != pa.float16() and pc.any(pc.is_nan(column)).as_py():
        return _nullable_series(column, pandas)
    if t.is_nested(arrow_type) and any(map(_has_null_numbers, column.chunks)):
        return pandas.Series(column.to_pylist(), dtype=object)
    if t.is_timestamp(arrow_type) and pc.any(pc.equal(column.cast(pa.int64()), _NOT_A_TIME)).as_py():
        raise ValueError("the least timestamp is pandas' NaT")
    return column.to_pandas()


def _nullable_series(column: pa.ChunkedArray, pandas: Any) -> Any:
    """A series of the nullable type of pandas: Int8, UInt64, Float32."""
    kind = "Float" if pa.types.is_floating(column.type) else "UInt" if str(column.type)[0] == "u" else "Int"
    dtype = getattr(pandas, f"{kind}{column.type.bit_width}Dtype")()
    return pandas.Series(dtype.__from_arrow__(column))


def _has_null_numbers(array: pa.Array) -> bool:
    """True if numbers inside nested values are NULL, which Arrow's frames make NaN."""
    t = pa.types
    if t.is_integer(array.type) or t.is_floating(array.type):
        return bool(array.null_count)
    if t.is_struct(array.type):
        return any(_has_null_numbers(child) for child in array.flatten())
    if t.is_map(array.type):
        return _has_null_numbers(array.keys) or _has_null_numbers(array.items)
    return isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)) and _has_null_numbers(
        array.flatten()
    )


def to_dicts(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python objects. Raises InputError for a date or time that Python does not have."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise InputError(
                f"column {name!r} holds a date or time outside of Python's years 1 to 9999: get_many and to_arrow "
                "return it, or leave the column out (columns=[...])"
            ) from error
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """The rows as a Polars frame. Raises InputError for a type that Polars does not have."""
    polars = optional("polars", "polars")
    try:
        frame: pl.DataFrame = polars.from_arrow(rows)
    except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
        raise InputError(
            f"Polars does not take {rows.schema.to_string()}: {error}; to_arrow() has all types"
        ) from error
    return frame


class NarrowScan(Protocol):
    """Makes a scan of some columns, of the rows that fulfil another condition, up to a limit."""

    def __call__(self, columns: Sequence[str], where: Predicate | None, limit: int | None = None) -> RowSource: ...


def lazy_frame(schema: pa.Schema, stored: Schema, narrow: NarrowScan, *, filters: bool) -> pl.LazyFrame:
    """A lazy frame that scans whenever it is collected; with ``filters`` conditions may be added to the scan."""
    plugins = optional("polars.io.plugins", "polars")

    def read(
        columns: list[str] | None, condition: pl.Expr | None, rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        requested = list(schema.names) if columns is None else columns
        read_too = [] if condition is None else [n for n in condition.meta.root_names() if n not in requested]
        # Rows are counted before the condition: the scan can't apply both.
        where = None if condition is None or rows is not None or not filters else predicate_of(condition, stored)
        part = narrow([*requested, *read_too], where, rows)
        is_empty = True
        for batch in part.to_batches():
            frame = to_polars(pa.table(batch))
            is_empty = False
            yield (frame if condition is None else frame.filter(condition)).select(requested)
        if is_empty:
            yield to_polars(part.schema.empty_table()).select(requested)

    empty_frame = to_polars(schema.empty_table())
    frame: pl.LazyFrame = plugins.register_io_source(read, schema=empty_frame.schema, is_pure=True)
    return frame


class RowSource(Protocol):
    """A ``Scan``, into which DuckDB and Polars push columns and conditions."""

    schema: pa.Schema

    def to_batches(self) -> Iterator[pa.RecordBatch]: ...

    def explain(self) -> object: ...
