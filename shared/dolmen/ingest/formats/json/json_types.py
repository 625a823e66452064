"""Infers the types that hold every value of a file of JSON lines.

Types are shapes (see ``infer``), and lists and objects of them; they join in any order and grouping. A column that has
several of strings, numbers, bools, lists and objects, at any depth, is ``MIXED``: it becomes a string of JSON.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field
from pyarrow import types as t

from dolmen.base import pc
from dolmen.errors import InputError, LimitError
from dolmen.format.layout import build_decoders
from dolmen.format.types import change_children, contains_kind
from dolmen.ingest.formats.cells import NUMBER, TimeFormat, changes_digits
from dolmen.ingest.formats.infer import (
    MAX_EXACT_FLOAT,
    NOTHING,
    TEXT,
    TextShape,
    shape_of_integers,
    shape_of_numbers,
    shape_of_strings,
)
from dolmen.ingest.formats.json.json_rows import json_blocks
from dolmen.ingest.formats.json.json_values import Lines, check_utf8, count_objects, may_be_too_deep, parse_objects
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.ingest.formats.text_blocks import Block

MANY_KEYS = 1_000  # a block with more distinct keys than this is slower to parse at once than line by line
_SAMPLED, _LONGEST = 56, 8
_SURE_BYTES = 15  # a number without an exponent, up to this long, keeps its digits as a double
_NEGATIVE_ZERO = re.compile(rb"-0(?<=[:,\[\s]-0)[,\]}\s]")
_IN_NUMBER = np.zeros(256, bool)
_IN_NUMBER[list(b"0123456789+-.eE")] = True
_QUOTE, _LF, _LOWER_CASE = ord('"'), ord("\n"), 0x20

build_decoders(dict[str, Any])
_DECODER = msgspec.json.Decoder(dict[str, Any])


class _Mixed(Enum):
    MIXED = "mixed"


MIXED: Literal[_Mixed.MIXED] = _Mixed.MIXED


class Items(Struct, frozen=True):
    """Lists whose items all fit ``item``."""

    item: Node = NOTHING


class Fields(Struct, frozen=True):
    """Objects, with the shape of the values of each key, in the order of first appearance."""

    by_name: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = TextShape | Items | Fields | Literal[_Mixed.MIXED]


class Unsure(Exception):  # noqa: N818 - a question, not a failure
    """An array does not show enough of its JSON: look at the rows."""


def join(one: Node, other: Node) -> Node:
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


def join_alike(node: Node) -> Node:
    """Joins keys that differ in case only, at any depth, under the first spelling."""
    if isinstance(node, Items):
        return Items(join_alike(node.item))
    if not isinstance(node, Fields):
        return node
    names: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    for name, child in node.by_name.items():
        own = names.setdefault(name.lower(), name)
        nodes[own] = join(nodes.get(own, NOTHING), child)
    return Fields({name: join_alike(child) for name, child in nodes.items()})


def _json_kind(shape: TextShape) -> str:
    return {"bool": "bool", "integer": "number", "float": "number"}.get(shape.kind, "string")


def type_of(node: Node) -> pa.DataType:
    return _type_of(node) or pa.string()


def _type_of(node: Node) -> pa.DataType | None:
    """The type of such a column; None if it must hold the JSON text of each value."""
    if isinstance(node, TextShape):
        kind = node.arrow_type
        return None if t.is_string(kind) and _json_kind(node) == "number" else kind
    if isinstance(node, Items):
        item = _type_of(node.item)
        return item and pa.list_(item)
    if isinstance(node, Fields):
        types = {name: _type_of(child) for name, child in node.by_name.items()}
        return pa.struct(list(types.items())) if types and all(types.values()) else None
    return None


def surveyed_type(node: Node) -> pa.DataType:
    """Like ``type_of``, but null if there was no value, also in the fields of objects."""
    if node == NOTHING:
        return pa.null()
    if isinstance(node, Fields) and node.by_name:
        return pa.struct([(name, surveyed_type(child)) for name, child in node.by_name.items()])
    return type_of(node)


def node_of_array(array: pa.Array, times: TimeFormat | None = None) -> Node:
    """The shape of an array that pyarrow inferred from JSON, with times as strings. Raises ``Unsure``."""
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
    """The shape of JSON values, as ``parse_line`` returns them."""
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
    """The types that hold every value of the file, columns in the order of first appearance. Raises InputError."""
    nodes = _Inference(source).columns()
    if not nodes:
        raise InputError(f"file {source.name!r} has no rows to infer columns from: declare a schema")
    return pa.schema([(column, type_of(node)) for column, node in nodes.items()])


def infer_columns(source: SourceFile) -> tuple[pa.Schema, tuple[str, ...]]:
    """The types as ``infer`` finds them, and notes about columns that are text because no other type holds them.

    Columns with so many keys that ``infer`` would refuse the file are text too: the keys of their objects are data.
    """
    inference = _Inference(source, may_be_maps=True)
    nodes = inference.columns()
    if not nodes:
        raise InputError(f"file {source.name!r} has no rows to infer columns from: declare a schema")
    notes = []
    for column, node in nodes.items():
        if column in inference.maps:
            notes.append(f"column {column!r} is JSON text: its objects have very many keys")
        elif not isinstance(node, TextShape) and t.is_string(type_of(node)):
            why = (
                "its objects are empty"
                if node == Fields()
                else "its values are of several kinds, or have empty objects"
            )
            notes.append(f"column {column!r} is JSON text: {why}")
    return pa.schema([(column, type_of(node)) for column, node in nodes.items()]), tuple(notes)


def survey(source: SourceFile, skip_bad_rows: bool) -> pa.Schema:
    """The types that hold every value of the file; null for a key without any, at any depth of objects."""
    nodes = _Inference(source, skip_bad_rows).columns()
    return pa.schema([(column, surveyed_type(node)) for column, node in nodes.items()])


def _count_keys(node: Node) -> int:
    if isinstance(node, Items):
        return _count_keys(node.item)
    return sum(1 + _count_keys(child) for child in node.by_name.values()) if isinstance(node, Fields) else 0


class _Inference:
    """The shapes of a file's columns so far."""

    def __init__(self, source: SourceFile, skip_bad_rows: bool = False, may_be_maps: bool = False) -> None:
        self._source, self._skip_bad_rows, self._may_be_maps = source, skip_bad_rows, may_be_maps
        self.maps: set[str] = set()
        self._times, self._max_keys = (
            TimeFormat.of(source.options.dialect.timestamp_formats),
            source.options.max_columns,
        )
        self._columns: Node = Fields()
        self._row = 1
        self._strings: pa.Schema | None = None

    def columns(self) -> dict[str, Node]:
        """Reads the file; returns the shapes of its columns, by name."""
        for block in json_blocks(self._source):
            self._add(block)
        fields = join_alike(self._columns)
        assert isinstance(fields, Fields)
        return fields.by_name

    def _add(self, block: Block) -> None:
        objects = count_objects(block.data)
        if objects == 0:
            return
        try:
            if objects is None or may_be_too_deep(block.data) or self._has_many_keys(block.data):
                raise Unsure
            check_utf8(block.data)
            node = self._parse_block(block.data, objects)
        except (pa.ArrowInvalid, UnicodeDecodeError, Unsure):
            lines = Lines(block, self._row, self._source.name)
            rows, malformed = (lines.parse_good(), None) if self._skip_bad_rows else lines.parse()
            if malformed:
                raise malformed from None
            objects = len(rows)
            rows = [{name: value for name, value in row.items() if name not in self.maps} for row in rows]
            node = node_of_values(list(rows), self._times)
        self._row += objects
        self._columns = join(self._columns, node)
        assert isinstance(self._columns, Fields)
        self._limit_keys({name: _count_keys(child) for name, child in self._columns.by_name.items()})

    def _limit_keys(self, counts: dict[str, int]) -> None:
        """Makes the columns with the most keys JSON text until the others have few enough. Raises LimitError."""
        while len(counts) + sum(counts.values()) > self._max_keys:
            widest = max(counts, key=counts.__getitem__)
            if not (self._may_be_maps and counts[widest]):
                raise _too_many_keys(self._max_keys, self._source.name)
            counts[widest] = 0
            self.maps.add(widest)
            columns = Fields({name: MIXED if name == widest else NOTHING for name in counts})
            self._columns = join(self._columns, columns)

    def _parse_block(self, data: bytes, rows: int) -> Node:
        table = parse_objects(data, self._strings, "infer")
        if contains_kind(pa.struct(list(table.schema)), t.is_temporal):
            table = parse_objects(data, pa.schema([(f.name, _replace_times(f.type)) for f in table.schema]), "infer")
        strings = {field.name: _select_strings(field.type) for field in table.schema}
        self._strings = pa.schema([(name, kind) for name, kind in strings.items() if kind is not None])
        if table.num_rows != rows or _NEGATIVE_ZERO.search(data):  # parsers take -0 for the integer 0
            raise Unsure
        if contains_kind(pa.struct(list(table.schema)), t.is_floating) and _has_changing_floats(data):
            raise Unsure
        columns = {column: table[column].combine_chunks() for column in table.column_names}
        return Fields({column: node_of_array(values, self._times) for column, values in columns.items()})

    def _has_many_keys(self, lines: bytes) -> bool:
        """Whether a block has more than ``MANY_KEYS`` different keys, at any depth. Samples some of its lines first.

        pyarrow stores a value for each row and key of a block, which takes minutes for tens of thousands of keys.
        """
        max_keys = len(lines) if self._may_be_maps else self._max_keys
        sample, widest = _KeyCount(max_keys, self._source.name), 0
        for line in _sample_lines(lines):
            before = sample.keys
            sample.add([line])
            widest = max(widest, line.count(b":"))
            if sample.keys - before > MANY_KEYS:
                break
        if sample.keys <= min(MANY_KEYS, max(_SAMPLED, 4 * widest)):
            return False
        whole = _KeyCount(max_keys, self._source.name)
        whole.add(lines.split(b"\n"))
        if self._may_be_maps:
            self._limit_keys({name: 0 if name in self.maps else count for name, count in whole.by_column().items()})
        return whole.keys > MANY_KEYS


