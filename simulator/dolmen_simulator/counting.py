"""A store that counts what passes through it: what an operation costs, in requests and bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from typing import BinaryIO, Self

from dolmen.store.base import (
    Buffer,
    ByteRange,
    Deleted,
    Identity,
    Object,
    ObjectInfo,
    ObjectOutput,
    ObjectStore,
    PutOutcome,
    ServerClock,
)


class CountingStore:
    """Passes all calls on to another store and counts them. Reads are always requests: it shows no local paths.

    A streamed upload counts as one PUT, without the bytes that were copied into it; on S3, large ones take more
    requests. ``delete`` and ``open_input`` are not counted.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts = self
        self.reset()

    def reset(self) -> None:
        self.puts = self.gets = self.heads = self.lists = self.bytes_up = self.bytes_down = 0
        self.copies = self.bytes_copied = 0

    def count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def identity(self) -> Identity:
        return self._store.identity

    @property
    def clock(self) -> ServerClock:
        return self._store.clock

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, etag: str | None = None, version: str | None = None
    ) -> Object:
        """Counts a GET, also one that finds nothing, and the bytes of its response."""
        self.count(gets=1)
        response = self._store.get(key, byte_range, etag=etag, version=version)
        self.count(bytes_down=len(response.body))
        return response

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        self.count(heads=1)
        return self._store.head(key, version=version)

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        """Counts a PUT and its bytes, whatever its outcome."""
        self.count(puts=1, bytes_up=len(body))
        return self._store.put(key, body, if_match=if_match)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Counts a LIST (one, however many pages it has)."""
        self.count(lists=1)
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        return self._store.delete(keys)

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        return self._store.open_input(key, etag=etag, version=version)

    def open_output(self, key: str) -> ObjectOutput:
        """Counts a PUT and its bytes when the upload is committed, and each range that is copied into it."""
        return _CountedOutput(self._store.open_output(key), self)

    def local_path(self, key: str) -> str | None:
        """Always None: reads of a file that is mapped into memory could not be counted."""
        return None

    def sibling(self, root: str) -> CountingStore:
        other = copy(self)
        other._store, other._counts = self._store.sibling(root), self._counts
        return other


class _CountedOutput:
    def __init__(self, output: ObjectOutput, store: CountingStore) -> None:
        self._output, self._store, self._copied = output, store, 0

    def write(self, data: Buffer, /) -> int:
        return self._output.write(data)

    def copy(self, key: str, byte_range: ByteRange, etag: str) -> int:
        size = self._output.copy(key, byte_range, etag)
        self._copied += size
        self._store.count(copies=1, bytes_copied=size)
        return size

    def commit(self) -> int:
        size = self._output.commit()
        self._store.count(puts=1, bytes_up=size - self._copied)
        return size

    def abort(self) -> None:
        self._output.abort()

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.__exit__(*exception)
