"""The types that hold every value of a file of JSON lines.

Types of JSON values as far as they are known: shapes (see ``infer``), and lists and objects of them.

Like shapes, they join in any order and grouping. Strings, numbers, bools, lists and objects are kinds apart: a column
in which they meet, at whatever depth, is ``MIXED`` and ends as string, each value as its JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import InputError
from dolmen.ingest.formats.json.json_values import has_changing_floats, has_floats, has_negative_zero, parse_objects
from dolmen.ingest.formats.json.lines import Lines, check_utf8, has_many_keys, line_blocks, too_many_keys, without_nulls
from dolmen.ingest.formats.json.slow_rows import count_objects, may_be_too_deep
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.ingest.formats.text.infer import (
    MAX_EXACT_FLOAT,
    NOTHING,
    TEXT,
    TextShape,
    shape_of_integers,
    shape_of_numbers,
    shape_of_strings,
)
from dolmen.ingest.formats.text.text_blocks import Block
from dolmen.ingest.formats.text.times import TimeFormat


class _Mixed(Enum):
    MIXED = "mixed"


MIXED: Literal[_Mixed.MIXED] = _Mixed.MIXED


@dataclass(frozen=True, slots=True)
class Items:
    """Lists whose items are all of ``item``."""

    item: Node = NOTHING


@dataclass(frozen=True, slots=True)
class Fields:
    """Objects; of each name all values that stand under it, in the order of first appearance."""

    by_name: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = TextShape | Items | Fields | Literal[_Mixed.MIXED]


class Unsure(Exception):  # noqa: N818 - a question, not a failure
    """An array does not tell enough of the JSON it came from: look at the rows."""


def join(one: Node, other: Node) -> Node:
    """The shape of the values of both."""
    if NOTHING in (one, other):
        return other if one == NOTHING else one
    if isinstance(one, TextShape) and isinstance(other, TextShape):
        return one.join(other) if _json_kind(one) == _json_kind(other) else MIXED
    if isinstance(one, Items) and isinstance(other, Items):
        return Items(join(one.item, other.item))
    if isinstance(one, Fields) and isinstance(other, Fields):
        names = one.by_name | other.by_name
        return Fields({name: join(one.by_name.get(name, NOTHING), other.by_name.get(name, NOTHING)) for name in names})
    return MIXED


def join_alike(fields: Fields) -> Fields:
    """Joins the keys that differ in case only, at any depth, under the spelling that was there first."""
    names: dict[str, str] = {}
    joined: dict[str, Node] = {}
    for name, node in fields.by_name.items():
        own = names.setdefault(name.lower(), name)
        joined[own] = join(joined.get(own, NOTHING), node)
    return Fields({name: _join_alike(node) for name, node in joined.items()})


def _join_alike(node: Node) -> Node:
    if isinstance(node, Items):
        return Items(_join_alike(node.item))
    return join_alike(node) if isinstance(node, Fields) else node


def _json_kind(shape: TextShape) -> str:
    return {"bool": "bool", "integer": "number", "float": "number"}.get(shape.kind, "string")


def type_of(node: Node) -> pa.DataType:
    """The type of a column in which ``node`` was seen."""
    return _type_of(node) or pa.string()


def _type_of(node: Node) -> pa.DataType | None:
    """The type of such a column; None if only the JSON text of each value will do."""
    if isinstance(node, TextShape):
        found = node.arrow_type
        return None if t.is_string(found) and _json_kind(node) == "number" else found
    if isinstance(node, Items):
        item = _type_of(node.item)
        return item and pa.list_(item)
    if isinstance(node, Fields):
        types = {name: _type_of(child) for name, child in node.by_name.items()}
        return pa.struct(list(types.items())) if types and all(types.values()) else None
    return None


def surveyed_type(node: Node) -> pa.DataType:
    """The type of a column in which ``node`` was seen; null where nothing was, also in the fields of objects."""
    if node == NOTHING:
        return pa.null()
    if isinstance(node, Fields) and node.by_name:
        return pa.struct([(name, surveyed_type(child)) for name, child in node.by_name.items()])
    return type_of(node)


def node_of_array(array: pa.Array, times: TimeFormat | None = None) -> Node:
    """The shape of an array whose types pyarrow inferred from JSON, its strings left strings.

    Raises:
        Unsure: numbers that may have been rounded, or were no JSON.
    """
    if t.is_null(array.type):
        return NOTHING
    if t.is_boolean(array.type):
        return TextShape("bool")
    if t.is_integer(array.type):
        bounds = pc.min_max(array)
        return shape_of_integers(bounds["min"].as_py(), bounds["max"].as_py())
    if t.is_floating(array.type):
        if pc.all(pc.less(pc.abs(array), MAX_EXACT_FLOAT)).as_py() is False:  # so is NaN
            raise Unsure
        return TextShape("float")
    if t.is_string(array.type):
        return shape_of_strings(array, times)
    if t.is_list(array.type):
        return Items(node_of_array(array.flatten(), times))
    assert t.is_struct(array.type), array.type
    children = zip(array.type, array.flatten(), strict=True)
    return Fields({child.name: node_of_array(values, times) for child, values in children})


def node_of_values(values: list[Any], times: TimeFormat | None = None) -> Node:
    """The shape of JSON values, as ``json.rows`` parsed them."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = [bytes(value).decode() for value in values if isinstance(value, msgspec.Raw)]
    lists = [value for value in values if isinstance(value, list)]
    objects = [value for value in values if isinstance(value, dict)]
    node: Node = NOTHING
    if texts:
        node = join(node, shape_of_strings(pa.array(texts, pa.string()), times))
    if numbers:
        shape = shape_of_numbers(pa.array(numbers, pa.string()))
        node = join(node, MIXED if shape == TEXT else shape)
    if any(isinstance(value, bool) for value in values):
        node = join(node, TextShape("bool"))
    if lists:
        node = join(node, Items(node_of_values(list(chain.from_iterable(lists)), times)))
    if objects:
        by_name: dict[str, list[Any]] = {}
        for one in objects:
            for name, value in one.items():
                by_name.setdefault(name, []).append(value)
        node = join(node, Fields({name: node_of_values(some, times) for name, some in by_name.items()}))
    return node


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
