"""Record batches of any origin made to fit a table: columns by name, lossless casts, bounded batches.

Columns come in any order. A missing column has its default in all rows, which is NULL where no other was set. An extra
column, and a missing one that has no default and is not nullable, is a ``SchemaError`` before any row is looked at.
Values are cast only where nothing is lost (``lossless``); the first one that does not fit is a ``RowError`` naming its
row and column.

Whether tables of some columns can be stored at all: two rows of them are written and read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from dolmen.base.units import MIB
from dolmen.errors import RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema, constant, readable_names
from dolmen.format.types import Json
from dolmen.rows.write.casts import Cast, FindCast, Misfit, first_misfit, lossless, matching
from dolmen.rows.write.encodings import DEFAULT
from dolmen.rows.write.parquet_object import WritePlan, write_object
from dolmen.rows.write.runs import prepare
from dolmen.rows.write.validity import check_values
from dolmen.store.base import Buffer

MAX_BATCH_ROWS = 131_072

MAX_BATCH_BYTES = 64 * MIB
"""Batches above either limit are handed out in parts; a single row is never cut."""


@dataclass(frozen=True)
class CastColumn:
    """How one column of the target is made.

    Args:
        index: of the input column; None for one that is missing.
        cast: None = its values are taken as they are.
        default: JSON form of the value of a column that is missing.
    """

    field: pa.Field
    index: int | None
    cast: Cast | None
    default: Json = None


@dataclass(frozen=True)
class CastPlan:
    """How batches of one schema become batches of a table's schema."""

    target: pa.Schema
    columns: tuple[CastColumn, ...]


def plan_conform(
    source: pa.Schema,
    target: Schema | pa.Schema,
    find: FindCast = lossless,
    defaults: Mapping[str, Json] | None = None,
    finds: Mapping[str, FindCast] | None = None,
) -> CastPlan:
    """How batches of ``source`` are made to fit ``target`` (a table's schema, or an Arrow schema of stored types).

    Args:
        find: how values without children are cast.
        defaults: JSON forms of the values of columns that are missing, by name; by default those of a table's schema.
        finds: how values of some columns are cast instead, by name.

    Raises:
        SchemaError: a column is there twice, is unknown, is missing and not nullable, or is of another kind.
    """
    schema = target.arrow if isinstance(target, Schema) else target
    if defaults is None:
        defaults = target.write_defaults if isinstance(target, Schema) else {}
    with readable_names():
        matched = matching(list(source), list(schema), find, defaults, finds or {})
    columns = (
        CastColumn(field, index, cast, defaults.get(field.name))
        for field, (cast, index) in zip(schema, matched, strict=True)
    )
    return CastPlan(schema, tuple(columns))


