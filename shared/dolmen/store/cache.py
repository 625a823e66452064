"""A cache of parts of immutable objects: footers, deletion vectors, keys, segments. In memory, and if wanted on disk.

Objects never change under their key, so nothing here is ever out of date; the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dolmen.base.units import MIB
from dolmen.errors import CorruptionError
from dolmen.store.disk_cache import CacheKey, DiskCache

__all__ = ["DEFAULT_BYTES", "CacheKey", "ObjectCache"]

DEFAULT_BYTES = 128 * MIB


class ObjectCache:
    """Decoded parts of immutable objects, bounded by their size. Safe to use from several threads.

    Args:
        max_bytes: how much is kept in memory, by the sizes given to ``put``; 0 keeps nothing.
        disk: a second level, which keeps bytes as they were fetched.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, disk: DiskCache | None = None) -> None:
        self.max_bytes, self.disk = max_bytes, disk
        self.bytes = 0
        self._kept: OrderedDict[CacheKey, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Any:
        """The value that was put under ``key``, or None. Looks at memory only."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: CacheKey, value: Any, size: int) -> None:
        """Keeps ``value``, which takes about ``size`` bytes of memory, if it fits at all."""
        with self._lock:
            _, replaced = self._kept.pop(key, (None, 0))
            self.bytes -= replaced
            if size > self.max_bytes:
                return
            self._kept[key] = (value, size)
            self.bytes += size
            while self.bytes > self.max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self.bytes -= freed

    def load(self, key: CacheKey, fetch: Callable[[], bytes], check: Callable[[bytes], None]) -> bytes:
        """Bytes of an object from the disk, or else fetched and kept there.

        Args:
            check: raises CorruptionError if they are not what they should be; such are never kept.
        """
        body = self.peek(key, check)
        if body is None:
            body = fetch()
            check(body)
            self.keep(key, body)
        return body

    def peek(self, key: CacheKey, check: Callable[[bytes], None]) -> bytes | None:
        """Bytes that the disk has under ``key``, if they pass ``check``."""
        body = self.disk.read(key) if self.disk else None
        if body is None:
            return None
        try:
            check(body)
        except CorruptionError:  # whatever it was: the object itself will tell
            self.drop(key)
            return None
        return body

    def keep(self, key: CacheKey, body: bytes) -> None:
        """Keeps bytes on the disk, if there is one. They must have been checked."""
        if self.disk:
            self.disk.write(key, body)

    def drop(self, key: CacheKey) -> None:
        """Forgets what the disk has under ``key``."""
        if self.disk:
            self.disk.drop(key)

    def __contains__(self, key: CacheKey) -> bool:
        """Whether nothing would have to be fetched for ``key``."""
        with self._lock:
            if key in self._kept:
                return True
        return self.disk is not None and key in self.disk
