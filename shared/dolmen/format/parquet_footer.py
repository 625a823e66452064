"""Footers of Parquet files: Thrift's compact protocol, row groups that move to another file, and Julian days.

Where a row group moves, the offsets of its column chunks, Bloom filters and page index are rewritten, and nothing else.
Sources: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and parquet.thrift of
https://github.com/apache/parquet-format, which numbers the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Self

import pyarrow.parquet as pq
from msgspec import Struct

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _I16, _DOUBLE, _SET = 1, 2, 3, 4, 7, 10
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
    """A number in the form of i16, i32 and i64."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(value: bytes) -> bytes:
    return varint(len(value)) + value


def array(kind: int, items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    count = len(encoded)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return head + b"".join(encoded)


def struct(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A struct: number, kind and encoded value of each field, ascending."""
    out = bytearray()
    last = 0
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
    """Reads encoded bytes. Raises ValueError if they are not of this protocol, or end too early."""

    def __init__(self, body: bytes, at: int = 0) -> None:
        self._body, self.at = body, at

    def byte(self) -> int:
        if self.at >= len(self._body):
            raise ValueError("the bytes end inside of a value")
        self.at += 1
        return self._body[self.at - 1]

    def varint(self) -> int:
        """A number of at least 0."""
        try:
            value, self.at = read_varint(self._body, self.at)
        except IndexError:
            raise ValueError("the bytes end inside of a value") from None
        return value

    def integer(self) -> int:
        """A number in the form of i16, i32 and i64."""
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def field(self, last: int) -> tuple[int, int] | None:
        """Number and kind of the field of a struct after field ``last`` (0 before the first); None at its end."""
        byte = self.byte()
        if not byte:
            return None
        return (last + (byte >> 4) if byte >> 4 else self.integer()), byte & 0x0F

    def skip(self, kind: int) -> None:
        """Skips a value, which for a bool in a struct has no bytes."""
        try:
            self.at = _end(self._body, self.at, kind)
        except IndexError:
            raise ValueError("the bytes end inside of a value") from None


def schema_part(metadata: bytes) -> bytes:
    """The start of Thrift metadata up to the end of the schema; empty if there are other fields before it."""
    cursor = ThriftCursor(metadata)
    try:
        for expected in (1, 2):  # the version of the format, then the schema
            found = cursor.field(expected - 1)
            if found is None or found[0] != expected:
                return b""
            cursor.skip(found[1])
    except ValueError:
        return b""
    return metadata[: cursor.at]


def _end(body: bytes, at: int, kind: int) -> int:
    """The end of a value. Footers have many, so this calls nothing for most. Raises IndexError, ValueError."""
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
        length, at = read_varint(body, at)
        return at + length
    if kind in (LIST, _SET):
        head, at = body[at], at + 1
        count, item = head >> 4, head & 0x0F
        if count == 0x0F:
            count, at = read_varint(body, at)
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


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """The number of at least 0 at an offset, and the offset after it. Raises IndexError."""
    value = shift = 0
    while (byte := body[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1


class ThriftStruct:
    """A struct whose fields can be replaced. Unknown fields stay as they are.

    ``body``: contains it, from the offset ``at`` on. Raises ValueError: there is none.

    Attributes:
        fields: kind and encoded value of each field by its number, in the order of ``body``.
        end: its end.
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
        """The value of a field that is a number; None if it is absent."""
        value = self.fields.get(field)
        return None if value is None else ThriftCursor(value[1]).integer()

    def set_number(self, field: int, value: int | None) -> None:
        """Replaces the value of an existing field that is a number; None removes the field."""
        if value is None:
            self.fields.pop(field, None)
        else:
            self.fields[field] = self.fields[field][0], integer(value)

    def structs(self, field: int) -> list[bytes]:
        """The encoded items of a field that is a list of structs; none if it is absent."""
        if field not in self.fields:
            return []
        body = self.fields[field][1]
        cursor = ThriftCursor(body)
        head = cursor.byte()
        if head & 0x0F != STRUCT:
            raise ValueError(f"field {field} is not a list of structs")
        items = []
        for _ in range(cursor.varint() if head >> 4 == 0x0F else head >> 4):
            start = cursor.at
            cursor.skip(STRUCT)
            items.append(body[start : cursor.at])
        return items

    def encode(self) -> bytes:
        return struct((number, kind, value) for number, (kind, value) in self.fields.items())


def page_rows(header: bytes) -> int | None:
    """The rows of a data page of a column with one value for each row, by its header; 0 for a dictionary, else None."""
    at, last, page = 0, 0, -1
    try:
        while head := header[at]:
            kind, at, last = head & 0x0F, at + 1, last + (head >> 4)
            if head <= 0x0F or (last == 5 and kind != STRUCT):
                return None
            if last == 1:
                number, at = read_varint(header, at)
                page = number >> 1
            elif last == 5 and page == _DATA_PAGE_TYPE:  # its first field is the number of its values
                return read_varint(header, at + 1)[0] >> 1 if header[at] == 1 << 4 | I32 else None
            elif last == 7 and page == _DICTIONARY_PAGE_TYPE:
                return 0
            else:
                at = _end(header, at, kind)
    except (IndexError, ValueError):
        pass
    return None


_FILE_ROWS, _FILE_GROUPS = 3, 4
_GROUP_CHUNKS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK_META = 2, 3
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE = 9, 10, 11
_OFFSET_INDEX, _COLUMN_INDEX, _FILTER = (4, 5), (6, 7), (14, 15)  # offset and length
_INDEX_PAGES, _PAGE_OFFSET = 1, 1
_MOST_ORDINAL = 2**15 - 1


class FooterParts(Struct, frozen=True):
    """The Thrift metadata of a file, and that of its row groups."""

    # all fields but its rows and row groups: columns, key-value metadata, writer
    frame: tuple[tuple[int, int, bytes], ...]
    groups: tuple[bytes, ...]  # its row groups, encoded

    @classmethod
    def parse(cls, metadata: bytes) -> Self:
        """Splits Thrift metadata. Raises ValueError."""
        footer = ThriftStruct(metadata)
        own = (_FILE_ROWS, _FILE_GROUPS)
        frame = tuple((number, kind, value) for number, (kind, value) in footer.fields.items() if number not in own)
        return cls(frame, tuple(footer.structs(_FILE_GROUPS)))

    def fill(self, rows: int, groups: Sequence[bytes]) -> bytes:
        """The Thrift metadata of a file of the same columns with these row groups, which have this many rows."""
        own = (_FILE_ROWS, I64, integer(rows)), (_FILE_GROUPS, LIST, array(STRUCT, groups))
        return struct(sorted([*self.frame, *own]))


class MovedGroup(Struct, frozen=True):
    """A row group that moves to another file."""

    encoded: bytes  # as it was
    by: int  # how many bytes later its column chunks are in the new file
    behind: memoryview  # the bytes after the column chunks of its old file: Bloom filters and page index
    start: int  # the offset of ``behind`` in the old file


def move_groups(groups: Sequence[MovedGroup], start: int) -> tuple[bytes, list[bytes]]:
    """Joins the bytes after the column chunks of several files' row groups, which become one file.

    Raises ValueError: an invalid footer, or offsets that are not after the column chunks.

    Args:
        groups: in the order of their column chunks.
        start: the first byte after the last column chunk.

    Returns:
        Bloom filters and page index; the row groups, encoded.
    """
    moved = [_Group(group) for group in groups]
    chunks = [chunk for group in moved for chunk in group.chunks]
    tail = bytearray()
    for kind in range(3):  # all Bloom filters, then all column indexes, then all offset indexes
        for chunk in chunks:
            own, (offset_field, length_field), body = chunk.parts[kind]
            own.set_number(offset_field, None if body is None else start + len(tail))
            own.set_number(length_field, None if body is None else len(body))
            tail += body or b""
    return bytes(tail), [group.encode(ordinal) for ordinal, group in enumerate(moved)]


class _Group:
    def __init__(self, moved: MovedGroup) -> None:
        self._own = ThriftStruct(moved.encoded)
        _move(self._own, (_GROUP_OFFSET,), moved.by)
        self.chunks = [_Chunk(body, moved) for body in self._own.structs(_GROUP_CHUNKS)]

    def encode(self, ordinal: int) -> bytes:
        self._own.fields[_GROUP_CHUNKS] = LIST, array(STRUCT, (chunk.encode() for chunk in self.chunks))
        if _GROUP_ORDINAL in self._own.fields:
            self._own.set_number(_GROUP_ORDINAL, ordinal if ordinal <= _MOST_ORDINAL else None)
        return self._own.encode()


class _Chunk:
    def __init__(self, body: bytes, moved: MovedGroup) -> None:
        self._own = ThriftStruct(body)
        self._meta = ThriftStruct(self._own.fields[_CHUNK_META][1])
        if self._own.number(_CHUNK_OFFSET):  # of a copy of the metadata in the file; 0 if there is none
            raise ValueError("there is metadata beside a column chunk")
        offsets = _part(moved, self._own, _OFFSET_INDEX)
        self.parts = (
            (self._meta, _FILTER, _part(moved, self._meta, _FILTER)),
            (self._own, _COLUMN_INDEX, _part(moved, self._own, _COLUMN_INDEX)),
            (self._own, _OFFSET_INDEX, None if offsets is None else _move_index(bytes(offsets), moved.by)),
        )
        _move(self._meta, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE), moved.by)

    def encode(self) -> bytes:
        self._own.fields[_CHUNK_META] = STRUCT, self._meta.encode()
        return self._own.encode()


def _part(moved: MovedGroup, own: ThriftStruct, fields: tuple[int, int]) -> memoryview | None:
    """A part of the bytes after the column chunks; None if there is none. Raises ValueError."""
    offset, length = map(own.number, fields)
    if offset is None or not length:
        if offset is not None or length:
            raise ValueError("a Bloom filter or page index has only an offset, or only a length")
        return None
    first = offset - moved.start
    if first < 0 or first + length > len(moved.behind):
        raise ValueError(f"bytes {offset} to {offset + length} are not behind the column chunks")
    return moved.behind[first : first + length]


def _move(own: ThriftStruct, fields: Sequence[int], by: int) -> None:
    for field in fields:
        offset = own.number(field)
        if offset is not None:
            own.set_number(field, offset + by)


def _move_index(body: bytes, by: int) -> bytes:
    """An offset index of pages that have moved."""
    if not by:
        return body
    index = ThriftStruct(body)
    pages = []
    for page in index.structs(_INDEX_PAGES):
        cursor = ThriftCursor(page)
        if cursor.field(0) != (_PAGE_OFFSET, I64):
            raise ValueError("a page without its offset")
        offset = cursor.integer()
        rest = page[cursor.at :]  # its fields are numbered by their distance from the one before
        pages.append(struct([(_PAGE_OFFSET, I64, integer(offset + by))])[:-1] + rest)
    index.fields[_INDEX_PAGES] = LIST, array(STRUCT, pages)
    return index.encode()


JULIAN = "it may hold days that Spark counted by the Julian calendar (its LEGACY mode, or a version before 3.0)"
_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, in days since 1970-01-01
_LAST_SWITCH_SECONDS = -2_208_988_800  # 1900-01-01: from then on all of Spark's zones count alike
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000}


