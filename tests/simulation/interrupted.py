"""A store under which something happens at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable

from dolmen.store.base import Object
from dolmen.store.memory import MemoryStore


class Interrupted(MemoryStore):
    """Something happens just before it reads an object of one kind."""

    meanwhile: Callable[[], None] | None = None
    before = "segment/history/"
    """How the keys of that kind begin."""

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        if key.startswith(self.before) and self.meanwhile:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().get(key, byte_range, etag=etag, version=version)
