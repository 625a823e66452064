"""Pages: the nodes of a tree. A leaf holds entries in the order of their keys, an inner page refers to pages below it.

::

    type                     1 byte: 1 = leaf, 2 = inner page
    width                    1 byte: bytes of each key, 0 if their lengths differ
    rows                     uint32, little endian: entries, or pages below
    length                   uint32, little endian: of what the frame holds
    frame                    one Zstandard frame

A page has no checksum: the reference to it has one, so that another intact page in its place is found out as well.

Reads a tree: looks up keys, each page once however many keys there are, and goes through it in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.entries.index import key_bytes
from dolmen.entries.index.key_bytes import LONGEST, Keys, as_matrix, as_strings, from_matrix, no_keys

PAGE_BYTES = 1 << 16
"""A page holds at most so many bytes before compression, by the measure of ``leaf_rows`` and ``inner_rows``."""

_HEAD = struct.Struct("<BBII")
_LEAF, _INNER = 1, 2
_LONGEST_FRAME = 1 << 20

MOST_ROWS = 1 << 14
"""A page has at most so many rows."""

_LEVEL = 3
_LENGTH_BYTES = 2
_REFERENCE_BYTES = 1 + 8 + 4 + 4

Places = npt.NDArray[np.uint64]
"""Where rows are: the number of a file, times 2^32, plus the position in it."""

_PAGES_AT_ONCE = 64


class PageRef(NamedTuple):
    """Where a page is in its object, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc32: int


@dataclass(frozen=True, slots=True)
class LeafPage:
    """Entries in the order of their keys; those of one key are in no particular order."""

    keys: Keys
    places: Places

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.keys.nbytes + self.places.nbytes)


