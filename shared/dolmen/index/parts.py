"""Index objects: a tree in an object of its own, written once and never changed, and read page by page.

::

    "DIX1"                   4 bytes
    page, page, ...          back to back; which is which and where is said by the pages above them
    root block               where the manifest says (index/root_block.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.checksum import crc32
from dolmen.format.manifest import Segment
from dolmen.index.key_bytes import KeyEncoding
from dolmen.index.pages import InnerPage, LeafPage, PageRef, decode_page
from dolmen.index.root_block import IndexHead, decode_root, encode_root, place
from dolmen.index.tree import Tree
from dolmen.index.tree_writer import TreeWriter
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectOutput, ObjectStore
from dolmen.store.cache import ObjectCache
from dolmen.units import MIB

MAGIC = b"DIX1"
_REQUEST_BYTES = 4 * MIB
"""Neighbouring pages are fetched together up to this."""


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part whose root block was read."""

    head: IndexHead
    tree: Tree

    def fits(self, columns: tuple[int, ...], kinds: tuple[str, ...]) -> bool:
        """Whether its keys consist of these columns, and are encoded as values of these kinds."""
        return (self.head.columns, self.head.kinds) == (columns, kinds)


@dataclass
class IndexTally:
    """Counts what was fetched of indexes."""

    requests: int = 0
    bytes: int = 0


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
    tally: IndexTally = field(default_factory=IndexTally)

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
        found: tuple[IndexHead, LeafPage | InnerPage] | None = self.cache.get(key)
        if found is None:
            found = decode_root(self.fetch(part.object, offset, offset + length), part)
            self.cache.put(key, found, found[1].nbytes + 100 * len(found[0].files))
        return OpenPart(found[0], Tree(found[1], _PartPages(self, part)))


@dataclass(frozen=True, slots=True)
class _PartPages:
    """The pages of one part."""

    reader: IndexReader
    part: Segment

    def pages(self, references: Sequence[PageRef]) -> Iterator[LeafPage | InnerPage]:
        """The pages, in the order of their references; neighbours that are not cached take one request."""
        name, cache = self.part.object, self.reader.cache
        groups: list[list[tuple[PageRef, LeafPage | InnerPage | None]]] = []
        for reference in references:
            page: LeafPage | InnerPage | None = cache.get(("index", name, reference.offset))
            last = groups[-1][-1] if groups else None
            if (
                last is not None
                and page is None
                and last[1] is None
                and last[0].offset + last[0].length == reference.offset
                and reference.offset + reference.length - groups[-1][0][0].offset <= _REQUEST_BYTES
            ):
                groups[-1].append((reference, page))
            else:
                groups.append([(reference, page)])
        for pages in self.reader.runtime.map(self._read, groups):
            yield from pages

    def _read(self, group: list[tuple[PageRef, LeafPage | InnerPage | None]]) -> list[LeafPage | InnerPage]:
        if group[0][1] is not None:
            return [page for _, page in group if page is not None]
        start, end = group[0][0].offset, group[-1][0].offset + group[-1][0].length
        body = self.reader.fetch(self.part.object, start, end)
        pages = []
        for reference, _ in group:
            page = _checked(body[reference.offset - start :][: reference.length], reference, self.part.object)
            self.reader.cache.put(("index", self.part.object, reference.offset), page, page.nbytes)
            pages.append(page)
        return pages


def write_part(
    store: ObjectStore,
    key: str,
    columns: tuple[int, ...],
    encoding: KeyEncoding,
    files: tuple[str, ...],
    blocks: Iterable[LeafPage],
) -> Segment | None:
    """Writes a part; without entries it writes nothing, and returns None.

    Args:
        key: what the object will be called.
        columns: ids of the columns of the keys.
        files: uuids of the data files, by their number in the entries.
        blocks: the entries, in the order of their keys.

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
        root = encode_root(columns, encoding.kinds, files, writer.finish())
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


def _checked(body: bytes, reference: PageRef, key: str) -> LeafPage | InnerPage:
    if len(body) != reference.length or crc32(body) != reference.crc32:
        raise CorruptionError(key, f"page at byte {reference.offset}: checksum differs")
    try:
        return decode_page(body)
    except ValueError as error:
        raise CorruptionError(key, f"page at byte {reference.offset}: {error}") from error
