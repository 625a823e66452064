"""Codes of keys: 64 bits for each tuple of values, by which keys are sorted, looked up and compared.

The code of one integer-like column is its value: equal codes are equal values. All other codes are hashes of the whole
content, so that keys of equal codes have to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.format.types import CodesKind, text_bytes, type_of

Words = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
_WordsOfRows: TypeAlias = Iterator[tuple[Words, Int64s | None]]
_STEP = np.uint64(0xFF51AFD7ED558CCD)  # the first multiplier of MurmurHash3's 64-bit finaliser
_SHIFT = np.uint64(32)

_IN_WORDS = 1024
"""The bytes of texts that are hashed 64 bits at a time, for all texts at once; the rest of each is hashed by itself."""

_INTEGER_WIDTHS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED_WIDTHS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def is_exact(types: Sequence[pa.DataType]) -> bool:
    """True if equal codes are equal tuples."""
    return len(types) == 1 and _kind(types[0]) == "integer"


def codes(arrays: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The codes of the tuples at each index of some arrays of equal length; any value where one is NULL."""
    if is_exact([array.type for array in arrays]):
        return integers(arrays[0])
    mixed = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        kind = _kind(array.type)
        assert kind is not None, array.type
        for word, rows in WORDS[kind](array):
            if rows is None:
                _mix(mixed, word)
            else:
                mixed[rows] = _mix(mixed[rows], word)
    return mixed.view(np.int64)


def _mix(mixed: Words, word: Words) -> Words:
    """Mixes a word into each code, in place."""
    mixed ^= word
    mixed *= _STEP
    mixed ^= mixed >> _SHIFT
    return mixed


def integers(array: pa.Array) -> npt.NDArray[np.int64]:
    """The values of an integer-like array; uint64 wraps around."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    signed = not pa.types.is_unsigned_integer(array.type)
    width = (_SIGNED_WIDTHS if signed else _INTEGER_WIDTHS)[array.type.bit_width]
    values = _values(array, width)
    return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)


def from_integers(values: npt.NDArray[np.int64], arrow_type: pa.DataType) -> pa.Array:
    """The array of an integer-like type that ``integers`` makes these values of."""
    if pa.types.is_boolean(arrow_type):
        return pa.array(values != 0)
    narrow = np.ascontiguousarray(values.astype(_SIGNED_WIDTHS[arrow_type.bit_width], copy=False))
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(narrow)])


def _kind(arrow_type: pa.DataType) -> CodesKind | None:
    column_type = type_of(arrow_type)
    return None if column_type is None else column_type.codes


def _values(array: pa.Array, dtype: npt.DTypeLike, width: int = 1) -> npt.NDArray[np.generic]:
    """The fixed-width values of an array, uncopied, with ``width`` items each; NULLs have any value."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) * width, dtype)
    values: npt.NDArray[np.generic] = np.frombuffer(buffer, dtype, (array.offset + len(array)) * width)
    return values[array.offset * width :]


def _integer_words(array: pa.Array) -> _WordsOfRows:
    yield integers(array).view(np.uint64), None


def _decimal_words(array: pa.Array) -> _WordsOfRows:
    halves = _values(array, np.uint64, 2).reshape(-1, 2)
    yield halves[:, 0].astype(np.uint64), None
    yield halves[:, 1].astype(np.uint64), None


def _fixed_words(array: pa.Array) -> _WordsOfRows:
    width = array.type.byte_width
    offsets = np.arange(len(array) + 1, dtype=np.int64) * width
    return _text_words(_values(array, np.uint8, width), offsets)


def _variable_words(array: pa.Array) -> _WordsOfRows:
    return _text_words(*text_bytes(array))


WORDS: dict[CodesKind, Callable[[pa.Array], _WordsOfRows]] = {
    "integer": _integer_words,
    "decimal": _decimal_words,
    "fixed": _fixed_words,
    "variable": _variable_words,
}
"""By kind of type (``ColumnType.codes``), yields the content of values, 64 bits at a time, and the indexes of the
values that are that long; None for all."""


def _text_words(data: npt.NDArray[np.generic], offsets: npt.NDArray[np.int64]) -> _WordsOfRows:
    starts, lengths = offsets[:-1], np.diff(offsets)
    yield lengths.view(np.uint64), None
    if len(lengths) == 0:
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if 8 <= shortest == longest <= _IN_WORDS:  # as UUIDs are: the words are columns of one array
        for done in range(0, longest, 8):
            column = np.ndarray(len(lengths), "<u8", data, min(done, longest - 8), (longest,))
            yield column if done <= longest - 8 else column >> np.uint64(8 * (done + 8 - longest)), None
        return
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    anywhere = np.ndarray((len(data) + 1,), "<u8", padded.data, 0, (1,))  # the 8 bytes from each byte on
    masks = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [2**64 - 1], np.uint64)
    rows: Int64s | None = None  # those with more than ``done`` bytes
    for done in range(0, min(longest, _IN_WORDS), 8):
        if shortest > done:
            yield anywhere[starts + done] & masks[np.minimum(lengths - done, 8)], None
        else:
            rows = np.flatnonzero(lengths > done) if rows is None else rows[lengths[rows] > done]
            yield anywhere[starts[rows] + done] & masks[np.minimum(lengths[rows] - done, 8)], rows
    if longest > _IN_WORDS:
        rows = np.flatnonzero(lengths > _IN_WORDS)
        ends = zip((starts[rows] + _IN_WORDS).tolist(), (starts[rows] + lengths[rows]).tolist(), strict=True)
        body = memoryview(data)  # type: ignore[arg-type]
        tails = b"".join([blake2b(body[start:end], digest_size=8).digest() for start, end in ends])
        yield np.frombuffer(tails, "<u8").astype(np.uint64), rows