@dataclass(frozen=True, slots=True)
class InnerPage:
    """Pages below, in the order of their keys.

    Args:
        keys: none of a page's keys is less than its key here, none of the pages before it is greater.
        shared: whether the page begins with the key with which the page before it ends.
        references: (offset, length, crc32) of each page.
    """

    keys: Keys
    shared: npt.NDArray[np.bool_]
    references: npt.NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.keys.nbytes + self.shared.nbytes + self.references.nbytes)

    def reference(self, row: int) -> PageRef:
        """Where the page at this place is."""
        return PageRef(*self.references[row].tolist())

    def below(self, least: Keys, greatest: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first and the last page that may hold a key from ``least`` to ``greatest``, for many pairs of these."""
        first = np.searchsorted(self.keys, least, "left")
        inside = np.minimum(first, len(self.keys) - 1)
        begins = (first < len(self.keys)) & (self.keys[inside] == least) & ~self.shared[inside]
        first = np.maximum(first - ~begins, 0)
        last = np.searchsorted(self.keys, greatest, "right") - 1
        return first, np.maximum(last, first)


def leaf_rows(keys: Keys, places: Places, width: int) -> int:
    """How many of these entries, which are in order, the next leaf takes: at least one."""
    return _rows(keys[:MOST_ROWS], width, _varying(key_bytes.of_numbers(places[:MOST_ROWS], 8)))


def inner_rows(keys: Keys, width: int) -> int:
    """How many of these pages the next inner page refers to: at least one."""
    return _rows(keys[:MOST_ROWS], width, _REFERENCE_BYTES)


def encode_leaf(leaf: LeafPage, width: int) -> bytes:
    """The page's bytes. ``width`` is the key encoding's."""
    return _encode(_LEAF, leaf.keys, width, key_bytes.encode(key_bytes.of_numbers(leaf.places, 8)))


def encode_inner(inner: InnerPage, width: int) -> bytes:
    """The page's bytes. ``width`` is the key encoding's."""
    offsets, lengths, sums = inner.references.T
    ends = np.insert((offsets + lengths)[:-1], 0, 0)
    columns = [
        inner.shared.astype(np.uint8).reshape(-1, 1),
        key_bytes.of_numbers(offsets - ends, 8),  # modulo 2^64
        key_bytes.of_numbers(lengths, 4),
        key_bytes.of_numbers(sums, 4),
    ]
    return _encode(_INNER, inner.keys, width, key_bytes.encode(np.hstack(columns)))


def decode_page(body: bytes) -> LeafPage | InnerPage:
    """The page of these bytes, whose checksum was right.

    Raises:
        ValueError: they are no page.
    """
    if len(body) < _HEAD.size:
        raise ValueError("it is too short")
    kind, width, rows, length = _HEAD.unpack_from(body)
    if kind not in (_LEAF, _INNER) or length > _LONGEST_FRAME or not 0 < rows <= MOST_ROWS:
        raise ValueError(f"a page of type {kind} with {rows} rows in {length} bytes")
    try:
        frame = pa.decompress(memoryview(body)[_HEAD.size :], length, codec="zstd", asbytes=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(str(error)) from error
    keys, rest = _decode_keys(memoryview(frame), rows, width)
    matrix, rest = key_bytes.decode(rest, rows, 8 if kind == _LEAF else _REFERENCE_BYTES)
    if len(rest):
        raise ValueError(f"{len(rest)} bytes too many")
    if kind == _LEAF:
        return LeafPage(keys, key_bytes.to_numbers(matrix))
    gaps, lengths, sums = (key_bytes.to_numbers(part) for part in np.hsplit(matrix[:, 1:], (8, 12)))
    ends = np.cumsum(gaps + lengths)  # modulo 2^64
    return InnerPage(keys, matrix[:, 0] != 0, np.stack([ends - lengths, lengths, sums], axis=1))


def _rows(keys: Keys, width: int, other_bytes: int) -> int:
    if width:
        return min(len(keys), PAGE_BYTES // (_varying(as_matrix(keys)) + other_bytes + 1))
    lengths = np.char.str_len(keys) + (_LENGTH_BYTES + other_bytes)
    return max(1, int(np.searchsorted(np.cumsum(lengths), PAGE_BYTES, "right")))


def _varying(matrix: key_bytes.Matrix) -> int:
    return int((matrix != matrix[:1]).any(axis=0).sum())


def _encode(kind: int, keys: Keys, width: int, rest: bytes) -> bytes:
    body = _encode_keys(keys, width) + rest
    frame: bytes = pa.Codec("zstd", _LEVEL).compress(body, asbytes=True)
    return _HEAD.pack(kind, width, len(keys), len(body)) + frame


def _encode_keys(keys: Keys, width: int) -> bytes:
    matrix = as_matrix(keys)
    if width:
        if matrix.shape[1] < width:
            matrix = np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
        return key_bytes.encode(matrix[:, :width])
    lengths = np.char.str_len(keys).astype(np.int64)
    differs = np.flatnonzero((matrix != matrix[0]).any(axis=0))
    prefix = min(int(differs[0]) if len(differs) else matrix.shape[1], int(lengths.min()))
    kept = np.arange(matrix.shape[1]) < lengths[:, None]
    kept[:, :prefix] = False
    counts = key_bytes.encode(key_bytes.of_numbers((lengths - prefix).astype(np.uint64), _LENGTH_BYTES))
    return b"".join((struct.pack("<H", prefix), matrix[0, :prefix].tobytes(), counts, matrix[kept].tobytes()))


def _decode_keys(body: memoryview, rows: int, width: int) -> tuple[Keys, memoryview]:
    if width:
        matrix, rest = key_bytes.decode(body, rows, width)
        return from_matrix(matrix), rest
    if len(body) < _LENGTH_BYTES:
        raise ValueError("no keys")
    prefix = int.from_bytes(body[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + prefix
    head = np.frombuffer(body[_LENGTH_BYTES:start], np.uint8)
    counts, rest = key_bytes.decode(body[start:], rows, _LENGTH_BYTES)
    lengths = key_bytes.to_numbers(counts).astype(np.int64)
    longest, total = prefix + int(lengths.max()), int(lengths.sum())
    if len(head) != prefix or longest > LONGEST or total > len(rest):
        raise ValueError("keys are too long")
    matrix = np.zeros((rows, longest), np.uint8)
    matrix[:, :prefix] = head
    matrix[:, prefix:][np.arange(longest - prefix) < lengths[:, None]] = np.frombuffer(rest[:total], np.uint8)
    return as_strings(matrix), rest[total:]


Page: TypeAlias = LeafPage | InnerPage

ReadPages: TypeAlias = Callable[[Iterable[tuple[int, PageRef]]], Iterator[Page]]
"""Gives pages of several trees: takes the number of the tree and the reference of each, and keeps their order."""


class PageSource(Protocol):
    """Gives pages by their references."""

    def pages(self, references: Sequence[PageRef]) -> Iterator[Page]:
        """The pages, in the order of their references. Raises CorruptionError."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree: its root, and where its other pages come from."""

    root: Page
    source: PageSource

    def leaves(self, least: Keys | None = None, greatest: Keys | None = None) -> Iterator[LeafPage]:
        """The leaves with the keys from ``least`` to ``greatest``, cut to these, in order.

        Args:
            least, greatest: an array of one key each; None = no bound.

        Raises:
            CorruptionError: a page is not what its reference says.
        """
        yield from self._leaves(self.root, least, greatest)

    def _leaves(self, page: Page, least: Keys | None, greatest: Keys | None) -> Iterator[LeafPage]:
        if isinstance(page, LeafPage):
            begin = 0 if least is None else int(np.searchsorted(page.keys, least, "left")[0])
            end = len(page.keys) if greatest is None else int(np.searchsorted(page.keys, greatest, "right")[0])
            if begin < end:
                yield LeafPage(page.keys[begin:end], page.places[begin:end])
            return
        low, high = page.keys[:1] if least is None else least, page.keys[-1:] if greatest is None else greatest
        begin = 0 if least is None else int(page.below(low, low)[0][0])
        end = len(page.keys) if greatest is None else int(page.below(high, high)[1][0]) + 1
        for at in range(begin, end, _PAGES_AT_ONCE):
            rows = range(at, min(end, at + _PAGES_AT_ONCE))
            for child in self.source.pages([page.reference(row) for row in rows]):
                yield from self._leaves(child, least, greatest)


def find_all(roots: Sequence[Page], keys: Keys, read: ReadPages) -> Iterator[tuple[int, npt.NDArray[np.int64], Places]]:
    """The entries of some keys in several trees, level by level, so that a level of all trees is read together.

    Args:
        roots: of the trees.
        keys: distinct, in ascending order.

    Yields:
        the number of a tree; for some of its entries the place of each one's key in ``keys``; and where its row is.
    """
    level: Iterable[tuple[int, Page, int, int]] = ((tree, page, 0, len(keys)) for tree, page in enumerate(roots))
    while len(keys):
        below: list[tuple[int, PageRef, int, int]] = []
        for tree, page, low, high in level:
            if isinstance(page, InnerPage):
                below += ((tree, *requested) for requested in _pages_with(page, keys, low, high))
                continue
            at, places = _entries(page, keys[low:high])
            if len(at):
                yield tree, at + low, places
        if not below:
            return
        pages = read((tree, reference) for tree, reference, _, _ in below)
        level = ((tree, page, low, high) for (tree, _, low, high), page in zip(below, pages, strict=True))


def _entries(leaf: LeafPage, keys: Keys) -> tuple[npt.NDArray[np.int64], Places]:
    """The entries of a leaf with some keys: the place of each one's key among these, and where its row is."""
    begin, end = np.searchsorted(leaf.keys, keys, "left"), np.searchsorted(leaf.keys, keys, "right")
    counts = end - begin
    rows = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts - begin, counts)
    return np.repeat(np.arange(len(keys)), counts), leaf.places[rows]


