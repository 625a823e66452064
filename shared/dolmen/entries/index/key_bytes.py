"""Keys as bytes: the order of the bytes is the order of the keys, whatever columns these consist of.

Two keys are compared as if the shorter one were padded with zero bytes, which is how numpy compares its byte strings.
So trailing zero bytes mean nothing, and are not stored. docs/index.md says what each type becomes.

Planes of bytes: a matrix stored column by column, in which a column of equal bytes takes one byte.

Sorted numbers have equal or slowly growing leading bytes, so that most planes vanish here or in compression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.errors import InputError
from dolmen.format.delete_object import order_by_heads
from dolmen.format.types import BOOL, DECIMAL, FIXED_BINARY, can_be_key, type_of

Keys: TypeAlias = npt.NDArray[Any]
"""Encoded keys: ``uint64`` if each has 8 bytes, read as a big-endian number; else byte strings (``S``)."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Lengths: TypeAlias = npt.NDArray[np.int64]

LONGEST = 1024
"""Bytes of the longest encoded key. Longer ones end in a digest of all that they consist of."""

_HEAD_OF_LONG = LONGEST - sha256().digest_size - 1
_SIGN = np.uint64(1 << 63)
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23
_EQUAL, _DIFFERENT = 0, 1


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """How the values of some columns become keys.

    Args:
        kinds: one word per column; columns of equal kinds have equal bytes for equal values.
        width: bytes of every key; 0 if keys have different lengths.
    """

    kinds: tuple[str, ...]
    width: int

    @classmethod
    def of(cls, types: Sequence[pa.DataType]) -> KeyEncoding:
        """The encoding of keys that consist of columns of these types.

        Raises:
            InputError: a float or nested column, which cannot be part of a key.
        """
        for each in types:
            if not can_be_key(each):
                raise InputError(f"a column of type {each} can't be (part of) a key")
        widths = [_width(each) for each in types]
        width = sum(widths) if all(widths) else 0
        return cls(tuple(_kind(each) for each in types), width if width <= 255 else 0)

    def encode(self, arrays: Sequence[pa.Array]) -> Keys:
        """The keys of the tuples at each place of some arrays of equal length, none of which has a NULL.

        It takes as much memory for every key as for the longest; ``encode_blocks`` bounds that.
        """
        assert not any(array.null_count for array in arrays), "a key has no NULL"
        if self.width == 8 and type_of(arrays[0].type) is not FIXED_BINARY:
            return _number(arrays[0])
        if len(arrays[0]) == 0:
            return no_keys(self.width)
        parts = [_part(array, last=place == len(arrays) - 1) for place, array in enumerate(arrays)]
        if self.width:
            matrix = np.hstack([data.reshape(len(lengths), -1) for data, lengths in parts])
        else:
            matrix = _matrix(parts)
        return from_matrix(matrix) if self.width else as_strings(matrix)

    def encode_blocks(self, arrays: Sequence[pa.Array]) -> Iterator[tuple[int, Keys]]:
        """``encode`` for some thousands of rows at a time: yields the first row of each block, and its keys."""
        rows = len(arrays[0])
        step = _BLOCK_ROWS if self.width else max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // _longest(arrays)))
        for start in range(0, rows, step):
            yield start, self.encode([array.slice(start, step) for array in arrays])


def no_keys(width: int) -> Keys:
    """An array without keys, of the type that keys of this width have."""
    return np.zeros(0, np.uint64 if width == 8 else f"S{width or 1}")


def from_matrix(matrix: Bytes) -> Keys:
    """The keys of one width whose bytes are the rows of a matrix."""
    if matrix.shape[1] == 8:
        return np.ascontiguousarray(matrix).view(">u8").reshape(-1).astype(np.uint64)
    return as_strings(matrix)


def as_strings(matrix: Bytes) -> Keys:
    """The rows of a matrix of bytes as byte strings of numpy's."""
    rows, width = matrix.shape
    if width == 0:
        return np.zeros(rows, "S1")
    return np.ascontiguousarray(matrix).view(f"S{width}").reshape(rows)


def as_matrix(keys: Keys) -> Bytes:
    """The bytes of keys: a row for each, padded with zeros."""
    if keys.dtype == np.uint64:
        keys = keys.astype(">u8")
    return np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), keys.dtype.itemsize)


def order(keys: Keys) -> npt.NDArray[np.int64]:
    """The places of keys in ascending order."""
    if keys.dtype == np.uint64 or keys.dtype.itemsize < 8 or len(keys) < 2:
        return np.argsort(keys)
    matrix = as_matrix(keys)
    differs = np.flatnonzero((matrix != matrix[0]).any(axis=0))
    start = min(int(differs[0]) if len(differs) else 0, keys.dtype.itemsize - 8)
    heads = np.ascontiguousarray(matrix[:, start : start + 8]).view(">u8").reshape(-1).astype(np.uint64)
    return order_by_heads(heads, lambda tied: np.argsort(keys[tied], kind="stable"))


def _kind(arrow_type: pa.DataType) -> str:
    found = type_of(arrow_type)
    assert found is not None
    if found is DECIMAL:
        return f"decimal({arrow_type.scale})"
    if found is FIXED_BINARY:
        return f"fixed({arrow_type.byte_width})"
    if found.text == "integer":
        return "signed" if pa.types.is_signed_integer(arrow_type) else "unsigned"
    return found.name


def _width(arrow_type: pa.DataType) -> int:
    """Bytes of each value of the type; 0 if they differ."""
    found = type_of(arrow_type)
    assert found is not None
    if found.codes == "variable":
        return 0
    if found is FIXED_BINARY:
        return int(arrow_type.byte_width)
    return 16 if found is DECIMAL else 8


