"""The index of a table: objects that are written once and read page by page, and look-ups of keys in all of them.

A *part* is one of these objects: a B+ tree with the keys of some data files. docs/key-index.md specifies its bytes, and
those of the root block at its end.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field
from pyroaring import BitMap

from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.units import KIB, MIB
from dolmen.entries.index.key_encoding import KeyEncoding, Keys
from dolmen.entries.index.pages import LeafPage, Page, PageRef, Tree, TreeWriter, decode_page, find_all
from dolmen.entries.segments.segment_reader import FetchTally
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.layout import FORMAT_VERSION, build_decoders, decode_sealed, seal
from dolmen.format.manifest import Segment, TableEntry
from dolmen.store.base import ObjectStore
from dolmen.store.cache import CacheKey, ObjectCache

MAGIC = b"DIX1"
_HEAD = struct.Struct("<II")

_MOST_BYTES = 64 * MIB  # the most bytes of a root block's JSON: guards against a forged length

MOST_CHUNKS = 24_576
"""The most column chunks that a block locates: they take about 6 bytes each, and a request is worth 128 KB."""

_REQUEST_BYTES = 4 * MIB  # neighbouring pages are fetched together up to this

_AHEAD_BYTES = 16 * MIB  # the most bytes of pages that are requested at once, the last page excepted

_LEAF_BYTES = 48 * KIB  # about the bytes of a leaf, compressed
_LEAVES_TOGETHER = 64  # about the number of neighbouring leaves that are fetched together


class IndexHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns and files of a tree."""

    format_version: int
    columns: tuple[int, ...]  # ids of the columns of its keys, in the order in which they are encoded
    kinds: tuple[str, ...]  # the encoding of each (``KeyEncoding``)
    files: tuple[str, ...]  # uuids of the data files, by their number in entries
    schemas: tuple[bytes, ...] = ()  # Parquet footers without row groups, of files with different columns
    # for each file the number of its schema and its encoded ``ChunkLocations``, if the block has them
    chunks: tuple[tuple[int, bytes] | None, ...] = ()

    def chunk_locations(self, number: int) -> ChunkLocations | None:
        """The positions of a file's column chunks, by its number; None if the block does not have them."""
        chunk = self.chunks[number] if self.chunks else None
        return None if chunk is None else ChunkLocations.decode(self.schemas[chunk[0]], chunk[1])

    def all_locations(self) -> dict[str, ChunkLocations]:
        """The positions of column chunks that the block has, by the uuid of the file."""
        found = ((uuid, self.chunk_locations(number)) for number, uuid in enumerate(self.files))
        return {uuid: each for uuid, each in found if each is not None}

    @property
    def nbytes(self) -> int:
        return 100 * len(self.files) + sum(len(chunk[1]) for chunk in self.chunks if chunk)

    def check(self) -> None:
        """Raises ValueError if positions of chunks can't be read."""
        if len(self.chunks) not in (0, len(self.files)):
            raise ValueError(f"chunks of {len(self.chunks)} files, not of {len(self.files)}")
        if not all(chunk is None or 0 <= chunk[0] < len(self.schemas) for chunk in self.chunks):
            raise ValueError("there is no such schema")
        self.all_locations()


def _encode_root(
    columns: tuple[int, ...],
    kinds: tuple[str, ...],
    files: tuple[str, ...],
    root: bytes,
    locations: Mapping[str, ChunkLocations],
) -> bytes:
    """The bytes of a root block, with positions of column chunks if they take only a small part of it."""
    schemas: dict[bytes, int] = {}
    chunks: list[tuple[int, bytes] | None] = []
    count = 0
    for uuid in files:
        chunks_of_file = locations.get(uuid)
        if chunks_of_file is None or count + chunks_of_file.states.size > MOST_CHUNKS:
            chunks.append(None)
            continue
        count += chunks_of_file.states.size
        chunks.append((schemas.setdefault(chunks_of_file.schema, len(schemas)), chunks_of_file.encode()))
    head = IndexHead(FORMAT_VERSION, columns, kinds, files, tuple(schemas), tuple(chunks) if count else ())
    document = seal(msgspec.json.encode(head))
    frame: bytes = pa.Codec("zstd").compress(document, asbytes=True)
    return _HEAD.pack(len(document), len(frame)) + frame + root


