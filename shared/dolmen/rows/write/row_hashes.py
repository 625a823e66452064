"""A 64-bit number for each row, made from the bits of its values and the names of their columns.

NULL adds nothing, so that a column that was left out is like one of NULLs. No row is looked at by itself: numbers are
mixed as arrays; strings and lists are polynomials of their bytes, or elements, from prefix sums over all of them.
"""

from __future__ import annotations

from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import InputError
from dolmen.format.types import short_type

Hashes: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN, _SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_BASE = 0x5851F42D4C957F2D
"""Odd, so that it has an inverse."""
_WINDOW = 1 << 18
"""Elements that are folded together: some megabytes of numbers."""
_LONG = 1 << 16
"""A longer string is hashed by itself."""


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """A number for each row. Equal rows have equal numbers; floats are equal if their bits are.

    Raises:
        InputError: a column's type is none that can be stored.
    """
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            total += _unless_null(column, mix(_hashes(column) ^ _seed(name)))
    return mix(total + np.uint64(_GOLDEN))


def mix(x: Hashes) -> Hashes:
    """Spreads each number over all bits (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _unless_null(array: pa.Array, hashes: Hashes) -> Hashes:
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _hashes(array: pa.Array) -> Hashes:
    """A number for each value, 0 for NULL."""
    if not len(array):
        return np.zeros(0, np.uint64)
    return _unless_null(array, mix(_plain(array) + np.uint64(_GOLDEN)))


def _plain(array: pa.Array) -> Hashes:
    """A number for each value, whatever for NULL."""
    kind = array.type
    if t.is_struct(kind):
        total = np.zeros(len(array), np.uint64)
        for field, child in zip(kind, array.flatten(), strict=True):
            total += _unless_null(child, mix(_hashes(child) ^ _seed(field.name)))
        return total
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        ends = array.offsets.to_numpy().astype(np.int64)
        if t.is_map(kind):
            elements = mix(_hashes(array.keys) ^ _seed("key")) + mix(_hashes(array.items) ^ _seed("value"))
        else:
            elements = _hashes(array.values)
        return _folded(elements, ends)
    if t.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif t.is_large_string(kind) or t.is_large_binary(kind):
        array = array.cast(pa.string() if t.is_large_string(kind) else pa.binary())
    if t.is_string(array.type) or t.is_binary(array.type):
        return _of_texts(array)
    if t.is_decimal128(kind):
        words: Hashes = np.frombuffer(array.buffers()[1], "<u8", 2 * len(array), array.offset * 16).reshape(-1, 2)
        high: Hashes = words[:, 1]
        return mix(words[:, 0] + np.uint64(_GOLDEN)) ^ high
    return _of_numbers(array)


def _of_numbers(array: pa.Array) -> Hashes:
    kind = array.type
    if t.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if t.is_timestamp(kind) or t.is_time64(kind) or t.is_duration(kind):
        array = array.view(pa.int64())
    elif t.is_date32(kind) or t.is_time32(kind):
        array = array.view(pa.int32())
    elif not (t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind)):
        raise InputError(
            f"rows with values of type {short_type(kind)} have no digest by which request=... could tell them: cast it"
        )
    values = array.fill_null(0 if not t.is_boolean(kind) else False).to_numpy(zero_copy_only=False)
    wide = np.float64 if values.dtype.kind == "f" else np.uint64 if values.dtype.kind == "u" else np.int64
    found: Hashes = values.astype(wide).view(np.uint64)
    return found


def _of_texts(array: pa.Array) -> Hashes:
    _, positions, body = array.buffers()
    ends = np.frombuffer(positions, "<i4", len(array) + 1, array.offset * 4).astype(np.int64)
    raw = np.frombuffer(body, np.uint8) if body is not None else np.zeros(0, np.uint8)
    long = np.flatnonzero(np.diff(ends) > _LONG)
    hashes = np.zeros(len(array), np.uint64)
    for start, end in zip([0, *(long + 1)], [*long, len(array)], strict=True):
        hashes[start:end] = _folded(raw, ends[start : end + 1])
    for place in long:
        digest = blake2b(raw[ends[place] : ends[place + 1]].tobytes(), digest_size=8).digest()
        hashes[place] = int.from_bytes(digest, "little")
    return hashes


def _folded(elements: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> Hashes:
    """A number for each list of elements (bytes, or numbers): sum of element x base^place, and how many they are.

    Args:
        ends: where each list begins, and the end of the last.
    """
    lengths = np.diff(ends)
    hashes = np.zeros(len(lengths), np.uint64)
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _WINDOW, "right")) - 1)
        cut = ends[first : last + 1] - ends[first]
        some = elements[ends[first] : ends[last]]
        numbers = _letters()[some] if some.dtype == np.uint8 else some
        powers, inverses = _powers(max(_WINDOW, 1 << len(numbers).bit_length()) + 1)
        sums = np.zeros(len(numbers) + 1, np.uint64)
        np.cumsum(numbers * powers[: len(numbers)], out=sums[1:])
        hashes[first:last] = (sums[cut[1:]] - sums[cut[:-1]]) * inverses[cut[:-1]]
        first = last
    return hashes + mix(lengths.astype(np.uint64) + np.uint64(_SECOND))


@cache
def _letters() -> Hashes:
    return mix(np.arange(1, 257, dtype=np.uint64) * np.uint64(_GOLDEN))


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    found = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = np.full(count, base, np.uint64)
        powers[0] = 1
        found.append(np.multiply.accumulate(powers))
    return found[0], found[1]