def _longest(arrays: Sequence[pa.Array]) -> int:
    """At least the bytes of the longest key, unless all its bytes are zero."""
    total = 1
    for array in arrays:
        width = _width(array.type)
        if not width:
            _, offsets = _buffers(array)
            width = 2 * int(np.diff(offsets).max(initial=0)) + 2
        total += width
    return min(total, LONGEST)


def _number(array: pa.Array) -> npt.NDArray[np.uint64]:
    """The values of an integer-like array, in an order that is that of unsigned numbers."""
    if type_of(array.type) is BOOL:
        array = array.cast(pa.uint8())
    if pa.types.is_unsigned_integer(array.type):
        return np.asarray(array.cast(pa.uint64()).to_numpy(zero_copy_only=False), np.uint64)
    width = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[array.type.bit_width // 8]
    values = _fixed(array, array.type.bit_width // 8).reshape(-1).view(width).astype(np.int64)
    return values.view(np.uint64) ^ _SIGN


def _fixed(array: pa.Array, width: int) -> Bytes:
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros((0, width), np.uint8)
    body = np.frombuffer(buffer, np.uint8)
    return body[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _buffers(array: pa.Array) -> tuple[Bytes, Lengths]:
    """The bytes of texts, and where each begins and ends in them."""
    _, ends, body = array.buffers()
    if ends is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(ends, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if body is None else np.frombuffer(body, np.uint8)
    return data[int(offsets[0]) : int(offsets[-1])], offsets.astype(np.int64) - int(offsets[0])


def _part(array: pa.Array, *, last: bool) -> tuple[Bytes, Lengths]:
    """The encoded values of one column, back to back, and the length of each."""
    found = type_of(array.type)
    assert found is not None
    if found.codes == "variable":
        return _texts(array, last=last)
    width = _width(array.type)
    if found is FIXED_BINARY:
        data = _fixed(array, width)
    elif found is DECIMAL:
        data = _fixed(array.cast(pa.decimal128(38, array.type.scale)), 16)[:, ::-1].copy()
        data[:, 0] ^= 0x80
    else:
        data = as_matrix(_number(array))
    return np.ascontiguousarray(data).reshape(-1), np.full(len(array), width, np.int64)


def _texts(array: pa.Array, *, last: bool) -> tuple[Bytes, Lengths]:
    """Texts in which 0xFF follows each zero byte, and at whose end are two zero bytes unless nothing follows."""
    data, offsets = _buffers(array)
    zeros = np.flatnonzero(data == 0)
    if len(zeros):
        data = np.insert(data, zeros + 1, 0xFF)
        offsets = offsets + np.searchsorted(zeros, offsets)
    if not last:
        data = np.insert(data, np.repeat(offsets[1:], 2), 0)
        offsets = offsets + 2 * np.arange(len(offsets))
    return data, np.diff(offsets)


def _matrix(parts: Sequence[tuple[Bytes, Lengths]]) -> Bytes:
    """The keys that consist of these parts, a row for each."""
    rows = len(parts[0][1])
    total = np.sum([lengths for _, lengths in parts], axis=0)
    longest = int(total.max(initial=0))
    if len(parts) == 1 and rows and longest <= LONGEST - 1 and longest == int(total.min()):
        return parts[0][0].reshape(rows, longest)
    width = min(longest, LONGEST)
    flat = np.zeros(rows * width, np.uint8)
    begin = np.zeros(rows, np.int64)
    for data, lengths in parts:
        kept = np.clip(width - begin, 0, lengths)
        within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        source = np.repeat(np.cumsum(lengths) - lengths, kept) + within
        flat[np.repeat(np.arange(rows) * width + begin, kept) + within] = data[source]
        begin = begin + lengths
    matrix = flat.reshape(rows, width)
    if longest >= LONGEST:
        ends = [np.cumsum(lengths) for _, lengths in parts]
        for row in np.flatnonzero(total >= LONGEST).tolist():
            digest = sha256()
            for (data, lengths), end in zip(parts, ends, strict=True):
                digest.update(data[int(end[row] - lengths[row]) : int(end[row])].tobytes())
            matrix[row, _HEAD_OF_LONG:] = np.frombuffer(digest.digest() + b"\x01", np.uint8)
    return matrix


Matrix = npt.NDArray[np.uint8]


def encode(matrix: Matrix) -> bytes:
    """One byte for each column: 0 or 1; then each column: its only byte if that was 0, else a byte of each row."""
    if len(matrix) == 0:
        return bytes(matrix.shape[1])
    varies = (matrix != matrix[0]).any(axis=0)
    ends = np.where(varies, len(matrix), 1).tolist()
    columns: list[bytes] = [matrix[:end, at].tobytes() for at, end in enumerate(ends)]
    return bytes(varies) + b"".join(columns)


def decode(body: memoryview, rows: int, columns: int) -> tuple[Matrix, memoryview]:
    """The matrix, and what follows it in ``body``.

    Raises:
        ValueError: the body is too short, or a column is neither 0 nor 1.
    """
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


def of_numbers(numbers: npt.NDArray[np.uint64], width: int) -> Matrix:
    """The last ``width`` bytes of numbers, the most significant one first."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def to_numbers(matrix: Matrix) -> npt.NDArray[np.uint64]:
    """The numbers of which ``of_numbers`` made the matrix."""
    padded = np.zeros((len(matrix), 8), np.uint8)
    padded[:, 8 - matrix.shape[1] :] = matrix
    return padded.view(">u8").reshape(-1).astype(np.uint64)
