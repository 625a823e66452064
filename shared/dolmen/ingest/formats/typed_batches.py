"""Fits batches of files that know the types of their columns (Parquet, Arrow, Avro) to a table.

Types stay, or are cast without loss to the declared ones (``dolmen.rows.write.casts``, and ``typed_cast``). Text is
never parsed, except for the times with a zone that Kafka Connect writes into Avro.

Types that tables do not have become types that hold the same values, at any depth (``ordinary_type``):

- Views of lists become lists. They may share values, so a few bytes can be many lists: such lists are copied only if
  that takes little memory.
- A union becomes a struct of ``member0``, ``member1``, ..., as for Avro: one for each type but null; the member of the
  value's type has the value, the others are NULL. A union of null and one type becomes that type.
- A struct without fields becomes text: ``{}``, or NULL.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.errors import InputError, LimitError, RowError, SchemaError
from dolmen.format.schema import (
    NUMBER_THEM,
    is_nested,
    no_common_column,
    number_names,
    own_names,
    plain_type,
    same_names,
    same_names_problem,
    stored_type,
)
from dolmen.format.types import null_mask
from dolmen.ingest.formats.column_limits import BYTES_AT_ONCE, check_columns, count_columns, rows_at_once, width
from dolmen.ingest.formats.source_file import OnBadRow, ReadOptions, SourceFile, good_rows, is_closed
from dolmen.ingest.formats.zip_archive import too_many_bytes
from dolmen.rows.write.casts import Cast, FindCast, checked_cast, flattened_offsets, lossless_cast
from dolmen.rows.write.conform import conform

_MOST_ITEMS = 2**31 - 1


def ordinary_type(kind: pa.DataType) -> pa.DataType:
    """The same type with lists, structs and text; the type itself if it has nothing that becomes one of these."""
    if t.is_union(kind):
        members = [(code, child) for code, child in _children(kind) if not t.is_null(child.type)]
        kinds = [ordinary_type(child.type) for _, child in members]
        return kinds[0] if len(kinds) == 1 else pa.struct([(f"member{n}", each) for n, each in enumerate(kinds)])
    if t.is_struct(kind):
        fields = [_ordinary_field(field) for field in kind]
        return pa.string() if not fields else kind if fields == list(kind) else pa.struct(fields)
    if t.is_map(kind):
        item = _ordinary_field(kind.item_field)
        return kind if item == kind.item_field else pa.map_(kind.key_field, item)
    if not (_is_list_view(kind) or t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)):
        return kind
    field = _ordinary_field(kind.value_field)
    return pa.list_(field) if _is_list_view(kind) or field != kind.value_field else kind


def replace_unusual_types(
    own: pa.Schema, batches: Iterator[pa.RecordBatch], name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A file's columns and rows with ordinary types. The batches are valid. Raises LimitError while they are read."""
    plain = pa.schema([_ordinary_field(field) for field in own])
    if plain.types == own.types:
        return own, batches

    def replaced() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrays = [
                _replace(array, field.type, f"file {name!r}, column {field.name!r}")
                for array, field in zip(batch.columns, plain, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=plain)

    return plain, replaced()


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(t.is_list_view(kind) or t.is_large_list_view(kind))


def _ordinary_field(field: pa.Field) -> pa.Field:
    kind = ordinary_type(field.type)
    return field if kind is field.type else pa.field(field.name, kind, field.nullable or t.is_union(field.type))


def _children(union: pa.DataType) -> list[tuple[int, pa.Field]]:
    """The fields of a union, and the code of each."""
    return [(code, union.field(index)) for index, code in enumerate(union.type_codes)]


def _replace(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    if array.type == kind:
        return array
    if t.is_union(array.type):
        return _replace_union(array, kind, what)
    mask = null_mask(array)
    if t.is_string(kind):
        return pc.if_else(array.is_valid(), pa.scalar("{}"), pa.scalar(None, pa.string()))
    if t.is_struct(kind):
        children = [_replace(child, field.type, what) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if t.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        keys, items = entries.flatten().flatten()
        items = _replace(items, kind.item_type, what)
        return pa.MapArray.from_arrays(flattened_offsets(entries), keys, items, type=kind, mask=mask)
    if _is_list_view(array.type):
        _check_copy(array, what)
    values = _replace(array.flatten(), kind.value_type, what)
    return pa.ListArray.from_arrays(flattened_offsets(array), values, type=kind, mask=mask)


def _replace_union(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    buffers, start = array.buffers(), array.offset  # its own type_codes and offsets are those of the first rows
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, buffers[1]], offset=start)
    if array.type.mode == "dense":
        offsets = pa.Array.from_buffers(pa.int32(), len(array), [None, buffers[2]], offset=start)
    else:
        offsets = pa.array(np.arange(len(array), dtype=np.int32))
    members, is_null = [], pa.array(np.zeros(len(array), bool))
    for index, (code, child) in enumerate(_children(array.type)):
        is_here = pc.equal(codes, pa.scalar(code, pa.int8()))
        if t.is_null(child.type):
            is_null = pc.or_(is_null, is_here)
            continue
        values = array.field(index).take(pc.if_else(is_here, offsets, pa.scalar(None, pa.int32())))
        members.append(_replace(values, ordinary_type(child.type), what))
    return members[0] if len(members) == 1 else pa.StructArray.from_arrays(members, fields=list(kind), mask=is_null)


def _check_copy(array: pa.Array, what: str) -> None:
    """Raises LimitError if the lists share values and together take much memory."""
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    total = int(sizes.sum())
    filled = sizes > 0
    starts = array.offsets.to_numpy()[: len(array)].astype(np.int64)[filled]
    order = np.argsort(starts, kind="stable")
    ends = (starts + sizes[filled])[order]
    if (ends[:-1] > starts[order][1:]).any():
        values = array.values
        is_plain = t.is_primitive(values.type)
        size = total * (width(values.type) if is_plain else max(1, values.nbytes))  # one value may have all the bytes
        if size > BYTES_AT_ONCE:
            raise LimitError(f"{what}: its lists are views of {total:,} items that they share: write ordinary lists")
    if total > _MOST_ITEMS:
        raise LimitError(f"{what}: {len(array):,} lists have {total:,} items: write fewer rows at a time")


MOST_DIGITS = 38
_DECIMAL_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}


def stored_schema(schema: Iterable[pa.Field], name: str) -> pa.Schema:
    """The types of new columns for these (see ``new_column_type``). Raises SchemaError."""
    fields = []
    for field in schema:
        try:
            kind = stored_type(new_column_type(field.type))
            fields.append(pa.field(field.name, kind, _may_be_null(field)))
        except SchemaError as error:
            raise SchemaError(f"file {name!r}, column {field.name!r}: {error}", column=field.name) from None
    return pa.schema(fields)


def new_column_type(kind: pa.DataType) -> pa.DataType:
    """A type that can be stored, and holds the values of a type that cannot, at any depth; else the type itself.

    The type null becomes string, a half float a float, a duration a number of microseconds. A decimal of more than 38
    digits becomes one of 38: each value must fit. See also ``ordinary_type``.
    """
    kind = ordinary_type(plain_type(kind))
    if t.is_duration(kind):
        return pa.int64()
    if t.is_null(kind):
        return pa.string()
    if t.is_float16(kind):
        return pa.float32()
    if t.is_decimal256(kind) and kind.precision > MOST_DIGITS >= kind.scale >= 0:
        return pa.decimal128(MOST_DIGITS, kind.scale)
    if t.is_struct(kind):
        return pa.struct([_new_field(field) for field in kind])
    if t.is_map(kind):
        return pa.map_(_new_field(kind.key_field), _new_field(kind.item_field))
    if is_nested(kind) and kind.num_fields == 1:
        return pa.list_(_new_field(kind.value_field))
    return kind


def _new_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, new_column_type(field.type), _may_be_null(field))


