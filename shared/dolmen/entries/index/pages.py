"""The tree of an index: the pages that hold its keys. docs/key-index.md specifies the bytes.

A page has no checksum: the reference to it has one, so it also reveals an intact page that is not the right one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field

from dolmen.entries.index.key_encoding import (
    LONGEST_KEY,
    Bytes,
    Keys,
    Lengths,
    as_matrix,
    as_strings,
    from_matrix,
    no_keys,
)

_EQUAL, _DIFFERENT = 0, 1

PAGE_BYTES = 1 << 16
"""The most bytes of a page before compression, by the measure of ``_leaf_rows`` and ``_inner_rows``."""

MOST_ROWS = 1 << 14  # the most rows of a page

_HEAD = struct.Struct("<BBII")
_LEAF, _INNER = 1, 2
_LONGEST_FRAME = 1 << 20
_ZSTD_LEVEL = 1  # for six kinds of keys, pages are at most 0.3 % larger than with level 3
_LENGTH_BYTES = 2
_REFERENCE_BYTES = 1 + 8 + 4 + 4
_PAGES_AT_ONCE = 64

Addresses = npt.NDArray[np.uint64]  # addresses of rows: the number of a file, times 2^32, plus the position in it


def encode_planes(matrix: Bytes) -> bytes:
    """A matrix column by column, because most columns of sorted numbers have equal bytes, which take one byte."""
    if len(matrix) == 0:
        return bytes(matrix.shape[1])
    planes = np.ascontiguousarray(matrix.T)
    varies = _varies(planes)
    columns = (plane if differs else plane[:1] for plane, differs in zip(planes, varies.tolist(), strict=True))
    return bytes(varies) + b"".join(columns)


def _varies(planes: Bytes) -> npt.NDArray[np.bool_]:
    """Whether the bytes of each plane differ."""
    varies: npt.NDArray[np.bool_] = (planes != planes[:, :1]).any(axis=1)
    return varies


def decode_planes(body: memoryview, rows: int, columns: int) -> tuple[Bytes, memoryview]:
    """The matrix, and the rest of ``body``. Raises ValueError."""
    matrix = np.empty((columns, rows), np.uint8)
    marks = bytes(body[:columns])
    if len(marks) != columns or not set(marks) <= {_EQUAL, _DIFFERENT}:
        raise ValueError("no planes")
    at = columns
    for column, mark in enumerate(marks):
        length = rows if mark == _DIFFERENT else min(1, rows)
        plane = np.frombuffer(body[at : at + length], np.uint8)
        if len(plane) != length:
            raise ValueError("a plane is too short")
        matrix[column] = plane[:1] if mark == _EQUAL and rows else plane
        at += length
    return np.ascontiguousarray(matrix.T), body[at:]


def bytes_of_numbers(numbers: npt.NDArray[np.uint64], width: int) -> Bytes:
    """The last ``width`` bytes of numbers, the most significant one first."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def numbers_of_bytes(matrix: Bytes) -> npt.NDArray[np.uint64]:
    """The inverse of ``bytes_of_numbers``."""
    padded = np.zeros((len(matrix), 8), np.uint8)
    padded[:, 8 - matrix.shape[1] :] = matrix
    return padded.view(">u8").reshape(-1).astype(np.uint64)


class PageRef(NamedTuple):
    """A page's position in its object, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc32: int


class LeafPage(Struct, frozen=True):
    """Entries in the order of their keys; entries of one key are in no particular order."""

    keys: Keys
    addresses: Addresses

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.addresses.nbytes)


class InnerPage(Struct, frozen=True):
    """References to pages below, in the order of their keys."""

    keys: Keys  # no key of a page is less than its key here, and no key of an earlier page is greater
    shared: npt.NDArray[np.bool_]  # whether the page begins with the last key of the page before it
    references: npt.NDArray[np.uint64]  # (offset, length, crc32) of each page

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.shared.nbytes + self.references.nbytes)

    def reference(self, row: int) -> PageRef:
        return PageRef(*self.references[row].tolist())

    def below(self, least: Keys, greatest: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first and the last page that may have a key from ``least`` to ``greatest``, for many pairs of these."""
        first = np.searchsorted(self.keys, least, "left")
        inside = np.minimum(first, len(self.keys) - 1)
        begins = (first < len(self.keys)) & (self.keys[inside] == least) & ~self.shared[inside]
        first = np.maximum(first - ~begins, 0)
        last = np.searchsorted(self.keys, greatest, "right") - 1
        return first, np.maximum(last, first)


