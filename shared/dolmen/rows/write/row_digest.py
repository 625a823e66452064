"""A digest of rows: the same for the same rows, however they are cut into batches and laid out in memory.

Rows are taken as they fit the table (``conform``), so that a pandas frame, a list of dicts and an Arrow table with the
same rows have the same digest. Their order counts. Values are compared by their bits: -0.0 is another value than 0.0,
and one NaN may be another than the next.

One running hash for each *stream* of each column (docs/protocol.md): which rows are NULL, what the others hold, and for
strings and lists how long they are. So nothing depends on where a batch ends, on offsets and slices, or on what lies in
memory beneath a NULL; and no row is looked at by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.format.types import type_of

DIGEST_BYTES = 16
SCHEME = "c1-"
"""Begins every digest of content made here, so that one made in another way is known for that."""


def content_digest(*parts: Any) -> str:
    """The digest of a statement's content: of its canonical JSON (sorted members, no spaces).

    Args:
        parts: of plain values that JSON has, digests of rows among them.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{SCHEME}{_hash(text.encode()).hexdigest()}"


class RowDigest:
    """Takes rows in; ``hexdigest`` at any time is that of all taken so far. Needs the same memory for any number.

    Args:
        schema: of all batches: stored types alone (``dolmen.format.schema.storable``).
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _DigestNode(field.type) for field in schema}
        self._rows = 0
        self._given = frozenset(self._columns)

    def update(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a batch."""
        for node, column in zip(self._columns.values(), batch.columns, strict=True):
            node.update(column)
        self._rows += batch.num_rows

    def passing(self, batches: Iterable[pa.RecordBatch], given: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The same batches, each taken on its way.

        Args:
            given: the columns that the rows came with. Others hold defaults, which may be others when they come again.
        """
        for batch in batches:
            self._given = frozenset(given.names)
            self.update(batch)
            yield batch

    def hexdigest(self) -> str:
        """The digest of the rows so far, with the names and types of their columns, in any order.

        A column of nothing but NULLs does not count, as it need not have been given.
        """
        columns = sorted(
            [name, *node.facts()] for name, node in self._columns.items() if node.holds and name in self._given
        )
        return content_digest("rows", self._rows, columns)


class _DigestNode:
    """One column, or a child of a nested one."""

    def __init__(self, kind: pa.DataType) -> None:
        self.seen, self.holds = 0, False
        self.stored = _widest(kind)
        self.type = str(self.stored)
        self.nulls, self.values, self.lengths = _hash(), _hash(), _hash()
        self.children: dict[str, _DigestNode] = {}
        if t.is_struct(kind):
            self.type, self.children = "struct", {field.name: _DigestNode(field.type) for field in kind}
        elif t.is_map(kind):
            self.type, self.children = "map", {"key": _DigestNode(kind.key_type), "value": _DigestNode(kind.item_type)}
        elif t.is_nested(kind):
            self.type, self.children = "list", {"item": _DigestNode(kind.value_type)}

    def facts(self) -> list[Any]:
        """The type and digests of this column, for the digest of all columns."""
        streams = [stream.hexdigest() for stream in (self.nulls, self.values, self.lengths)]
        return [self.type, *streams, [[name, *child.facts()] for name, child in self.children.items()]]

    def update(self, array: pa.Array) -> None:
        """Takes values: the places of NULLs, and then what is left without them."""
        places = self.seen
        self.seen += len(array)
        if array.null_count:
            self.nulls.update(np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).astype("<i8") + places)
            array = array.drop_null()
        if not len(array):
            return
        self.holds = True
        if self.type == "struct":
            for place, child in enumerate(self.children.values()):
                child.update(array.field(place))
        elif self.type in ("list", "map"):
            offsets = array.offsets.to_numpy()
            self.lengths.update(np.diff(offsets).astype("<i8"))
            parts = (array.keys, array.items) if self.type == "map" else (array.values,)
            for child, values in zip(self.children.values(), parts, strict=True):
                child.update(values.slice(offsets[0], offsets[-1] - offsets[0]))
        elif t.is_string(array.type) or t.is_binary(array.type):
            _, positions, body = array.buffers()
            offsets = np.frombuffer(positions, "<i4", len(array) + 1, array.offset * 4)
            self.lengths.update(np.diff(offsets).astype("<i8"))
            if body is not None:
                self.values.update(memoryview(body)[offsets[0] : offsets[-1]])
        else:
            values = array if array.type == self.stored else array.cast(self.stored, safe=False)
            width = values.type.byte_width
            self.values.update(memoryview(values.buffers()[1])[values.offset * width :][: len(values) * width])


def _widest(kind: pa.DataType) -> pa.DataType:
    """The type in which values are taken: 7 is 7 and 1.5 is 1.5, however many bits a table has for it.

    Values of uint64 beyond int64 are told apart by their bits, too.
    """
    found = type_of(kind)
    return (found and found.widest) or kind


def _hash(body: bytes = b"") -> Any:
    return blake2b(body, digest_size=DIGEST_BYTES)
