"""Iceberg's partition transforms, of arrays and of single values: https://iceberg.apache.org/spec/#partition-transforms

Values are plain (``dolmen.format.types``): days of a date, microseconds of a timestamp. The result of ``year``,
``month``, ``day`` and ``hour`` is their number since 1970-01-01 00:00.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.types import Plain, can_be_key, integer_form, short_type, text_bytes, to_array, to_plain

Integers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint32]

_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_MAX_SIZE = _HASH_MASK = 2**31 - 1
_DATES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
EXACT = Context(prec=80)  # has all digits of any decimal


def _is_uint64(kind: pa.DataType) -> bool:
    return bool(kind == pa.uint64())


class Transform(Struct, frozen=True):
    """A transform by its name, with the ``size`` of ``bucket`` and ``truncate``; 0 for the others."""

    name: str = "identity"
    size: int = 0

    @classmethod
    def of(cls, name: str, size: int | None) -> Transform:
        """Raises InputError for an unknown transform, and for a size that it cannot have."""
        plain = name.lower()
        plain = plain[:-1] if plain[:-1] in _DATES and plain.endswith("s") else plain
        if plain not in ("identity", *_DATES, *_SIZED):
            known = ", ".join(("identity", *_DATES, "bucket[n]", "truncate[w]"))
            raise InputError(f"{short_repr(name)} is not a transform; there are: {known}")
        if (size is None) == (plain in _SIZED):
            takes = f"a number, as in {plain}[16](id)" if size is None else f"no number, as in {plain}(event_time)"
            raise InputError(f"{plain} takes {takes}")
        if size is not None and not 1 <= size <= _MAX_SIZE:
            raise InputError(f"{plain}[{size}]: the number is not from 1 to {_MAX_SIZE:,}")
        return cls(plain, size or 0)

    def __str__(self) -> str:
        return f"{self.name}[{self.size}]" if self.size else self.name

    def check(self, name: str, kind: pa.DataType, impossible: str = "a table can't be partitioned") -> None:
        """Raises SchemaError if there is no such transform of a column of this name and type."""
        is_number = t.is_integer(kind) or t.is_decimal(kind)
        allowed = {
            "identity": can_be_key(kind),
            "bucket": can_be_key(kind) and not t.is_boolean(kind) and not _is_uint64(kind),
            "truncate": (is_number and not _is_uint64(kind)) or t.is_string(kind) or t.is_binary(kind),
            "hour": t.is_timestamp(kind),
        }.get(self.name, t.is_timestamp(kind) or t.is_date(kind))
        if not allowed:
            raise SchemaError(f"{impossible} by {self} of column {name!r} of type {short_type(kind)}")

    def result_type(self, kind: pa.DataType) -> pa.DataType:
        """The type of its result for a column of this type."""
        if self.name == "truncate" and t.is_decimal(kind):
            return pa.decimal256(76, kind.scale)
        if self.name in ("identity", "truncate"):
            return kind
        return pa.date32() if self.name == "day" else pa.int64()

    @property
    def keeps_order(self) -> bool:
        """Whether a greater value never has a lesser result, so that bounds of values give bounds of results."""
        return self.name != "bucket"

    def array(self, values: pa.Array) -> pa.Array:
        """The results for an array of a stored type; NULL for NULL."""
        kind = values.type
        if self.name == "identity":
            return values
        if self.name == "truncate":
            return self._truncate(values)
        nulls = None if not values.null_count else pc.is_null(values).to_numpy(zero_copy_only=False)
        if self.name == "bucket":
            found = (_hashes(values) & np.uint32(_HASH_MASK)).astype(np.int64) % self.size
        else:
            found = self._dates(_numbers(values), kind)
        numbers = pa.array(found, pa.int64(), mask=nulls)
        return numbers.cast(pa.int32()).view(pa.date32()) if self.name == "day" else numbers

    def value(self, value: Plain, kind: pa.DataType) -> Plain:
        """The result for one plain value of a column of this type."""
        if value is None or self.name == "identity":
            return value
        if self.name == "truncate" and isinstance(value, (str, bytes)):
            return value[: self.size]
        if self.name == "day" and isinstance(value, int):
            return value if t.is_date(kind) else value // _DAY_US
        if self.name == "hour" and isinstance(value, int):
            return value // _HOUR_US
        return to_plain(self.array(to_array([value], kind)))[0]

    def range_of(self, value: Plain, kind: pa.DataType) -> tuple[Plain, Plain] | None:
        """The least value of a column with this result, and the least one with a greater result; None: no range."""
        if self.name == "truncate" and isinstance(value, Decimal):
            return value, value + Decimal(self.size).scaleb(-kind.scale)
        if not isinstance(value, int) or self.name not in (*_DATES, "truncate"):
            return None
        if self.name == "truncate":
            return None if value % self.size else (value, value + self.size)  # else it has wrapped around
        if self.name == "hour":
            return value * _HOUR_US, (value + 1) * _HOUR_US
        days = [value, value + 1]
        if self.name != "day":
            unit = self.name[0].upper()
            days = np.array(days).astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64).tolist()
        least, end = days if t.is_date(kind) else (day * _DAY_US for day in days)
        return least, end

    def _dates(self, values: Integers, kind: pa.DataType) -> Integers:
        if self.name == "hour":
            return values // _HOUR_US
        days = values if t.is_date(kind) else values // _DAY_US
        if self.name == "day":
            return days
        unit = "Y" if self.name == "year" else "M"
        return days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)

    def _truncate(self, values: pa.Array) -> pa.Array:
        kind = values.type
        if t.is_string(kind):
            return pc.utf8_slice_codeunits(values, 0, self.size)
        if t.is_binary(kind):
            return pc.binary_slice(values, 0, self.size)
        if t.is_decimal(kind):
            return _truncate_decimals(values, self.size)
        nulls = None if not values.null_count else pc.is_null(values).to_numpy(zero_copy_only=False)
        numbers = _numbers(values)
        floor = numbers - np.mod(numbers, self.size)  # below the least number of the type it wraps around, as in Java
        return pa.array(floor.astype(kind.to_pandas_dtype()), kind, mask=nulls)


def _numbers(values: pa.Array) -> Integers:
    """Integers, dates and times as int64; 0 for NULL."""
    form = integer_form(values.type)
    numbers: Integers = (values.view(form) if form else values).cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _truncate_decimals(values: pa.Array, size: int) -> pa.Array:
    """Decimals down to a multiple of ``size`` of their last digits. Computes each distinct value once."""
    coded = values.dictionary_encode()
    scale = values.type.scale

    def down(value: Decimal) -> Decimal:
        digits = int(value.scaleb(scale, EXACT))
        return Decimal(digits - digits % size).scaleb(-scale, EXACT)

    floors = [down(each) for each in coded.dictionary.to_pylist()]  # may have a digit more than the type
    return pa.array(floors, pa.decimal256(76, scale)).take(coded.indices)


def _hashes(values: pa.Array) -> _Words:
    """The 32-bit Murmur3 (x86, seed 0) of each value as Iceberg hashes it; anything for NULL."""
    kind = values.type
    if t.is_integer(kind) or integer_form(kind):
        numbers = np.ascontiguousarray(_numbers(values), "<i8").view(np.uint8)
        starts = np.arange(len(values), dtype=np.int64) * 8
        return _murmur3(numbers, starts, np.full(len(values), 8, np.int64))
    if t.is_decimal(kind):
        return _murmur3(*_unscaled(values))
    empty = "" if t.is_string(kind) else bytes(kind.byte_width if t.is_fixed_size_binary(kind) else 0)
    data, offsets = text_bytes(values.fill_null(empty).cast(pa.binary()))
    return _murmur3(data, offsets[:-1], np.diff(offsets))


def _unscaled(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Integers, Integers]:
    """Bytes with the shortest big-endian two's complement of each decimal's digits, their starts and lengths."""
    wide = values.cast(pa.decimal128(38, values.type.scale)).fill_null(Decimal(0))
    little = np.frombuffer(wide.buffers()[1], np.uint8, len(wide) * 16, wide.offset * 16).reshape(-1, 16)
    big = np.ascontiguousarray(little[:, ::-1])
    sign = np.where(big[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte can go if it only repeats the sign, which the next byte then has in its first bit.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] & 0x80) == (sign & 0x80))
    skipped = np.cumprod(spare, axis=1).sum(axis=1, dtype=np.int64)
    return big.reshape(-1), np.arange(len(wide), dtype=np.int64) * 16 + skipped, 16 - skipped


def _murmur3(data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> _Words:
    """The hashes of ranges of bytes: https://github.com/aappleby/smhasher/wiki/MurmurHash3"""
    hashes = np.zeros(len(starts), np.uint32)
    for block in range(int(lengths.max(initial=0)) // 4):
        rows = np.flatnonzero(lengths >= (block + 1) * 4)
        at = starts[rows] + block * 4
        words = sum(data[at + number].astype(np.uint32) << np.uint32(8 * number) for number in range(4))
        mixed = _rotate(hashes[rows] ^ _scramble(words), 13)
        hashes[rows] = mixed * np.uint32(5) + np.uint32(0xE6546B64)
    for tail in range(1, 4):
        rows = np.flatnonzero(lengths % 4 == tail)
        at = starts[rows] + lengths[rows] - tail
        words = sum(data[at + number].astype(np.uint32) << np.uint32(8 * number) for number in range(tail))
        hashes[rows] ^= _scramble(words)
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes


def _scramble(words: Any) -> _Words:
    scrambled: _Words = _rotate(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return scrambled


def _rotate(words: _Words, bits: int) -> _Words:
    rotated: _Words = (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
    return rotated
