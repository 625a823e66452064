"""Reading an object of a remote store as a seekable file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from dolmen.base.units import KIB, MIB

if TYPE_CHECKING:
    from dolmen.store.base import ObjectStore

READ_AHEAD_BYTES = 8 * MIB
"""The bytes that one request fetches: enough to hide its latency, and little enough to have many in memory."""


class ObjectInput(io.RawIOBase):
    """A read-only file over ranges of one object, with one window of read-ahead.

    Opening the file fetches the first range, so a missing object raises at once, and an object no larger than the
    window costs one request. Once the object has another ETag, reads raise ObjectChangedError. ``etag``: the ETag the
    object must have; None takes the one it has now.
    """

    def __init__(self, store: ObjectStore, key: str, *, etag: str | None = None, version: str | None = None) -> None:
        super().__init__()
        self._store, self._key, self._version = store, key, version
        first = store.get(key, (0, READ_AHEAD_BYTES), etag=etag, version=version)
        self.etag = first.etag
        self._window, self._window_start, self._position = memoryview(first.body), 0, 0
        self._size = len(first.body) if len(first.body) < READ_AHEAD_BYTES else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        """The object's size in bytes; asks the store if no read has shown it yet."""
        if self._size is None:
            self._size = self._store.head(self._key, version=self._version).size
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        position = offset + (self.size if base is None else base)
        if position < 0:
            raise OSError(f"seek to {position}, before the start of {self._key!r}")
        self._position = position
        return position

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        target = memoryview(buffer).cast("B")
        skip = self._position - self._window_start
        if not 0 <= skip < len(self._window):
            if self._size is not None and self._position >= self._size:
                return 0
            self._fetch(max(len(target), READ_AHEAD_BYTES))
            skip = 0
        body = self._window[skip : skip + len(target)]
        target[: len(body)] = body
        self._position += len(body)
        return len(body)

    def _fetch(self, length: int) -> None:
        start = self._position
        body = self._store.get(self._key, (start, start + length), etag=self.etag, version=self._version).body
        contiguous = start == self._window_start + len(self._window)
        self._window, self._window_start = memoryview(body), start
        if len(body) < length and (body or contiguous):
            self._size = start + len(body)


def open_pinned(store: ObjectStore, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
    """An ObjectInput behind a buffer that makes small reads cheap."""
    return io.BufferedReader(ObjectInput(store, key, etag=etag, version=version), 64 * KIB)