def _decode_root(body: bytes, part: Segment, checksum: int) -> tuple[IndexHead, Page]:
    """The columns and files of a tree, and its root. Raises CorruptionError, UnsupportedFormatError."""
    if crc32(body) != checksum:
        raise CorruptionError(part.object, "root block: checksum differs")
    try:
        document_bytes, frame_bytes = _HEAD.unpack_from(body)
        if document_bytes > _MOST_BYTES:
            raise ValueError(f"{document_bytes} bytes of JSON")
        end = _HEAD.size + frame_bytes
        document = pa.decompress(memoryview(body)[_HEAD.size : end], document_bytes, codec="zstd", asbytes=True)
        head = decode_sealed(document, part.object, IndexHead, "root block")
        head.check()
        return head, decode_page(body[end:])
    except (ValueError, struct.error, OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(part.object, f"root block: {error}") from error


build_decoders(IndexHead)


class OpenPart(Struct, frozen=True):
    """A part, with its root block."""

    part: Segment
    head: IndexHead
    tree: Tree

    def has_keys_of(self, columns: tuple[int, ...], kinds: tuple[str, ...]) -> bool:
        """Whether its keys consist of these columns, encoded as values of these kinds."""
        return (self.head.columns, self.head.kinds) == (columns, kinds)


class IndexReader(Struct, frozen=True):
    """Reads parts of indexes. Safe to use from several threads."""

    store: ObjectStore
    runtime: Runtime
    cache: ObjectCache
    tally: FetchTally = field(default_factory=FetchTally)

    def fetch(self, key: str, start: int, end: int) -> bytes:
        """Bytes of a part. Raises CorruptionError if the object is missing."""
        try:
            body = self.store.get(key, (start, end)).body
        except ObjectNotFoundError as error:
            raise CorruptionError(key, "the object is missing; it holds a part of an index") from error
        self.tally.requests += 1
        self.tally.bytes += len(body)
        return body

    def open(self, part: Segment) -> OpenPart:
        """Reads the root block of a part, with one request unless it is cached.

        Raises CorruptionError, or UnsupportedFormatError if a newer dolmen wrote it.
        """
        if part.root is None:
            raise CorruptionError(part.object, "its reference does not say where the root block is")
        offset, length, checksum = part.root
        key = _root_key(part)
        root: tuple[IndexHead, Page] | None = self.cache.get(key)
        if root is None:
            root = _decode_root(self.fetch(part.object, offset, offset + length), part, checksum)
            self.cache.put(key, root, root[0].nbytes + root[1].nbytes)
        return OpenPart(part, root[0], Tree(root[1], lambda references: self.pages((part, r) for r in references)))

    def pages(self, requested: Iterable[tuple[Segment, PageRef]]) -> Iterator[Page]:
        """Reads pages of parts, in this order; neighbours that are not cached take one request."""
        groups = self._groups(requested)
        first = [*islice(groups, 2)]
        if len(first) < 2:  # one request needs no thread
            yield from chain.from_iterable(map(self._read, first))
            return
        for pages in self.runtime.map(
            self._read,
            chain(first, groups),
            size=lambda group: group.length,
            most=_AHEAD_BYTES,
            here=lambda group: group.cached is not None,
        ):
            yield from pages

    def _groups(self, requested: Iterable[tuple[Segment, PageRef]]) -> Iterator[_PageGroup]:
        group: _PageGroup | None = None
        for part, reference in requested:
            page: Page | None = self.cache.get(_page_key(part.object, reference))
            if group is not None and (page is not None or not group.is_followed_by(part, reference)):
                yield group
                group = None
            if page is not None:
                yield _PageGroup(part, [reference], page)
            elif group is None:
                group = _PageGroup(part, [reference])
            else:
                group.references.append(reference)
        if group is not None:
            yield group

    def _read(self, group: _PageGroup) -> list[Page]:
        if group.cached is not None:
            return [group.cached]
        key, start = group.part.object, group.references[0].offset
        body = self.fetch(key, start, start + group.length)
        pages = []
        for reference in group.references:
            page = _check_page(body[reference.offset - start :][: reference.length], reference, key)
            self.cache.put(_page_key(key, reference), page, page.nbytes)
            pages.append(page)
        return pages


class _PageGroup(Struct, frozen=True):
    """Neighbouring pages, or one that is cached."""

    part: Segment
    references: list[PageRef]
    cached: Page | None = None

    @property
    def length(self) -> int:
        last = self.references[-1]
        return 0 if self.cached is not None else last.offset + last.length - self.references[0].offset

    def is_followed_by(self, part: Segment, reference: PageRef) -> bool:
        """Whether a page follows these, and is fetched with them."""
        length = self.length
        follows = part.object == self.part.object and reference.offset == self.references[0].offset + length
        return follows and length + reference.length <= _REQUEST_BYTES


def write_part(
    store: ObjectStore,
    key: str,
    columns: tuple[int, ...],
    encoding: KeyEncoding,
    files: tuple[str, ...],
    blocks: Iterable[LeafPage],
    locations: Mapping[str, ChunkLocations],
) -> Segment | None:
    """Writes a part; without entries it writes nothing, and returns None.

    Args:
        files: uuids of the data files, by their number in the entries.
        blocks: the entries, in the order of their keys.
        locations: where files' column chunks are, by uuid, as far as known; read after the last block.
    """
    with store.open_output(key) as output:
        writer = TreeWriter(output.write, encoding.width)
        writer.write(MAGIC)
        for block in blocks:
            writer.add(block.keys, block.addresses)
        if not writer.entries:
            return None
        root = _encode_root(columns, encoding.kinds, files, writer.finish(), locations)
        offset = writer.offset
        writer.write(root)
        size = output.commit()
    return Segment("index", key, size, writer.crc32, writer.entries, root=(offset, len(root), crc32(root)))


def _root_key(part: Segment) -> CacheKey:
    return ("index", part.object, *(part.root or ()))


def _page_key(key: str, reference: PageRef) -> CacheKey:
    return ("index", key, *reference)


def _check_page(body: bytes, reference: PageRef, key: str) -> Page:
    if len(body) != reference.length or crc32(body) != reference.crc32:
        raise CorruptionError(key, f"page at byte {reference.offset}: checksum differs")
    try:
        return decode_page(body)
    except ValueError as error:
        raise CorruptionError(key, f"page at byte {reference.offset}: {error}") from error


_POSITION_BITS = np.uint64(32)
_POSITION = np.uint64((1 << 32) - 1)


class KeyMatches(Struct, frozen=True):
    """For some entries of keys that were looked up: the index of the key, the file's number, the row's position."""

    uuids: tuple[str, ...]
    keys: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    positions: npt.NDArray[np.uint32]


class FoundRows(Struct, frozen=True, dict=True):
    """The positions of rows of one file, ascending, hidden rows included, and the index of each one's key."""

    positions: npt.NDArray[np.uint32]
    keys: npt.NDArray[np.int64]

    @cached_property
    def bitmap(self) -> BitMap:
        return BitMap(self.positions)


class TableIndex(Struct, frozen=True, dict=True):
    """The parts of a table's index that fit its primary key."""

    encoding: KeyEncoding
    parts: tuple[OpenPart, ...]
    reader: IndexReader

    @classmethod
    def of(cls, entry: TableEntry, reader: IndexReader) -> TableIndex:
        """Opens the index of a table (whole entry): one request for each part that is not cached. See ``open``."""
        encoding = encoding_of(entry)
        opened = reader.runtime.map(
            reader.open,
            entry.segments_of("index"),
            here=lambda part: reader.cache.get(_root_key(part)) is not None,
        )
        fitting = tuple(part for part in opened if part.has_keys_of(entry.primary_key, encoding.kinds))
        return cls(encoding, fitting, reader)

    @cached_property
    def covered_files(self) -> frozenset[str]:
        """Uuids of the files whose keys are all in the index, live or not."""
        return frozenset(uuid for part in self.parts for uuid in part.head.files)

    def chunk_locations(self, uuid: str) -> ChunkLocations | None:
        """The positions of a file's column chunks, if a part has them."""
        for part in self.parts:
            if part.head.chunks and uuid in part.head.files:
                found = part.head.chunk_locations(part.head.files.index(uuid))
                if found is not None:
                    return found
        return None

    def find(self, keys: Keys) -> dict[str, FoundRows]:
        """The rows with these keys, hidden rows included, by the uuid of their file. See ``matches``."""
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
        """The entries of these keys (distinct, ascending), page by page. Raises CorruptionError."""
        roots = [part.tree.root for part in self.parts]
        for number, at, addresses in find_all(roots, keys, self._pages):
            files = (addresses >> _POSITION_BITS).astype(np.int64)
            yield KeyMatches(self.parts[number].head.files, at, files, (addresses & _POSITION).astype(np.uint32))

    def _pages(self, requested: Iterable[tuple[int, PageRef]]) -> Iterator[Page]:
        return self.reader.pages((self.parts[number].part, reference) for number, reference in requested)


def expected_cost(part: Segment, keys: int, request_bytes: int) -> int:
    """The bytes that a look-up of some keys in a part is expected to fetch, and ``request_bytes`` for each request."""
    leaves = max(1, -(-part.size // _LEAF_BYTES))
    expected = leaves * (1 - (1 - 1 / leaves) ** keys)
    requests = 1 + expected * (1 - expected / leaves) + expected / _LEAVES_TOGETHER
    root = 0 if part.root is None else part.root[1]
    return int(root + expected * part.size / leaves + requests * request_bytes)


def encoding_of(entry: TableEntry) -> KeyEncoding:
    """The encoding of keys in a table's index."""
    return _encoding(tuple(entry.schema.by_id[id_].arrow_type for id_ in entry.primary_key))


_encoding = lru_cache(maxsize=256)(KeyEncoding.of)