def _may_be_null(field: pa.Field) -> bool:
    """Whether a column may be NULL. A union is if its member is, whatever its field says."""
    return bool(field.nullable or t.is_union(plain_type(field.type)))


def name_columns(own: pa.Schema, source: SourceFile) -> pa.Schema:
    """A file's columns with the names that its dialect gives them."""
    if source.options.dialect.names == "strict":
        return own
    return pa.schema([field.with_name(name) for field, name in zip(own, number_names(own.names), strict=True)])


def inferred_schema(own: pa.Schema, source: SourceFile) -> pa.Schema:
    """The stored types of a file's columns. Raises SchemaError, which says how to declare a column for its values."""
    schema, name = name_columns(own, source), source.name
    if "" in schema.names:
        raise SchemaError(f"file {name!r}: column {schema.names.index('') + 1} has no name; {NUMBER_THEM}")
    if pair := same_names(given for given in schema.names if given.strip()):
        raise SchemaError(f"file {name!r}: {same_names_problem(pair)}; {NUMBER_THEM}", column=pair[0])
    for field in schema:
        if t.is_interval(plain_type(field.type)):
            raise SchemaError(
                f"file {name!r}, column {field.name!r}: values of type {field.type} cannot be stored as they are: "
                "declare it as a fixed binary of 12 bytes if the file is Parquet (months, days and milliseconds), or "
                "write integers, or leave the column out",
                column=field.name,
            )
    return stored_schema(schema, name)


