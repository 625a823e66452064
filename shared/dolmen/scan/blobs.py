"""Blobs of ``.del`` objects: which requests fetch a set of them, and fetching them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.entries import Blob, Vector
from dolmen.runtime import Runtime
from dolmen.scan.ranges import Range, coalesce
from dolmen.store.base import ObjectStore

Pending: TypeAlias = Callable[[str, int, int], bytes | None]
"""(key, offset, length) -> those bytes of an object that a transaction has not uploaded yet; None for others."""


class Place(NamedTuple):
    """Where a blob is."""

    object: str
    offset: int


class Request(NamedTuple):
    """One GET: a range of an object."""

    key: str
    range: Range


def place(blob: Blob | Vector) -> Place:
    """Where ``blob`` is: what ``BlobReader.read`` returns it under."""
    return Place(blob.object, blob.offset)


def requests(blobs: Iterable[Blob | Vector]) -> list[Request]:
    """The GETs that fetch these blobs: neighbours in one object go together."""
    by_object: dict[str, set[Range]] = defaultdict(set)
    for blob in blobs:
        by_object[blob.object].add(Range(blob.offset, blob.offset + blob.length))
    return [Request(key, merged) for key, ranges in by_object.items() for merged in coalesce(ranges)]


@dataclass(frozen=True)
class BlobReader:
    """Fetches blobs, also those of a transaction's own objects that are not uploaded yet."""

    store: ObjectStore
    runtime: Runtime
    pending: Pending | None = None

    def read(self, blobs: Iterable[Blob | Vector]) -> dict[Place, bytes]:
        """The bytes of all ``blobs``, not yet checked against their checksums.

        Raises:
            CorruptionError: the object is gone.
        """
        found: dict[Place, bytes] = {}
        wanted: dict[Place, Blob | Vector] = {}
        for blob in blobs:
            own = self.pending and self.pending(blob.object, blob.offset, blob.length)
            if own:
                found[place(blob)] = own
            else:
                wanted[place(blob)] = blob
        for request, body in self.runtime.map(self._get, requests(wanted.values())):
            for where, blob in wanted.items():
                start = blob.offset - request.range.start
                if where.object == request.key and start >= 0 and blob.offset + blob.length <= request.range.end:
                    found[where] = body[start : start + blob.length]
        return found

    def _get(self, request: Request) -> tuple[Request, bytes]:
        try:
            return request, self.store.get(request.key, request.range).body
        except ObjectNotFoundError as error:
            raise CorruptionError(request.key, "it is missing, and a delete is recorded in it") from error
