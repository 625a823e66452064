"""Checksums: CRC-32 (IEEE 802.3, as zlib computes it) beside every blob, and inside every JSON object.

A *sealed* JSON object is compact JSON whose last member is ``"crc32"``: the CRC of the same object without it.
Sealing is textual, so that verifying needs no canonical form: for ``{"a":1}`` the sealed form is
``{"a":1,"crc32":<CRC-32 of the 7 bytes {"a":1}>}``.
"""

from __future__ import annotations

import zlib

from dolmen.errors import CorruptionError

_SEAL = b',"crc32":'
_MOST_DIGITS = 10


def crc32(data: bytes | bytearray | memoryview, state: int = 0) -> int:
    """CRC-32 of ``data`` as an unsigned 32-bit integer.

    Args:
        state: CRC-32 of what stands before it.
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
