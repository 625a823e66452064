"""Records of an Avro file as fastavro decodes them, and the words for those that it cannot decode.

fastavro takes a negative number of a symbol, or of a branch of a union, for a place from the end, as Python does. The
lists in its schema are therefore replaced by mappings (``_guard``). It takes the lowest 64 bits of a longer number, and
finds no items where it cannot negate their number. Bytes that may be such a number are rare: where it reads some, the
records are gone through again. So are those that it cannot decode, to say why.

Finds what is wrong with records of Avro: the field, and the reason in plain words.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from dolmen.errors import InputError
from dolmen.ingest.formats.avro.blocks import MAGIC, AvroBlock, Container, counted

_MAX_STEPS = 1_000_000


_VARINT_BYTES = 10


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class RecordFault(NamedTuple):
    """The fault of a record.

    Args:
        field: the path to the field, with points; "" for the record itself.
        reason: what is wrong there.
    """

    field: str
    reason: str


class _Bad(Exception):  # noqa: N818 - an answer, not a failure
    """Says what is wrong with a value."""


def find_fault(plain: Any, data: memoryview) -> RecordFault:
    """Goes through a record that cannot be decoded.

    Args:
        plain: its schema, as ``AvroTypes.plain`` has it.
        data: the block from the record on.
    """
    found = first_fault(plain, data, 1, _MAX_STEPS)
    return found[1] if found else RecordFault("", "a value is none of its type")


def first_fault(plain: Any, data: memoryview, records: int, most: int = sys.maxsize) -> tuple[int, RecordFault] | None:
    """Goes through records that may be at fault; returns the number of the first that is, from 1, and its fault.

    Args:
        plain: as in ``find_fault``.
        data: the records.
        records: how many there are.
        most: values to look at.
    """
    walk = _Walk(data, most)
    for number in range(1, records + 1):
        try:
            walk.read(plain, ())
        except _Bad as fault:
            return number, RecordFault(".".join(walk.path), str(fault))
    return None


class _Walk:
    """Goes through values. When it raises ``_Bad``, ``path`` is where."""

    def __init__(self, data: memoryview, most: int) -> None:
        self._data, self._at, self._left = data, 0, most
        self._named: dict[str, Any] = {}
        self.path: tuple[str, ...] = ()

    def read(self, plain: Any, path: tuple[str, ...]) -> None:
        """Passes over a value."""
        self.path = path
        self._left -= 1
        if self._left < 0:
            raise _Bad("a value is none of its type")
        if isinstance(plain, list):
            branch = self._number()
            if not 0 <= branch < len(plain):
                raise _Bad(f"it says that it is of type {branch} of a union of {len(plain)}, counted from 0")
            self.read(plain[branch], path)
        elif isinstance(plain, dict):
            self._read_complex(plain, path)
        elif plain in self._named:
            self._read_complex(self._named[plain], path)
        elif plain in ("int", "long"):
            self._number()
        elif plain in ("bytes", "string"):
            taken = self._take(self._number(), "a length of {} bytes")
            if plain == "string":
                _check_text(taken)
        else:
            self._take(_SIZES[plain], "{} bytes")

    def _read_complex(self, plain: dict[str, Any], path: tuple[str, ...]) -> None:
        kind = plain["type"]
        self._named.setdefault(plain.get("name", ""), plain)
        if kind == "record":
            for field in plain["fields"]:
                self.read(field["type"], (*path, field["name"]))
        elif kind == "enum":
            symbol = self._number()
            if not 0 <= symbol < len(plain["symbols"]):
                raise _Bad(f"it is symbol {symbol} of {len(plain['symbols'])}, counted from 0")
        elif kind == "fixed":
            self._take(plain["size"], "{} bytes")
        else:
            self._items(plain, path)

    def _items(self, plain: dict[str, Any], path: tuple[str, ...]) -> None:
        while count := self._number():
            if count < 0:
                count = -count
                self._number()
            if count > len(self._data) - self._at:
                raise _Bad(f"it says that it has {count:,} items, more than there are bytes left in its block")
            for _ in range(count):
                if plain["type"] == "map":
                    _check_text(self._take(self._number(), "a length of {} bytes"))
                self.read(plain["items" if plain["type"] == "array" else "values"], path)
                self.path = path

    def _take(self, size: int, what: str) -> bytes:
        left = len(self._data) - self._at
        if not 0 <= size <= left:
            raise _Bad(f"it says that it has {what.format(f'{size:,}')}, and {left:,} are left in its block")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def _number(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self._take(1, "one more byte")[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 64:
            raise _Bad("it has a number of more than 64 bits")
        return (value >> 1) ^ -(value & 1)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise _Bad(f"its text is not UTF-8: {error.reason}") from None


Record: TypeAlias = dict[str, Any]


_SYNC = bytes(16)


_DOUBTFUL_NUMBER = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]|\xff{9}\x01")
"""A number of more than 64 bits, the least one, or bytes of other values."""


_HIGH, _HIGH_BYTES = b"\1" * 9, bytes(128) + b"\1" * 128
"""What each of these begins with, once bytes from 128 on are made 1: to find this takes a tenth of the time."""


def decoded_records(container: Container, plain: Any, name: str, most: int) -> Iterator[tuple[list[Record], int]]:
    """The records of all blocks, at most ``most`` at a time and of one block, with the bytes that they took.

    Args:
        plain: the schema to decode them by, ``AvroTypes.plain``.
        name: of the file, for errors.

    Raises:
        InputError: a block is damaged, or holds other records than it says.
    """
    for number, block in enumerate(_blocks(container, plain), 1):
        data = block.bytes_.getvalue()
        if _HIGH in data.translate(_HIGH_BYTES) and _DOUBTFUL_NUMBER.search(data):
            block.bytes_ = _WatchedBytes(data)
        bytes_, records, left = block.bytes_, iter(block), block.num_records
        while left:
            start = bytes_.tell()
            try:
                some = list(islice(records, min(most, left)))
            except _FAULTS:
                bytes_.seek(start)
                raise _damage(block, plain, name, number, block.num_records - left) from None
            end = bytes_.tell()
            if isinstance(bytes_, _WatchedBytes) and bytes_.take_doubt():
                found = first_fault(plain, bytes_.getbuffer()[start:end], len(some))
                if found:
                    raise _error(name, number, block.num_records - left + found[0], found[1])
            left -= len(some)
            yield some, end - start
        if bytes_.read(1):
            raise InputError(
                f"file {name!r} is damaged: block {number} holds more than its {counted(block.num_records)}"
            )


_FAULTS = (EOFError, ValueError, LookupError, TypeError, OverflowError)
"""The errors that fastavro raises for damaged bytes."""


def _damage(block: Any, plain: Any, name: str, number: int, before: int) -> InputError:
    """The error about the first record that cannot be decoded.

    Args:
        block: at the first of some records, one of which it is.
        number: the block's number in the file, from 1.
        before: the records of the block before those.
    """
    bytes_, records = block.bytes_, iter(block)
    record = before
    while True:
        start = bytes_.tell()
        record += 1
        try:
            if next(records, None) is None:
                break
        except _FAULTS:
            break
    bytes_.seek(start)
    return _error(name, number, record, find_fault(plain, bytes_.getbuffer()[start:]))


def _error(name: str, block: int, record: int, fault: RecordFault) -> InputError:
    where = f", field {fault.field!r}" if fault.field else ""
    return InputError(f"file {name!r} is damaged: block {block}, record {record:,}{where}: {fault.reason}")


def _blocks(container: Container, plain: Any) -> Iterator[Any]:
    import fastavro  # takes a while, and most files are not Avro

    schema = json.dumps(plain).encode()
    header = b"".join((MAGIC, _number(1), _text(b"avro.schema"), _text(schema), _number(0), _SYNC))
    reader = fastavro.block_reader(_Reframed(header, container.blocks()))
    _guard(reader.writer_schema)
    return iter(reader)


def _guard(schema: Any) -> None:
    """Makes mappings by number of the symbols and branches in the schema by which a reader decodes."""
    left = [schema]
    while left:
        kind = left.pop()
        if "symbols" in kind:
            kind["symbols"] = dict(enumerate(kind["symbols"]))
        left += kind.get("fields", ())
        for place, inner in kind.items():
            if place in ("type", "items", "values") or isinstance(place, int):
                if isinstance(inner, list):
                    inner = kind[place] = {"type": "union"} | dict[str | int, Any](enumerate(inner))
                if isinstance(inner, dict):
                    left.append(inner)


class _WatchedBytes(io.BytesIO):
    """The bytes of a block, of which fastavro reads numbers byte by byte, watched for doubtful numbers."""

    _high = 0
    """Bytes read last, one by one, that are not the last of a number."""
    _has_doubt = False

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        data = super().read(size)
        if size != 1:
            self._high = 0
        elif data >= b"\x80":
            self._high += 1
        else:
            if self._high >= 9:
                self._has_doubt |= self._high > 9 or self._is_doubtful()
            self._high = 0
        return data

    def _is_doubtful(self) -> bool:
        end = self.tell()
        return bool(_DOUBTFUL_NUMBER.match(self.getbuffer()[end - 10 : end]))

    def take_doubt(self) -> bool:
        """Whether there was a doubtful number since the last call."""
        found, self._has_doubt = self._has_doubt, False
        return found


class _Reframed:
    """A container as fastavro is to see it: unpacked already, and with a schema without logical types."""

    def __init__(self, header: bytes, blocks: Iterator[AvroBlock]) -> None:
        self._blocks, self._ahead, self._place = blocks, memoryview(header), 0

    def read(self, size: int, /) -> bytes:
        """The next bytes; a call never needs the bytes of two blocks."""
        if not self._ahead and (block := next(self._blocks, None)) is not None:
            numbers = _number(block.records) + _number(len(block.data))
            self._ahead = memoryview(b"".join((numbers, block.data, _SYNC)))
        data = bytes(self._ahead[:size])
        self._ahead = self._ahead[size:]
        self._place += len(data)
        return data

    def tell(self) -> int:
        """The number of bytes that have been read."""
        return self._place


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    value, made = value << 1, bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
