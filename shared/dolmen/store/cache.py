"""A cache of parts of immutable objects (column chunks, footers, segments, manifests): in memory, optionally on disk.

Objects never change under their key, so no entry is ever out of date. All databases that a runtime opens share the
memory; ``ObjectStore.identity`` keeps their objects apart.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from dolmen.base.runtime import Runtime
from dolmen.base.units import DAY_US, GIB, MIB
from dolmen.errors import CorruptionError
from dolmen.store.base import Identity, ObjectStore, scheme_of

CacheKey: TypeAlias = tuple[str, str, *tuple[int | str, ...]]
"""(kind of part, the object's key, what else identifies the part: offset, length, checksum, or a commit's id)."""
DIRECTORY, BYTES, MEMORY = "DOLMEN_CACHE_DIR", "DOLMEN_CACHE_BYTES", "DOLMEN_CACHE_MEMORY"
DEFAULT_BYTES = 256 * MIB
DEFAULT_DISK_BYTES = GIB
_FUNCTION_MEMORY, _FUNCTION_SHARE = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", 10
"""The variable with the megabytes of a Lambda function; the cache takes a tenth of them."""
_log = logging.getLogger("dolmen")
_MAGIC = b"DLC1"
_HEAD = struct.Struct("<4sII")

_REMAINING_SHARE = 0.9  # an eviction continues until this share of the bound is left
_LARGEST_PART = 4  # values larger than the bound divided by this are not cached
_USED_SHARE = 0.75  # parts that were used again take at most this share of the memory
_ENTRY_BYTES = 300  # the memory of an entry, without its value


class _File(NamedTuple):
    used_ns: int
    size: int
    path: str


class DiskCache:
    """Bytes by key, bounded; the least recently used go first. Safe to use from several threads and processes.

    Entries are files, named by hashes of the store's identity, the object's key and the part, so databases never mix. A
    file appears whole, by rename. Its checksum is compared; a damaged entry does not count. A disk that is full,
    read-only or another user's disables the cache, and nothing else.

    Args:
        directory: where ``dolmen-cache`` is or will be.
        identity: of the store whose objects these are.
        max_bytes: of the entries of all databases.
    """

    def __init__(self, directory: str, identity: str, runtime: Runtime, max_bytes: int = DEFAULT_DISK_BYTES) -> None:
        self.root = os.path.join(os.path.abspath(directory), "dolmen-cache")
        self._store, self._runtime, self.max_bytes = identity, runtime, max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._bytes_since_scan = 0
        self._is_off = False

    @classmethod
    def from_environment(cls, store: ObjectStore, runtime: Runtime) -> DiskCache | None:
        """The cache that ``DOLMEN_CACHE_DIR`` and ``DOLMEN_CACHE_BYTES`` configure.

        None for a store that is not remote, or whose identity no other process knows.
        """
        directory, scheme = os.environ.get(DIRECTORY, ""), scheme_of(store.url)
        names = [name for name in store.identity if isinstance(name, str)]
        if not directory or not (scheme and scheme.is_remote) or len(names) < len(store.identity):
            return None
        most = _bytes_setting(BYTES, DEFAULT_DISK_BYTES)
        return cls(directory, "\0".join(names), runtime, most) if most else None

    def get(self, key: CacheKey) -> bytes | None:
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                packed = file.read()
        except OSError:
            return None
        body = packed[_HEAD.size + len(self._identity(key)) :]
        if not packed.startswith(self._head(key, body)):
            self.remove(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return body

    def put(self, key: CacheKey, body: bytes, *, is_new: bool = False) -> None:
        """``is_new``: it is evicted as early as one last used a day ago, unless it is used again."""
        if self._is_off or len(body) > self.max_bytes // _LARGEST_PART:
            return
        packed = self._head(key, body) + body
        try:
            self._check_root()
            self._make_room(len(packed))
            try:
                self._write_file(key, packed, is_new=is_new)
            except OSError:  # others fill the disk: evict half of this cache
                self._evict(self._scan(), (self._bytes or 0) // 2)
                self._write_file(key, packed, is_new=is_new)
        except OSError as error:
            self._is_off = True
            _log.warning("the cache in %s is not used any more: %s", self.root, error)

    def remove(self, key: CacheKey) -> None:
        with suppress(OSError):
            os.unlink(self._path(key))

    def remove_objects(self, objects: Collection[str]) -> None:
        """Removes all parts of these objects."""
        for key in objects:
            folder, prefix = self._folder(key)
            with suppress(OSError), os.scandir(folder) as entries:
                for path in [entry.path for entry in entries if entry.name.startswith(prefix)]:
                    with suppress(OSError):
                        os.unlink(path)

    def __contains__(self, key: CacheKey) -> bool:
        return os.path.exists(self._path(key))

    def _folder(self, key: str) -> tuple[str, str]:
        """The folder of an object's parts, and what their names begin with."""
        name = hashlib.blake2b(f"{self._store}\0{key}".encode(), digest_size=20).hexdigest()
        return os.path.join(self.root, name[:2]), name

    def _path(self, key: CacheKey) -> str:
        folder, prefix = self._folder(key[1])
        part = hashlib.blake2b(self._identity(key), digest_size=10).hexdigest()
        return os.path.join(folder, f"{prefix}-{part}")

    def _identity(self, key: CacheKey) -> bytes:
        return "\0".join((self._store, *map(str, key))).encode()

    def _head(self, key: CacheKey, body: bytes) -> bytes:
        identity = self._identity(key)
        return _HEAD.pack(_MAGIC, zlib.crc32(body, zlib.crc32(identity)), len(identity)) + identity

    def _check_root(self) -> None:
        """Makes the directory. Raises OSError if it belongs to another user."""
        if self._bytes is None:
            os.makedirs(self.root, 0o700, exist_ok=True)
            if os.stat(self.root, follow_symlinks=False).st_uid != os.geteuid():
                raise PermissionError(f"{self.root} belongs to another user")

    def _write_file(self, key: CacheKey, packed: bytes, *, is_new: bool) -> None:
        path = self._path(key)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        unfinished = f"{path}.{self._runtime.uuid()}.tmp"
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "wb") as output:
                output.write(packed)
            if is_new:
                used_ns = os.stat(unfinished).st_mtime_ns - DAY_US * 1_000
                os.utime(unfinished, ns=(used_ns, used_ns))
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


