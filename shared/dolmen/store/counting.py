"""A store that counts what passes through it: what an operation costs, in requests and bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from typing import BinaryIO, Self

from dolmen.store.base import Buffer, Deleted, Object, ObjectInfo, ObjectOutput, ObjectStore, PutOutcome
from dolmen.store.clock import ServerClock


class CountingStore:
    """Passes everything on to another store and counts it. Reads are always requests: it shows no local paths.

    A streamed upload counts as one PUT, which it is on S3 up to 16 MB, without the bytes that were copied into it; of a
    larger one, what S3 needs besides is not counted. ``open_input`` is not counted.

    Args:
        store: the store that does the work.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts = self
        self.reset()

    def reset(self) -> None:
        """Counts from zero again."""
        self.puts = self.gets = self.heads = self.lists = self.bytes_up = self.bytes_down = 0
        self.copies = self.bytes_copied = 0

    @property
    def url(self) -> str:
        """The same property of the other store."""
        return self._store.url

    @property
    def clock(self) -> ServerClock:
        """The same property of the other store."""
        return self._store.clock

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        """Counts a GET, also one that finds nothing, and the bytes it brings."""
        with self._lock:
            self._counts.gets += 1
        found = self._store.get(key, byte_range, etag=etag, version=version)
        with self._lock:
            self._counts.bytes_down += len(found.body)
        return found

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        """Counts a HEAD."""
        with self._lock:
            self._counts.heads += 1
        return self._store.head(key, version=version)

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        """Counts a PUT and its bytes, whatever its outcome."""
        self.count_put(len(body))
        return self._store.put(key, body, if_match=if_match)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Counts a LIST (one, however many pages it has)."""
        with self._lock:
            self._counts.lists += 1
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        """Is not counted."""
        return self._store.delete(keys)

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        """Is not counted."""
        return self._store.open_input(key, etag=etag, version=version)

    def open_output(self, key: str) -> ObjectOutput:
        """Counts a PUT and its bytes when the upload is committed, and each range that is copied into it."""
        return _CountedOutput(self._store.open_output(key), self)

    def local_path(self, key: str) -> str | None:
        """Always None: a file that is mapped into memory could not be counted."""
        return None

    def sibling(self, root: str) -> CountingStore:
        """Counts what passes through the other store's sibling here, too."""
        other = copy(self)
        other._store, other._counts = self._store.sibling(root), self._counts
        return other

    def count_put(self, size: int) -> None:
        """Counts one PUT of ``size`` bytes."""
        with self._lock:
            self._counts.puts += 1
            self._counts.bytes_up += size

    def count_copy(self, size: int) -> None:
        """Counts one range of ``size`` bytes that was copied from another object."""
        with self._lock:
            self._counts.copies += 1
            self._counts.bytes_copied += size


class _CountedOutput:
    def __init__(self, output: ObjectOutput, counts: CountingStore) -> None:
        self._output, self._counts, self._copied = output, counts, 0

    def write(self, data: Buffer, /) -> int:
        return self._output.write(data)

    def copy(self, key: str, byte_range: tuple[int, int], etag: str) -> int:
        size = self._output.copy(key, byte_range, etag)
        self._copied += size
        self._counts.count_copy(size)
        return size

    def commit(self) -> int:
        size = self._output.commit()
        self._counts.count_put(size - self._copied)
        return size

    def abort(self) -> None:
        self._output.abort()

    def __enter__(self) -> Self:
        self._output.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.__exit__(*exception)
