"""Pages: the nodes of a tree. A leaf holds entries in the order of their keys, an inner page refers to pages below it.

::

    type                     1 byte: 1 = leaf, 2 = inner page
    width                    1 byte: bytes of each key, 0 if their lengths differ
    rows                     uint32, little endian: entries, or pages below
    length                   uint32, little endian: of what the frame holds
    frame                    one Zstandard frame

A page has no checksum: the reference to it has one, so that another intact page in its place is found out as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.entries.index import planes
from dolmen.entries.index.key_bytes import LONGEST, Keys, as_matrix, as_strings, from_matrix

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
    return _rows(keys[:MOST_ROWS], width, _varying(planes.of_numbers(places[:MOST_ROWS], 8)))


def inner_rows(keys: Keys, width: int) -> int:
    """How many of these pages the next inner page refers to: at least one."""
    return _rows(keys[:MOST_ROWS], width, _REFERENCE_BYTES)


def encode_leaf(leaf: LeafPage, width: int) -> bytes:
    """The page's bytes. ``width`` is the key encoding's."""
    return _encode(_LEAF, leaf.keys, width, planes.encode(planes.of_numbers(leaf.places, 8)))


def encode_inner(inner: InnerPage, width: int) -> bytes:
    """The page's bytes. ``width`` is the key encoding's."""
    offsets, lengths, sums = inner.references.T
    ends = np.insert((offsets + lengths)[:-1], 0, 0)
    columns = [
        inner.shared.astype(np.uint8).reshape(-1, 1),
        planes.of_numbers(offsets - ends, 8),  # modulo 2^64
        planes.of_numbers(lengths, 4),
        planes.of_numbers(sums, 4),
    ]
    return _encode(_INNER, inner.keys, width, planes.encode(np.hstack(columns)))


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
    matrix, rest = planes.decode(rest, rows, 8 if kind == _LEAF else _REFERENCE_BYTES)
    if len(rest):
        raise ValueError(f"{len(rest)} bytes too many")
    if kind == _LEAF:
        return LeafPage(keys, planes.to_numbers(matrix))
    gaps, lengths, sums = (planes.to_numbers(part) for part in np.hsplit(matrix[:, 1:], (8, 12)))
    ends = np.cumsum(gaps + lengths)  # modulo 2^64
    return InnerPage(keys, matrix[:, 0] != 0, np.stack([ends - lengths, lengths, sums], axis=1))


def _rows(keys: Keys, width: int, other_bytes: int) -> int:
    if width:
        return min(len(keys), PAGE_BYTES // (_varying(as_matrix(keys)) + other_bytes + 1))
    lengths = np.char.str_len(keys) + (_LENGTH_BYTES + other_bytes)
    return max(1, int(np.searchsorted(np.cumsum(lengths), PAGE_BYTES, "right")))


def _varying(matrix: planes.Matrix) -> int:
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
        return planes.encode(matrix[:, :width])
    lengths = np.char.str_len(keys).astype(np.int64)
    differs = np.flatnonzero((matrix != matrix[0]).any(axis=0))
    prefix = min(int(differs[0]) if len(differs) else matrix.shape[1], int(lengths.min()))
    kept = np.arange(matrix.shape[1]) < lengths[:, None]
    kept[:, :prefix] = False
    counts = planes.encode(planes.of_numbers((lengths - prefix).astype(np.uint64), _LENGTH_BYTES))
    return b"".join((struct.pack("<H", prefix), matrix[0, :prefix].tobytes(), counts, matrix[kept].tobytes()))


def _decode_keys(body: memoryview, rows: int, width: int) -> tuple[Keys, memoryview]:
    if width:
        matrix, rest = planes.decode(body, rows, width)
        return from_matrix(matrix), rest
    if len(body) < _LENGTH_BYTES:
        raise ValueError("no keys")
    prefix = int.from_bytes(body[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + prefix
    head = np.frombuffer(body[_LENGTH_BYTES:start], np.uint8)
    counts, rest = planes.decode(body[start:], rows, _LENGTH_BYTES)
    lengths = planes.to_numbers(counts).astype(np.int64)
    longest, total = prefix + int(lengths.max()), int(lengths.sum())
    if len(head) != prefix or longest > LONGEST or total > len(rest):
        raise ValueError("keys are too long")
    matrix = np.zeros((rows, longest), np.uint8)
    matrix[:, :prefix] = head
    matrix[:, prefix:][np.arange(longest - prefix) < lengths[:, None]] = np.frombuffer(rest[:total], np.uint8)
    return as_strings(matrix), rest[total:]
