"""Reads the records of Avro object container files: unpacks blocks within limits, and decodes them by fastavro.

A block of more than 64 MiB, packed or unpacked, is refused: it would have to fit into memory as a whole.

fastavro takes a negative number of a symbol, or of a branch of a union, for an index from the end, so ``_guard``
replaces the lists in its schema by mappings. It keeps only the lowest 64 bits of a longer number, and reads no items if
it cannot negate their number. So records with bytes that may be such a number are checked again (``_Walk``).
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.format.parquet_footer import integer, read_varint
from dolmen.ingest.formats.source_file import ByteStream, read_up_to

MAX_BLOCK_BYTES = 64 * MIB
MAX_SCHEMA_BYTES = 4 * MIB
MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_HEADER_BYTES = 16 * MIB
_MAX_VARINT_BYTES = 10
_XZ_BYTES = 256 * MIB


class Container:
    """A container file whose header has been read. Raises InputError if it is not an Avro file, or damaged."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        if self._read_exactly(len(MAGIC), at_end="") != MAGIC:
            raise InputError(f"file {name!r} is not a readable Avro file: it does not begin like one")
        header = self._metadata()
        self._sync = self._read_exactly(_SYNC_BYTES)
        codec = header.get("avro.codec", b"null").decode(errors="replace") or "null"
        if codec not in _CODECS:
            raise InputError(f"file {name!r}: Avro codec {codec!r} is unknown; there are {', '.join(_CODECS)}")
        self._unpack = _CODECS[codec]
        try:
            self.schema: Any = json.loads(header["avro.schema"])
        except KeyError:
            raise self._damage_error("its header holds no schema") from None
        except (ValueError, RecursionError):
            raise self._damage_error("the schema in its header is not JSON, or nests too deeply") from None

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """The number of records and the unpacked bytes of each block. Raises InputError for a damaged file."""
        number = 0
        while (first := self._stream.read(1)) != b"":
            number += 1
            count, size = self._number(first), self._number()
            if not 0 <= size <= MAX_BLOCK_BYTES or count < 0:
                raise self._damage_error(
                    f"block {number} says it has {_count_records(count)} in {size:,} bytes, and at most "
                    f"{MAX_BLOCK_BYTES:,} bytes are read"
                )
            packed = self._read_exactly(size)
            if self._read_exactly(_SYNC_BYTES) != self._sync:
                raise self._damage_error(f"block {number} does not end with the mark of the file")
            try:
                data = self._unpack(packed)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                raise self._damage_error(f"block {number} cannot be unpacked: {error}") from None
            if len(data) > MAX_BLOCK_BYTES:
                raise self._damage_error(f"block {number} unpacks to more than {MAX_BLOCK_BYTES:,} bytes")
            if count > len(data):
                raise self._damage_error(f"block {number} of {_count_records(count)} has {len(data):,} bytes")
            yield count, data

    def _metadata(self) -> dict[str, bytes]:
        metadata: dict[str, bytes] = {}
        remaining = _MAX_HEADER_BYTES
        while count := self._number():
            if count < 0:
                self._number()  # of bytes, for readers that skip them
            for _ in range(abs(count)):
                pair = []
                for _ in range(2):
                    size = self._number()
                    remaining -= size + 1
                    if size < 0 or remaining < 0:
                        raise self._damage_error("its header is too large")
                    pair.append(self._read_exactly(size))
                metadata[pair[0].decode(errors="replace")] = pair[1]
                if len(metadata.get("avro.schema", b"")) > MAX_SCHEMA_BYTES:
                    raise self._damage_error(f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes")
        return metadata

    def _number(self, first: bytes = b"") -> int:
        number = _read_number(chain(first, iter(lambda: self._read_exactly(1)[0], None)))
        if number is None:
            raise self._damage_error("a number has more than 64 bits")
        return number

    def _read_exactly(self, size: int, at_end: str = "it ends early; upload it again") -> bytes:
        data = read_up_to(self._stream, size)
        if len(data) < size and at_end:
            raise self._damage_error(at_end)
        return data

    def _damage_error(self, why: str) -> InputError:
        return InputError(f"file {self._name!r} is damaged, or not (only) Avro: {why}")


def _read_number(bytes_: Iterator[int]) -> int | None:
    """A number as Avro writes it: seven bits a byte, the sign in the lowest. None if it has more than 64 bits."""
    value = 0
    for index, byte in enumerate(islice(bytes_, _MAX_VARINT_BYTES)):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return None if value >> 64 else (value >> 1) ^ -(value & 1)
    return None


def _count_records(records: int) -> str:
    return f"{records:,} record{'s' if records != 1 else ''}"


def _unpack(new_unpacker: Callable[[], Any], packed: bytes) -> bytes:
    unpacker = new_unpacker()
    data: bytes = unpacker.decompress(packed, MAX_BLOCK_BYTES + 1)
    if not unpacker.eof and len(data) <= MAX_BLOCK_BYTES:
        raise EOFError("its packed data ends early")
    return data


def _unzstd(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data: bytes = stream.read(MAX_BLOCK_BYTES + 1)
    return data


def _unsnap(packed: bytes) -> bytes:
    size, _ = read_varint(packed[:5] + b"\0", 0)
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"{size} bytes")
    data: bytes = pa.decompress(packed[:-4], size, codec="snappy", asbytes=True)
    if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("its checksum is another")
    return data


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda packed: packed,
    "deflate": partial(_unpack, lambda: zlib.decompressobj(-zlib.MAX_WBITS)),
    "bzip2": partial(_unpack, bz2.BZ2Decompressor),
    "snappy": _unsnap,
    "xz": partial(_unpack, lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES)),
    "zstandard": _unzstd,
}


