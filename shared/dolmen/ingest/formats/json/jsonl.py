"""JSON lines: UTF-8, one JSON object per line, its keys the names of columns.

- Blank lines are skipped; a byte order mark too. A key that is missing is NULL, like ``null``.
- Keys match columns in any case. An unknown key, or one that occurs twice, is an error; so is a line with no object, or
  more than one.
- Numbers fit number columns without loss (``12.0`` is an integer, ``12.5`` is not); ``NaN`` and ``Infinity`` are not
  JSON, except that the strings ``"NaN"`` and ``"Infinity"`` fit a float column, and floats in lists and structs.
- A string fits any column whose type can parse it (see ``cells``): times, binary, and numbers beyond JSON are written
  as strings. But ``""`` is not NULL.
- Any value fits a string column; one that is not a string becomes its JSON text.
- Types are inferred from all lines: number, bool, string, times (written as strings), lists and structs of these. A
  column with values of several kinds becomes string. A file without rows has no columns, which is an error.
- Line numbers count from 1, row numbers count lines that are not blank.
- If keys that the table does not have are ignored, so are those in structs; their values may be any JSON, even NaN and
  objects with repeated keys.
- Objects in arrays, on several lines, or in other objects are an error, unless the dialect's ``json_rows`` says so
  (see the module ``json_rows``).

Each block is first parsed straight into the declared types; if anything does not fit, line by line (``json_values``).
``json_types`` infers types.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.cells import TimeFormat
from dolmen.ingest.formats.json.json_rows import json_blocks
from dolmen.ingest.formats.json.json_values import (
    JsonObject,
    JsonSelection,
    Lines,
    OtherSpellings,
    check_utf8,
    count_objects,
    json_cast,
    may_be_too_deep,
    parse_objects,
    parser_type,
    spell_like_keys,
)
from dolmen.ingest.formats.source_file import VALUE_COLUMN, OnBadRow, ReadOptions, SourceFile, good_rows, is_closed
from dolmen.ingest.formats.text_blocks import Block
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform

_LINES_AT_ONCE = 512  # larger parts are halved if they cannot be parsed at once: one by one takes twenty times as long


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``, one per block of text that has any. Raises as ``formats.read`` does."""
    try:
        converter = _JsonConverter(schema, source.name, source.options, on_bad_row)
    except SchemaError as error:
        raise SchemaError(f"file {source.name!r}: {error}", column=error.column) from None
    row = 1
    for block in json_blocks(source, may_be_values=VALUE_COLUMN in map(str.lower, schema.names)):
        batch, rows = converter.convert(block, row)
        row += rows
        if batch.num_rows:
            yield batch


