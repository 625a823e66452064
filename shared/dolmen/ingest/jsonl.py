"""JSON lines: UTF-8, one JSON object per line, its keys the names of columns.

- Blank lines are skipped; a byte order mark too. A key that is missing is NULL, like ``null``.
- Keys are matched with columns exactly. One that is no column, or is there twice, is an error; so is a line that
  holds no object, or more than one.
- Numbers fit number columns without loss (``12.0`` is an integer, ``12.5`` is not); ``NaN`` and ``Infinity`` are not
  JSON, but the strings ``"NaN"`` and ``"Infinity"`` fit a float column.
- A string fits any column whose type its text says (see ``text``): that is how times, binary, and what JSON numbers
  do not hold are written. But ``""`` is not NULL.
- Anything fits a string column: what is not a string, as its JSON text.
- Inferred columns see all lines: number, bool, string, times (written as strings), lists and structs of these, all
  joined over the file; a column in which they meet ends as string. No rows, no columns: that is an error.
- Line numbers count from 1, row numbers count lines that are not blank.

Each block is first parsed straight into the declared types; if anything does not fit, line by line (``json_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.blocks import Block, blocks
from dolmen.ingest.compression import ByteStream
from dolmen.ingest.json_rows import JsonObject, NotAnObject, count_objects, may_be_too_deep, parse_line, text_column
from dolmen.ingest.json_shapes import Fields, Node, Unsure, join, node_of_array, node_of_values, type_of
from dolmen.ingest.json_text import asked_type, json_cast, parse_objects
from dolmen.write.conform import Plan, conform_batch, plan_conform


def read(stream: ByteStream, schema: pa.Schema, name: str, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file of JSON lines as batches of ``schema``, one per block of text that has any.

    Raises:
        SchemaError: JSON lines cannot hold a column of the schema.
        RowError: a malformed line, or a value that does not fit its column.
    """
    try:
        converter = _Converter(schema, name)
    except SchemaError as error:
        raise SchemaError(f"file {name!r}: {error}") from None
    row = 1
    for block in blocks(stream, _last_line_end, name, block_bytes, _line_feeds):
        batch = converter.convert(block, row)
        row += batch.num_rows
        if batch.num_rows:
            yield batch


def infer(stream: ByteStream, name: str, block_bytes: int) -> pa.Schema:
    """The types that hold every value of the file, columns in the order of first appearance.

    Raises:
        RowError: a malformed line.
        InputError: no line holds a single key.
    """
    inference = _Inference(name)
    for block in blocks(stream, _last_line_end, name, block_bytes, _line_feeds):
        inference.look_at(block)
    if not inference.seen.by_name:
        raise InputError(f"file {name!r} has no rows to infer columns from: declare a schema")
    return pa.schema([(column, type_of(node)) for column, node in inference.seen.by_name.items()])


def _last_line_end(data: bytes, last: bool) -> int:
    return len(data) if last else data.rfind(b"\n") + 1


def _line_feeds(data: bytes) -> int:
    return data.count(b"\n")


class _Lines:
    """The lines of a block that are not blank, parsed one by one."""

    def __init__(self, block: Block, row: int, name: str) -> None:
        self._numbered = [
            (number, line) for number, line in enumerate(block.data.split(b"\n"), block.line) if line.strip()
        ]
        self._row, self._name = row, name

    def fault(self, place: int, reason: str, column: str | None = None) -> RowError:
        """The error that blames the row at ``place`` (0-based)."""
        line = self._numbered[place][0]
        return RowError(reason, file=self._name, line=line, row=self._row + place, column=column)

    def parse(self, check: Callable[[JsonObject], tuple[str, str] | None]) -> tuple[list[JsonObject], RowError | None]:
        """The rows up to the first that is malformed, or in which ``check`` finds a fault (column and reason)."""
        rows: list[JsonObject] = []
        for place, (_, line) in enumerate(self._numbered):
            try:
                parsed = parse_line(line)
            except NotAnObject as malformed:
                return rows, self.fault(place, str(malformed))
            if found := check(parsed):
                return rows, self.fault(place, found[1], found[0])
            rows.append(parsed)
        return rows, None


