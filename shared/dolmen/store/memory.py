"""An object store in this process's memory: for tests, simulation, and trying things out."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from msgspec import Struct

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import ObjectChangedError, ObjectNotFoundError
from dolmen.store.base import (
    MEMORY,
    Buffer,
    ByteRange,
    Deleted,
    Identity,
    Object,
    ObjectInfo,
    ObjectOutput,
    PreconditionFailed,
    PutOutcome,
    ServerClock,
    Stored,
    check_key,
    check_range,
    create,
    read_range,
)
from dolmen.store.input import open_pinned


class MemoryObject(Struct, frozen=True):
    body: bytes
    etag: str
    last_modified_us: int


class MemoryBucket:
    """The "server": objects by key, shared by any number of MemoryStores.

    ``clock_us``: the server's clock, in microseconds since the epoch; None is this machine's.
    """

    def __init__(self, clock_us: Callable[[], int] | None = None, name: str = "") -> None:
        self.clock_us = clock_us or shared_runtime().clock_us
        self.name = name
        self.identity = object()
        self.objects: dict[str, MemoryObject] = {}
        self.lock = threading.Lock()


_shared_buckets: dict[str, MemoryBucket] = {}
_shared_lock = threading.Lock()


def shared_bucket(name: str) -> MemoryBucket:
    """The process-wide bucket of this name, which ``memory://name`` opens; made at its first use."""
    with _shared_lock:
        return _shared_buckets.setdefault(name, MemoryBucket(name=name))


class MemoryStore:
    """One client of a MemoryBucket. Each verb is atomic.

    ETags are the MD5 of the content: two equal bodies share one, so a protocol that suffers from ABA shows it here.
    ``bucket``: None makes a new, private one.
    """

    def __init__(self, bucket: MemoryBucket | None = None, runtime: Runtime | None = None) -> None:
        self.bucket = bucket or MemoryBucket()
        self.runtime = runtime or shared_runtime()
        self.clock = ServerClock(self.runtime)

    @property
    def url(self) -> str:
        return f"{MEMORY.name}://{self.bucket.name}"

    @property
    def identity(self) -> Identity:
        return (self.bucket.identity,)

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, etag: str | None = None, version: str | None = None
    ) -> Object:
        object_ = self._find(key, version)
        if etag is not None and object_.etag != etag:
            raise ObjectChangedError(key)
        if byte_range is None:
            return Object(object_.body, object_.etag)
        first, end = check_range(key, byte_range)
        return Object(object_.body[first:end], object_.etag)

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        object_ = self._find(key, version)
        return ObjectInfo(key, len(object_.body), object_.etag, object_.last_modified_us)

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        check_key(key)
        content = bytes(body)
        etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        with self.bucket.lock:
            now_us = self._now()
            current = self.bucket.objects.get(key)
            if (current.etag if current else None) != if_match:
                return PreconditionFailed()
            self.bucket.objects[key] = MemoryObject(content, etag, now_us)
        return Stored(etag)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        with self.bucket.lock:
            self._now()
            objects = sorted(
                (key, object_)
                for key, object_ in self.bucket.objects.items()
                if key.startswith(prefix) and key > start_after
            )
        for key, object_ in objects:
            yield ObjectInfo(key, len(object_.body), object_.etag, object_.last_modified_us)

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        with self.bucket.lock:
            self._now()
            for key in keys:
                self.bucket.objects.pop(key, None)
        return [Deleted(key) for key in keys]

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        return open_pinned(self, key, etag=etag, version=version)

    def open_output(self, key: str) -> MemoryOutput:
        return MemoryOutput(self, check_key(key))

    def local_path(self, key: str) -> str | None:
        return None

    def sibling(self, root: str) -> MemoryStore:
        return MemoryStore(shared_bucket(root), self.runtime)

    def _find(self, key: str, version: str | None) -> MemoryObject:
        with self.bucket.lock:
            self._now()
            object_ = self.bucket.objects.get(key)
        if object_ is None or version is not None:
            raise ObjectNotFoundError(key)
        return object_

    def _now(self) -> int:
        sent = self.runtime.instant()
        now_us = self.bucket.clock_us()
        self.clock.observe(now_us, sent=sent)
        return now_us


class MemoryOutput(ObjectOutput):
    """Collects the bytes, and creates the object through the store's ``put`` at the end."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key, self._body, self._is_open = store, key, bytearray(), True

    def write(self, data: Buffer, /) -> int:
        if not self._is_open:
            raise ValueError(f"write to {self._key!r} after its commit or abort")
        self._body += data
        return memoryview(data).nbytes

    def copy(self, key: str, byte_range: ByteRange, etag: str) -> int:
        first, end = check_range(key, byte_range)
        for body in read_range(self._store, key, (first, end), etag):
            self.write(body)
        return end - first

    def commit(self) -> int:
        if not self._is_open:
            raise ValueError(f"commit of {self._key!r} after its commit or abort")
        create(self._store, self._key, bytes(self._body), self._store.runtime)
        self._is_open = False
        return len(self._body)

    def abort(self) -> None:
        if self._is_open:
            self._body.clear()
            self._is_open = False
