"""Avro object container files, taken apart into blocks that are unpacked within limits.

All codecs of the specification are read: null, deflate, bzip2, snappy, xz and zstandard. A block of more than 64 MiB,
packed or unpacked, is refused: it would have to be held in memory as a whole.

How much memory the items of decoded lists and maps take as columns, known before they are made.

A NULL takes a byte of the file, and as much memory as any value of its type.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.ingest.formats.column_limits import width
from dolmen.ingest.formats.source_file import ByteStream

MAX_BLOCK_BYTES = 64 * MIB


MAX_SCHEMA_BYTES = 4 * MIB


MAGIC = b"Obj\x01"


_SYNC_BYTES = 16


_MAX_HEADER_BYTES = 16 * MIB


_MAX_VARINT_BYTES = 10


_XZ_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """A block of ``count`` records, one after the other in ``data``."""

    records: int
    data: bytes


class Container:
    """A container file whose header has been read.

    Args:
        stream: the file from its beginning.
        name: what errors call it.

    Raises:
        InputError: it is no Avro file, or damaged.
    """

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream, self._name = stream, name
        if self._exactly(len(MAGIC), at_end="") != MAGIC:
            raise InputError(f"file {name!r} is not a readable Avro file: it does not begin like one")
        header = self._metadata()
        self._sync = self._exactly(_SYNC_BYTES)
        codec = header.get("avro.codec", b"null").decode(errors="replace") or "null"
        if codec not in _CODECS:
            raise InputError(f"file {name!r}: Avro codec {codec!r} is unknown; there are {', '.join(_CODECS)}")
        self._unpack = _CODECS[codec]
        try:
            self.schema: Any = json.loads(header["avro.schema"])
        except KeyError:
            raise self._damaged("its header holds no schema") from None
        except (ValueError, RecursionError):
            raise self._damaged("the schema in its header is no JSON, or nests too deeply") from None

    def blocks(self) -> Iterator[AvroBlock]:
        """The blocks, in order. Raises InputError where the file is damaged or ends early."""
        number = 0
        while (first := self._stream.read(1)) != b"":
            number += 1
            count, size = self._number(first), self._number()
            if not 0 <= size <= MAX_BLOCK_BYTES or count < 0:
                raise self._damaged(
                    f"block {number} says it has {counted(count)} in {size:,} bytes, and at most {MAX_BLOCK_BYTES:,} "
                    "bytes are read"
                )
            packed = self._exactly(size)
            if self._exactly(_SYNC_BYTES) != self._sync:
                raise self._damaged(f"block {number} does not end with the mark of the file")
            try:
                data = self._unpack(packed)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                raise self._damaged(f"block {number} cannot be unpacked: {error}") from None
            if len(data) > MAX_BLOCK_BYTES:
                raise self._damaged(f"block {number} unpacks to more than {MAX_BLOCK_BYTES:,} bytes")
            if count > len(data):
                raise self._damaged(f"block {number} of {counted(count)} has {len(data):,} bytes")
            yield AvroBlock(count, data)

    def _metadata(self) -> dict[str, bytes]:
        made: dict[str, bytes] = {}
        left = _MAX_HEADER_BYTES
        while count := self._number():
            if count < 0:
                self._number()  # of bytes, for readers that skip them
            for _ in range(abs(count)):
                pair = []
                for _ in range(2):
                    size = self._number()
                    left -= size + 1
                    if size < 0 or left < 0:
                        raise self._damaged("its header is too large")
                    pair.append(self._exactly(size))
                made[pair[0].decode(errors="replace")] = pair[1]
                if len(made.get("avro.schema", b"")) > MAX_SCHEMA_BYTES:
                    raise self._damaged(f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes")
        return made

    def _number(self, first: bytes = b"") -> int:
        """A number as Avro writes it: seven bits a byte, the sign in the lowest."""
        value = 0
        for place in range(_MAX_VARINT_BYTES):
            byte = (first or self._exactly(1))[0]
            first = b""
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 64:
            raise self._damaged("a number has more than 64 bits")
        return (value >> 1) ^ -(value & 1)

    def _exactly(self, size: int, at_end: str = "it ends early; upload it again") -> bytes:
        parts, left = [], size
        while left and (data := self._stream.read(left)):
            parts.append(data)
            left -= len(data)
        if left and at_end:
            raise self._damaged(at_end)
        return b"".join(parts)

    def _damaged(self, why: str) -> InputError:
        return InputError(f"file {self._name!r} is damaged, or not (only) Avro: {why}")


def counted(records: int) -> str:
    """A number of records in words."""
    return f"{records:,} record{'s' if records != 1 else ''}"


def _inflate(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    data = unpacker.decompress(packed, MAX_BLOCK_BYTES + 1)
    return _whole(data, unpacker.eof)


def _bunzip(packed: bytes) -> bytes:
    unpacker = bz2.BZ2Decompressor()
    data = unpacker.decompress(packed, MAX_BLOCK_BYTES + 1)
    return _whole(data, unpacker.eof)


def _unxz(packed: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=_XZ_BYTES)
    data = unpacker.decompress(packed, MAX_BLOCK_BYTES + 1)
    return _whole(data, unpacker.eof)


def _unzstd(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data: bytes = stream.read(MAX_BLOCK_BYTES + 1)
    return data


def _unsnap(packed: bytes) -> bytes:
    size, shift = 0, 0
    for byte in packed[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"{size} bytes")
    data: bytes = pa.decompress(packed[:-4], size, codec="snappy", asbytes=True)
    if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("its checksum is another")
    return data


def _whole(data: bytes, ended: bool) -> bytes:
    if not ended and len(data) <= MAX_BLOCK_BYTES:
        raise EOFError("its packed data ends early")
    return data


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda packed: packed,
    "deflate": _inflate,
    "bzip2": _bunzip,
    "snappy": _unsnap,
    "xz": _unxz,
    "zstandard": _unzstd,
}


def widest_item(kind: pa.DataType) -> int:
    """The most bytes that an item in a list or map of this type takes; 0 if there are none in it."""
    if t.is_struct(kind):
        return max((widest_item(field.type) for field in kind), default=0)
    item = _item(kind)
    return 0 if item is None else max(width(item), widest_item(item))


def item_bytes(values: Sequence[Any], kind: pa.DataType) -> int:
    """The bytes that all items in values of this type take."""
    if widest_item(kind) == 0:
        return 0
    there = [value for value in values if value is not None]
    if t.is_struct(kind):
        return sum(item_bytes([value[field.name] for value in there], field.type) for field in kind)
    item = _item(kind)
    size = sum(map(len, there)) * width(item)
    if widest_item(item):
        inner = (value.values() if t.is_map(kind) else value for value in there)
        size += item_bytes(list(chain.from_iterable(inner)), item)
    return size


def _item(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if t.is_list(kind) else kind.item_type if t.is_map(kind) else None
