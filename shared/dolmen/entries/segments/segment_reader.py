"""Reads segments: each object is fetched once, checked, decoded, and cached. Also reads the blobs of tombstones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.entries.segments.file_table import FileTable
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format import bloom_filters
from dolmen.format.delete_object import check_blob
from dolmen.format.entries import Blob, Overlay, Tombstone
from dolmen.format.manifest import AppliedId, Erasure, HistoryEntry, Manifest, Released, Segment, TableEntry
from dolmen.format.segments import check, check_bloom, decode
from dolmen.store.base import ObjectStore
from dolmen.store.cache import CacheKey, ObjectCache

_DECODED_FACTOR = 10
"""Decoded entries take about this many times the bytes of their compressed JSON."""
_AHEAD_BYTES = 16 * MIB
"""Segments under way at once are no more than this, but for the last of them."""


@dataclass
class FetchTally:
    """A count of fetches: requests and bytes."""

    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SegmentReader:
    """Reads segments of one database. Safe to use from several threads.

    All methods raise CorruptionError, which names the object, when it is missing or not what its reference says.

    Args:
        cache: keeps decoded segments.
        tally: counts fetches; see ``tallied``.
    """

    store: ObjectStore
    runtime: Runtime
    cache: ObjectCache
    tally: FetchTally = field(default_factory=FetchTally)

    def tallied(self) -> SegmentReader:
        """The same reader with a tally of its own, which counts the fetches of one piece of work."""
        return replace(self, tally=FetchTally())

    def files(self, segment: Segment) -> FileTable:
        """Entries of data files."""
        key = _key(segment)
        found: FileTable | None = self.cache.get(key)
        if found is None:
            found = FileTable(segment, self._fetch(segment), lambda table: self.cache.put(key, table, table.nbytes))
            self.cache.put(key, found, found.nbytes)
        return found

    def each_files(self, segments: Iterable[Segment], ahead: int | None = None) -> Iterator[tuple[Segment, FileTable]]:
        """``files`` of several segments in their order, ``ahead`` of them fetched at once, or as many as are small."""

        def read(segment: Segment) -> tuple[Segment, FileTable]:
            return segment, self.files(segment)

        return self.runtime.map(read, segments, ahead=ahead, size=lambda segment: segment.size, most=_AHEAD_BYTES)

    def overlays(self, segment: Segment) -> tuple[Overlay, ...]:
        """Newer pairs of data files."""
        return self._entries(segment)

    def removed(self, segment: Segment) -> tuple[str, ...]:
        """Uuids of data files that are gone."""
        return self._entries(segment)

    def tombstones(self, segment: Segment) -> tuple[Tombstone, ...]:
        """Unresolved deletes, oldest first."""
        return self._entries(segment)

    def applied(self, segment: Segment, ids: Collection[str] | None = None) -> tuple[AppliedId, ...]:
        """Ids applied exactly once.

        Args:
            ids: the requested ones; all by default. If the bloom filter has none of them, only the filter is fetched.
        """
        if ids is None:
            return self._entries(segment)
        if segment.bloom and _key(segment) not in self.cache and not self._maybe(segment, ids):
            return ()
        requested = frozenset(ids)
        return tuple(entry for entry in self._entries(segment) if entry.id in requested)

    def released(self, segment: Segment) -> tuple[Released, ...]:
        """Objects released by commits, oldest first."""
        return self._entries(segment)

    def history(self, segment: Segment) -> tuple[HistoryEntry, ...]:
        """Earlier commits, oldest first."""
        return self._entries(segment)

    def erasures(self, segment: Segment) -> tuple[Erasure, ...]:
        """Erasures, oldest first."""
        return self._entries(segment)

    def tables(self, segment: Segment) -> tuple[TableEntry, ...]:
        """Whole entries of idle tables."""
        return self._entries(segment)

    def keep(self, segment: Segment, body: bytes) -> None:
        """Keeps a segment that this process has just written, as if it had been fetched."""
        key = _key(segment)
        self.cache.keep(key, body)
        if segment.kind == "files":
            table = FileTable(segment, body, lambda table: self.cache.put(key, table, table.nbytes))
            self.cache.put(key, table, table.nbytes)
        else:
            self.cache.put(key, decode(segment, body), segment.size * _DECODED_FACTOR)

    def manifest(self, key: str) -> Manifest:
        """The manifest of a version that has expired, and that a tag keeps, or kept. Raises CorruptionError."""
        try:
            return Manifest.decode(self.store.get(key).body, key)
        except ObjectNotFoundError as error:
            raise CorruptionError(key, "the manifest is missing") from error

    def whole(self, entry: TableEntry) -> TableEntry:
        """The whole entry of a table; an idle table's is fetched."""
        if entry.section is None:
            return entry
        found = next((found for found in self.tables(entry.section) if found.uuid == entry.uuid), None)
        if found is None:
            raise CorruptionError(entry.section.object, f"table {entry.uuid} is not in it")
        return msgspec.structs.replace(
            found, epoch=entry.epoch, last_delete_ts=entry.last_delete_ts, unseen_delete_ts=entry.unseen_delete_ts
        )

    def _entries(self, segment: Segment) -> tuple[Any, ...]:
        found: tuple[Any, ...] | None = self.cache.get(_key(segment))
        if found is None:
            found = decode(segment, self._fetch(segment))
            self.cache.put(_key(segment), found, segment.size * _DECODED_FACTOR)
        return found

    def _fetch(self, segment: Segment) -> bytes:
        return self.cache.load(_key(segment), lambda: self._get(segment), partial(check, segment))

    def _maybe(self, segment: Segment, ids: Collection[str]) -> bool:
        """Whether the bloom filter may have any of ``ids``."""
        assert segment.bloom is not None
        offset, length, _ = segment.bloom
        key = ("bloom", segment.object, offset)
        body: bytes | None = self.cache.get(key)
        if body is None:
            body = self.cache.load(
                key, lambda: self._get(segment, (offset, offset + length)), partial(check_bloom, segment)
            )
            self.cache.put(key, body, len(body))
        return bool(bloom_filters.maybe(body, list(ids)))

    def _get(self, segment: Segment, byte_range: tuple[int, int] | None = None) -> bytes:
        self.tally.requests += 1
        try:
            body = self.store.get(segment.object, byte_range).body
        except ObjectNotFoundError as error:
            raise CorruptionError(segment.object, f"the segment of {segment.kind} is missing") from error
        self.tally.bytes += len(body)
        return body


def fetch_deletes(store: ObjectStore, key: str, start: int, end: int) -> bytes:
    """Bytes of an object that records deletes, not yet checked. Raises CorruptionError if it is missing."""
    try:
        return store.get(key, (start, end)).body
    except ObjectNotFoundError as error:
        raise CorruptionError(key, "it is missing, and a delete is recorded in it") from error


def read_blob(store: ObjectStore, blob: Blob) -> bytes:
    """A blob with the content of a tombstone. Raises CorruptionError if it is missing or damaged."""
    return check_blob(fetch_deletes(store, blob.object, blob.offset, blob.offset + blob.length), blob)


def _key(segment: Segment) -> CacheKey:
    return ("segment", segment.object, 0)
