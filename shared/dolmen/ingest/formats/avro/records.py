"""Records of an Avro file as fastavro decodes them, and the words for those that it cannot decode.

fastavro takes a negative number of a symbol, or of a branch of a union, for a place from the end, as Python does. Its
own lists are therefore followed by places that fail (``_guard``). Only for damaged files the bytes of a record are gone
through again, to say why it fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

from dolmen.errors import InputError
from dolmen.ingest.formats.avro.blocks import MAGIC, AvroBlock, Container, counted
from dolmen.ingest.formats.avro.faults import find_fault

Record: TypeAlias = dict[str, Any]

_SYNC = bytes(16)
_GUARDS = 64
"""Places from the end that fail: all numbers that take one byte."""
_NO_TYPE, _NO_SYMBOL = "no type", "\ud800"
"""A type that is not there, and text that no column holds."""


def decoded_records(container: Container, plain: Any, name: str, most: int) -> Iterator[tuple[list[Record], int]]:
    """The records of all blocks, at most ``most`` at a time and of one block, with the bytes that they took.

    Args:
        plain: the schema to decode them by, ``AvroTypes.plain``.
        name: of the file, for errors.

    Raises:
        InputError: a block is damaged, or holds other records than it says.
    """
    for number, block in enumerate(_blocks(container, plain), 1):
        bytes_, records, left = block.bytes_, iter(block), block.num_records
        while left:
            start = bytes_.tell()
            try:
                some = list(islice(records, min(most, left)))
            except _FAULTS:
                bytes_.seek(start)
                raise _damage(block, plain, name, number, block.num_records - left) from None
            left -= len(some)
            yield some, bytes_.tell() - start
        if bytes_.read(1):
            raise InputError(
                f"file {name!r} is damaged: block {number} holds more than its {counted(block.num_records)}"
            )


_FAULTS = (EOFError, ValueError, LookupError, TypeError, OverflowError)
"""What fastavro raises for damaged bytes."""


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
    fault = find_fault(plain, bytes_.getbuffer()[start:])
    where = f", field {fault.field!r}" if fault.field else ""
    return InputError(f"file {name!r} is damaged: block {number}, record {record:,}{where}: {fault.reason}")


def _blocks(container: Container, plain: Any) -> Iterator[Any]:
    import fastavro  # takes a while, and most files are not Avro

    schema = json.dumps(plain).encode()
    header = b"".join((MAGIC, _number(1), _text(b"avro.schema"), _text(schema), _number(0), _SYNC))
    reader = fastavro.block_reader(_Reframed(header, container.blocks()))
    _guard(reader.writer_schema)
    return iter(reader)


def _guard(schema: Any) -> None:
    """Lets the numbers from -1 to -64 of symbols and branches fail, in the schema by which a reader decodes."""
    left = [schema]
    while left:
        kind = left.pop()
        if isinstance(kind, list):
            left += kind
            kind.extend([_NO_TYPE] * _GUARDS)
        elif isinstance(kind, dict):
            if kind["type"] == "enum":
                kind["symbols"].extend([_NO_SYMBOL] * _GUARDS)
            left += [field["type"] for field in kind.get("fields", ())]
            left += [kind[inner] for inner in ("type", "items", "values") if inner in kind]


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
