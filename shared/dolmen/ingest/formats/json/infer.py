"""The types that hold every value of a file of JSON lines."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import InputError
from dolmen.ingest.formats.json.doubts import has_changing_floats, has_negative_zero
from dolmen.ingest.formats.json.keys import has_many_keys, too_many_keys
from dolmen.ingest.formats.json.lines import Lines, check_utf8, line_blocks, without_nulls
from dolmen.ingest.formats.json.rows import count_objects, may_be_too_deep
from dolmen.ingest.formats.json.shapes import (
    Fields,
    Items,
    Node,
    Unsure,
    join,
    join_alike,
    node_of_array,
    node_of_values,
    surveyed_type,
    type_of,
)
from dolmen.ingest.formats.json.values import has_floats, parse_objects
from dolmen.ingest.formats.source import SourceFile
from dolmen.ingest.formats.text.blocks import Block


def infer(source: SourceFile) -> pa.Schema:
    """The types that hold every value of the file, columns in the order of first appearance.

    Raises:
        RowError: a malformed line.
        InputError: no line holds a single key.
        LimitError: more different keys than there may be columns.
    """
    inference = _Inference(source)
    with source.text() as stream:
        for block in line_blocks(stream, source.name, source.block_bytes):
            inference.look_at(block)
    if not inference.seen.by_name:
        raise InputError(f"file {source.name!r} has no rows to infer columns from: declare a schema")
    return pa.schema([(column, type_of(node)) for column, node in join_alike(inference.seen).by_name.items()])


def survey(source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
    """The types that hold every value of the file; null for a key without any, at any depth of objects.

    Args:
        skip_bad_rows: leave out malformed lines, which are errors otherwise.

    Raises:
        RowError: a malformed line.
        LimitError: more different keys than there may be columns.
    """
    inference = _Inference(source, skip_bad_rows=skip_bad_rows)
    with source.text() as stream:
        for block in line_blocks(stream, source.name, source.block_bytes):
            inference.look_at(without_nulls(block) if source.options.null_lines == "skip" else block)
    return pa.schema([(column, surveyed_type(node)) for column, node in join_alike(inference.seen).by_name.items()])


def _count_keys(node: Node) -> int:
    if isinstance(node, Items):
        return _count_keys(node.item)
    return sum(1 + _count_keys(child) for child in node.by_name.values()) if isinstance(node, Fields) else 0


class _Inference:
    """The shapes of a file's columns so far."""

    def __init__(self, source: SourceFile, *, skip_bad_rows: bool = False) -> None:
        self.seen = Fields()
        self._skip_bad_rows = skip_bad_rows
        self._name, self._times, self._most = source.name, source.options.times, source.options.max_columns
        self._row = 1
        self._strings: pa.Schema | None = None

    def look_at(self, block: Block) -> None:
        """Joins what a block tells to what is known."""
        objects = count_objects(block.data)
        if objects == 0:
            return
        try:
            if objects is None or may_be_too_deep(block.data) or has_many_keys(block.data, self._most, self._name):
                raise Unsure
            check_utf8(block.data)
            seen = self._at_once(block.data, objects)
        except (pa.ArrowInvalid, UnicodeDecodeError, Unsure):
            lines = Lines(block, self._row, self._name)
            rows, malformed = (lines.parse_good(), None) if self._skip_bad_rows else lines.parse()
            if malformed:
                raise malformed from None
            objects, seen = len(rows), node_of_values(list(rows), self._times)
        self._row += objects
        joined = join(self.seen, seen)
        assert isinstance(joined, Fields)
        self.seen = joined
        if _count_keys(joined) > self._most:
            raise too_many_keys(self._most, self._name)

    def _at_once(self, data: bytes, rows: int) -> Node:
        table = parse_objects(data, self._strings, "infer")
        if _has_times(pa.struct(list(table.schema))):
            table = parse_objects(data, pa.schema([(f.name, _times_as_strings(f.type)) for f in table.schema]), "infer")
        strings = {field.name: _strings_alone(field.type) for field in table.schema}
        self._strings = pa.schema([(name, kind) for name, kind in strings.items() if kind is not None])
        if table.num_rows != rows or has_negative_zero(data):
            raise Unsure
        if has_floats(pa.struct(list(table.schema))) and has_changing_floats(data):
            raise Unsure
        columns = {column: table[column].combine_chunks() for column in table.column_names}
        return Fields({column: node_of_array(values, self._times) for column, values in columns.items()})


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
    """The parts of a type that are strings, to be asked for in the next block; None if there are none."""
    if t.is_list(kind):
        item = _strings_alone(kind.value_type)
        return item and pa.list_(item)
    if t.is_struct(kind):
        kept = [(field.name, inner) for field in kind if (inner := _strings_alone(field.type)) is not None]
        return pa.struct(kept) if kept else None
    return kind if t.is_string(kind) else None