def _pages_with(page: InnerPage, keys: Keys, low: int, high: int) -> Iterator[tuple[PageRef, int, int]]:
    """The pages below that may have some of the keys from ``low`` to ``high``, and which of them each may have."""
    first, last = page.below(keys[low:high], keys[low:high])
    below = np.arange(int(first[0]), int(last[-1]) + 1)
    begin, end = np.searchsorted(last, below, "left"), np.searchsorted(first, below, "right")
    for row in np.flatnonzero(end > begin).tolist():
        yield page.reference(int(below[row])), low + int(begin[row]), low + int(end[row])


class PageOutput(Protocol):
    """Takes the bytes of pages, one after the other."""

    def write(self, data: bytes, /) -> int:
        """Appends ``data``; returns how many bytes were taken (all)."""


@dataclass(slots=True)
class _Level:
    """Pages of one level that no page above them refers to yet."""

    separators: list[Any] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    references: list[PageRef] = field(default_factory=list)
    written: int = 0

    def inner(self, rows: int, width: int) -> InnerPage:
        """Makes a page of the first ``rows`` of them, which leave this list."""
        keys = np.array(self.separators[:rows], no_keys(width).dtype if width else None)
        page = InnerPage(keys, np.array(self.shared[:rows], bool), np.array(self.references[:rows], np.uint64))
        del self.separators[:rows], self.shared[:rows], self.references[:rows]
        self.written += 1
        return page


