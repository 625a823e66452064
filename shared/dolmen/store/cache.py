"""A cache of parts of immutable objects (footers, deletion vectors, keys, segments), in memory and optionally on disk.

Objects never change under their key, so no entry is ever out of date.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from dolmen.base.runtime import Runtime
from dolmen.base.units import GIB, MIB
from dolmen.errors import CorruptionError
from dolmen.store.base import scheme_of

CacheKey: TypeAlias = tuple[str, str, int]
"""(kind of part, the object's key, the offset in it)."""
DIRECTORY, BYTES = "DOLMEN_CACHE_DIR", "DOLMEN_CACHE_BYTES"
DEFAULT_BYTES = 128 * MIB
DEFAULT_DISK_BYTES = GIB
_log = logging.getLogger("dolmen")
_MAGIC = b"DLC1"
_HEAD = struct.Struct("<4sII")

_REMAINING_SHARE = 0.9
"""An eviction goes on until this share of the bound is left."""
_LARGEST_PART = 4
"""Values larger than the bound divided by this are not cached."""


class _File(NamedTuple):
    used_ns: int
    size: int
    path: str


class DiskCache:
    """Bytes by key, bounded; the least recently used go first. Safe to use from several threads and processes.

    Entries are files, named by a hash of the store's URL, the object's key and the offset, so databases never mix. A
    file appears whole, by rename. Its checksum is compared; a damaged entry does not count. A disk that is full,
    read-only or another user's disables the cache, and nothing else.

    Args:
        directory: where ``dolmen-cache`` is or will be.
        url: of the store whose objects these are.
        max_bytes: of the entries of all databases.
    """

    def __init__(self, directory: str, url: str, runtime: Runtime, max_bytes: int = DEFAULT_DISK_BYTES) -> None:
        self.root = os.path.join(os.path.abspath(directory), "dolmen-cache")
        self._url, self._runtime, self.max_bytes = url, runtime, max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._bytes_since_scan = 0
        self._is_off = False

    @classmethod
    def from_environment(cls, url: str, runtime: Runtime) -> DiskCache | None:
        """The cache that ``DOLMEN_CACHE_DIR`` and ``DOLMEN_CACHE_BYTES`` configure; only for remote stores."""
        directory, scheme = os.environ.get(DIRECTORY, ""), scheme_of(url)
        if not directory or not (scheme and scheme.is_remote):
            return None
        text = os.environ.get(BYTES, "")
        if text and not text.isdigit():
            _log.warning("%s=%r is not a number of bytes: taking %d", BYTES, text, DEFAULT_DISK_BYTES)
        most = int(text) if text.isdigit() else DEFAULT_DISK_BYTES
        return cls(directory, url, runtime, most) if most else None

    def read(self, key: CacheKey) -> bytes | None:
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                packed = file.read()
        except OSError:
            return None
        body = packed[_HEAD.size + len(self._identity(key)) :]
        if not packed.startswith(self._head(key, body)):
            self.drop(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return body

    def write(self, key: CacheKey, body: bytes) -> None:
        if self._is_off or len(body) > self.max_bytes // _LARGEST_PART:
            return
        packed = self._head(key, body) + body
        try:
            self._check_root()
            self._make_room(len(packed))
            try:
                self._put(key, packed)
            except OSError:  # others fill the disk: evict half of this cache
                self._evict(self._scan(), (self._bytes or 0) // 2)
                self._put(key, packed)
        except OSError as error:
            self._is_off = True
            _log.warning("the cache in %s is not used any more: %s", self.root, error)

    def drop(self, key: CacheKey) -> None:
        with suppress(OSError):
            os.unlink(self._path(key))

    def __contains__(self, key: CacheKey) -> bool:
        return os.path.exists(self._path(key))

    def _path(self, key: CacheKey) -> str:
        name = hashlib.blake2b(self._identity(key), digest_size=20).hexdigest()
        return os.path.join(self.root, name[:2], name)

    def _identity(self, key: CacheKey) -> bytes:
        return "\0".join((self._url, key[0], key[1], str(key[2]))).encode()

    def _head(self, key: CacheKey, body: bytes) -> bytes:
        identity = self._identity(key)
        return _HEAD.pack(_MAGIC, zlib.crc32(body, zlib.crc32(identity)), len(identity)) + identity

    def _check_root(self) -> None:
        """Makes the directory. Raises OSError if it belongs to another user."""
        if self._bytes is None:
            os.makedirs(self.root, 0o700, exist_ok=True)
            if os.stat(self.root, follow_symlinks=False).st_uid != os.geteuid():
                raise PermissionError(f"{self.root} belongs to another user")

    def _put(self, key: CacheKey, packed: bytes) -> None:
        path = self._path(key)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        unfinished = f"{path}.{self._runtime.uuid()}.tmp"
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "wb") as output:
                output.write(packed)
            os.rename(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def _make_room(self, size: int) -> None:
        """Counts ``size`` more bytes. Lists the files if the total may be too large, and from time to time."""
        with self._lock:
            if self._bytes is not None:
                self._bytes += size
                self._bytes_since_scan += size
                if self._bytes <= self.max_bytes and self._bytes_since_scan <= self.max_bytes // 8:
                    return
            files = self._scan()
            if (self._bytes or 0) + size > self.max_bytes:
                self._evict(files, int(self.max_bytes * _REMAINING_SHARE) - size)
            self._bytes = (self._bytes or 0) + size

    def _scan(self) -> list[_File]:
        """All files, also unfinished ones that others may be writing: these are the newest, and evicted last."""
        files = list(self._files())
        self._bytes, self._bytes_since_scan = sum(file.size for file in files), 0
        return files

    def _files(self) -> Iterator[_File]:
        for prefix in range(256):
            with suppress(OSError), os.scandir(os.path.join(self.root, f"{prefix:02x}")) as entries:
                for each in entries:
                    with suppress(OSError):
                        stat = each.stat(follow_symlinks=False)
                        yield _File(stat.st_mtime_ns, stat.st_size, each.path)

    def _evict(self, files: list[_File], most: int) -> None:
        remaining = sum(file.size for file in files)
        for file in sorted(files):
            if remaining <= most:
                break
            with suppress(OSError):
                os.unlink(file.path)
                remaining -= file.size
        self._bytes = remaining


class ObjectCache:
    """Decoded parts of immutable objects, bounded by their size. Safe to use from several threads.

    Args:
        max_bytes: the most bytes in memory, by the sizes passed to ``put``.
        disk: a second level, for fetched bytes.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, disk: DiskCache | None = None) -> None:
        self.max_bytes, self.disk = max_bytes, disk
        self.bytes = 0
        self._entries: OrderedDict[CacheKey, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Any:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: CacheKey, value: Any, size: int) -> None:
        """Caches ``value``, which takes about ``size`` bytes of memory, if it fits at all."""
        with self._lock:
            _, replaced_size = self._entries.pop(key, (None, 0))
            self.bytes -= replaced_size
            if size > self.max_bytes:
                return
            self._entries[key] = (value, size)
            self.bytes += size
            while self.bytes > self.max_bytes:
                _, (_, freed_size) = self._entries.popitem(last=False)
                self.bytes -= freed_size

    def load(self, key: CacheKey, fetch: Callable[[], bytes], check: Callable[[bytes], None]) -> bytes:
        """Bytes of an object from the disk, or else fetched and cached there.

        ``check``: raises CorruptionError for damaged bytes, which are never cached.
        """
        body = self.peek(key, check)
        if body is None:
            body = fetch()
            check(body)
            self.keep(key, body)
        return body

    def peek(self, key: CacheKey, check: Callable[[bytes], None]) -> bytes | None:
        """Bytes from the disk, if they pass ``check``."""
        body = self.disk.read(key) if self.disk else None
        if body is None:
            return None
        try:
            check(body)
        except CorruptionError:  # the object itself may be intact
            self.drop(key)
            return None
        return body

    def keep(self, key: CacheKey, body: bytes) -> None:
        """Caches checked bytes on the disk, if there is one."""
        if self.disk:
            self.disk.write(key, body)

    def drop(self, key: CacheKey) -> None:
        """Removes the entry from the disk."""
        if self.disk:
            self.disk.drop(key)

    def __contains__(self, key: CacheKey) -> bool:
        with self._lock:
            if key in self._entries:
                return True
        return self.disk is not None and key in self.disk
