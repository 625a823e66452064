"""What was read of immutable objects, kept in memory: footers, deletion vectors, keys, segments.

Objects never change under their key, so nothing here is ever out of date; the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, TypeAlias

CacheKey: TypeAlias = tuple[str, str, int]
"""(what it is, the object's key, the offset in it)."""

DEFAULT_BYTES = 128 << 20


class ObjectCache:
    """Decoded parts of immutable objects, bounded by their size. Safe to use from several threads.

    Args:
        max_bytes: how much is kept, by the sizes given to ``put``; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._kept: OrderedDict[CacheKey, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Any:
        """What was put under ``key``, or None."""
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

    def __contains__(self, key: CacheKey) -> bool:
        with self._lock:
            return key in self._kept