def julian_leaves(metadata: pq.FileMetaData) -> set[int]:
    """The Parquet columns of a file that have days or times by the Julian calendar, or may have some.

    Spark before 3.0, and later versions in their LEGACY mode, count days before 1582-10-15 by that calendar, and times
    before 1900 by local clocks as well; their footers say so. Other readers would misread them as other days.
    https://spark.apache.org/docs/latest/sql-migration-guide.html#upgrading-from-spark-sql-24-to-30
    Columns of type INT96 are left out: they have no statistics.
    """
    if not _counts_julian(metadata.metadata or {}):
        return set()
    return {leaf for leaf in range(metadata.num_columns) if _may_be_before(metadata, leaf)}


def _counts_julian(notes: dict[bytes, bytes]) -> bool:
    version = notes.get(_VERSION)
    if version is None:
        return _COLUMNS in notes  # the first versions did not write their number
    return _LEGACY in notes or version.partition(b".")[0] in (b"0", b"1", b"2")


def _may_be_before(metadata: pq.FileMetaData, leaf: int) -> bool:
    """Whether a column has a value from before its calendar's switch, or may have one."""
    first = _first_common(metadata, leaf)
    if first is None:
        return False
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        stats = chunk.statistics
        if stats is not None and stats.has_null_count and stats.null_count == chunk.num_values:
            continue
        if chunk.num_values and (stats is None or not stats.has_min_max or stats.min_raw < first):
            return True
    return False


def _first_common(metadata: pq.FileMetaData, leaf: int) -> int | None:
    """The first value of a column that is the same in both calendars; None if it has no days or times of Spark's."""
    column = metadata.schema.column(leaf)
    logical = json.loads(column.logical_type.to_json())
    if column.physical_type == "INT32" and logical["Type"] == "Date":
        return _FIRST_GREGORIAN_DAY
    if column.physical_type != "INT64" or logical["Type"] != "Timestamp" or not logical["isAdjustedToUTC"]:
        return None
    per_second = _PER_SECOND.get(logical["timeUnit"])
    return None if per_second is None else _LAST_SWITCH_SECONDS * per_second
