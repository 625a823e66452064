"""A view: one table in one version, and what is needed to read it.

Blobs of ``.del`` objects: the requests that fetch a set of them, and the reader that sends these requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.checksums import crc32
from dolmen.format.entries import Blob, Vector
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.rows.scan.read.byte_ranges import Range, coalesce
from dolmen.store.base import ObjectStore
from dolmen.store.cache import CacheKey, ObjectCache

Pending: TypeAlias = Callable[[str, int, int], bytes | None]
"""(key, offset, length) -> those bytes of an object that a transaction has not uploaded yet; None for others."""

AHEAD_BYTES = 32 * MIB
"""Blobs that are worked on one after the other are fetched ahead up to this much."""


class BlobPlace(NamedTuple):
    """Where a blob is."""

    object: str
    offset: int


class BlobRequest(NamedTuple):
    """One GET: a range of an object."""

    key: str
    range: Range


def place(blob: Blob | Vector) -> BlobPlace:
    """Where ``blob`` is: what ``BlobReader.read`` returns it under."""
    return BlobPlace(blob.object, blob.offset)


def cache_key(blob: Blob | Vector) -> CacheKey:
    """The key in the cache, which holds the decoded blob in memory and its bytes on disk."""
    return ("vector" if isinstance(blob, Vector) else "tombstone", blob.object, blob.offset)


def requests(blobs: Iterable[Blob | Vector]) -> list[BlobRequest]:
    """The GETs that fetch these blobs: neighbours in one object go together."""
    by_object: dict[str, set[Range]] = defaultdict(set)
    for blob in blobs:
        by_object[blob.object].add(Range(blob.offset, blob.offset + blob.length))
    return [BlobRequest(key, merged) for key, ranges in by_object.items() for merged in coalesce(ranges)]


def _check(blob: Blob | Vector, body: bytes) -> None:
    if len(body) != blob.length or crc32(body) != blob.crc32:
        raise CorruptionError(blob.object, f"blob at byte {blob.offset}: checksum differs")


@dataclass(frozen=True)
class BlobReader:
    """Fetches blobs, also those of a transaction's own objects that are not uploaded yet."""

    store: ObjectStore
    runtime: Runtime
    pending: Pending | None = None
    cache: ObjectCache | None = None

    def read(self, blobs: Iterable[Blob | Vector]) -> dict[BlobPlace, bytes]:
        """The bytes of all ``blobs``, not yet checked against their checksums.

        Raises:
            CorruptionError: the object is gone.
        """
        return dict(self.stream(blobs))

    def stream(self, blobs: Iterable[Blob | Vector]) -> Iterator[tuple[BlobPlace, bytes]]:
        """Yields the bytes of each of the ``blobs``, in no order. Holds about ``AHEAD_BYTES``, or the largest blob.

        It makes the requests that ``requests`` tells.

        Raises:
            CorruptionError: the object is gone.
        """
        here, asked = self.split(blobs)
        yield from here.items()
        largest = max((request.range.length for request in asked), default=1)
        ahead = max(1, min(self.runtime.threads, AHEAD_BYTES // largest))
        for (request, some), body in self.runtime.map(
            lambda item: (item, self.get(item[0])), asked.items(), ahead=ahead
        ):
            yield from self.cut(request, some, body)

    def split(
        self, blobs: Iterable[Blob | Vector]
    ) -> tuple[dict[BlobPlace, bytes], dict[BlobRequest, list[Blob | Vector]]]:
        """Parts blobs into those whose bytes are here, and the requests that fetch the others, each with its blobs."""
        here: dict[BlobPlace, bytes] = {}
        by_object: dict[str, list[Blob | Vector]] = defaultdict(list)
        for where, blob in {place(blob): blob for blob in blobs}.items():
            own = self.pending and self.pending(blob.object, blob.offset, blob.length)
            if not own and self.cache:
                own = self.cache.peek(cache_key(blob), partial(_check, blob))
            if own:
                here[where] = own
            else:
                by_object[blob.object].append(blob)
        asked = requests(blob for some in by_object.values() for blob in some)
        return here, {
            request: [
                blob
                for blob in by_object[request.key]
                if request.range.start <= blob.offset and blob.offset + blob.length <= request.range.end
            ]
            for request in asked
        }

    def get(self, request: BlobRequest) -> bytes:
        """Sends one of the requests of ``split``. Raises CorruptionError if the object is gone."""
        try:
            return self.store.get(request.key, request.range).body
        except ObjectNotFoundError as error:
            raise CorruptionError(request.key, "it is missing, and a delete is recorded in it") from error

    def cut(
        self, request: BlobRequest, blobs: Iterable[Blob | Vector], body: bytes
    ) -> Iterator[tuple[BlobPlace, bytes]]:
        """Yields the bytes of each blob of a request out of those that it brought."""
        for blob in blobs:
            start = blob.offset - request.range.start
            own = body[start : start + blob.length]
            self._keep(blob, own)
            yield place(blob), own

    def _keep(self, blob: Blob | Vector, body: bytes) -> None:
        """Keeps a blob on the disk unless it is damaged, which is for those to say who decode it."""
        if self.cache and self.cache.disk and crc32(body) == blob.crc32:
            self.cache.keep(cache_key(blob), body)


@dataclass(frozen=True)
class View:
    """One table as one version shows it. Another process reads the same rows from a pickled view.

    Args:
        context: the database's store, runtime and cache.
        manifest: the version.
        table: the table's name.
        pending: reads objects that a transaction has not uploaded yet; None outside of transactions.
    """

    context: Context
    manifest: Manifest
    table: str
    pending: Pending | None = None

    def entry(self) -> TableEntry:
        """The table's entry, with what has left the manifest. Raises TableNotFoundError."""
        return self.context.segments.whole(self.manifest.table(self.table))

    def reading(self) -> AbstractContextManager[None]:
        """Surrounds work that reads the version's objects: see ``Context.reading``."""
        return self.context.reading(self.manifest.version)
