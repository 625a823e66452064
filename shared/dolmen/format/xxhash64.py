"""XXH64 with seed 0 of many byte strings at once: the hash of Parquet's Bloom filters.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, section XXH64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE_BYTES = 32

Words = npt.NDArray[np.uint64]


def hashes(texts: npt.NDArray[np.uint8]) -> Words:
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
