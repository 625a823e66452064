"""The index of a table in one version: all its parts together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import cached_property
from dolmen.base.units import KIB
from dolmen.entries.index.index_parts import IndexReader, OpenPart
from dolmen.entries.index.key_bytes import KeyEncoding, Keys
from dolmen.entries.index.pages import Page, PageRef, find_all
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.manifest import Segment, TableEntry

_POSITION_BITS = np.uint64(32)
_POSITION = np.uint64((1 << 32) - 1)

_LEAF_BYTES = 48 * KIB
"""About the bytes of a leaf, compressed."""
_LEAVES_TOGETHER = 64
"""About so many neighbouring leaves are fetched together."""


@dataclass(frozen=True)
class KeyMatches:
    """Some entries of keys that were looked up.

    Args:
        uuids: of the files, by number.
        keys: for each entry the index of its key among those that were looked up.
        files: the number of its file.
        positions: of its row there.
    """

    uuids: tuple[str, ...]
    keys: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    positions: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class FoundRows:
    """The rows of one file that have one of some keys.

    Args:
        positions: of the rows, ascending, hidden ones included.
        keys: for each row the index of its key among those that were looked up.
    """

    positions: npt.NDArray[np.uint32]
    keys: npt.NDArray[np.int64]

    @cached_property
    def bitmap(self) -> BitMap:
        """The positions."""
        return BitMap(self.positions)


@dataclass(frozen=True)
class TableIndex:
    """The parts that fit the table's primary key.

    Args:
        encoding: how keys are encoded.
        parts: their heads and trees.
        reader: reads their pages.
    """

    encoding: KeyEncoding
    parts: tuple[OpenPart, ...]
    reader: IndexReader

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
        fitting = tuple(part for part in opened if part.fits(entry.primary_key, encoding.kinds))
        return cls(encoding, fitting, reader)

    @cached_property
    def covered(self) -> frozenset[str]:
        """Uuids of the files all of whose keys it knows, live or not."""
        return frozenset(uuid for part in self.parts for uuid in part.head.files)

    def chunk_places(self, uuid: str) -> ChunkLocations | None:
        """Where the column chunks of a file are, if a part says so."""
        for part in self.parts:
            if part.head.chunks and uuid in part.head.files:
                found = part.head.chunk_places(part.head.files.index(uuid))
                if found is not None:
                    return found
        return None

    def find(self, keys: Keys) -> dict[str, FoundRows]:
        """The rows with these keys, hidden rows included, by the uuid of their file, all of them in memory.

        Args:
            keys: distinct, in ascending order.

        Raises:
            CorruptionError: a page is missing or damaged.
        """
        parts: dict[str, list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]] = defaultdict(list)
        for some in self.matches(keys):
            for number in np.unique(some.files).tolist():
                own = some.files == number
                parts[some.uuids[number]].append((some.positions[own], some.keys[own]))
        found = {}
        for uuid, pieces in parts.items():  # a file that two parts cover has each row twice
            positions, first = np.unique(np.concatenate([piece[0] for piece in pieces]), return_index=True)
            found[uuid] = FoundRows(positions, np.concatenate([piece[1] for piece in pieces])[first])
        return found

    def matches(self, keys: Keys) -> Iterator[KeyMatches]:
        """The entries of these keys, page by page. Pages of one level of all parts are fetched together.

        Args:
            keys: distinct, in ascending order.

        Raises:
            CorruptionError: a page is missing or damaged.
        """
        roots = [part.tree.root for part in self.parts]
        for number, at, places in find_all(roots, keys, self._pages):
            files = (places >> _POSITION_BITS).astype(np.int64)
            yield KeyMatches(self.parts[number].head.files, at, files, (places & _POSITION).astype(np.uint32))

    def _pages(self, requested: Iterable[tuple[int, PageRef]]) -> Iterator[Page]:
        return self.reader.pages((self.parts[number].part, reference) for number, reference in requested)


def expected_cost(part: Segment, keys: int, request_bytes: int) -> int:
    """Bytes that a look-up of some keys is expected to fetch of a part, which are anywhere among its keys.

    Args:
        request_bytes: what a request is worth in bytes, which is added for each.
    """
    leaves = max(1, -(-part.size // _LEAF_BYTES))
    asked = leaves * (1 - (1 - 1 / leaves) ** keys)
    requests = 1 + asked * (1 - asked / leaves) + asked / _LEAVES_TOGETHER
    root = 0 if part.root is None else part.root[1]
    return int(root + asked * part.size / leaves + requests * request_bytes)


def encoding_of(entry: TableEntry) -> KeyEncoding:
    """How the keys of a table's index are encoded."""
    return KeyEncoding.of(key_types(entry))


def key_types(entry: TableEntry) -> list[pa.DataType]:
    """The types of the primary key's columns."""
    return [entry.schema.by_id[id_].arrow_type for id_ in entry.primary_key]
