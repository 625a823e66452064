"""Checksums: CRC-32 (IEEE 802.3, as zlib computes it) beside every blob, and inside every JSON object.

A *sealed* JSON object is compact JSON whose last member is ``"crc32"``: the CRC of the same object without it.
Sealing is textual, so that verifying needs no canonical form: for ``{"a":1}`` the sealed form is
``{"a":1,"crc32":<CRC-32 of the 7 bytes {"a":1}>}``.

CRC-32 of bytes that follow upon others than before, without the bytes themselves.

CRC-32 is linear: of two states, each continued over the same ``n`` bytes, the difference (by exclusive or) depends on
the difference before and on ``n`` alone. It is the difference times x^8n, modulo the polynomial, bits reflected.
Source: ``crc32_combine`` of zlib (https://github.com/madler/zlib/blob/master/crc32.c).

Prepares msgspec's decoders ahead of time.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dolmen.errors import CorruptionError

_SEAL = b',"crc32":'


_MOST_DIGITS = 10


def crc32(data: bytes | bytearray | memoryview, state: int = 0) -> int:
    """CRC-32 of ``data`` as an unsigned 32-bit integer.

    Args:
        state: CRC-32 of the bytes before it.
    """
    return zlib.crc32(data, state)


def seal(document: bytes) -> bytes:
    """Adds the checksum to a compact, non-empty JSON object."""
    return b"%s%s%d}" % (document[:-1], _SEAL, crc32(document))


def unseal(sealed: bytes, key: str) -> bytes:
    """The document inside a sealed JSON object.

    Args:
        key: the object's key, for the error.

    Raises:
        CorruptionError: no checksum, or one that differs.
    """
    head, found, tail = sealed.rpartition(_SEAL)
    digits = tail[:-1]
    if not found or tail[-1:] != b"}" or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise CorruptionError(key, "no checksum at its end (truncated?)")
    document = head + b"}"
    if crc32(document) != int(digits):
        raise CorruptionError(key, "checksum differs")
    return document


_POLYNOMIAL = 0xEDB88320


_ONE_BIT = 1 << 31  # x^0


_BYTE_BITS = 3  # 8 = 2^3


Numbers = npt.NDArray[np.int64]


_Words = npt.NDArray[np.uint32]


def carried(states: Numbers, distances: Numbers, differences: Numbers) -> Numbers:
    """The states at some places of pieces of bytes, when these stand behind others than before.

    Args:
        states: CRC-32 of all bytes up to each place, where its piece stood.
        distances: of each place, how many bytes of its piece are before it.
        differences: of the states at the beginning of its piece, there and here, by exclusive or.
    """
    shifted = differences.astype(np.uint32)
    for bit in range(int(distances.max(initial=0)).bit_length()):
        chosen = (distances >> bit & 1).astype(np.bool_)
        if chosen.any():
            shifted[chosen] = _times(_power(bit + _BYTE_BITS), shifted[chosen])
    return states ^ shifted.astype(np.int64)


def carried_difference(difference: int, distance: int) -> int:
    """The difference of two states, by exclusive or, when both have gone on over the same bytes.

    Args:
        distance: how many bytes.
    """
    for bit in range(distance.bit_length()):
        if distance >> bit & 1:
            difference = _times_one(_power(bit + _BYTE_BITS), difference)
    return difference


@lru_cache(maxsize=64)
def _power(bit: int) -> int:
    """x^(2^bit)."""
    if not bit:
        return _ONE_BIT >> 1
    half = _power(bit - 1)
    return _times_one(half, half)


def _times(factor: int, values: _Words) -> _Words:
    """The products of a polynomial and others."""
    product = np.zeros_like(values)
    mask = _ONE_BIT
    while True:
        if factor & mask:
            product ^= values
            if not factor & (mask - 1):
                return product
        mask >>= 1
        values = (values >> np.uint32(1)) ^ (values & np.uint32(1)) * np.uint32(_POLYNOMIAL)


def _times_one(factor: int, value: int) -> int:
    """The same of one other: for few, numpy's calls take longer than this."""
    product = 0
    for place in reversed(range(_ONE_BIT.bit_length())):
        if factor >> place & 1:
            product ^= value
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return product


def prepare(*types: Any) -> None:
    """Builds msgspec's decoders of these types while their module is imported, when only one thread runs.

    Otherwise msgspec makes it when a type is first read, and another thread that reads the same type finds it half
    made: the process dies of a segmentation fault (msgspec 0.22, ``json_decode_struct_map_inner``).
    """
    for each in types:
        msgspec.json.Decoder(each)
