"""Keys of an index as bytes. docs/key-index.md specifies them.

The order of the bytes is the order of the keys, whatever their columns. Two keys are compared as if the shorter one
were padded with zero bytes, which is how numpy compares its byte strings: so trailing zero bytes are not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.format.del_object import order_by_heads
from dolmen.format.types import BOOL, DECIMAL, FIXED_BINARY, check_key_type, text_bytes, type_of

Keys: TypeAlias = npt.NDArray[Any]
"""Encoded keys: ``uint64`` if each has 8 bytes, read as a big-endian number; else byte strings (``S``)."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Lengths: TypeAlias = npt.NDArray[np.int64]

LONGEST_KEY = 1024  # bytes of the longest encoded key. Longer ones end in a digest of their whole content.

_HEAD_OF_LONG = LONGEST_KEY - sha256().digest_size - 1
_SIGN = np.uint64(1 << 63)
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23


class KeyEncoding(Struct, frozen=True):
    """How the values of some columns become keys."""

    kinds: tuple[str, ...]  # a word for each column; columns of equal kinds have equal bytes for equal values
    width: int  # bytes of every key; 0 if keys have different lengths

    @classmethod
    def of(cls, types: Sequence[pa.DataType]) -> KeyEncoding:
        """The encoding of keys of these types. Raises InputError for floats and nested columns."""
        for each in types:
            check_key_type(each)
        widths = [_width(each) for each in types]
        width = sum(widths) if all(widths) else 0
        return cls(tuple(_kind(each) for each in types), width if width <= 255 else 0)

    def encode(self, arrays: Sequence[pa.Array]) -> Keys:
        """The keys of the rows of some columns without NULL.

        It takes as much memory for every key as for the longest; ``encode_blocks`` bounds that.
        """
        assert not any(array.null_count for array in arrays), "a key has no NULL"
        if self.width == 8 and type_of(arrays[0].type) is not FIXED_BINARY:
            return _number(arrays[0])
        if len(arrays[0]) == 0:
            return no_keys(self.width)
        parts = [_part(array, last=number == len(arrays)) for number, array in enumerate(arrays, 1)]
        if not self.width:
            return as_strings(_matrix(parts))
        return from_matrix(np.hstack([data.reshape(len(lengths), -1) for data, lengths in parts]))

    def encode_blocks(self, arrays: Sequence[pa.Array]) -> Iterator[tuple[int, Keys]]:
        """``encode`` for some thousands of rows at a time: yields the first row of each block, and its keys."""
        rows = len(arrays[0])
        step = _BLOCK_ROWS if self.width else max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // _longest(arrays)))
        for start in range(0, rows, step):
            yield start, self.encode([array.slice(start, step) for array in arrays])


def no_keys(width: int) -> Keys:
    """An array without keys, of the type of keys of this width."""
    return np.zeros(0, np.uint64 if width == 8 else f"S{width or 1}")


def from_matrix(matrix: Bytes) -> Keys:
    """The rows of a matrix of bytes as keys of one width."""
    if matrix.shape[1] == 8:
        return np.ascontiguousarray(matrix).view(">u8").reshape(-1).astype(np.uint64)
    return as_strings(matrix)


def as_strings(matrix: Bytes) -> Keys:
    """The rows of a matrix of bytes as numpy's byte strings."""
    rows, width = matrix.shape
    if width == 0:
        return np.zeros(rows, "S1")
    return np.ascontiguousarray(matrix).view(f"S{width}").reshape(rows)


def as_matrix(keys: Keys) -> Bytes:
    """The bytes of keys: a row for each, padded with zeros."""
    if keys.dtype == np.uint64:
        keys = keys.astype(">u8")
    return np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), keys.dtype.itemsize)


def key_order(keys: Keys) -> npt.NDArray[np.int64]:
    """The indexes of keys in ascending order."""
    if keys.dtype == np.uint64 or keys.dtype.itemsize < 8 or len(keys) < 2:
        return np.argsort(keys)
    matrix = as_matrix(keys)
    differs = (at for at in range(matrix.shape[1] - 8) if (matrix[:, at] != matrix[0, at]).any())
    start = next(differs, matrix.shape[1] - 8)
    heads = np.ascontiguousarray(matrix[:, start : start + 8]).view(">u8").reshape(-1).astype(np.uint64)
    return order_by_heads(heads, lambda tied: np.argsort(keys[tied], kind="stable"))


