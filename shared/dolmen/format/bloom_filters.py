"""Split-block Bloom filters of ids and of Parquet's column chunks: no false negatives, and few false positives.

A filter is blocks of 32 bytes, each 8 little-endian 32-bit words. The hash h of an id is the 8-byte BLAKE2b of its
UTF-8, as a little-endian number; that of a Parquet value is the XXH64, with seed 0, of its plain encoding, without the
length of texts. Its block is ``((h >> 32) * blocks) >> 32``; in word i of that it sets, or tests, bit
``((h & 0xffffffff) * SALT[i] mod 2^32) >> 27``. Filters of ids are wrong about one in a hundred.

Sources: https://github.com/apache/parquet-format/blob/master/BloomFilter.md and
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import exp

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.format.types import text_bytes

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)

_BITS_PER_ID = 12
_BLOCK_BYTES = 32
Blocks = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]


def build(ids: Sequence[str]) -> bytes:
    blocks = max(1, -(-len(ids) * _BITS_PER_ID // (8 * _BLOCK_BYTES)))
    words = np.zeros((blocks, 8), np.uint32)
    block, bits = _bits(_hashes(ids), blocks)
    for word in range(8):
        np.bitwise_or.at(words[:, word], block, bits[:, word])
    return words.astype("<u4").tobytes()


def possible_ids(body: bytes, ids: Sequence[str]) -> list[str]:
    """The ids that may be in the filter; the others certainly are not."""
    mask = may_contain_mask(_blocks_of(body), _hashes(ids))
    return [id_ for id_, may_be in zip(ids, mask, strict=True) if may_be]


def _blocks_of(body: bytes | memoryview) -> Blocks:
    return np.frombuffer(body, "<u4").reshape(-1, 8)


def may_contain_mask(blocks: Blocks, hashes: Hashes) -> npt.NDArray[np.bool_]:
    block, bits = _bits(hashes, len(blocks))
    mask: npt.NDArray[np.bool_] = ((blocks[block] & bits) == bits).all(axis=1)
    return mask


def _hashes(ids: Sequence[str]) -> Hashes:
    return np.frombuffer(b"".join(hashlib.blake2b(id_.encode(), digest_size=8).digest() for id_ in ids), "<u8")


def _bits(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Block of each hash, and the bit of each of its words."""
    block = ((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return block.astype(np.int64), np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))


_SIZE_FIELD = 0x15  # field 1 of the header, an i32: the number of bytes of the blocks
_ONLY_KINDS = bytes.fromhex("1c1c0000" * 3 + "00")
"""Fields 2 to 4 of the header and its end: blocks, XXH64, no compression. The format has no other kinds."""
_BLOCK_BITS, _WORDS, _WORD_BITS = 256, 8, 32


def decode(body: bytes | memoryview) -> Blocks | None:
    """The blocks of a filter of a column chunk, which begins with a header of Thrift; None for any other bytes."""
    if len(body) < 2 or body[0] != _SIZE_FIELD:
        return None
    varint = bytes(body[1:6])
    end = next((index for index, byte in enumerate(varint) if byte < 0x80), len(varint) - 1) + 1
    size = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint[:end])) >> 1  # zigzag; not negative
    start = 1 + end + len(_ONLY_KINDS)
    if bytes(body[1 + end : start]) != _ONLY_KINDS or len(body) != start + size or not size or size * 8 % _BLOCK_BITS:
        return None
    return _blocks_of(body[start:])


def has_hashes(arrow_type: pa.DataType) -> bool:
    """Whether values of this type have hashes here: not floats, whose equal values differ, decimals and bools."""
    t = pa.types
    return any(is_kind(arrow_type) for is_kind in (t.is_integer, t.is_date32, t.is_time64, t.is_timestamp, _has_bytes))


def hashes_in_file(values: pa.Array, arrow_type: pa.DataType) -> tuple[Hashes, np.typing.NDArray[np.bool_]] | None:
    """The hashes of values without NULL, as a file's column of this type has them, and a mask of those that fit it.

    It is None if the file's filter says nothing of such values.
    """
    every = np.ones(len(values), np.bool_)
    if pa.types.is_integer(values.type) and pa.types.is_integer(arrow_type):
        narrow = values.cast(arrow_type, safe=False)
        return _plain_hashes(narrow), _numbers(narrow.cast(values.type, safe=False)) == _numbers(values)
    if values.type != arrow_type and not (_is_binary(values.type) and _is_binary(arrow_type)):
        return None
    return (_plain_hashes(values), every) if has_hashes(arrow_type) else None


