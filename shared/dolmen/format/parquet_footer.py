"""Takes footers of Parquet files apart and builds new ones, for row groups that move to another file.

A row group says where its column chunks, its Bloom filters and its page index are, by the bytes of the file. Where it
moves, these offsets are rewritten, and nothing else. Source: parquet.thrift of
https://github.com/apache/parquet-format, whose numbers of fields stand here.

Thrift's compact protocol, as far as single pages, row groups and the footers of Parquet need it.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and parquet.thrift of
https://github.com/apache/parquet-format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow.parquet as pq

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _I16, _DOUBLE, _SET, _MAP = 1, 2, 3, 4, 7, 10, 11
_INTEGERS = frozenset({_I16, I32, I64})
_DATA_PAGE_TYPE, _DICTIONARY_PAGE_TYPE = 0, 2


def varint(value: int) -> bytes:
    """A number of at least 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(value: int) -> bytes:
    """A number as i16, i32 and i64 have it."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(value: bytes) -> bytes:
    """Bytes with their length."""
    return varint(len(value)) + value


def array(kind: int, items: Iterable[bytes]) -> bytes:
    """A list of encoded items."""
    listed = list(items)
    head = bytes([len(listed) << 4 | kind]) if len(listed) < 15 else bytes([0xF0 | kind]) + varint(len(listed))
    return head + b"".join(listed)


def struct(fields: Iterable[tuple[int, int, bytes]], last: int = 0) -> bytes:
    """A struct: number, kind and encoded value of each field, ascending.

    Args:
        last: the number of the field before the first, if these are the rest of a struct.
    """
    out = bytearray()
    for number, kind, value in fields:
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            out += integer(number)
        out += value
        last = number
    return bytes(out) + b"\0"


class ThriftCursor:
    """Goes through encoded bytes. Raises ValueError where they are none of this protocol, or end too early."""

    def __init__(self, body: bytes, at: int = 0) -> None:
        self._body, self.at = body, at

    def byte(self) -> int:
        """The next byte."""
        if self.at >= len(self._body):
            raise ValueError("the bytes end inside of a value")
        self.at += 1
        return self._body[self.at - 1]

    def varint(self) -> int:
        """A number of at least 0."""
        try:
            value, self.at = _varint(self._body, self.at)
        except IndexError:
            raise ValueError("the bytes end inside of a value") from None
        return value

    def integer(self) -> int:
        """A number as i16, i32 and i64 have it."""
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def field(self, last: int) -> tuple[int, int] | None:
        """Number and kind of the next field of a struct; None at its end.

        Args:
            last: the number of the field before; 0 for the first.
        """
        byte = self.byte()
        if not byte:
            return None
        return (last + (byte >> 4) if byte >> 4 else self.integer()), byte & 0x0F

    def skip(self, kind: int) -> None:
        """Passes over a value, which for a bool in a struct has no bytes."""
        try:
            self.at = _end(self._body, self.at, kind)
        except IndexError:
            raise ValueError("the bytes end inside of a value") from None


def _end(body: bytes, at: int, kind: int) -> int:
    """The place behind a value. Footers have many, so this calls nothing for most. Raises IndexError, ValueError."""
    if kind == STRUCT:
        while head := body[at]:
            at += 1
            if head <= 0x0F:  # the field's number is a varint of its own
                while body[at] > 0x7F:
                    at += 1
                at += 1
            kind = head & 0x0F
            if kind in _INTEGERS:
                while body[at] > 0x7F:
                    at += 1
                at += 1
            elif kind not in (_TRUE, _FALSE):
                at = _end(body, at, kind)
        return at + 1
    if kind in _INTEGERS:
        while body[at] > 0x7F:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = _varint(body, at)
        return at + length
    if kind in (LIST, _SET):
        head, at = body[at], at + 1
        count, item = head >> 4, head & 0x0F
        if count == 0x0F:
            count, at = _varint(body, at)
        if item in (_TRUE, _FALSE, _BYTE):
            return at + count
        for _ in range(count):
            at = _end(body, at, item)
        return at
    if kind in (_TRUE, _FALSE):
        return at
    if kind in (_BYTE, _DOUBLE):
        return at + (1 if kind == _BYTE else 8)
    raise ValueError(f"a value of kind {kind}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number of at least 0, and the place behind it."""
    value = shift = 0
    while (byte := body[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1


@dataclass(frozen=True)
class EmptyFooter:
    """The metadata of a Parquet file without row groups, into which some can be put.

    Args:
        before: the version and the schema.
        after: the bytes after the row groups.
    """

    before: bytes
    after: bytes

    @classmethod
    def split(cls, body: bytes) -> EmptyFooter:
        """Takes encoded metadata apart. Raises ValueError if it is something else."""
        cursor = ThriftCursor(body)
        before = last = 0
        while last < 4:  # the version, the schema, the number of rows, and the row groups, which are none
            found = cursor.field(last)
            if found is None:
                raise ValueError("there is no list of row groups")
            last = found[0]
            cursor.skip(found[1])
            before = cursor.at if last == 2 else before
        return cls(body[:before], body[cursor.at :])

    def filled(self, rows: int, groups: Sequence[bytes]) -> bytes:
        """The metadata with some encoded row groups, which have so many rows together."""
        return (
            self.before + struct([(3, I64, integer(rows)), (4, LIST, array(STRUCT, groups))], last=2)[:-1] + self.after
        )


class ThriftStruct:
    """A struct whose fields can be replaced. Unknown fields stay as they are.

    Args:
        body: holds it.
        at: where it begins.

    Attributes:
        fields: kind and encoded value of each field by its number, in the order of ``body``.
        end: the place behind it.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, body: bytes, at: int = 0) -> None:
        cursor = ThriftCursor(body, at)
        self.fields: dict[int, tuple[int, bytes]] = {}
        last = 0
        while (found := cursor.field(last)) is not None:
            last, kind = found
            start = cursor.at
            cursor.skip(kind)
            self.fields[last] = kind, body[start : cursor.at]
        self.end = cursor.at
        if self.end > len(body):
            raise ValueError("the bytes end inside of a struct")

    def number(self, field: int) -> int | None:
        """The value of a field that is a number; None if it is not there."""
        found = self.fields.get(field)
        return None if found is None else ThriftCursor(found[1]).integer()

    def set_number(self, field: int, value: int | None) -> None:
        """Replaces the value of a field that is a number and is there, or takes the field away."""
        if value is None:
            self.fields.pop(field, None)
        else:
            self.fields[field] = self.fields[field][0], integer(value)

    def structs(self, field: int) -> list[bytes]:
        """The encoded items of a field that is a list of structs; none if it is not there."""
        if field not in self.fields:
            return []
        body = self.fields[field][1]
        cursor = ThriftCursor(body)
        head = cursor.byte()
        if head & 0x0F != STRUCT:
            raise ValueError(f"field {field} is no list of structs")
        found = []
        for _ in range(cursor.varint() if head >> 4 == 0x0F else head >> 4):
            start = cursor.at
            cursor.skip(STRUCT)
            found.append(body[start : cursor.at])
        return found

    def encode(self) -> bytes:
        """The struct with its fields as they are now."""
        return struct((number, kind, value) for number, (kind, value) in self.fields.items())


def page_rows(header: bytes) -> int | None:
    """The rows of a data page of a column that has one value for each row, by its header; 0 for a dictionary.

    Returns:
        None if the bytes are no header of a page, or of one of another kind.
    """
    cursor = ThriftCursor(header)
    try:
        last, page = 0, -1
        while (found := cursor.field(last)) is not None:
            last, kind = found
            if last == 1:
                page = cursor.integer()
            elif last == 5 and page == _DATA_PAGE_TYPE and kind == STRUCT:
                return cursor.integer() if cursor.field(0) == (1, I32) else None
            elif last == 7 and page == _DICTIONARY_PAGE_TYPE:
                return 0
            else:
                cursor.skip(kind)
    except ValueError:
        pass
    return None


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
    """Joins the bytes behind the column chunks of several files' row groups, which become one file.

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


JULIAN = "it may hold days that Spark counted by the Julian calendar (its LEGACY mode, or a version before 3.0)"
_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, in days since 1970-01-01
_LAST_SWITCH_SECONDS = -2_208_988_800  # 1900-01-01: from then on all of Spark's zones count alike
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000}


def julian_leaves(metadata: pq.FileMetaData) -> set[int]:
    """The Parquet columns of a file that contain such days or times, or may contain some (without statistics).

    Those of type INT96, of which there are no statistics, are not looked at.
    """
    if not _counts_julian(metadata.metadata or {}):
        return set()
    return {leaf for leaf in range(metadata.num_columns) if _may_be_before(metadata, leaf)}


def _counts_julian(notes: dict[bytes, bytes]) -> bool:
    version = notes.get(_VERSION)
    if version is None:
        return _COLUMNS in notes  # the first versions did not say which they were
    return _LEGACY in notes or version.partition(b".")[0] in (b"0", b"1", b"2")


def _may_be_before(metadata: pq.FileMetaData, leaf: int) -> bool:
    """Whether a column has a value from before its calendar's switch, or may have one."""
    first = _first_alike(metadata, leaf)
    if first is None:
        return False
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        known = chunk.statistics
        if not chunk.num_values or (
            known is not None and known.has_null_count and known.null_count == chunk.num_values
        ):
            continue
        if known is None or not known.has_min_max or known.min_raw < first:
            return True
    return False


def _first_alike(metadata: pq.FileMetaData, leaf: int) -> int | None:
    """The first value of a column that both calendars count alike; None if it has no days or times of Spark's."""
    column = metadata.schema.column(leaf)
    logical = json.loads(column.logical_type.to_json())
    if column.physical_type == "INT32" and logical["Type"] == "Date":
        return _FIRST_GREGORIAN_DAY
    if column.physical_type != "INT64" or logical["Type"] != "Timestamp" or not logical["isAdjustedToUTC"]:
        return None
    per_second = _PER_SECOND.get(logical["timeUnit"])
    return None if per_second is None else _LAST_SWITCH_SECONDS * per_second
