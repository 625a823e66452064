"""Parquet's Bloom filters of column chunks: what is in one, and the hashes that it is asked for.

A filter is where its column chunk's metadata says: a header in Thrift's compact protocol, then the blocks of a
split-block filter (``format.bloom``). A value's hash is the XXH64 of its plain encoding, without the length in front of
texts. Source: https://github.com/apache/parquet-format/blob/master/BloomFilter.md.

Split-block Bloom filters: exact about what is not there, wrong about a few values that are not.

Bytes: blocks of 32 bytes, each 8 little-endian 32-bit words, as in Parquet's filters of column chunks
(https://github.com/apache/parquet-format/blob/master/BloomFilter.md), which ``format.key_filters`` reads. Those of ids
here are wrong about one in a hundred. An id's hash h is the 8-byte BLAKE2b of its UTF-8, as a little-endian number; a
Parquet value's is its XXH64. Its block is ``((h >> 32) * blocks) >> 32``; in word i of that
it sets, or asks for, bit ``((h & 0xffffffff) * SALT[i] mod 2^32) >> 27``.

XXH64 with seed 0 of many byte strings at once: the hash of Parquet's Bloom filters.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, section XXH64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import exp

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)

_BITS_PER_ID = 12
_BLOCK_BYTES = 32
Blocks = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]


def build(ids: Sequence[str]) -> bytes:
    """The filter of these ids."""
    blocks = max(1, -(-len(ids) * _BITS_PER_ID // (8 * _BLOCK_BYTES)))
    words = np.zeros((blocks, 8), np.uint32)
    place, bits = _bits(_hashes(ids), blocks)
    for word in range(8):
        np.bitwise_or.at(words[:, word], place, bits[:, word])
    return words.astype("<u4").tobytes()


def maybe(body: bytes, ids: Sequence[str]) -> list[str]:
    """Selects the ids that may be among those of which the filter was built; the others certainly are not."""
    there = maybe_mask(blocks_of(body), _hashes(ids))
    return [id_ for id_, found in zip(ids, there, strict=True) if found]


def blocks_of(body: bytes | memoryview) -> Blocks:
    """A filter's bytes as its blocks."""
    return np.frombuffer(body, "<u4").reshape(-1, 8)


def maybe_mask(blocks: Blocks, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """A mask of the hashes that may be among those of which the filter was built."""
    place, bits = _bits(hashes, len(blocks))
    there: npt.NDArray[np.bool_] = ((blocks[place] & bits) == bits).all(axis=1)
    return there


def _hashes(ids: Sequence[str]) -> Hashes:
    return np.frombuffer(b"".join(hashlib.blake2b(id_.encode(), digest_size=8).digest() for id_ in ids), "<u8")


def _bits(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Block of each hash, and the bit of each of its words."""
    place = ((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return place.astype(np.int64), np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))


_SIZE_FIELD = 0x15
"""Field 1 of the header, an i32: the number of bytes of the blocks."""
_ONLY_KINDS = bytes.fromhex("1c1c0000" * 3 + "00")
"""Fields 2 to 4 of the header and its end: blocks, XXH64, no compression. The format has no other kinds."""
_BLOCK_BITS, _WORDS, _WORD_BITS = 256, 8, 32


def decode(body: bytes | memoryview) -> Blocks | None:
    """The blocks of a filter; None if these are not the bytes of one that can be read here."""
    size = shift = 0
    place = 1
    if len(body) < 2 or body[0] != _SIZE_FIELD:
        return None
    while place < min(len(body), 6):
        size |= (body[place] & 0x7F) << shift
        shift += 7
        place += 1
        if body[place - 1] < 0x80:
            break
    size >>= 1  # zigzag; it is not negative
    start = place + len(_ONLY_KINDS)
    if bytes(body[place:start]) != _ONLY_KINDS or len(body) != start + size or not size or size * 8 % _BLOCK_BITS:
        return None
    return blocks_of(body[start:])


def can_be_asked(arrow_type: pa.DataType) -> bool:
    """Whether values of this type have hashes here: not floats, whose equal values differ, decimals and bools."""
    kinds = (pa.types.is_integer, pa.types.is_date32, pa.types.is_time64, pa.types.is_timestamp, _has_bytes)
    return any(kind(arrow_type) for kind in kinds)


def hashes_in_file(values: pa.Array, arrow_type: pa.DataType) -> tuple[Hashes, np.typing.NDArray[np.bool_]] | None:
    """The hashes that values have in a file whose column has this type, and a mask of those that the type has at all.

    Args:
        values: without NULL; of the column's type, or of another integer type if that is one.

    Returns:
        None if the file's filter says nothing of such values.
    """
    every = np.ones(len(values), np.bool_)
    if pa.types.is_integer(values.type) and pa.types.is_integer(arrow_type):
        narrow = values.cast(arrow_type, safe=False)
        there = narrow.cast(values.type, safe=False).equals(values)
        if not there:
            every = _numbers(narrow.cast(values.type, safe=False)) == _numbers(values)
        return _plain_hashes(narrow), every
    if values.type != arrow_type and not (_is_binary(values.type) and _is_binary(arrow_type)):
        return None
    return (_plain_hashes(values), every) if can_be_asked(arrow_type) else None


@lru_cache(256)
def false_positives(bits: int) -> float:
    """The share of values that a filter takes for its own, though they are not, at so many bits per value.

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
    found: np.typing.NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return found


def _plain_hashes(values: pa.Array) -> Hashes:
    """The hashes of values in a type of which ``can_be_asked`` holds."""
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
    """The hashes of binary values: those of equal length at once."""
    found = np.zeros(len(values), np.uint64)
    if not len(values):
        return found
    ends = np.frombuffer(values.buffers()[1], np.int32, values.offset + len(values) + 1)[values.offset :]
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None else np.zeros(0, np.uint8)
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        found[rows] = xxhash64(data[starts[rows, None] + np.arange(length)].reshape(len(rows), length))
    return found


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
        found = _stripes(texts[:, :stripes]) if stripes else np.full(count, _P5)
        found = found + np.uint64(length)
        place = stripes
        for place in range(stripes, length - 7, 8):
            found = _rotated(found ^ _round(np.zeros(count, np.uint64), _words(texts, place, "<u8")), 27) * _P1 + _P4
        place = stripes + (length - stripes) // 8 * 8
        if length - place >= 4:
            found = _rotated(found ^ _words(texts, place, "<u4") * _P1, 23) * _P2 + _P3
            place += 4
        for byte in range(place, length):
            found = _rotated(found ^ texts[:, byte].astype(np.uint64) * _P5, 11) * _P1
        return _avalanche(found)


def _stripes(texts: npt.NDArray[np.uint8]) -> Words:
    """The state after all whole stripes."""
    count, length = texts.shape
    lanes = [np.full(count, start) for start in (_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1)]
    for place in range(0, length, _STRIPE_BYTES):
        lanes = [_round(lane, _words(texts, place + 8 * at, "<u8")) for at, lane in enumerate(lanes)]
    found = sum(
        (_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.zeros(count, np.uint64)
    )
    for lane in lanes:
        found = (found ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    return found


def _words(texts: npt.NDArray[np.uint8], place: int, kind: str) -> Words:
    """The little-endian number at one place of each row."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(texts[:, place : place + width]).view(kind)[:, 0].astype(np.uint64)


def _round(lane: Words, word: Words) -> Words:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def _avalanche(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * _P2
    words = (words ^ (words >> np.uint64(29))) * _P3
    return words ^ (words >> np.uint64(32))
