"""Copying a range of an object by reading it, for stores whose server does not copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dolmen.base.units import MIB
from dolmen.errors import InputError

if TYPE_CHECKING:
    from dolmen.store.base import ObjectStore

READ_BYTES = 8 * MIB
"""How much one request reads."""


def check_range(key: str, byte_range: tuple[int, int]) -> tuple[int, int]:
    """Returns a range that is one. Raises InputError."""
    first, end = byte_range
    if not 0 <= first <= end:
        raise InputError(f"range [{first}, {end}) of {key!r}")
    return first, end


def beyond_end(key: str, end: int) -> InputError:
    """The error for a range that goes beyond its object's end."""
    return InputError(f"{key!r} ends before byte {end}: it cannot be copied up to there")


def read_range(store: ObjectStore, key: str, byte_range: tuple[int, int], etag: str) -> Iterator[bytes]:
    """The bytes of a range, piece by piece.

    Raises:
        ObjectNotFoundError: no such object.
        ObjectChangedError: the ETag differs.
        InputError: the object ends before the range does.
    """
    first, end = byte_range
    for start in range(first, end, READ_BYTES):
        stop = min(end, start + READ_BYTES)
        body = store.get(key, (start, stop), etag=etag).body
        if len(body) != stop - start:
            raise beyond_end(key, end)
        yield body