class CacheMemory:
    """Parts of immutable objects of any number of stores, bounded by their size. Safe to use from several threads.

    Parts that were not used again since they were read go first, so a large scan does not evict what others use again
    and again. A forked process begins with an empty memory.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self._begin()

    @classmethod
    def of_runtime(cls, runtime: Runtime) -> CacheMemory:
        """The memory of all databases that are opened with a runtime."""
        return runtime.share(cls._from_environment)

    @classmethod
    def _from_environment(cls, _runtime: Runtime) -> CacheMemory:
        function_mb = os.environ.get(_FUNCTION_MEMORY, "")
        share = int(function_mb) * MIB // _FUNCTION_SHARE if function_mb.isdigit() else DEFAULT_BYTES
        return cls(_bytes_setting(MEMORY, share))

    def get(self, key: Any) -> Any:
        with self._own_lock():
            entry = self._used.get(key)
            if entry is not None:
                self._used.move_to_end(key)
                return entry[0]
            entry = self._new.pop(key, None)
            if entry is None:
                return None
            self._used[key] = entry
            self._used_bytes += entry[1]
            self._evict()
            return entry[0]

    def put(self, key: Any, value: Any, size: int, *, is_new: bool = False) -> None:
        """Caches ``value``, if it fits at all. ``is_new``: it is among the first to go until it is used again."""
        with self._own_lock():
            is_new = is_new and key not in self._used
            self._remove(key)
            if size > self.max_bytes:
                return
            (self._new if is_new else self._used)[key] = (value, size)
            self.bytes += size
            self._used_bytes += 0 if is_new else size
            self._evict()

    def resize(self, max_bytes: int) -> None:
        with self._own_lock():
            self.max_bytes = max_bytes
            self._evict()

    def remove_objects(self, identity: Identity, objects: Collection[str]) -> None:
        """Removes all parts of these objects of a store."""
        with self._own_lock():
            for entries in (self._used, self._new):
                for key in [each for each in entries if each[0] == identity and each[1][1] in objects]:
                    self._remove(key)

    def __contains__(self, key: Any) -> bool:
        with self._own_lock():
            return key in self._used or key in self._new

    def _begin(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._used: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._new: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self.bytes = self._used_bytes = 0

    def _own_lock(self) -> threading.Lock:
        """The lock. In a forked process, a thread that did not survive may hold the parent's."""
        if self._process != os.getpid():
            self._begin()
        return self._lock

    def _remove(self, key: Any) -> None:
        if (entry := self._used.pop(key, None)) is not None:
            self._used_bytes -= entry[1]
        else:
            entry = self._new.pop(key, None)
        self.bytes -= entry[1] if entry else 0

    def _evict(self) -> None:
        while self._used_bytes > self.max_bytes * _USED_SHARE:
            key, entry = self._used.popitem(last=False)
            self._used_bytes -= entry[1]
            self._new[key] = entry
        while self.bytes > self.max_bytes:
            _, (_, size) = self._new.popitem(last=False)
            self.bytes -= size


