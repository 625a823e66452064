"""Footers of Parquet files taken apart and put together anew, for row groups that move to another place.

A row group says where its column chunks, its Bloom filters and its page index are, by the bytes of the file. Where it
moves, these places are written anew, and nothing else. Source: parquet.thrift of
https://github.com/apache/parquet-format, whose numbers of fields stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dolmen.format.thrift import I64, LIST, STRUCT, ThriftCursor, ThriftStruct, array, integer, struct

_FILE_ROWS, _FILE_GROUPS = 3, 4
_GROUP_CHUNKS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK_META = 2, 3
_OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH = 4, 5, 6, 7
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _FILTER, _FILTER_LENGTH = 9, 10, 11, 14, 15
_INDEX_PAGES, _PAGE_OFFSET = 1, 1
_MOST_ORDINAL = 2**15 - 1


@dataclass(frozen=True)
class FooterParts:
    """The Thrift metadata of a file, and that of its row groups.

    Args:
        frame: all but its rows and row groups: columns, key-value metadata, writer.
        groups: its row groups, encoded.
    """

    frame: bytes
    groups: tuple[bytes, ...]

    @classmethod
    def parse(cls, metadata: bytes) -> Self:
        """Takes Thrift metadata apart. Raises ValueError."""
        found = ThriftStruct(metadata)
        groups = tuple(found.structs(_FILE_GROUPS))
        for field in (_FILE_ROWS, _FILE_GROUPS):
            found.fields.pop(field, None)
        return cls(found.encode(), groups)

    def encode(self, groups: Sequence[bytes], rows: int) -> bytes:
        """The Thrift metadata of a file of the same columns.

        Args:
            groups: its row groups, encoded.
            rows: of all of them.
        """
        frame = ThriftStruct(self.frame)
        frame.fields[_FILE_ROWS] = I64, integer(rows)
        frame.fields[_FILE_GROUPS] = LIST, array(STRUCT, groups)
        frame.fields = dict(sorted(frame.fields.items()))
        return frame.encode()


@dataclass(frozen=True)
class MovedGroup:
    """A row group that has moved.

    Args:
        encoded: as it was.
        by: how many bytes later its column chunks are now.
        behind: what stood behind the column chunks of its file: Bloom filters and page index.
        start: where that began.
    """

    encoded: bytes
    by: int
    behind: memoryview
    start: int


def move_groups(groups: Sequence[MovedGroup], start: int) -> tuple[bytes, list[bytes]]:
    """Puts together what stands behind the column chunks of several files' row groups, which are of one file now.

    Args:
        groups: in the order of their column chunks.
        start: the first byte behind the last column chunk.

    Returns:
        Bloom filters and page index; the row groups, encoded.

    Raises:
        ValueError: a footer that is none, or places that are not behind the column chunks.
    """
    moved = [_Group(group) for group in groups]
    chunks = [chunk for group in moved for chunk in group.chunks]
    tail = bytearray()

    def add(body: bytes | memoryview | None) -> int | None:
        if body is None:
            return None
        tail.extend(body)
        return start + len(tail) - len(body)

    for chunk in chunks:
        chunk.set_filter(add(chunk.filter))
    for chunk in chunks:
        chunk.set_index(_COLUMN_INDEX, _COLUMN_INDEX_LENGTH, add(chunk.column_index), chunk.column_index)
    for chunk in chunks:
        chunk.set_index(_OFFSET_INDEX, _OFFSET_INDEX_LENGTH, add(chunk.offset_index), chunk.offset_index)
    return bytes(tail), [group.encode(ordinal) for ordinal, group in enumerate(moved)]


class _Group:
    """A row group being moved."""

    def __init__(self, moved: MovedGroup) -> None:
        self._own = ThriftStruct(moved.encoded)
        _move(self._own, (_GROUP_OFFSET,), moved.by)
        self.chunks = [_Chunk(body, moved) for body in self._own.structs(_GROUP_CHUNKS)]

    def encode(self, ordinal: int) -> bytes:
        """The row group.

        Args:
            ordinal: its number in the file.
        """
        self._own.fields[_GROUP_CHUNKS] = LIST, array(STRUCT, (chunk.encode() for chunk in self.chunks))
        if _GROUP_ORDINAL in self._own.fields:
            self._own.set_number(_GROUP_ORDINAL, ordinal if ordinal <= _MOST_ORDINAL else None)
        return self._own.encode()


class _Chunk:
    """A column chunk being moved."""

    def __init__(self, body: bytes, moved: MovedGroup) -> None:
        self._own = ThriftStruct(body)
        self._meta = ThriftStruct(self._own.fields[_CHUNK_META][1])
        if self._own.number(_CHUNK_OFFSET):  # of a copy of the metadata in the file; 0 if there is none
            raise ValueError("there is metadata beside a column chunk")
        self.filter = _part(moved, self._meta.number(_FILTER), self._meta.number(_FILTER_LENGTH))
        column_index = self._own.number(_COLUMN_INDEX), self._own.number(_COLUMN_INDEX_LENGTH)
        self.column_index = _part(moved, *column_index)
        offset_index = _part(moved, self._own.number(_OFFSET_INDEX), self._own.number(_OFFSET_INDEX_LENGTH))
        self.offset_index = None if offset_index is None else _moved_index(bytes(offset_index), moved.by)
        _move(self._meta, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE), moved.by)

    def set_filter(self, place: int | None) -> None:
        """Says where its Bloom filter is now."""
        self._meta.set_number(_FILTER, place)

    def set_index(self, field: int, length_field: int, place: int | None, body: bytes | memoryview | None) -> None:
        """Says where a part of its page index is now."""
        self._own.set_number(field, place)
        self._own.set_number(length_field, None if body is None else len(body))

    def encode(self) -> bytes:
        """The column chunk."""
        self._own.fields[_CHUNK_META] = STRUCT, self._meta.encode()
        return self._own.encode()


def _part(moved: MovedGroup, place: int | None, length: int | None) -> memoryview | None:
    """A part of what stood behind the column chunks; None if there is none. Raises ValueError."""
    if place is None or not length:
        if place is not None or length:
            raise ValueError("of a Bloom filter or page index only the place is known, or only the length")
        return None
    first = place - moved.start
    if first < 0 or first + length > len(moved.behind):
        raise ValueError(f"bytes {place} to {place + length} are not behind the column chunks")
    return moved.behind[first : first + length]


def _move(own: ThriftStruct, fields: Sequence[int], by: int) -> None:
    for field in fields:
        place = own.number(field)
        if place is not None:
            own.set_number(field, place + by)


def _moved_index(body: bytes, by: int) -> bytes:
    """An offset index of pages that have moved."""
    if not by:
        return body
    index = ThriftStruct(body)
    pages = []
    for page in index.structs(_INDEX_PAGES):
        cursor = ThriftCursor(page)
        if cursor.field(0) != (_PAGE_OFFSET, I64):
            raise ValueError("a page without its place")
        place = cursor.integer()
        rest = page[cursor.at :]  # its fields are numbered by their distance from the one before
        pages.append(struct([(_PAGE_OFFSET, I64, integer(place + by))])[:-1] + rest)
    index.fields[_INDEX_PAGES] = LIST, array(STRUCT, pages)
    return index.encode()