_MAX_STEPS = 1_000_000
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _BadValue(Exception):  # noqa: N818 - turned into an InputError
    """A value cannot be decoded; the message says why."""


def _find_problem(plain: Any, data: memoryview, records: int, max_values: int = sys.maxsize) -> tuple[int, str] | None:
    """Returns the number, from 1, of the first record that cannot be decoded, and its problem."""
    walk = _Walk(data, max_values)
    for number in range(1, records + 1):
        try:
            walk.read(plain, ())
        except _BadValue as bad:
            return number, (f", field {'.'.join(walk.path)!r}: " if walk.path else ": ") + str(bad)
    return None


class _Walk:
    """Goes through values. When it raises ``_BadValue``, ``path`` leads to the value."""

    def __init__(self, data: memoryview, max_values: int) -> None:
        self._data, self._position, self._remaining_values = data, 0, max_values
        self._named: dict[str, Any] = {}
        self.path: tuple[str, ...] = ()

    def read(self, plain: Any, path: tuple[str, ...]) -> None:
        self.path = path
        self._remaining_values -= 1
        if self._remaining_values < 0:
            raise _BadValue("a value does not match its type")
        if isinstance(plain, list):
            branch = self._number()
            if not 0 <= branch < len(plain):
                raise _BadValue(f"it says that it is of type {branch} of a union of {len(plain)}, counted from 0")
            self.read(plain[branch], path)
        elif isinstance(plain, dict):
            self._read_complex(plain, path)
        elif plain in self._named:
            self._read_complex(self._named[plain], path)
        elif plain in ("int", "long"):
            self._number()
        elif plain in ("bytes", "string"):
            data = self._take(self._number(), "a length of {} bytes")
            if plain == "string":
                _check_text(data)
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
                raise _BadValue(f"it is symbol {symbol} of {len(plain['symbols'])}, counted from 0")
        elif kind == "fixed":
            self._take(plain["size"], "{} bytes")
        else:
            self._items(plain, path)

    def _items(self, plain: dict[str, Any], path: tuple[str, ...]) -> None:
        while count := self._number():
            if count < 0:
                count = -count
                self._number()
            if count > len(self._data) - self._position:
                raise _BadValue(f"it says that it has {count:,} items, more than there are bytes left in its block")
            for _ in range(count):
                if plain["type"] == "map":
                    _check_text(self._take(self._number(), "a length of {} bytes"))
                self.read(plain["items" if plain["type"] == "array" else "values"], path)
                self.path = path

    def _take(self, size: int, what: str) -> bytes:
        remaining = len(self._data) - self._position
        if not 0 <= size <= remaining:
            raise _BadValue(f"it says that it has {what.format(f'{size:,}')}, and {remaining:,} are left in its block")
        self._position += size
        return bytes(self._data[self._position - size : self._position])

    def _number(self) -> int:
        number = _read_number(iter(lambda: self._take(1, "one more byte")[0], None))
        if number is None:
            raise _BadValue("it has a number of more than 64 bits")
        return number


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise _BadValue(f"its text is not UTF-8: {error.reason}") from None


Record: TypeAlias = dict[str, Any]
_SYNC = bytes(16)
_DOUBTFUL_NUMBER = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]|\xff{9}\x01")
"""Matches numbers of more than 64 bits and the smallest one, and sometimes the bytes of other values."""
_HIGH, _HIGH_BYTES = b"\1" * 9, bytes(128) + b"\1" * 128
"""Each match begins with this once bytes from 128 on are mapped to 1: this search takes a tenth of the time."""