class ObjectCache:
    """The parts of one store's objects in a ``CacheMemory``, decoded or as bytes, and bytes on the disk.

    ``get`` and ``put`` are for decoded parts, in memory; ``get_bytes`` and ``put_bytes`` for bytes, on both levels;
    ``get_from_disk`` and ``put_on_disk`` for bytes of which the caller caches what it decodes from them.

    Args:
        max_bytes: the most bytes in a memory of its own, by the sizes passed to ``put``.
        disk: a second level, for fetched bytes.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, disk: DiskCache | None = None) -> None:
        self.memory, self.disk = CacheMemory(max_bytes), disk
        self._identity: Identity = ()

    @classmethod
    def of_store(cls, store: ObjectStore, runtime: Runtime) -> ObjectCache:
        """The cache of a store in the memory that all databases of this runtime share."""
        cache = cls(disk=DiskCache.from_environment(store, runtime))
        cache.memory, cache._identity = CacheMemory.of_runtime(runtime), store.identity
        return cache

    def get(self, key: CacheKey) -> Any:
        return self.memory.get((self._identity, key))

    def put(self, key: CacheKey, value: Any, size: int, *, is_new: bool = False) -> None:
        """Caches ``value``, which takes about ``size`` bytes of memory. See ``CacheMemory.put``."""
        self.memory.put((self._identity, key), value, size, is_new=is_new)

    def get_bytes(self, key: CacheKey) -> bytes | None:
        """Bytes that ``put_bytes`` has cached, in memory or on the disk."""
        body: bytes | None = self.get(key)
        if body is None and self.disk and (body := self.disk.get(key)) is not None:
            self.put(key, body, len(body) + _ENTRY_BYTES, is_new=True)
        return body

    def has_room_for(self, size: int) -> bool:
        """Whether ``put_bytes`` would cache this many bytes."""
        return self.disk is not None or size + _ENTRY_BYTES <= self.memory.max_bytes

    def put_bytes(self, key: CacheKey, body: bytes) -> None:
        """Caches bytes in memory and on the disk, among the first to go until they are used again."""
        self.put(key, body, len(body) + _ENTRY_BYTES, is_new=True)
        if self.disk:
            self.disk.put(key, body, is_new=True)

    def get_or_fetch(self, key: CacheKey, fetch: Callable[[], bytes], check: Callable[[bytes], None]) -> bytes:
        """Bytes of an object from the disk, or else fetched and cached there.

        ``check``: raises CorruptionError for damaged bytes, which are never cached.
        """
        body = self.get_from_disk(key, check)
        if body is None:
            body = fetch()
            check(body)
            self.put_on_disk(key, body)
        return body

    def get_from_disk(self, key: CacheKey, check: Callable[[bytes], None]) -> bytes | None:
        """Bytes from the disk, if they pass ``check``."""
        body = self.disk.get(key) if self.disk else None
        if self.disk is None or body is None:
            return None
        try:
            check(body)
        except CorruptionError:  # the object itself may be intact
            self.disk.remove(key)
            return None
        return body

    def put_on_disk(self, key: CacheKey, body: bytes) -> None:
        """Caches checked bytes on the disk, if there is one."""
        if self.disk:
            self.disk.put(key, body)

    def remove_objects(self, objects: Collection[str]) -> None:
        """Removes all parts of these objects, by key: they were deleted, or their bytes are damaged."""
        self.memory.remove_objects(self._identity, frozenset(objects))
        if self.disk:
            self.disk.remove_objects(objects)

    def __contains__(self, key: CacheKey) -> bool:
        return (self._identity, key) in self.memory or (self.disk is not None and key in self.disk)


def _bytes_setting(variable: str, default: int) -> int:
    """A number of bytes from the environment."""
    text = os.environ.get(variable, "")
    if text and not text.isdigit():
        _log.warning("%s=%r is not a number of bytes: taking %d", variable, text, default)
    return int(text) if text.isdigit() else default
