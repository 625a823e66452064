"""Index objects: a tree in an object of its own, written once and never changed, and read page by page.

::

    "DIX1"                   4 bytes
    page, page, ...          back to back; the pages above them refer to them
    root block               where the manifest says (index/root_block.py)

The root block at the end of an index object describes the tree, and holds its root page.

::

    length of the JSON       uint32, little endian
    length of the frame      uint32, little endian
    frame                    one Zstandard frame: sealed JSON (format/checksum.py)
    root page                the rest (index/pages.py)

The JSON is ``{"format_version": 1, "columns": [...], "kinds": [...], "files": [...]}``, and, if the places of
column chunks are known of some files, ``"schemas": [...], "chunks": [...]`` (format/chunk_places.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import msgspec
import pyarrow as pa

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.entries.index.key_bytes import KeyEncoding
from dolmen.entries.index.pages import InnerPage, LeafPage, Page, PageRef, Tree, TreeWriter, decode_page
from dolmen.entries.segments.segment_reader import FetchTally
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.layout import FORMAT_VERSION, check_format_version, prepare, seal, unseal
from dolmen.format.manifest import Segment
from dolmen.store.base import ObjectOutput, ObjectStore
from dolmen.store.cache import ObjectCache

_HEAD = struct.Struct("<II")

_MOST_BYTES = 64 * MIB
"""JSON longer than this is no root block's: guards against a forged length."""

MOST_CHUNKS = 24_576
"""The most column chunks whose places are in a block: they take about 6 bytes each, and a request is worth 128 KB."""

MAGIC = b"DIX1"

_REQUEST_BYTES = 4 * MIB
"""Neighbouring pages are fetched together up to this."""

_AHEAD_BYTES = 16 * MIB
"""Pages that are asked for at once have no more bytes, but for the last of them."""


class IndexHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns and files of a tree.

    Args:
        columns: ids of the columns of its keys, in the order in which they are encoded.
        kinds: how each of them is encoded (``KeyEncoding``).
        files: uuids of the data files, by their number in entries.
        schemas: Parquet footers without row groups, of files with different columns.
        chunks: for each file the number of its schema and its encoded ``ChunkLocations``, if they are there.
    """

    format_version: int
    columns: tuple[int, ...]
    kinds: tuple[str, ...]
    files: tuple[str, ...]
    schemas: tuple[bytes, ...] = ()
    chunks: tuple[tuple[int, bytes] | None, ...] = ()

    def chunk_places(self, number: int) -> ChunkLocations | None:
        """Where the column chunks of a file are, by its number; None if the block does not say."""
        known = self.chunks[number] if self.chunks else None
        return None if known is None else ChunkLocations.decode(self.schemas[known[0]], known[1])

    def all_places(self) -> dict[str, ChunkLocations]:
        """Those of all files of which they are there, by their uuid."""
        found = ((uuid, self.chunk_places(number)) for number, uuid in enumerate(self.files))
        return {uuid: places for uuid, places in found if places is not None}

    @property
    def nbytes(self) -> int:
        """About the bytes in memory."""
        return 100 * len(self.files) + sum(len(known[1]) for known in self.chunks if known)

    def check(self) -> None:
        """Raises ValueError if a place of chunks can't be read."""
        if len(self.chunks) not in (0, len(self.files)):
            raise ValueError(f"chunks of {len(self.chunks)} files, not of {len(self.files)}")
        if not all(known is None or 0 <= known[0] < len(self.schemas) for known in self.chunks):
            raise ValueError("there is no such schema")
        self.all_places()


def encode_root(
    columns: tuple[int, ...],
    kinds: tuple[str, ...],
    files: tuple[str, ...],
    root: bytes,
    places: Mapping[str, ChunkLocations],
) -> bytes:
    """The block's bytes.

    Args:
        places: of column chunks, by the uuid of a file. As many files have theirs in the block as take little of it.
    """
    schemas: dict[bytes, int] = {}
    chunks: list[tuple[int, bytes] | None] = []
    count = 0
    for uuid in files:
        known = places.get(uuid)
        if known is None or count + known.states.size > MOST_CHUNKS:
            chunks.append(None)
            continue
        count += known.states.size
        chunks.append((schemas.setdefault(known.schema, len(schemas)), known.encode()))
    head = IndexHead(FORMAT_VERSION, columns, kinds, files, tuple(schemas), tuple(chunks) if count else ())
    document = seal(msgspec.json.encode(head))
    frame: bytes = pa.Codec("zstd").compress(document, asbytes=True)
    return _HEAD.pack(len(document), len(frame)) + frame + root


def place(part: Segment) -> tuple[int, int, int]:
    """Offset, length and CRC-32 of a part's root block. Raises CorruptionError if its reference lacks them."""
    if part.root is None:
        raise CorruptionError(part.object, "its reference does not say where the root block is")
    return part.root