def conform(
    batches: pa.RecordBatchReader,
    schema: Schema | pa.Schema,
    find: FindCast = lossless,
    defaults: Mapping[str, Json] | None = None,
    finds: Mapping[str, FindCast] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of ``batches`` as batches of exactly ``schema``, neither too long nor too large.

    The batches may come from anywhere: every value is looked at, whether it is one of its own type at all.

    Args:
        find: how values without children are cast.
        defaults, finds: see ``plan_conform``.

    Raises:
        SchemaError: the columns do not match; raised by the call, before any row is read.
        RowError: a value does not fit, or is none of its type; ``row`` counts from 1 over the whole stream. Rows
            before its batch have been handed out by then.
    """
    return _conform(batches, plan_conform(batches.schema, schema, find, defaults, finds))


def _conform(batches: Iterable[pa.RecordBatch], plan: CastPlan) -> Iterator[pa.RecordBatch]:
    row = 1
    for batch in batches:
        check_values(batch, first_row=row)
        for part in _parts(batch):
            yield conform_batch(part, plan, first_row=row)
            row += part.num_rows


def conform_batch(batch: pa.RecordBatch, plan: CastPlan, *, first_row: int = 1) -> pa.RecordBatch:
    """One batch made to fit. ``first_row`` is the 1-based number of its first row, for errors.

    Raises:
        RowError: the first value that does not fit, by row and then by column.
    """
    arrays, faults = [], []
    for column in plan.columns:
        if column.index is None:
            array = constant(column.default, column.field.type, batch.num_rows)
        else:
            array = batch.column(column.index)
        try:
            arrays.append(_fit(array, column))
        except Misfit:
            index, reason = first_misfit(array, partial(_fit, column=column))
            faults.append((index, column.field.name, reason))
    if faults:
        index, name, reason = min(faults, key=lambda fault: fault[0])
        raise RowError(reason, row=first_row + index, column=name)
    if not arrays:
        raise SchemaError("a table needs at least one column")
    return pa.RecordBatch.from_arrays(arrays, schema=plan.target)


def _fit(array: pa.Array, column: CastColumn) -> pa.Array:
    values = column.cast(array) if column.cast else array
    if not column.field.nullable and values.null_count:  # asked of the decoded values: dictionaries may hold NULLs
        raise Misfit("NULL in a column that is not nullable")
    return values


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts within the limits: decoding and 32-bit offsets then never overflow."""
    for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
        yield from _halves(_without_views(batch.slice(start, MAX_BATCH_ROWS)))


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 1 or batch.nbytes <= MAX_BATCH_BYTES:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halves(batch.slice(0, middle))
    yield from _halves(batch.slice(middle))


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with views copied out: a slice of them would count the bytes of all the values they share."""
    types = [_without_view(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    arrays = [column.cast(kind) for column, kind in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary_view(kind):
        return pa.large_binary()
    if t.is_list(kind):
        return pa.list_(_inner_without_view(kind.value_field))
    if t.is_large_list(kind):
        return pa.large_list(_inner_without_view(kind.value_field))
    if t.is_struct(kind):
        return pa.struct([_inner_without_view(field) for field in kind])
    return kind


def _inner_without_view(field: pa.Field) -> pa.Field:
    return field.with_type(_without_view(field.type))


def check_storable(entry: TableEntry) -> None:
    """Writes a row of values and, as far as columns may be NULL, one without, in memory, and reads them back.

    Whatever pyarrow refuses is refused here, before a table is there that takes no row. It takes milliseconds, and
    only once for equal columns and keys.

    Raises:
        SchemaError: a file of these columns cannot be written, or does not hold what was written.
    """
    kept = TableEntry(
        uuid="", epoch=0, schema=entry.schema, primary_key=entry.primary_key, sort_key=entry.sort_key, properties={}
    )
    _check_storable(msgspec.json.encode(kept))


@lru_cache(256)
def _check_storable(encoded: bytes) -> None:
    entry = msgspec.json.decode(encoded, type=TableEntry)
    schema = entry.schema.arrow
    try:
        columns = [_example_column(field) for field in schema]
        rows = pa.table(columns, schema)
        run = prepare(list(rows.columns), entry)
        output = _Memory()
        write_object(output, "probe", entry, WritePlan.of(run, DEFAULT), run)
        found = pq.ParquetFile(pa.BufferReader(bytes(output.body))).read(use_threads=False)
        if not found.cast(schema).equals(run.table):
            raise pa.ArrowInvalid("what was written is not what is read back")
    except (pa.ArrowException, OSError, OverflowError, ValueError, RecursionError) as error:
        raise SchemaError(f"a table of these columns cannot be stored: {error}") from error


def _example_column(field: pa.Field) -> pa.Array:
    example = _example(field.type)
    return pa.array([example, None if field.nullable else example], field.type)


def _example(kind: pa.DataType) -> Any:
    """Some value of a stored type, as Python has it."""
    if t.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if t.is_map(kind):
        return [(_example(kind.key_type), _example(kind.item_type))]
    if t.is_list(kind):
        return [_example(kind.value_type)]
    if t.is_string(kind):
        return "a"
    if t.is_fixed_size_binary(kind):
        return b"a" * kind.byte_width
    if t.is_binary(kind):
        return b"a"
    return 0 if not t.is_boolean(kind) else True


class _Memory:
    """An upload that goes nowhere."""

    def __init__(self) -> None:
        self.body = bytearray()

    def write(self, data: Buffer, /) -> int:
        self.body += data
        return len(data)

    def commit(self) -> int:
        return len(self.body)

    def abort(self) -> None:
        """There is nothing to give up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to close."""
