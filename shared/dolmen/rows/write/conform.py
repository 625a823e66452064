"""Record batches of any origin made to fit a table: columns by name, lossless casts, bounded batches.

Columns come in any order. A missing column has its default in all rows, which is NULL where no other was set. An extra
column, and a missing one that has no default and is not nullable, is a ``SchemaError`` before any row is looked at.
Values are cast only where nothing is lost (``lossless``); the first one that does not fit is a ``RowError`` naming its
row and column.

Whether tables of some columns can be stored at all: two rows of them are written and read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.base.units import MIB
from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import Schema, constant, readable_names
from dolmen.format.types import Json
from dolmen.rows.write.casts import Cast, FindCast, Misfit, first_misfit, lossless, matching

_REASONS = (
    (re.compile("UTF8"), "the text is not UTF-8: decode it by its true encoding, or store it as binary"),
    (re.compile(r"Decimal value .* does not fit"), "a decimal has more digits than its type {kind} holds"),
    (re.compile("not within the acceptable range"), "a {kind} lies outside of a day"),
    (re.compile("does not represent a whole number of days"), "a {kind} is no whole number of days"),
)


def check_values(batch: pa.RecordBatch, *, first_row: int = 1) -> None:
    """Looks at every value of a batch.

    Args:
        first_row: 1-based number of the batch's first row, for errors.

    Raises:
        RowError: a value is not one of its column's type; names the first such row and its column.
    """
    faults = [
        (fault[0], index, fault[1]) for index, column in enumerate(batch.columns) if (fault := first_invalid(column))
    ]
    if faults:
        row, index, reason = min(faults)
        raise RowError(reason, row=first_row + row, column=batch.schema.field(index).name)


def first_invalid(array: pa.Array) -> tuple[int, str] | None:
    """Place (0-based) and reason of the first value that is none of the array's type; None if there is none."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return first_invalid(array.storage)
    if not (t.is_nested(kind) or t.is_dictionary(kind) or t.is_run_end_encoded(kind)):
        return _first_invalid_leaf(array)
    try:
        array.validate()
    except pa.ArrowInvalid as error:
        return 0, _reason(error, kind)
    if t.is_dictionary(kind):
        return _first_invalid_code(array)
    if t.is_struct(kind):
        faults = [fault for index in range(kind.num_fields) if (fault := first_invalid(array.field(index)))]
        return min(faults, default=None)
    if t.is_fixed_size_list(kind):
        size = kind.list_size
        fault = first_invalid(array.values.slice(array.offset * size, len(array) * size)) if size else None
        return fault and (fault[0] // size, fault[1])
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _first_invalid_list(array)
    if t.is_run_end_encoded(kind):
        return _first_invalid_run(array)
    return _first_invalid_leaf(array)  # views of lists, unions: as a whole, for they are never stored


def _first_invalid_leaf(array: pa.Array) -> tuple[int, str] | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        reason = _reason(error, array.type)
    else:
        return None
    good, bad = 0, len(array)  # the first ``good`` values are valid, the first ``bad`` are not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            array.slice(0, middle).validate(full=True)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good, reason


def _first_invalid_code(array: pa.DictionaryArray) -> tuple[int, str] | None:
    codes, values = array.indices.cast(pa.int64(), safe=False), array.dictionary  # large unsigned ones turn negative
    index = pc.index(pc.or_(pc.less(codes, 0), pc.greater_equal(codes, len(values))), True).as_py()
    if index >= 0:
        return index, "an index lies outside of its dictionary"
    if fault := first_invalid(values):
        index = pc.index(codes, fault[0]).as_py()
        return max(index, 0), fault[1]
    return None


def _first_invalid_list(array: pa.Array) -> tuple[int, str] | None:
    is_map = t.is_map(array.type)
    offsets = array.offsets
    children = (array.keys, array.items) if is_map else (array.values,)
    ends = offsets.to_numpy()
    if not len(array):
        return None
    wrong = np.flatnonzero((ends[1:] < ends[:-1]) | (ends[1:] > len(children[0])) | (ends[:-1] < 0))
    if len(wrong):
        return int(wrong[0]), "the offsets of a list lie outside of its values"
    start, stop = int(ends[0]), int(ends[-1])
    faults = [fault for child in children if (fault := first_invalid(child.slice(start, stop - start)))]
    if not faults:
        return None
    index, reason = min(faults)
    return int(np.searchsorted(ends, start + index, side="right")) - 1, reason


def _first_invalid_run(array: pa.RunEndEncodedArray) -> tuple[int, str] | None:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.slice(first, count).to_numpy() - array.offset
    if count and (ends[0] <= 0 or (np.diff(ends) <= 0).any() or ends[-1] < len(array)):
        return 0, "the ends of its runs are out of order"
    fault = first_invalid(array.values.slice(first, count))
    return fault and (int(ends[fault[0] - 1]) if fault[0] else 0, fault[1])


def _reason(error: pa.ArrowInvalid, kind: pa.DataType) -> str:
    text = str(error)
    for pattern, reason in _REASONS:
        if pattern.search(text):
            return reason.format(kind=kind)
    return f"the Arrow data are damaged: {text}"


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
