"""A digest of rows: the same for the same rows, however they are cut into batches and laid out in memory.

Rows are digested as they fit the table (``conform``), in order, and their values by their bits: -0.0 is not 0.0, and
one NaN may differ from another. Each column has a running hash for each of its *streams* (docs/protocol.md): which rows
are NULL, the values of the others, and for strings and lists their lengths.

``row_hashes`` has a 64-bit number for each row. NULL adds nothing to it, so that a missing column is like one of NULLs.
Strings and lists are polynomials of their bytes, or elements, from prefix sums over all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.errors import InputError
from dolmen.format.types import short_type, text_bytes, to_mask, type_of

DIGEST_BYTES = 16

SCHEME = "c1-"  # the prefix of content digests made here, which distinguishes them from older forms

_GOLDEN, _SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93

_BASE = 0x5851F42D4C957F2D  # odd, so that it has an inverse

_WINDOW = 1 << 18  # elements that are folded together: some megabytes of numbers

_LONG = 1 << 16  # a longer string is hashed by itself


def content_digest(*parts: Any) -> str:
    """The digest of a statement's content: of its canonical JSON (sorted members, no spaces)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{SCHEME}{_hash(text.encode()).hexdigest()}"


class RowDigest:
    """Digests a stream of rows of stored types in constant memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _DigestNode(field.type) for field in schema}
        self._rows = 0
        self._names = frozenset(self._columns)

    def update(self, batch: pa.RecordBatch) -> None:
        for node, column in zip(self._columns.values(), batch.columns, strict=True):
            node.update(column)
        self._rows += batch.num_rows

    def passing(self, batches: Iterable[pa.RecordBatch], source: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields the same batches, and adds the rows of each.

        ``source``: the columns that the rows came with. Others hold defaults, which may differ when they come again.
        """
        for batch in batches:
            self._names = frozenset(source.names)
            self.update(batch)
            yield batch

    def hexdigest(self) -> str:
        """The digest of the rows so far, with the names and types of their columns, in any order.

        A column, or a field of a struct, of only NULLs does not count: callers may leave it out.
        """
        columns = sorted(
            [name, *node.digests()] for name, node in self._columns.items() if node.has_values and name in self._names
        )
        return content_digest("rows", self._rows, columns)


class _DigestNode:
    """One column, or a child of a nested one."""

    def __init__(self, kind: pa.DataType) -> None:
        self.rows, self.has_values = 0, False
        self.stored = _widest_type(kind)
        self.type = str(self.stored)
        self.nulls, self.values, self.lengths = _hash(), _hash(), _hash()
        self.children: dict[str, _DigestNode] = {}
        if t.is_struct(kind):
            self.type, self.children = "struct", {field.name: _DigestNode(field.type) for field in kind}
        elif t.is_map(kind):
            self.type, self.children = "map", {"key": _DigestNode(kind.key_type), "value": _DigestNode(kind.item_type)}
        elif t.is_nested(kind):
            self.type, self.children = "list", {"item": _DigestNode(kind.value_type)}

    def digests(self) -> list[Any]:
        streams = [stream.hexdigest() for stream in (self.nulls, self.values, self.lengths)]
        counts = (each for each in self.children.items() if each[1].has_values or self.type != "struct")
        return [self.type, *streams, [[name, *child.digests()] for name, child in counts]]

    def update(self, array: pa.Array) -> None:
        """Adds values: the indexes of NULLs, and then the other values."""
        first = self.rows
        self.rows += len(array)
        if array.null_count:
            self.nulls.update(np.flatnonzero(to_mask(pc.is_null(array))).astype("<i8") + first)
            array = array.drop_null()
        if not len(array):
            return
        self.has_values = True
        if self.type == "struct":
            for index, child in enumerate(self.children.values()):
                child.update(array.field(index))
        elif self.type in ("list", "map"):
            offsets = array.offsets.to_numpy()
            self.lengths.update(np.diff(offsets).astype("<i8"))
            parts = (array.keys, array.items) if self.type == "map" else (array.values,)
            for child, values in zip(self.children.values(), parts, strict=True):
                child.update(values.slice(offsets[0], offsets[-1] - offsets[0]))
        elif t.is_string(array.type) or t.is_binary(array.type):
            data, offsets = text_bytes(array)
            self.lengths.update(np.diff(offsets).astype("<i8"))
            self.values.update(data)
        else:
            values = array if array.type == self.stored else array.cast(self.stored, safe=False)
            width = values.type.byte_width
            self.values.update(memoryview(values.buffers()[1])[values.offset * width :][: len(values) * width])