class _JsonConverter:
    """Converts blocks of a file to batches of a schema; without ``on_bad_row``, the first bad row is an error."""

    def __init__(self, schema: pa.Schema, name: str, options: ReadOptions, on_bad_row: OnBadRow | None) -> None:
        self._schema, self._name, self._on_bad_row, self._checks = schema, name, on_bad_row, options.checks
        times, self._ignore_extra = TimeFormat.of(options.dialect.timestamp_formats), options.ignore_extra
        self._selection = JsonSelection.of(schema, times, self._ignore_extra)
        self._has_closed = self._ignore_extra and any(map(_has_closed, schema))
        self._native = {field.name: parser_type(field.type, times) for field in schema}
        self._find_cast = partial(json_cast, times=times, ignore_extra=self._ignore_extra)
        text = pa.schema([(field.name, pa.string()) for field in schema])
        self._text_plan = plan_conform(text, schema, self._find_cast, checks=self._checks)
        self._others = OtherSpellings(pa.struct(list(schema)))
        self._set_types(self._native)

    def _set_types(self, types: dict[str, pa.DataType]) -> None:
        self._types = pa.schema(types)
        self._set_spelling(self._types)

    def _set_spelling(self, schema: pa.Schema) -> None:
        """Asks the parser for keys in this spelling."""
        self._parser_schema = schema
        self._plan: CastPlan = plan_conform(schema, self._schema, self._find_cast, checks=self._checks)

    def convert(self, block: Block, row: int) -> tuple[pa.RecordBatch, int]:
        """The block's good rows, and the number of all its rows. Raises RowError if there is no ``on_bad_row``."""
        batch = self._parse_block(block, row)
        # An array around all rows is not an error of the first row.
        is_array = row == 1 and block.lines is None and block.data.lstrip().startswith(b"[")
        if batch is None and (self._on_bad_row is None or is_array):
            batch = self._parse_lines(block, row)
        if batch is not None:
            return batch, batch.num_rows
        assert self._on_bad_row is not None
        lines = Lines(block, row, self._name)

        def convert_part(start: int, stop: int) -> pa.RecordBatch:
            try:
                return self._convert_lines(lines, row, start, stop)
            except RowError as error:
                raise lines.error((error.row or 1) - row, error.reason, error.column) from None

        good = good_rows(len(lines), row, convert_part, lines.text, self._on_bad_row)
        return pa.concat_batches(good) if good else pa.RecordBatch.from_pylist([], self._schema), len(lines)

    def _convert_lines(self, lines: Lines, row: int, start: int, stop: int) -> pa.RecordBatch:
        """Converts some lines of a block that cannot be parsed as a whole, as many at once as possible."""
        block, first = lines.block(start, stop), row + start
        batch = self._parse_block(block, first)
        if batch is not None:
            return batch
        if stop - start <= _LINES_AT_ONCE:
            return self._parse_lines(block, first)
        middle = (start + stop) // 2
        parts = [self._convert_lines(lines, row, *part) for part in ((start, middle), (middle, stop))]
        return pa.concat_batches(parts)

    def _parse_block(self, block: Block, row: int) -> pa.RecordBatch | None:
        """The block's rows, parsed at once; None if they must be parsed one by one."""
        objects = count_objects(block.data)
        if objects == 0:
            return pa.RecordBatch.from_pylist([], self._schema)
        if objects is None:
            return None  # not for the parser: text that begins with null crashes the process
        if self._ignore_extra and may_be_too_deep(block.data):
            return None  # elsewhere the parser stops at the first unknown key
        try:
            check_utf8(block.data)
            table = self._parse(block.data)
            if table.num_rows == objects and not (self._has_closed and self._has_extra(block.data)):
                (batch,) = table.combine_chunks().to_batches()
                return conform_batch(batch, self._plan, first_row=row)
        except (pa.ArrowInvalid, UnicodeDecodeError, RowError):
            pass  # the lines show what is wrong, if anything
        return None

    def _parse(self, data: bytes) -> pa.Table:
        """Parses the block's objects; their keys may have another spelling than the table, if all share it."""
        if self._ignore_extra:
            if self._others.may_be_in(data):  # else the parser would skip such keys
                self._learn_spelling(data)
            return parse_objects(data, self._parser_schema, "ignore")
        try:
            return parse_objects(data, self._parser_schema, "error")
        except pa.ArrowInvalid:
            if not (self._others.may_be_in(data) and self._learn_spelling(data)):
                raise
            return parse_objects(data, self._parser_schema, "error")

    def _learn_spelling(self, data: bytes) -> bool:
        """Adopts the spelling of a block's keys; returns whether it is new. Raises pa.ArrowInvalid for a mix."""
        table = parse_objects(data, self._types, "infer").combine_chunks()
        objects = pa.StructArray.from_arrays([c.combine_chunks() for c in table.columns], fields=list(table.schema))
        schema = pa.schema(spell_like_keys(self._types, objects))
        if schema == self._parser_schema:
            return False
        self._set_spelling(schema)
        return True

    def _has_extra(self, data: bytes) -> bool:
        """Whether objects in closed structs have keys without a field."""
        inferred = parse_objects(data, self._parser_schema, "infer").schema
        row = pa.field("row", pa.struct(list(self._schema)))
        return _has_extra(pa.struct(list(inferred)), row, closed=False)

    def _parse_lines(self, block: Block, row: int) -> pa.RecordBatch:
        lines = Lines(block, row, self._name, self._selection)
        rows, malformed = lines.parse(self._find_unknown_key)
        columns = [_text_column(rows, field.name) for field in self._schema]
        try:
            text = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
            batch = conform_batch(text, self._text_plan, first_row=row)
        except RowError as error:
            raise lines.error((error.row or row) - row, error.reason, error.column) from None
        if malformed:
            raise malformed
        self._set_types(
            {
                name: pa.string() if not t.is_nested(native) and _has_only_strings(rows, name) else native
                for name, native in self._native.items()
            }
        )
        return batch

    def _find_unknown_key(self, row: JsonObject) -> tuple[str, str] | None:
        for key in row:
            if key not in self._native:
                return key, f"no column {key!r} in the table; there are: {', '.join(self._native)}"
        return None


def _text_column(rows: list[JsonObject], name: str) -> pa.Array:
    """One field of all rows as text, JSON unless it is a string; NULL where it is null or missing."""
    values = [row.get(name) for row in rows]
    return pa.array(
        [value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode() for value in values],
        pa.string(),
    )


def _has_closed(field: pa.Field) -> bool:
    return is_closed(field) or (t.is_struct(field.type) and any(map(_has_closed, field.type)))


def _has_extra(inferred: pa.DataType, field: pa.Field, closed: bool) -> bool:
    """Whether an inferred type has fields that ``field`` lacks, within closed structs."""
    if t.is_list(field.type) and t.is_list(inferred):
        return _has_extra(inferred.value_type, field.type.value_field, closed)
    if not t.is_struct(field.type) or not t.is_struct(inferred):
        return False
    fields = {inner.name: inner for inner in field.type}
    names = own_names([inner.name for inner in inferred], field.type)
    return any(
        _has_extra(inner.type, fields[name], closed or is_closed(fields[name])) if name in fields else closed
        for inner, name in zip(inferred, names, strict=True)
    )


def _has_only_strings(rows: list[JsonObject], name: str) -> bool:
    """Whether a field has only strings: then the next block is fast if the parser is asked for text."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)
