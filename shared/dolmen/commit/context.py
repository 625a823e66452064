"""The context that all objects of one open database share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.commit.head import Head
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.store import open_store, portable_url
from dolmen.store.base import ObjectStore
from dolmen.store.cache import ObjectCache


@dataclass(frozen=True)
class Context:
    """The store of a database, its newest known version, and the cache of its immutable objects."""

    store: ObjectStore
    runtime: Runtime
    head: Head

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open the store by its URL, with their own clock, threads and caches."""
        return _reopen, (portable_url(self.store), self.head.trust_clock)

    @property
    def cache(self) -> ObjectCache:
        return self.head.cache

    @property
    def segments(self) -> SegmentReader:
        return self.head.segments

    @contextmanager
    def reading(self, version: int, last: int | None = None) -> Iterator[None]:
        """Wraps work that reads a version's objects: raises VersionExpiredError if one is missing for that reason.

        Args:
            last: the last version, if the work reads several; those between may expire though a tag keeps the first.
        """
        try:
            yield
        except CorruptionError as error:
            if error.is_missing:
                self.head.check_kept(version, last)
            raise


class Handle(Protocol):
    """An object of the public API: a database, a table, a snapshot."""

    _context: Context


def context_of(handle: Handle) -> Context:
    """The context of a handle, for code below the public classes."""
    return handle._context


def _reopen(url: str, trust_clock: bool) -> Context:
    runtime = shared_runtime()
    store = open_store(url, runtime)
    return Context(store, runtime, Head(store, runtime, trust_clock=trust_clock))