def _kind(arrow_type: pa.DataType) -> str:
    column_type = type_of(arrow_type)
    assert column_type is not None
    if column_type is DECIMAL:
        return f"decimal({arrow_type.scale})"
    if column_type is FIXED_BINARY:
        return f"fixed({arrow_type.byte_width})"
    if column_type.text == "integer":
        return "signed" if pa.types.is_signed_integer(arrow_type) else "unsigned"
    return column_type.name


def _width(arrow_type: pa.DataType) -> int:
    """Bytes of each value of the type; 0 if they differ."""
    column_type = type_of(arrow_type)
    assert column_type is not None
    if column_type.codes == "variable":
        return 0
    if column_type is FIXED_BINARY:
        return int(arrow_type.byte_width)
    return 16 if column_type is DECIMAL else 8


def _longest(arrays: Sequence[pa.Array]) -> int:
    """An upper bound of the bytes of the longest key."""
    total = 1
    for array in arrays:
        width = _width(array.type)
        if not width:
            _, offsets = text_bytes(array)
            width = 2 * int(np.diff(offsets).max(initial=0)) + 2
        total += width
    return min(total, LONGEST_KEY)


def _number(array: pa.Array) -> npt.NDArray[np.uint64]:
    """The values of an integer-like array as unsigned numbers of the same order."""
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


def _part(array: pa.Array, *, last: bool) -> tuple[Bytes, Lengths]:
    """The encoded values of one column, back to back, and the length of each."""
    column_type = type_of(array.type)
    assert column_type is not None
    if column_type.codes == "variable":
        return _texts(array, last=last)
    width = _width(array.type)
    if column_type is FIXED_BINARY:
        data = _fixed(array, width)
    elif column_type is DECIMAL:
        data = _fixed(array.cast(pa.decimal128(38, array.type.scale)), 16)[:, ::-1].copy()
        data[:, 0] ^= 0x80
    else:
        data = as_matrix(_number(array))
    return np.ascontiguousarray(data).reshape(-1), np.full(len(array), width, np.int64)


def _texts(array: pa.Array, *, last: bool) -> tuple[Bytes, Lengths]:
    """Texts with 0xFF after each zero byte, and two zero bytes at the end unless they are the last part of the key."""
    data, offsets = text_bytes(array)
    zeros = np.flatnonzero(data == 0)
    if len(zeros):
        data = np.insert(data, zeros + 1, 0xFF)
        offsets = offsets + np.searchsorted(zeros, offsets)
    if not last:
        data = np.insert(data, np.repeat(offsets[1:], 2), 0)
        offsets = offsets + 2 * np.arange(len(offsets))
    return data, np.diff(offsets)


def _matrix(parts: Sequence[tuple[Bytes, Lengths]]) -> Bytes:
    """The keys that consist of some parts, a row for each."""
    rows = len(parts[0][1])
    total = np.sum([lengths for _, lengths in parts], axis=0)
    longest = int(total.max(initial=0))
    if len(parts) == 1 and rows and longest <= LONGEST_KEY - 1 and longest == int(total.min()):
        return parts[0][0].reshape(rows, longest)
    width = min(longest, LONGEST_KEY)
    flat = np.zeros(rows * width, np.uint8)
    begin = np.zeros(rows, np.int64)
    for data, lengths in parts:
        kept = np.clip(width - begin, 0, lengths)
        within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        source = np.repeat(np.cumsum(lengths) - lengths, kept) + within
        flat[np.repeat(np.arange(rows) * width + begin, kept) + within] = data[source]
        begin = begin + lengths
    matrix = flat.reshape(rows, width)
    if longest >= LONGEST_KEY:
        ends = [np.cumsum(lengths) for _, lengths in parts]
        for row in np.flatnonzero(total >= LONGEST_KEY).tolist():
            digest = sha256()
            for (data, lengths), end in zip(parts, ends, strict=True):
                digest.update(data[int(end[row] - lengths[row]) : int(end[row])].tobytes())
            matrix[row, _HEAD_OF_LONG:] = np.frombuffer(digest.digest() + b"\x01", np.uint8)
    return matrix