def _has_changing_floats(data: bytes) -> bool:
    """Whether a number that is not an integer may change its digits as a double. Numbers in strings may count."""
    array = np.frombuffer(data, np.uint8)
    edges = np.flatnonzero(np.diff(_IN_NUMBER[array], prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    doubtful = ends - starts > _SURE_BYTES
    exponents = np.flatnonzero((array[1:] == ord("-")) & (array[:-1] | _LOWER_CASE == ord("e")))
    doubtful[np.searchsorted(starts, exponents, "right") - 1] = True
    doubtful &= array[np.maximum(starts, 1) - 1] != _QUOTE
    text = _slices(array, starts[doubtful], ends[doubtful])
    text = text.filter(pc.and_(pc.match_substring_regex(text, NUMBER), pc.match_substring_regex(text, "[.eE]")))
    return changes_digits(text, text.cast(pa.float64()))


def _slices(array: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.Array:
    """Parts of ASCII text."""
    sizes = ends - starts
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    characters = array[np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])]
    return pa.StringArray.from_buffers(
        len(sizes), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(characters.tobytes())
    )


def _replace_times(kind: pa.DataType) -> pa.DataType:
    """Replaces the times that pyarrow saw in strings by string: dolmen has its own rules for them."""
    return pa.string() if t.is_temporal(kind) else change_children(kind, _replace_times)


def _select_strings(kind: pa.DataType) -> pa.DataType | None:
    """Selects the parts of a type that are strings, to ask for in the next block; None without any."""
    if t.is_list(kind):
        item = _select_strings(kind.value_type)
        return item and pa.list_(item)
    if t.is_struct(kind):
        kept = [(field.name, inner) for field in kind if (inner := _select_strings(field.type)) is not None]
        return pa.struct(kept) if kept else None
    return kind if t.is_string(kind) else None


def _too_many_keys(max_keys: int, name: str) -> LimitError:
    return LimitError(
        f"file {name!r} has more than {max_keys:,} different keys: are some of them data? For a table the setting "
        "ingest_max_columns allows more"
    )


class _KeyCount:
    """Counts the different keys in lines, at most ``max_keys``."""

    def __init__(self, max_keys: int, name: str) -> None:
        self.keys = 0
        self._key_tree: dict[str, Any] = {}  # each key with the keys of the objects under it
        self._max_keys, self._name = max_keys, name

    def by_column(self) -> dict[str, int]:
        """The number of keys under each key at the top."""
        counts = {}
        for name, tree in self._key_tree.items():
            counts[name], pending = 0, [tree]
            while pending:
                inner = pending.pop()
                counts[name] += len(inner)
                pending += inner.values()
        return counts

    def add(self, lines: list[bytes]) -> None:
        """Adds the keys of the lines that are objects."""
        for line in lines:
            try:
                pending: list[tuple[Any, dict[str, Any]]] = [(_DECODER.decode(line), self._key_tree)]
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            while pending:
                value, tree = pending.pop()
                if isinstance(value, list):
                    pending += [(item, tree) for item in value if isinstance(item, dict | list)]
                    continue
                for key, inner in value.items():
                    subtree = tree.get(key)
                    if subtree is None:
                        subtree = tree[key] = {}
                        self.keys += 1
                        if self.keys > self._max_keys:
                            raise _too_many_keys(self._max_keys, self._name)
                    if isinstance(inner, dict | list):
                        pending.append((inner, subtree))


def _sample_lines(lines: bytes) -> list[bytes]:
    """The longest lines of a block, and others from all of it."""
    ends = np.append(np.flatnonzero(np.frombuffer(lines, np.uint8) == _LF), len(lines))
    starts = np.concatenate(([0], ends[:-1] + 1))
    longest = np.argsort(starts - ends, kind="stable")[:_LONGEST]
    chosen = np.union1d(longest, np.linspace(0, len(ends) - 1, min(_SAMPLED, len(ends))).astype(np.int64))
    return [lines[starts[index] : ends[index]] for index in chosen]