def _leaf_rows(keys: Keys, lengths: Lengths, addresses: Addresses, width: int) -> int:
    """The number of these entries, which are in order, that the next leaf takes: at least one."""
    return _rows(keys[:MOST_ROWS], lengths[:MOST_ROWS], width, _varying(addresses[:MOST_ROWS]))


def _inner_rows(keys: Keys, width: int) -> int:
    """The number of these pages that the next inner page refers to: at least one."""
    return _rows(keys[:MOST_ROWS], lengths_of(keys[:MOST_ROWS], width), width, _REFERENCE_BYTES)


def _encode_leaf(leaf: LeafPage, width: int) -> bytes:
    return _encode(_LEAF, leaf.keys, width, encode_planes(bytes_of_numbers(leaf.addresses, 8)))


def _encode_inner(inner: InnerPage, width: int) -> bytes:
    offsets, lengths, sums = inner.references.T
    ends = np.insert((offsets + lengths)[:-1], 0, 0)
    columns = [
        inner.shared.astype(np.uint8).reshape(-1, 1),
        bytes_of_numbers(offsets - ends, 8),  # modulo 2^64
        bytes_of_numbers(lengths, 4),
        bytes_of_numbers(sums, 4),
    ]
    return _encode(_INNER, inner.keys, width, encode_planes(np.hstack(columns)))


def decode_page(body: bytes) -> LeafPage | InnerPage:
    """The page of these bytes, whose checksum was right. Raises ValueError if they are not a page."""
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
    matrix, rest = decode_planes(rest, rows, 8 if kind == _LEAF else _REFERENCE_BYTES)
    if len(rest):
        raise ValueError(f"{len(rest)} bytes too many")
    if kind == _LEAF:
        return LeafPage(keys, numbers_of_bytes(matrix))
    gaps, lengths, sums = (numbers_of_bytes(part) for part in np.hsplit(matrix[:, 1:], (8, 12)))
    ends = np.cumsum(gaps + lengths)  # modulo 2^64
    return InnerPage(keys, matrix[:, 0] != 0, np.stack([ends - lengths, lengths, sums], axis=1))


def lengths_of(keys: Keys, width: int) -> Lengths:
    """The bytes of each key, without zeros at its end; nothing if all keys have one width."""
    if width:
        return np.zeros(0, np.int64)
    if len(keys) and as_matrix(keys)[:, -1].all():  # such as UUIDs
        return np.full(len(keys), keys.dtype.itemsize, np.int64)
    return np.char.str_len(keys).astype(np.int64)


