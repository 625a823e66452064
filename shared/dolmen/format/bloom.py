"""Split-block Bloom filters: exact about what is not there, wrong about a few values that are not.

Bytes: blocks of 32 bytes, each 8 little-endian 32-bit words, as in Parquet's filters of column chunks
(https://github.com/apache/parquet-format/blob/master/BloomFilter.md), which ``format.key_filters`` reads. Those of ids
here are wrong about one in a hundred. An id's hash h is the 8-byte BLAKE2b of its UTF-8, as a little-endian number; a
Parquet value's is its XXH64. Its block is ``((h >> 32) * blocks) >> 32``; in word i of that
it sets, or asks for, bit ``((h & 0xffffffff) * SALT[i] mod 2^32) >> 27``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
