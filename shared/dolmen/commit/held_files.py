"""Small data files that wait for their commit, which uploads them beside its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from dolmen.base.units import MIB
from dolmen.store.base import Buffer, ObjectStore, StreamedOutput

MOST_HELD_BYTES = MIB
"""The most bytes of data files that one commit holds in memory. A larger file is uploaded while it is written."""


class HeldFiles:
    """The data files of one commit that are written but not uploaded yet. Nobody can read them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._most_bytes = 0
        self._bodies: dict[str, bytes] = {}

    def allow(self) -> None:
        """Lets small files wait. Only for a commit that reads nothing of what it has written; otherwise none waits."""
        self._most_bytes = MOST_HELD_BYTES

    def __bool__(self) -> bool:
        return bool(self._bodies)

    @property
    def bodies(self) -> Mapping[str, bytes]:
        """The bodies that are held, by key."""
        return self._bodies

    @property
    def room_bytes(self) -> int:
        """How many bytes more may be held."""
        return self._most_bytes - sum(map(len, self._bodies.values()))

    def open(self, key: str) -> StreamedOutput:
        """An object to write a data file into. Its ``commit`` uploads the file, or holds it if there is room."""
        return HeldOutput(self, self._store, key) if self.room_bytes > 0 else self._store.open_output(key)

    def hold(self, key: str, body: bytes) -> None:
        """Holds a file."""
        self._bodies[key] = body

    def release(self) -> None:
        """Holds no file any more, as all are in the store."""
        self._bodies.clear()


class HeldOutput:
    """Collects the bytes of a file to be held. When they become too many, it streams them like any other.

    Args:
        files: where they are held.
    """

    def __init__(self, files: HeldFiles, store: ObjectStore, key: str) -> None:
        self._files, self._store, self._key = files, store, key
        self._body = bytearray()
        self._stream: StreamedOutput | None = None

    def write(self, data: Buffer, /) -> int:
        """See ``StreamedOutput.write``."""
        if self._stream is not None:
            return self._stream.write(data)
        self._body += data
        if len(self._body) > self._files.room_bytes:
            self._stream = self._store.open_output(self._key).__enter__()
            body, self._body = self._body, bytearray()
            self._stream.write(body)
        return memoryview(data).nbytes

    def commit(self) -> int:
        """See ``StreamedOutput.commit``. What is held is not visible yet."""
        if self._stream is not None:
            return self._stream.commit()
        size = len(self._body)
        self._files.hold(self._key, bytes(self._body))
        self._body = bytearray()
        return size

    def abort(self) -> None:
        """See ``StreamedOutput.abort``."""
        self._body = bytearray()
        if self._stream is not None:
            self._stream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()
