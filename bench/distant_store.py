"""A memory store as far away as S3: each request takes time, half of it before it arrives."""

from __future__ import annotations

from collections.abc import Callable

from dolmen.base.runtime import Runtime
from dolmen.store.base import Object, PutOutcome
from dolmen.store.memory import MemoryBucket, MemoryStore


class DistantStore(MemoryStore):
    """See the module.

    Args:
        pause: lets half of the latency of a request pass.
    """

    def __init__(self, bucket: MemoryBucket, runtime: Runtime, pause: Callable[[], None]) -> None:
        super().__init__(bucket, runtime)
        self._pause = pause

    def put(self, key: str, body: bytes | bytearray | memoryview, *, if_match: str | None = None) -> PutOutcome:
        self._pause()
        outcome = super().put(key, body, if_match=if_match)
        self._pause()
        return outcome

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        self._pause()
        found = super().get(key, byte_range, etag=etag, version=version)
        self._pause()
        return found
