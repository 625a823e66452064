"""JSON lines: UTF-8, one JSON object per line, its keys the names of columns.

- Blank lines are skipped; a byte order mark too. A key that is missing is NULL, like ``null``.
- Keys are matched with columns in any case. One that is no column, or is there twice, is an error; so is a line that
  holds no object, or more than one.
- Numbers fit number columns without loss (``12.0`` is an integer, ``12.5`` is not); ``NaN`` and ``Infinity`` are not
  JSON, but the strings ``"NaN"`` and ``"Infinity"`` fit a float column, and floats in lists and structs.
- A string fits any column whose type its text says (see ``text``): that is how times, binary, and what JSON numbers
  do not hold are written. But ``""`` is not NULL.
- Anything fits a string column: what is not a string, as its JSON text.
- Inferred columns see all lines: number, bool, string, times (written as strings), lists and structs of these, all
  joined over the file; a column in which they meet ends as string. No rows, no columns: that is an error.
- Line numbers count from 1, row numbers count lines that are not blank.
- Where keys that the table does not have are ignored, so they are in structs, and their values may be any JSON, NaN
  and keys that are there twice included.
- One JSON array around all objects is an error: write one object per line.

Each block is first parsed straight into the declared types; if anything does not fit, line by line (``json_rows``).
How types are inferred is in ``json_infer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.json.json_types import infer, survey
from dolmen.ingest.formats.json.json_values import (
    OtherSpellings,
    json_cast,
    parse_objects,
    parser_type,
    spell_as_found,
    wanted_of,
)
from dolmen.ingest.formats.json.lines import Lines, check_utf8, line_blocks, without_nulls
from dolmen.ingest.formats.json.slow_rows import JsonObject, count_objects, may_be_too_deep, text_column
from dolmen.ingest.formats.reader_options import OnBadRow, ReadOptions, good_rows, is_closed
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.ingest.formats.text.text_blocks import Block
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform

__all__ = ["infer", "read", "survey"]

_LINES_AT_ONCE = 512
"""More lines than this are halved if they cannot be parsed at once: one by one takes twenty times as long."""


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file of JSON lines as batches of ``schema``, one per block of text that has any.

    Args:
        on_bad_row: called with each bad row; None raises an error for the first.

    Raises:
        SchemaError: JSON lines cannot hold a column of the schema.
        RowError: a malformed line, or a value that does not fit its column.
    """
    try:
        converter = _JsonConverter(schema, source.name, source.options)
    except SchemaError as error:
        raise SchemaError(f"file {source.name!r}: {error}", column=error.column) from None
    convert = converter.convert if on_bad_row is None else partial(converter.convert_good, on_bad_row=on_bad_row)
    row = 1
    with source.text() as stream:
        for block in line_blocks(stream, source.name, source.block_bytes):
            batch, rows = convert(without_nulls(block) if source.options.null_lines == "skip" else block, row)
            row += rows
            if batch.num_rows:
                yield batch


