"""The index of a table in one version: all its parts together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from dolmen.format.manifest import TableEntry
from dolmen.index.key_bytes import KeyEncoding, Keys
from dolmen.index.parts import IndexReader, OpenPart

_POSITION_BITS = np.uint64(32)
_POSITION = np.uint64((1 << 32) - 1)


@dataclass(frozen=True)
class TableIndex:
    """The parts that fit the table's primary key.

    Args:
        encoding: how keys are encoded.
        parts: their heads and trees.
    """

    encoding: KeyEncoding
    parts: tuple[OpenPart, ...]

    @classmethod
    def of(cls, entry: TableEntry, reader: IndexReader) -> TableIndex:
        """Opens the index of a table, with one request for each part that is not cached.

        Args:
            entry: the table's whole entry.

        Raises:
            CorruptionError: a part is missing or damaged.
        """
        encoding = encoding_of(entry)
        opened = reader.runtime.map(reader.open, entry.segments_of("index"))
        return cls(encoding, tuple(part for part in opened if part.fits(entry.primary_key, encoding.kinds)))

    @cached_property
    def covered(self) -> frozenset[str]:
        """Uuids of the files all of whose keys it knows, live or not."""
        return frozenset(uuid for part in self.parts for uuid in part.head.files)

    def find(self, keys: Keys) -> dict[str, BitMap]:
        """The positions of rows with these keys, hidden rows included, by the uuid of their file.

        Args:
            keys: distinct, in ascending order.

        Raises:
            CorruptionError: a page is missing or damaged.
        """
        found: dict[str, BitMap] = defaultdict(BitMap)
        for part in self.parts:
            for _, places in part.tree.find(keys):
                numbers = (places >> _POSITION_BITS).astype(np.int64)
                for number in np.unique(numbers).tolist():
                    positions = (places[numbers == number] & _POSITION).astype(np.uint32)
                    found[part.head.files[number]].update(BitMap(positions))
        return dict(found)


def encoding_of(entry: TableEntry) -> KeyEncoding:
    """How the keys of a table's index are encoded."""
    return KeyEncoding.of(key_types(entry))


def key_types(entry: TableEntry) -> list[pa.DataType]:
    """The types of the primary key's columns."""
    return [entry.schema.by_id[id_].arrow_type for id_ in entry.primary_key]