class _Converter:
    """Blocks of a file as batches of a schema."""

    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema, self._name = schema, name
        self._native = {field.name: asked_type(field.type) for field in schema}
        text = pa.schema([(field.name, pa.string()) for field in schema])
        self._as_text = plan_conform(text, schema, json_cast)
        self._ask(self._native)

    def _ask(self, asked: dict[str, pa.DataType]) -> None:
        self._asked = pa.schema(asked)
        self._as_asked: Plan = plan_conform(self._asked, self._schema, json_cast)

    def convert(self, block: Block, row: int) -> pa.RecordBatch:
        """The block's rows. Raises RowError for the first that is malformed or does not fit."""
        objects = count_objects(block.data)
        if objects == 0:
            return pa.RecordBatch.from_pylist([], self._schema)
        try:
            _check_utf8(block.data)
            table = parse_objects(block.data, self._asked, "error")
            if table.num_rows == objects:
                (batch,) = table.combine_chunks().to_batches()
                return conform_batch(batch, self._as_asked, first_row=row)
        except (pa.ArrowInvalid, UnicodeDecodeError, RowError):
            pass  # the lines say what is wrong, if anything is
        return self._convert_lines(_Lines(block, row, self._name), row)

    def _convert_lines(self, lines: _Lines, row: int) -> pa.RecordBatch:
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


def _only_strings(rows: list[JsonObject], name: str) -> bool:
    """Whether a field holds strings alone, and some: then asking for text makes the next block fast."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)


def _check_utf8(data: bytes) -> None:
    """Raises UnicodeDecodeError: pyarrow's JSON parser does not look."""
    if not data.isascii():
        data.decode()


class _Inference:
    """What has been seen of a file's columns so far."""

    def __init__(self, name: str) -> None:
        self.seen = Fields()
        self._name = name
        self._row = 1
        self._strings: pa.Schema | None = None

    def look_at(self, block: Block) -> None:
        """Joins what a block tells to what is known."""
        objects = count_objects(block.data)
        if objects == 0:
            return
        try:
            if objects is None or may_be_too_deep(block.data):
                raise Unsure
            _check_utf8(block.data)
            seen = self._at_once(block.data, objects)
        except (pa.ArrowInvalid, UnicodeDecodeError, Unsure):
            rows, malformed = _Lines(block, self._row, self._name).parse(lambda _: None)
            if malformed:
                raise malformed from None
            objects, seen = len(rows), node_of_values(list(rows))
        self._row += objects
        joined = join(self.seen, seen)
        assert isinstance(joined, Fields)
        self.seen = joined

    def _at_once(self, data: bytes, rows: int) -> Node:
        table = parse_objects(data, self._strings, "infer")
        if _has_times(pa.struct(list(table.schema))):
            table = parse_objects(data, pa.schema([(f.name, _times_as_strings(f.type)) for f in table.schema]), "infer")
        strings = {field.name: _strings_alone(field.type) for field in table.schema}
        self._strings = pa.schema([(name, kind) for name, kind in strings.items() if kind is not None])
        if table.num_rows != rows:
            raise Unsure
        return Fields({name: node_of_array(table[name].combine_chunks()) for name in table.column_names})


def _has_times(kind: pa.DataType) -> bool:
    if t.is_nested(kind):
        return any(_has_times(kind.field(place).type) for place in range(kind.num_fields))
    return bool(t.is_temporal(kind))


def _times_as_strings(kind: pa.DataType) -> pa.DataType:
    """The same type, but for the times that pyarrow saw in strings: dolmen has its own idea of these."""
    if t.is_list(kind):
        return pa.list_(_times_as_strings(kind.value_type))
    if t.is_struct(kind):
        return pa.struct([(field.name, _times_as_strings(field.type)) for field in kind])
    return pa.string() if t.is_temporal(kind) else kind


def _strings_alone(kind: pa.DataType) -> pa.DataType | None:
    """What of a type is strings, to be asked for in the next block; None if nothing is."""
    if t.is_list(kind):
        item = _strings_alone(kind.value_type)
        return item and pa.list_(item)
    if t.is_struct(kind):
        kept = [(field.name, inner) for field in kind if (inner := _strings_alone(field.type)) is not None]
        return pa.struct(kept) if kept else None
    return kind if t.is_string(kind) else None