def _widest_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values are hashed: 7 and 1.5 have the same hash in columns of any width."""
    column_type = type_of(kind)
    return (column_type and column_type.widest) or kind


def _hash(body: bytes = b"") -> Any:
    return blake2b(body, digest_size=DIGEST_BYTES)


Hashes: TypeAlias = npt.NDArray[np.uint64]


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """A number for each row, the same for equal rows. Raises InputError for a column that cannot be stored."""
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            total += _zero_nulls(column, mix(_hashes(column) ^ _seed(name)))
    return mix(total + np.uint64(_GOLDEN))


def mix(x: Hashes) -> Hashes:
    """Spreads each number over all bits (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _zero_nulls(array: pa.Array, hashes: Hashes) -> Hashes:
    if array.null_count:
        hashes[to_mask(array.is_null())] = 0
    return hashes


def _hashes(array: pa.Array) -> Hashes:
    """A number for each value, 0 for NULL."""
    if not len(array):
        return np.zeros(0, np.uint64)
    return _zero_nulls(array, mix(_value_hashes(array) + np.uint64(_GOLDEN)))


def _value_hashes(array: pa.Array) -> Hashes:
    """A number for each value, and any number for NULL."""
    kind = array.type
    if t.is_struct(kind):
        total = np.zeros(len(array), np.uint64)
        for field, child in zip(kind, array.flatten(), strict=True):
            total += _zero_nulls(child, mix(_hashes(child) ^ _seed(field.name)))
        return total
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        ends = array.offsets.to_numpy().astype(np.int64)
        if t.is_map(kind):
            elements = mix(_hashes(array.keys) ^ _seed("key")) + mix(_hashes(array.items) ^ _seed("value"))
        else:
            elements = _hashes(array.values)
        return _list_hashes(elements, ends)
    if t.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif t.is_large_string(kind) or t.is_large_binary(kind):
        array = array.cast(pa.string() if t.is_large_string(kind) else pa.binary())
    if t.is_string(array.type) or t.is_binary(array.type):
        return _of_texts(array)
    if t.is_decimal128(kind):
        words: Hashes = np.frombuffer(array.buffers()[1], "<u8", 2 * len(array), array.offset * 16).reshape(-1, 2)
        high: Hashes = words[:, 1]
        return mix(words[:, 0] + np.uint64(_GOLDEN)) ^ high
    return _of_numbers(array)


def _of_numbers(array: pa.Array) -> Hashes:
    kind = array.type
    if t.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if t.is_timestamp(kind) or t.is_time64(kind) or t.is_duration(kind):
        array = array.view(pa.int64())
    elif t.is_date32(kind) or t.is_time32(kind):
        array = array.view(pa.int32())
    elif not (t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind)):
        raise InputError(
            f"rows with values of type {short_type(kind)} have no digest, which request=... needs: cast them"
        )
    values = array.fill_null(0 if not t.is_boolean(kind) else False).to_numpy(zero_copy_only=False)
    wide = np.float64 if values.dtype.kind == "f" else np.uint64 if values.dtype.kind == "u" else np.int64
    found: Hashes = values.astype(wide).view(np.uint64)
    return found


def _of_texts(array: pa.Array) -> Hashes:
    raw, ends = text_bytes(array)
    long = np.flatnonzero(np.diff(ends) > _LONG)
    hashes = np.zeros(len(array), np.uint64)
    for start, end in zip([0, *(long + 1)], [*long, len(array)], strict=True):
        hashes[start:end] = _list_hashes(raw, ends[start : end + 1])
    for index in long:
        digest = blake2b(raw[ends[index] : ends[index + 1]].tobytes(), digest_size=8).digest()
        hashes[index] = int.from_bytes(digest, "little")
    return hashes


def _list_hashes(elements: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> Hashes:
    """A number for each list of elements (bytes, or numbers): sum of element x base^index, and their count."""
    lengths = np.diff(ends)
    hashes = np.zeros(len(lengths), np.uint64)
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _WINDOW, "right")) - 1)
        cut = ends[first : last + 1] - ends[first]
        some = elements[ends[first] : ends[last]]
        numbers = _letters()[some] if some.dtype == np.uint8 else some
        powers, inverses = _powers(max(_WINDOW, 1 << len(numbers).bit_length()) + 1)
        sums = np.zeros(len(numbers) + 1, np.uint64)
        np.cumsum(numbers * powers[: len(numbers)], out=sums[1:])
        hashes[first:last] = (sums[cut[1:]] - sums[cut[:-1]]) * inverses[cut[:-1]]
        first = last
    return hashes + mix(lengths.astype(np.uint64) + np.uint64(_SECOND))


@cache
def _letters() -> Hashes:
    return mix(np.arange(1, 257, dtype=np.uint64) * np.uint64(_GOLDEN))


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    found = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = np.full(count, base, np.uint64)
        powers[0] = 1
        found.append(np.multiply.accumulate(powers))
    return found[0], found[1]