def surveyed_schema(schema: pa.Schema, name: str) -> pa.Schema:
    """The stored types of a file's columns, all nullable. Raises SchemaError.

    The type null and those that are not inferred stay: the table may have a column for their values.
    """

    def stays(kind: pa.DataType) -> bool:
        return bool(t.is_null(kind) or t.is_duration(kind) or t.is_interval(kind))

    kinds = {field.name: field.type for field in stored_schema([f for f in schema if not stays(f.type)], name)}
    return pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in schema])


def typed_cast(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """``lossless_cast``, and also durations to ``int64``, as microseconds."""
    if t.is_duration(source) and t.is_int64(target):
        return checked_cast(pa.duration("us"), target)
    return lossless_cast(source, target)


def conform_file(
    batches: Iterator[pa.RecordBatch],
    own: pa.Schema,
    source: SourceFile,
    schema: pa.Schema,
    on_bad_row: OnBadRow | None,
    find: FindCast = typed_cast,
) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows as batches of ``schema``; ``find`` casts values. Raises as ``formats.read`` does."""
    name = source.name
    named = name_columns(own, source)
    if named.names != own.names:
        own, batches = named, _rename(batches, named.names)
    own, batches = replace_unusual_types(own, batches, name)
    batches = _slices(_check_size(batches, name, source.options.max_bytes), rows_at_once(own, name))
    if source.options.ignore_extra:
        own = common_schema(own, schema, name)
        batches = (batch.select(own.names).cast(own) for batch in batches)
    try:
        reader = pa.RecordBatchReader.from_batches(own, batches)
        checked = conform(reader, schema, find, source.options.defaults, checks=source.options.checks)
        if on_bad_row is None:
            yield from checked
            return
    except RowError as error:
        raise RowError(error.reason, file=name, row=error.row, column=error.column) from None
    except SchemaError as error:
        raise SchemaError(f"file {name!r}: {error}", column=error.column) from None
    row = 1
    for batch in batches:
        yield from _good_batches(batch, schema, row, source.options, find, on_bad_row)
        row += batch.num_rows


def conform_columns(
    batches: Callable[[list[str] | None], Iterator[pa.RecordBatch]],
    own: pa.Schema,
    source: SourceFile,
    schema: pa.Schema,
    on_bad_row: OnBadRow | None,
) -> Iterator[pa.RecordBatch]:
    """``conform_file`` for a file of which ``batches`` reads only the columns that are needed; None for all."""
    columns = None
    if source.options.ignore_extra and name_columns(own, source).names == own.names:
        columns = common_schema(own, schema, source.name).names
        own = pa.schema([field for field in own if field.name in columns])
    yield from conform_file(batches(columns), own, source, schema, on_bad_row)


def check_schema(schema: pa.Schema, name: str, max_columns: int) -> pa.Schema:
    """The schema itself. Raises InputError if it is damaged: Arrow does not check it, and may crash; LimitError."""
    check_columns(count_columns(schema, max_columns), max_columns, name)
    try:
        for field in schema:
            _check(field)
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"file {name!r} is damaged: its schema is impossible: {error}") from None
    return schema


def _check(field: pa.Field) -> None:
    field.name.encode()
    kind = plain_type(field.type)
    if t.is_timestamp(kind) and kind.tz is not None:
        kind.tz.encode()
    if t.is_decimal(kind) and not 0 <= kind.scale <= _DECIMAL_DIGITS[kind.bit_width]:
        raise ValueError(f"a decimal of scale {kind.scale}")
    if t.is_nested(kind):
        for index in range(kind.num_fields):
            _check(kind.field(index))


def common_schema(source: pa.Schema, schema: pa.Schema, name: str) -> pa.Schema:
    """A file's columns, and the fields in them, without those the table lacks. Raises SchemaError if none remain."""
    kept = _common_fields(source, schema)
    if not kept:
        raise no_common_column(f"file {name!r}", schema.names)
    return pa.schema(kept)


def _common_fields(source: Iterable[pa.Field], target: Iterable[pa.Field]) -> list[pa.Field]:
    fields, table = list(source), {field.name: field for field in target}
    names = own_names([field.name for field in fields], table.values())
    pairs = ((field, table.get(own)) for field, own in zip(fields, names, strict=True))
    return [field.with_type(_common_type(field.type, own)) for field, own in pairs if own is not None]


def _common_type(source: pa.DataType, field: pa.Field) -> pa.DataType:
    target = field.type
    if is_closed(field):
        return source
    if t.is_struct(source) and t.is_struct(target):
        kept = _common_fields(source, target)
        return pa.struct(kept) if kept else source
    if t.is_list(target) and (t.is_list(source) or t.is_large_list(source)):
        item = source.value_field.with_type(_common_type(source.value_type, target.value_field))
        return pa.list_(item) if t.is_list(source) else pa.large_list(item)
    return source


def _check_size(batches: Iterator[pa.RecordBatch], name: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
    remaining = max_bytes
    for batch in batches:
        remaining -= max(batch.nbytes, batch.num_rows)  # rows of NULLs may take no bytes
        if remaining < 0:
            raise too_many_bytes(name, max_bytes)
        yield batch


def _rename(batches: Iterator[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.rename_columns(names)


def _slices(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Cuts batches to at most ``most`` rows: the values of dictionaries, runs and NULLs may take far more memory."""
    for batch in batches:
        for start in range(0, batch.num_rows, most) if batch.num_rows > most else (0,):
            yield batch.slice(start, most)


def _good_batches(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    first_row: int,
    options: ReadOptions,
    find: FindCast,
    on_bad_row: OnBadRow,
) -> list[pa.RecordBatch]:
    """Returns the rows of a batch that fit the schema, and reports the others."""

    def conform_part(start: int, stop: int) -> pa.RecordBatch:
        part = pa.RecordBatchReader.from_batches(batch.schema, [batch.slice(start, stop - start)])
        try:
            return pa.concat_batches(list(conform(part, schema, find, options.defaults, checks=options.checks)))
        except RowError as error:
            row = first_row + start + (error.row or 1) - 1
            raise RowError(error.reason, row=row, column=error.column) from None

    def text(index: int) -> bytes | None:
        return json_of(batch.slice(index, 1))

    try:
        reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
        return list(conform(reader, schema, find, options.defaults, checks=options.checks))
    except RowError:
        good = good_rows(batch.num_rows, first_row, conform_part, text, on_bad_row)
        return [pa.concat_batches([pa.RecordBatch.from_pylist([], schema), *good])]


def json_of(row: pa.RecordBatch) -> bytes | None:
    """One row as a JSON object that ``jsonl`` can read; None if JSON cannot hold one of its values."""
    try:
        (values,) = row.to_pylist()
        return json.dumps(_plain(values), ensure_ascii=False).encode()
    except (OverflowError, ValueError, UnicodeEncodeError, pa.ArrowException):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)