def decode_records(container: Container, plain: Any, name: str, max_records: int) -> Iterator[tuple[list[Record], int]]:
    """Yields the records of all blocks, at most ``max_records`` of one block at a time, and their size in bytes.

    Raises InputError where a block is damaged, or holds other records than it says.
    """
    for number, block in enumerate(_blocks(container, plain), 1):
        data = block.bytes_.getvalue()
        if _HIGH in data.translate(_HIGH_BYTES) and _DOUBTFUL_NUMBER.search(data):
            block.bytes_ = _WatchedBytes(data)
        bytes_, records, remaining = block.bytes_, iter(block), block.num_records
        while remaining:
            start = bytes_.tell()
            try:
                batch = list(islice(records, min(max_records, remaining)))
            except _DECODE_ERRORS:
                bytes_.seek(start)
                raise _find_record_error(block, plain, name, number, block.num_records - remaining) from None
            end = bytes_.tell()
            if isinstance(bytes_, _WatchedBytes) and bytes_.take_doubt():
                problem = _find_problem(plain, bytes_.getbuffer()[start:end], len(batch))
                if problem:
                    raise _record_error(name, number, block.num_records - remaining + problem[0], problem[1])
            remaining -= len(batch)
            yield batch, end - start
        if bytes_.read(1):
            raise InputError(
                f"file {name!r} is damaged: block {number} holds more than its {_count_records(block.num_records)}"
            )


_DECODE_ERRORS = (EOFError, ValueError, LookupError, TypeError, OverflowError)
"""The errors that fastavro raises for damaged bytes."""


def _find_record_error(block: Any, plain: Any, name: str, number: int, record: int) -> InputError:
    """The error about the first record of a block that cannot be decoded, after ``record`` others."""
    bytes_, records = block.bytes_, iter(block)
    while True:
        start = bytes_.tell()
        record += 1
        try:
            if next(records, None) is None:
                break
        except _DECODE_ERRORS:
            break
    _, problem = _find_problem(plain, bytes_.getbuffer()[start:], 1, _MAX_STEPS) or (
        1,
        ": a value does not match its type",
    )
    return _record_error(name, number, record, problem)


def _record_error(name: str, block: int, record: int, problem: str) -> InputError:
    return InputError(f"file {name!r} is damaged: block {block}, record {record:,}{problem}")


def _blocks(container: Container, plain: Any) -> Iterator[Any]:
    import fastavro  # takes a while, and most files are not Avro

    schema = json.dumps(plain).encode()
    name = b"avro.schema"
    members = integer(1), integer(len(name)), name, integer(len(schema)), schema, integer(0)
    header = b"".join((MAGIC, *members, _SYNC))
    reader = fastavro.block_reader(_ReframedContainer(header, container.blocks()))
    _guard(reader.writer_schema)
    return iter(reader)


def _guard(schema: Any) -> None:
    """Replaces lists of symbols and branches in the schema of a reader by mappings from their numbers."""
    pending = [schema]
    while pending:
        kind = pending.pop()
        if "symbols" in kind:
            kind["symbols"] = dict(enumerate(kind["symbols"]))
        pending += kind.get("fields", ())
        for key, inner in kind.items():
            if key in ("type", "items", "values") or isinstance(key, int):
                if isinstance(inner, list):
                    inner = kind[key] = {"type": "union"} | dict[str | int, Any](enumerate(inner))
                if isinstance(inner, dict):
                    pending.append(inner)


class _WatchedBytes(io.BytesIO):
    """The bytes of a block. It notes doubtful numbers, which fastavro reads byte by byte."""

    _high = 0  # how many bytes that do not end a number were read last, one by one
    _has_doubt = False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if size != 1:
            self._high = 0
        elif data >= b"\x80":
            self._high += 1
        else:
            if self._high >= 9:
                last = self.getbuffer()[self.tell() - 10 : self.tell()]
                self._has_doubt |= self._high > 9 or _DOUBTFUL_NUMBER.match(last) is not None
            self._high = 0
        return data

    def take_doubt(self) -> bool:
        """Whether there was a doubtful number since the last call."""
        had_doubt, self._has_doubt = self._has_doubt, False
        return had_doubt


class _ReframedContainer:
    """A container for fastavro: its blocks are unpacked, and its schema has no logical types."""

    def __init__(self, header: bytes, blocks: Iterator[tuple[int, bytes]]) -> None:
        self._blocks, self._ahead, self._position = blocks, memoryview(header), 0

    def read(self, size: int, /) -> bytes:
        """The next bytes; a call never needs the bytes of two blocks."""
        if not self._ahead and (block := next(self._blocks, None)) is not None:
            records, unpacked = block
            self._ahead = memoryview(b"".join((integer(records), integer(len(unpacked)), unpacked, _SYNC)))
        data = bytes(self._ahead[:size])
        self._ahead = self._ahead[size:]
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position