class TreeWriter:
    """A tree being written. All pages but the root go to the output; it holds some leaves' entries in memory.

    Args:
        output: takes the pages.
        offset: bytes before them in the object.
        width: the key encoding's.
    """

    def __init__(self, output: PageOutput, offset: int, width: int) -> None:
        self.offset, self.entries = offset, 0
        self._output, self._width = output, width
        self._keys, self._places = no_keys(width), np.zeros(0, np.uint64)
        self._last: Keys | None = None
        self._levels: list[_Level] = [_Level()]

    def add(self, keys: Keys, places: Places) -> None:
        """Adds entries in the order of their keys, none of which is less than one that was added before."""
        self.entries += len(keys)
        self._keys, self._places = np.concatenate((self._keys, keys)), np.concatenate((self._places, places))
        at = 0
        while len(self._keys) - at > MOST_ROWS:
            at += self._write_leaf(at)
        self._keys, self._places = self._keys[at:], self._places[at:]

    def finish(self) -> bytes:
        """Writes the pages that are left, and returns the root, which is not written.

        Raises:
            ValueError: no entry was added.
        """
        if not self.entries:
            raise ValueError("a tree has entries")
        rows, at = len(self._keys), 0
        if self._last is None and leaf_rows(self._keys, self._places, self._width) == rows:
            return encode_leaf(LeafPage(self._keys, self._places), self._width)
        while at < rows:
            at += self._write_leaf(at)
        for depth, level in enumerate(self._levels):  # it grows in the loop
            while level.references:
                rows = inner_rows(np.array(level.separators), self._width)
                if not level.written and rows == len(level.references):
                    return encode_inner(level.inner(rows, self._width), self._width)
                self._write_inner(depth, rows)
        raise AssertionError("the last level has one page")

    def _write_leaf(self, at: int) -> int:
        window = slice(at, at + MOST_ROWS)
        rows = leaf_rows(self._keys[window], self._places[window], self._width)
        leaf = LeafPage(self._keys[at : at + rows], self._places[at : at + rows])
        first = leaf.keys[:1]
        separator = first if self._last is None else _separator(self._last, first)
        shared = self._last is not None and bool(self._last[0] == first[0])
        self._last = leaf.keys[-1:]
        self._add_page(0, separator[0], shared, encode_leaf(leaf, self._width))
        return rows

    def _write_inner(self, depth: int, rows: int) -> None:
        page = self._levels[depth].inner(rows, self._width)
        self._add_page(depth + 1, page.keys[0], bool(page.shared[0]), encode_inner(page, self._width))

    def _add_page(self, depth: int, separator: Any, shared: bool, body: bytes) -> None:
        if depth == len(self._levels):
            self._levels.append(_Level())
        level = self._levels[depth]
        if len(level.references) == MOST_ROWS:  # more than a page takes
            self._write_inner(depth, inner_rows(np.array(level.separators), self._width))
        self._output.write(body)
        level.separators.append(separator)
        level.shared.append(shared)
        level.references.append(PageRef(self.offset, len(body), crc32(body)))
        self.offset += len(body)


def _separator(before: Keys, first: Keys) -> Keys:
    """The shortest key greater than ``before`` and not greater than ``first``; ``first`` itself if both are equal."""
    if before[0] == first[0]:
        return first
    width = max(before.dtype.itemsize, first.dtype.itemsize)
    is_number = first.dtype == np.uint64
    low, high = (as_matrix(key if is_number else key.astype(f"S{width}"))[0] for key in (before, first))
    matrix = high.copy()
    matrix[int(np.flatnonzero(low != high)[0]) + 1 :] = 0
    return from_matrix(matrix.reshape(1, -1)) if is_number else as_strings(matrix.reshape(1, -1))