@lru_cache(256)
def false_positives(bits: int) -> float:
    """The share of absent values that may be in a filter with this number of bits per value.

    A value sets a bit in each of a block's 8 words, and blocks have a Poisson distributed number of values.
    """
    mean = _BLOCK_BITS / max(1, bits)
    chance, total = exp(-mean), 0.0
    for values in range(int(mean * 3) + 60):
        total += chance * (1 - (1 - 1 / _WORD_BITS) ** values) ** _WORDS
        chance *= mean / (values + 1)
    return min(1.0, total)


def _is_binary(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow_type) or pa.types.is_fixed_size_binary(arrow_type))


def _has_bytes(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type)) or _is_binary(arrow_type)


def _numbers(values: pa.Array) -> np.typing.NDArray[np.generic]:
    numbers: np.typing.NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return numbers


def _plain_hashes(values: pa.Array) -> Hashes:
    if _has_bytes(values.type):
        return _text_hashes(values.cast(pa.binary()) if not pa.types.is_binary(values.type) else values)
    width = max(values.type.bit_width, 32)  # Parquet's narrowest integer
    if pa.types.is_integer(values.type):
        numbers = _numbers(values)
    else:
        numbers = _numbers(values.view(pa.int32() if width == 32 else pa.int64()))
    words = np.ascontiguousarray(numbers.astype(f"<i{width // 8}" if numbers.dtype.kind == "i" else f"<u{width // 8}"))
    return xxhash64(words.view(np.uint8).reshape(len(words), width // 8))


def _text_hashes(values: pa.Array) -> Hashes:
    """The hashes of binary values; values of equal length are hashed at once."""
    hashes = np.zeros(len(values), np.uint64)
    if not len(values):
        return hashes
    data, offsets = text_bytes(values)
    starts, lengths = offsets[:-1], np.diff(offsets)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = xxhash64(data[starts[rows, None] + np.arange(length)].reshape(len(rows), length))
    return hashes


_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE_BYTES = 32
Words = npt.NDArray[np.uint64]


def xxhash64(texts: npt.NDArray[np.uint8]) -> Words:
    """The hash of each row of a matrix of bytes: texts of equal length."""
    count, length = texts.shape
    texts = np.ascontiguousarray(texts)
    stripes = length // _STRIPE_BYTES * _STRIPE_BYTES
    with np.errstate(over="ignore"):  # all arithmetic is modulo 2^64
        state = _stripes(texts[:, :stripes]) if stripes else np.full(count, _P5)
        state = state + np.uint64(length)
        for at in range(stripes, length - 7, 8):
            state = _rotate(state ^ _round(np.zeros(count, np.uint64), _words(texts, at, "<u8")), 27) * _P1 + _P4
        at = stripes + (length - stripes) // 8 * 8
        if length - at >= 4:
            state = _rotate(state ^ _words(texts, at, "<u4") * _P1, 23) * _P2 + _P3
            at += 4
        for byte in range(at, length):
            state = _rotate(state ^ texts[:, byte].astype(np.uint64) * _P5, 11) * _P1
        return _avalanche(state)


def _stripes(texts: npt.NDArray[np.uint8]) -> Words:
    count, length = texts.shape
    lanes = [np.full(count, start) for start in (_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1)]
    for at in range(0, length, _STRIPE_BYTES):
        lanes = [_round(lane, _words(texts, at + 8 * index, "<u8")) for index, lane in enumerate(lanes)]
    rotated = (_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    state = sum(rotated, np.zeros(count, np.uint64))
    for lane in lanes:
        state = (state ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    return state


def _words(texts: npt.NDArray[np.uint8], at: int, kind: str) -> Words:
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(texts[:, at : at + width]).view(kind)[:, 0].astype(np.uint64)


def _round(lane: Words, word: Words) -> Words:
    return _rotate(lane + word * _P2, 31) * _P1


def _rotate(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _avalanche(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * _P2
    words = (words ^ (words >> np.uint64(29))) * _P3
    return words ^ (words >> np.uint64(32))