class _JsonConverter:
    """Blocks of a file as batches of a schema."""

    def __init__(self, schema: pa.Schema, name: str, options: ReadOptions) -> None:
        self._schema, self._name = schema, name
        times, self._ignore_extra = options.times, options.ignore_extra
        self._wanted = wanted_of(schema, times, self._ignore_extra)
        self._closed = self._ignore_extra and any(map(_any_closed, schema))
        self._native = {field.name: parser_type(field.type, times) for field in schema}
        self._find_cast = json_cast(times, self._ignore_extra)
        text = pa.schema([(field.name, pa.string()) for field in schema])
        self._as_text = plan_conform(text, schema, self._find_cast)
        self._others = OtherSpellings(pa.struct(list(schema)))
        self._ask(self._native)

    def _ask(self, asked: dict[str, pa.DataType]) -> None:
        self._types = pa.schema(asked)
        self._spell(self._types)

    def _spell(self, asked: pa.Schema) -> None:
        """Asks for keys in this spelling."""
        self._asked = asked
        self._as_asked: CastPlan = plan_conform(self._asked, self._schema, self._find_cast)

    def convert(self, block: Block, row: int) -> tuple[pa.RecordBatch, int]:
        """The block's rows, and how many. Raises RowError for the first that is malformed or does not fit."""
        batch = self._at_once(block, row)
        if batch is None:
            batch = self._one_by_one(Lines(block, row, self._name, self._wanted), row)
        return batch, batch.num_rows

    def convert_good(self, block: Block, row: int, on_bad_row: OnBadRow) -> tuple[pa.RecordBatch, int]:
        """The block's good rows, and the number of all its rows. The bad ones go to ``on_bad_row``."""
        batch = self._at_once(block, row)
        if batch is not None:
            return batch, batch.num_rows
        if row == 1 and block.data.lstrip().startswith(b"["):
            return self.convert(block, row)  # an array around all rows is no fault of the first one
        rows = _JsonRows(Lines(block, row, self._name, self._wanted), row, self)
        made = good_rows(rows, row, on_bad_row)
        return pa.concat_batches(made) if made else pa.RecordBatch.from_pylist([], self._schema), len(rows)

    def convert_parts(self, lines: Lines, row: int, start: int, stop: int) -> pa.RecordBatch:
        """Some lines of a block that cannot be parsed as a whole: as many of them at once as can be."""
        block, first = lines.block(start, stop), row + start
        batch = self._at_once(block, first)
        if batch is not None:
            return batch
        if stop - start <= _LINES_AT_ONCE:
            return self._one_by_one(Lines(block, first, self._name, self._wanted), first)
        middle = (start + stop) // 2
        return pa.concat_batches(
            [self.convert_parts(lines, row, start, middle), self.convert_parts(lines, row, middle, stop)]
        )

    def _at_once(self, block: Block, row: int) -> pa.RecordBatch | None:
        """The block's rows; None if they must be looked at one by one."""
        objects = count_objects(block.data)
        if objects == 0:
            return pa.RecordBatch.from_pylist([], self._schema)
        if objects is None:
            return None  # not for the parser: text that begins with null takes the process down with it
        if self._ignore_extra and may_be_too_deep(block.data):
            return None  # elsewhere the parser stops at the first unknown key
        try:
            check_utf8(block.data)
            table = self._parse(block.data)
            if table.num_rows == objects and not (self._closed and self._has_extra(block.data)):
                (batch,) = table.combine_chunks().to_batches()
                return conform_batch(batch, self._as_asked, first_row=row)
        except (pa.ArrowInvalid, UnicodeDecodeError, RowError):
            pass  # the lines say what is wrong, if anything is
        return None

    def _parse(self, data: bytes) -> pa.Table:
        """The block's objects; their keys may be spelled in one way that is not the table's."""
        if self._ignore_extra:
            if self._others.may_be_in(data):  # else such a key would be left out
                self._learn_spelling(data)
            return parse_objects(data, self._asked, "ignore")
        try:
            return parse_objects(data, self._asked, "error")
        except pa.ArrowInvalid:
            if not (self._others.may_be_in(data) and self._learn_spelling(data)):
                raise
            return parse_objects(data, self._asked, "error")

    def _learn_spelling(self, data: bytes) -> bool:
        """Asks for keys as a block has them; returns whether this differs. Raises pa.ArrowInvalid for a mix."""
        found = parse_objects(data, self._types, "infer").combine_chunks()
        objects = pa.StructArray.from_arrays([c.combine_chunks() for c in found.columns], fields=list(found.schema))
        asked = pa.schema(spell_as_found(self._types, objects))
        if asked == self._asked:
            return False
        self._spell(asked)
        return True

    def _has_extra(self, data: bytes) -> bool:
        """Whether there is something in closed structs that they have no field for."""
        found = parse_objects(data, self._asked, "infer").schema
        wanted = pa.field("row", pa.struct(list(self._schema)))
        return _extra(pa.struct(list(found)), wanted, closed=False)

    def _one_by_one(self, lines: Lines, row: int) -> pa.RecordBatch:
        rows, malformed = lines.parse(self._unknown_key)
        columns = [text_column(rows, field.name) for field in self._schema]
        try:
            batch = conform_batch(
                pa.RecordBatch.from_arrays(columns, names=self._schema.names), self._as_text, first_row=row
            )
        except RowError as error:
            raise lines.fault((error.row or row) - row, error.reason, error.column) from None
        if malformed:
            raise malformed
        self._ask(
            {
                name: pa.string() if not t.is_nested(native) and _only_strings(rows, name) else native
                for name, native in self._native.items()
            }
        )
        return batch

    def _unknown_key(self, row: JsonObject) -> tuple[str, str] | None:
        for key in row:
            if key not in self._native:
                return key, f"no column {key!r} in the table; there are: {', '.join(self._native)}"
        return None


@dataclass(frozen=True)
class _JsonRows:
    """The rows of a block that cannot be parsed as a whole."""

    lines: Lines
    first_row: int
    converter: _JsonConverter

    def __len__(self) -> int:
        return len(self.lines)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """Some of the rows. Raises RowError for the first that is bad."""
        try:
            return self.converter.convert_parts(self.lines, self.first_row, start, stop)
        except RowError as error:
            raise self.lines.fault((error.row or 1) - self.first_row, error.reason, error.column) from None

    def text(self, place: int) -> bytes:
        """A line, without its end."""
        return self.lines.text(place)


def _any_closed(field: pa.Field) -> bool:
    return is_closed(field) or (t.is_struct(field.type) and any(map(_any_closed, field.type)))


def _extra(found: pa.DataType, field: pa.Field, closed: bool) -> bool:
    """Whether a type that was found has more than the field's, where that is closed."""
    if t.is_list(field.type) and t.is_list(found):
        return _extra(found.value_type, field.type.value_field, closed)
    if not t.is_struct(field.type) or not t.is_struct(found):
        return False
    wanted = {inner.name: inner for inner in field.type}
    names = own_names([inner.name for inner in found], field.type)
    return any(
        _extra(inner.type, wanted[name], closed or is_closed(wanted[name])) if name in wanted else closed
        for inner, name in zip(found, names, strict=True)
    )


def _only_strings(rows: list[JsonObject], name: str) -> bool:
    """Whether a field holds strings alone, and some: then asking for text makes the next block fast."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)