def decode_root(body: bytes, part: Segment) -> tuple[IndexHead, LeafPage | InnerPage]:
    """Reads a block: the columns and files of a tree, and its root.

    Raises:
        CorruptionError: the bytes are not what the segment's reference says.
        UnsupportedFormatError: written by a newer dolmen.
    """
    _, length, checksum = place(part)
    if len(body) != length or crc32(body) != checksum:
        raise CorruptionError(part.object, "root block: checksum differs")
    try:
        document_bytes, frame_bytes = _HEAD.unpack_from(body)
        if document_bytes > _MOST_BYTES:
            raise ValueError(f"{document_bytes} bytes of JSON")
        end = _HEAD.size + frame_bytes
        document = unseal(
            pa.decompress(memoryview(body)[_HEAD.size : end], document_bytes, codec="zstd", asbytes=True), part.object
        )
        check_format_version(document, part.object)
        head = msgspec.json.decode(document, type=IndexHead)
        head.check()
        return head, decode_page(body[end:])
    except (ValueError, struct.error, OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(part.object, f"root block: {error}") from error


prepare(IndexHead)


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part whose root block was read."""

    part: Segment
    head: IndexHead
    tree: Tree

    def fits(self, columns: tuple[int, ...], kinds: tuple[str, ...]) -> bool:
        """Whether its keys consist of these columns, and are encoded as values of these kinds."""
        return (self.head.columns, self.head.kinds) == (columns, kinds)


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads parts of indexes. Safe to use from several threads.

    Args:
        cache: keeps decoded pages.
        tally: counts fetches.
    """

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

        Raises:
            CorruptionError: the object is missing, or not what its reference says.
            UnsupportedFormatError: written by a newer dolmen.
        """
        offset, length, _ = place(part)
        key = ("index", part.object, offset)
        found: tuple[IndexHead, Page] | None = self.cache.get(key)
        if found is None:
            found = decode_root(self.fetch(part.object, offset, offset + length), part)
            self.cache.put(key, found, found[0].nbytes + found[1].nbytes)
        return OpenPart(part, found[0], Tree(found[1], _PartPages(self, part)))

    def pages(self, requested: Iterable[tuple[Segment, PageRef]]) -> Iterator[Page]:
        """Pages of parts, in this order; neighbours that are not cached take one request.

        Raises:
            CorruptionError: a page is missing, or not what its reference says.
        """
        groups = self._groups(requested)
        for pages in self.runtime.map(self._read, groups, size=lambda group: group.length, most=_AHEAD_BYTES):
            yield from pages

    def _groups(self, requested: Iterable[tuple[Segment, PageRef]]) -> Iterator[_PageGroup]:
        group: _PageGroup | None = None
        for part, reference in requested:
            page: Page | None = self.cache.get(("index", part.object, reference.offset))
            if group is not None and (page is not None or not group.goes_on(part, reference)):
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
            page = _checked(body[reference.offset - start :][: reference.length], reference, key)
            self.cache.put(("index", key, reference.offset), page, page.nbytes)
            pages.append(page)
        return pages


@dataclass(frozen=True, slots=True)
class _PageGroup:
    """Neighbouring pages, or one that is cached."""

    part: Segment
    references: list[PageRef]
    cached: Page | None = None

    @property
    def length(self) -> int:
        """The bytes to fetch."""
        last = self.references[-1]
        return 0 if self.cached is not None else last.offset + last.length - self.references[0].offset

    def goes_on(self, part: Segment, reference: PageRef) -> bool:
        """Whether a page follows these, and is fetched with them."""
        length = self.length
        follows = part.object == self.part.object and reference.offset == self.references[0].offset + length
        return follows and length + reference.length <= _REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class _PartPages:
    """The pages of one part."""

    reader: IndexReader
    part: Segment

    def pages(self, references: Sequence[PageRef]) -> Iterator[Page]:
        """The pages, in the order of their references."""
        return self.reader.pages((self.part, reference) for reference in references)


def write_part(
    store: ObjectStore,
    key: str,
    columns: tuple[int, ...],
    encoding: KeyEncoding,
    files: tuple[str, ...],
    blocks: Iterable[LeafPage],
    places: Mapping[str, ChunkLocations],
) -> Segment | None:
    """Writes a part; without entries it writes nothing, and returns None.

    Args:
        key: what the object will be called.
        columns: ids of the columns of the keys.
        files: uuids of the data files, by their number in the entries.
        blocks: the entries, in the order of their keys.
        places: of the column chunks of files, by uuid, if they are known; read after the last block.

    Raises:
        StoreUnavailableError, AccessDeniedError: from the upload; and whatever ``blocks`` raises.
    """
    with store.open_output(key) as output:
        summed = _SummedOutput(output)
        summed.write(MAGIC)
        writer = TreeWriter(summed, len(MAGIC), encoding.width)
        for block in blocks:
            writer.add(block.keys, block.places)
        if not writer.entries:
            return None
        root = encode_root(columns, encoding.kinds, files, writer.finish(), places)
        summed.write(root)
        size = output.commit()
    return Segment("index", key, size, summed.crc32, writer.entries, root=(writer.offset, len(root), crc32(root)))


class _SummedOutput:
    """Passes bytes on, and keeps the CRC-32 of all of them."""

    def __init__(self, output: ObjectOutput) -> None:
        self._output, self.crc32 = output, 0

    def write(self, data: bytes, /) -> int:
        """Appends ``data``; returns how many bytes were taken (all)."""
        self.crc32 = crc32(data, self.crc32)
        return self._output.write(data)


def _checked(body: bytes, reference: PageRef, key: str) -> Page:
    if len(body) != reference.length or crc32(body) != reference.crc32:
        raise CorruptionError(key, f"page at byte {reference.offset}: checksum differs")
    try:
        return decode_page(body)
    except ValueError as error:
        raise CorruptionError(key, f"page at byte {reference.offset}: {error}") from error