def _rows(keys: Keys, lengths: Lengths, width: int, other_bytes: int) -> int:
    if width:
        varying = _varying(keys) if width == 8 else int(_varies(np.ascontiguousarray(as_matrix(keys).T)).sum())
        return min(len(keys), PAGE_BYTES // (varying + other_bytes + 1))
    ends = np.cumsum(lengths + (_LENGTH_BYTES + other_bytes))
    return max(1, int(np.searchsorted(ends, PAGE_BYTES, "right")))


def _varying(numbers: npt.NDArray[np.uint64]) -> int:
    """How many bytes differ among numbers."""
    differs = np.bitwise_or.reduce(numbers ^ numbers[:1])
    return sum(byte > 0 for byte in int(differs).to_bytes(8, "little"))


def _encode(kind: int, keys: Keys, width: int, rest: bytes) -> bytes:
    body = _encode_keys(keys, width) + rest
    frame: bytes = pa.Codec("zstd", _ZSTD_LEVEL).compress(body, asbytes=True)
    return _HEAD.pack(kind, width, len(keys), len(body)) + frame


def _encode_keys(keys: Keys, width: int) -> bytes:
    matrix = as_matrix(keys)
    if width:
        if matrix.shape[1] < width:
            matrix = np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
        return encode_planes(matrix[:, :width])
    lengths = lengths_of(keys, width)
    least = int(lengths.min())
    differs = np.flatnonzero(matrix[0] != matrix[-1])  # keys are in order: what these share, all share
    prefix = min(int(differs[0]) if len(differs) else matrix.shape[1], least)
    counts = encode_planes(bytes_of_numbers((lengths - prefix).astype(np.uint64), _LENGTH_BYTES))
    if least == matrix.shape[1]:
        rest = matrix[:, prefix:].tobytes()
    else:
        kept = np.arange(matrix.shape[1]) < lengths[:, None]
        kept[:, :prefix] = False
        rest = matrix[kept].tobytes()
    return b"".join((struct.pack("<H", prefix), matrix[0, :prefix].tobytes(), counts, rest))


def _decode_keys(body: memoryview, rows: int, width: int) -> tuple[Keys, memoryview]:
    if width:
        matrix, rest = decode_planes(body, rows, width)
        return from_matrix(matrix), rest
    if len(body) < _LENGTH_BYTES:
        raise ValueError("no keys")
    prefix = int.from_bytes(body[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + prefix
    head = np.frombuffer(body[_LENGTH_BYTES:start], np.uint8)
    counts, rest = decode_planes(body[start:], rows, _LENGTH_BYTES)
    lengths = numbers_of_bytes(counts).astype(np.int64)
    longest, total = prefix + int(lengths.max()), int(lengths.sum())
    if len(head) != prefix or longest > LONGEST_KEY or total > len(rest):
        raise ValueError("keys are too long")
    matrix = np.zeros((rows, longest), np.uint8)
    matrix[:, :prefix] = head
    if total == rows * (longest - prefix):  # keys of one length, such as UUIDs
        matrix[:, prefix:] = np.frombuffer(rest[:total], np.uint8).reshape(rows, longest - prefix)
        return as_strings(matrix), rest[total:]
    matrix[:, prefix:][np.arange(longest - prefix) < lengths[:, None]] = np.frombuffer(rest[:total], np.uint8)
    return as_strings(matrix), rest[total:]


Page: TypeAlias = LeafPage | InnerPage


class Tree(Struct, frozen=True):
    """A tree: its root, and a function that reads other pages, in the order of their references."""

    root: Page
    read: Callable[[Sequence[PageRef]], Iterator[Page]]

    def leaves(self) -> Iterator[LeafPage]:
        """All leaves, in order. Raises CorruptionError."""
        yield from self._leaves(self.root)

    def _leaves(self, page: Page) -> Iterator[LeafPage]:
        if isinstance(page, LeafPage):
            yield page
            return
        for at in range(0, len(page.keys), _PAGES_AT_ONCE):
            rows = range(at, min(len(page.keys), at + _PAGES_AT_ONCE))
            for child in self.read([page.reference(row) for row in rows]):
                yield from self._leaves(child)


def find_all(
    roots: Sequence[Page], keys: Keys, read: Callable[[Iterable[tuple[int, PageRef]]], Iterator[Page]]
) -> Iterator[tuple[int, npt.NDArray[np.int64], Addresses]]:
    """The entries of some distinct, ascending keys in several trees. A level of all trees is read together.

    ``read``: reads pages by the number of their tree and their reference, and keeps their order.

    Yields:
        the number of a tree; for some of its entries the index of each one's key in ``keys``; and the row's address.
    """
    level: Iterable[tuple[int, Page, int, int]] = ((tree, page, 0, len(keys)) for tree, page in enumerate(roots))
    while len(keys):
        below: list[tuple[int, PageRef, int, int]] = []
        for tree, page, low, high in level:
            if isinstance(page, InnerPage):
                below += ((tree, *requested) for requested in _pages_with(page, keys, low, high))
                continue
            at, addresses = _entries(page, keys[low:high])
            if len(at):
                yield tree, at + low, addresses
        if not below:
            return
        pages = read((tree, reference) for tree, reference, _, _ in below)
        level = ((tree, page, low, high) for (tree, _, low, high), page in zip(below, pages, strict=True))


def _entries(leaf: LeafPage, keys: Keys) -> tuple[npt.NDArray[np.int64], Addresses]:
    """The entries of a leaf with some keys: the index of each one's key among these, and the row's address."""
    begin, end = np.searchsorted(leaf.keys, keys, "left"), np.searchsorted(leaf.keys, keys, "right")
    counts = end - begin
    rows = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts - begin, counts)
    return np.repeat(np.arange(len(keys)), counts), leaf.addresses[rows]


def _pages_with(page: InnerPage, keys: Keys, low: int, high: int) -> Iterator[tuple[PageRef, int, int]]:
    """The pages below that may have some of the keys from ``low`` to ``high``, each with the range that it may have."""
    first, last = page.below(keys[low:high], keys[low:high])
    if first[0] == last[-1]:
        yield page.reference(int(first[0])), low, high
        return
    below = np.arange(int(first[0]), int(last[-1]) + 1)
    begin, end = np.searchsorted(last, below, "left"), np.searchsorted(first, below, "right")
    for row in np.flatnonzero(end > begin).tolist():
        yield page.reference(int(below[row])), low + int(begin[row]), low + int(end[row])


class _Level(Struct):
    """Pages of one level to which no page above them refers yet."""

    separators: list[Any] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    references: list[PageRef] = field(default_factory=list)
    written: int = 0

    def inner(self, rows: int, width: int) -> InnerPage:
        """A page that refers to the first ``rows`` of them, which leave this list."""
        keys = np.array(self.separators[:rows], no_keys(width).dtype if width else None)
        page = InnerPage(keys, np.array(self.shared[:rows], bool), np.array(self.references[:rows], np.uint64))
        del self.separators[:rows], self.shared[:rows], self.references[:rows]
        self.written += 1
        return page


class TreeWriter:
    """Writes a tree into an object: all pages but the root, and buffers the entries of some leaves."""

    def __init__(self, write: Callable[[bytes], object], width: int) -> None:
        self.offset = self.crc32 = self.entries = 0
        self._append, self._width = write, width
        self._keys, self._addresses = no_keys(width), np.zeros(0, np.uint64)
        self._lengths = lengths_of(self._keys, width)
        self._last: Keys | None = None
        self._levels: list[_Level] = [_Level()]

    def write(self, data: bytes) -> None:
        """Appends bytes to the object, and counts and sums them."""
        self._append(data)
        self.offset += len(data)
        self.crc32 = crc32(data, self.crc32)

    def add(self, keys: Keys, addresses: Addresses) -> None:
        """Adds entries in the order of their keys. No key is less than an earlier one."""
        self.entries += len(keys)
        self._keys, self._addresses = np.concatenate((self._keys, keys)), np.concatenate((self._addresses, addresses))
        self._lengths = np.concatenate((self._lengths, lengths_of(keys, self._width)))
        at = 0
        while len(self._keys) - at > MOST_ROWS:
            at += self._write_leaf(at)
        self._keys, self._addresses, self._lengths = self._keys[at:], self._addresses[at:], self._lengths[at:]

    def finish(self) -> bytes:
        """Writes the other pages, and returns the root, which is not written. Raises ValueError without entries."""
        if not self.entries:
            raise ValueError("a tree has entries")
        rows, at = len(self._keys), 0
        if self._last is None and _leaf_rows(self._keys, self._lengths, self._addresses, self._width) == rows:
            return _encode_leaf(LeafPage(self._keys, self._addresses), self._width)
        while at < rows:
            at += self._write_leaf(at)
        for depth, level in enumerate(self._levels):  # it grows in the loop
            while level.references:
                rows = _inner_rows(np.array(level.separators), self._width)
                if not level.written and rows == len(level.references):
                    return _encode_inner(level.inner(rows, self._width), self._width)
                self._write_inner(depth, rows)
        raise AssertionError("the last level has one page")

    def _write_leaf(self, at: int) -> int:
        window = slice(at, at + MOST_ROWS)
        rows = _leaf_rows(self._keys[window], self._lengths[window], self._addresses[window], self._width)
        leaf = LeafPage(self._keys[at : at + rows], self._addresses[at : at + rows])
        first = leaf.keys[:1]
        separator = first if self._last is None else _separator(self._last, first)
        shared = self._last is not None and bool(self._last[0] == first[0])
        self._last = leaf.keys[-1:]
        self._add_page(0, separator[0], shared, _encode_leaf(leaf, self._width))
        return rows

    def _write_inner(self, depth: int, rows: int) -> None:
        page = self._levels[depth].inner(rows, self._width)
        self._add_page(depth + 1, page.keys[0], bool(page.shared[0]), _encode_inner(page, self._width))

    def _add_page(self, depth: int, separator: Any, is_shared: bool, body: bytes) -> None:
        if depth == len(self._levels):
            self._levels.append(_Level())
        level = self._levels[depth]
        if len(level.references) == MOST_ROWS:  # more than a page takes
            self._write_inner(depth, _inner_rows(np.array(level.separators), self._width))
        level.separators.append(separator)
        level.shared.append(is_shared)
        level.references.append(PageRef(self.offset, len(body), crc32(body)))
        self.write(body)


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
