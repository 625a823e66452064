"""The deletes of a scan, ready to be applied: predicates, lookups of keys, vectors, and the blobs that they are in.

``ErasureMatcher`` applies the deletes of erasures to rows that are about to be written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap

from dolmen.base.units import MIB
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.entries.segments.row_bounds import inline_predicate, recorded_predicate
from dolmen.entries.segments.segment_reader import fetch_deletes
from dolmen.format.column_history import widen_keys, with_field_ids
from dolmen.format.del_object import all_inline_keys, check_blob, decode_keys, decode_keys_in_parts, decode_vector
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, Vector, WhereTombstone
from dolmen.format.manifest import Erasure, TableEntry
from dolmen.format.schema import Schema, constant
from dolmen.format.types import Mask, to_boolean_array, to_mask
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import days_to_timestamps
from dolmen.predicate.evaluate import matches
from dolmen.rows.scan.data_objects import Pending, Range, coalesce
from dolmen.rows.scan.key_codes import Int64s
from dolmen.rows.scan.row_groups import Deletes, FilePlan
from dolmen.rows.scan.tombstone_keys import KeysInMemory, KeysLookup, KeysOnDisk, Tuples
from dolmen.store.cache import CacheKey, ObjectCache

_CACHED_KEYS, _CACHED_BYTES = 1_000_000, 8 * MIB
"""Decoded keys are cached if a scan needs at most this many, from lists of this size."""

_INLINE_TOGETHER = 1_000  # the most inline lists of keys that are decoded at once

MEMORY_BYTES = 108 * MIB
"""The most memory of keys, over all tuples of columns, while they are merged; about half of it later."""

AHEAD_BYTES = 32 * MIB  # blobs are fetched ahead up to this size

VECTOR_BYTES = 16 * MIB  # vectors of consecutive files are fetched together up to this size


class BlobKey(NamedTuple):
    """The object that a blob is in, and its offset there."""

    object: str
    offset: int


class BlobRequest(NamedTuple):
    """One GET: a range of an object."""

    key: str
    range: Range


def blob_key(blob: Blob | Vector) -> BlobKey:
    return BlobKey(blob.object, blob.offset)


def cache_key(blob: Blob | Vector) -> CacheKey:
    """The key in the cache, which holds the decoded blob in memory and its bytes on disk."""
    kind = "vector" if isinstance(blob, Vector) else "tombstone"
    return (kind, blob.object, blob.offset, blob.length, blob.crc32)


def blob_requests(blobs: Iterable[Blob | Vector]) -> list[BlobRequest]:
    """The GETs that fetch these blobs; one GET fetches neighbours in one object."""
    by_object: dict[str, set[Range]] = defaultdict(set)
    for blob in blobs:
        by_object[blob.object].add(Range(blob.offset, blob.offset + blob.length))
    return [BlobRequest(key, merged) for key, ranges in by_object.items() for merged in coalesce(ranges)]


class BlobReader(Struct, frozen=True):
    """Fetches blobs, also from a transaction's own objects before their upload."""

    context: Context
    pending: Pending | None = None

    def stream(self, blobs: Iterable[Blob | Vector]) -> Iterator[tuple[BlobKey, bytes]]:
        """Yields the unverified bytes of each blob, in any order, and buffers ``AHEAD_BYTES`` or the largest blob."""
        cached, fetched = self.split(blobs)
        yield from cached.items()
        largest = max((request.range.length for request in fetched), default=1)
        ahead = max(1, min(self.context.runtime.threads, AHEAD_BYTES // largest))
        for (request, some), body in self.context.runtime.map(
            lambda item: (item, self.get(item[0])), fetched.items(), ahead=ahead
        ):
            yield from self.cut(request, some, body)

    def split(
        self, blobs: Iterable[Blob | Vector]
    ) -> tuple[dict[BlobKey, bytes], dict[BlobRequest, list[Blob | Vector]]]:
        """Splits blobs into those that need no request, and the requests for the others, each with its blobs."""
        cached: dict[BlobKey, bytes] = {}
        by_object: dict[str, list[Blob | Vector]] = defaultdict(list)
        for key, blob in {blob_key(blob): blob for blob in blobs}.items():
            body = self.pending and self.pending(blob.object, blob.offset, blob.length)
            if not body:
                body = self.context.cache.get_from_disk(cache_key(blob), partial(_check, blob))
            if body:
                cached[key] = body
            else:
                by_object[blob.object].append(blob)
        return cached, {
            request: [
                blob
                for blob in by_object[request.key]
                if request.range.start <= blob.offset and blob.offset + blob.length <= request.range.end
            ]
            for request in blob_requests(blob for some in by_object.values() for blob in some)
        }

    def get(self, request: BlobRequest) -> bytes:
        """Sends one of the requests of ``split``. Raises CorruptionError if the object is missing."""
        return fetch_deletes(self.context.store, request.key, *request.range)

    def cut(self, request: BlobRequest, blobs: Iterable[Blob | Vector], body: bytes) -> Iterator[tuple[BlobKey, bytes]]:
        """Yields the bytes of each blob of a request. Keeps intact ones on the disk; others fail later."""
        for blob in blobs:
            start = blob.offset - request.range.start
            own = body[start : start + blob.length]
            if self.context.cache.disk and crc32(own) == blob.crc32:
                self.context.cache.put_on_disk(cache_key(blob), own)
            yield blob_key(blob), own


def _check(blob: Blob | Vector, body: bytes) -> None:
    check_blob(body, blob)


@dataclass
class _KeysOfColumns:
    """The keys over one tuple of columns, whose current types are ``types``."""

    types: list[pa.DataType]
    parts: list[KeysInMemory] = field(default_factory=list)
    tombstones: list[KeysTombstone] = field(default_factory=list)
    lookups: list[KeysLookup] = field(default_factory=list)

    times: set[int] = field(default_factory=set)  # some timestamps of the parts; more than one if they differ
    codes_bytes: int = 0
    values_bytes: int = 0

    def add(self, part: KeysInMemory) -> None:
        self.parts.append(part)
        self.times |= {int(part.ts.min()), int(part.ts.max())}
        self.codes_bytes += part.codes.nbytes
        self.values_bytes += sum(array.nbytes for array in part.arrays)

    @property
    def bytes(self) -> int:
        """The memory of the parts while they are merged. A timestamp that all share takes none."""
        return (4 if len(self.times) == 1 else 6) * self.codes_bytes + 2 * self.values_bytes


class KeysGathering:
    """Makes lookups of the keys of any number of tombstones of a table in bounded memory.

    It collects keys up to a limit. Then it sorts the largest collection and drops duplicates. If the result is still
    large, it becomes a lookup in a temporary file.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._by_columns: dict[tuple[int, ...], _KeysOfColumns] = {}

    def add(self, tombstones: Sequence[KeysTombstone], keys: pa.Table, ts: Int64s | None = None) -> None:
        """Adds keys of tombstones over the same columns, by default with the timestamp of the only tombstone.

        The columns are named by id, and may have earlier types.
        """
        columns = tombstones[0].columns
        gathered = self._by_columns.get(columns)
        if gathered is None:
            types = [self._schema.by_id[id_].arrow_type for id_ in columns]
            gathered = self._by_columns[columns] = _KeysOfColumns(types)
        if ts is None:
            ts = np.broadcast_to(np.int64(tombstones[0].ts), keys.num_rows)
        names = [str(id_) for id_ in columns]
        whole = widen_keys(keys, pa.schema(zip(names, gathered.types, strict=True))).combine_chunks()
        if whole.num_rows:
            gathered.add(KeysInMemory.of([column.chunk(0) for column in whole.columns], ts))
        if not gathered.tombstones or gathered.tombstones[-1] is not tombstones[0]:  # else the next part of a list
            gathered.tombstones += tombstones
        while sum(each.bytes for each in self._by_columns.values()) > MEMORY_BYTES:
            self._make_room()

    def finish(self) -> dict[tuple[int, ...], tuple[KeysLookup, ...]]:
        """All keys as lookups, by their columns."""
        found: dict[tuple[int, ...], tuple[KeysLookup, ...]] = {}
        for columns, gathered in self._by_columns.items():
            if gathered.parts:
                keys = KeysInMemory.merge(gathered.parts)
                gathered.lookups.append(KeysLookup(columns, gathered.types, keys, gathered.tombstones))
            found[columns] = tuple(gathered.lookups)
        self._by_columns = {}
        return found

    def _make_room(self) -> None:
        columns, most = max(self._by_columns.items(), key=lambda item: item[1].bytes)
        keys = KeysInMemory.merge(most.parts)
        rest = self._by_columns[columns] = _KeysOfColumns(most.types, tombstones=most.tombstones, lookups=most.lookups)
        rest.add(keys)
        if rest.bytes > most.bytes // 2:  # there were few duplicates
            rest.lookups.append(KeysLookup(columns, most.types, KeysOnDisk(keys), most.tombstones))
            self._by_columns[columns] = _KeysOfColumns(
                most.types, tombstones=most.tombstones[-1:], lookups=rest.lookups
            )


def group_by_types(tombstones: Sequence[KeysTombstone]) -> list[list[KeysTombstone]]:
    """Groups tombstones over the same columns of the same types."""
    alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[KeysTombstone]] = defaultdict(list)
    for tombstone in tombstones:
        alike[tombstone.columns, tombstone.types].append(tombstone)
    return list(alike.values())


def tombstones_to_fetch(tombstones: Iterable[Tombstone], cache: ObjectCache) -> list[Tombstone]:
    """Lists the tombstones whose content is neither in the manifest nor in the cache."""
    return [
        t
        for t in tombstones
        if (t.predicate if isinstance(t, WhereTombstone) else t.values) is None and cache_key(t.blob) not in cache
    ]


def load_deletes(tombstones: Sequence[Tombstone], schema: Schema, reader: BlobReader) -> Deletes:
    """Fetches the deletes that are not in the manifest, and prepares all of them, in bounded memory.

    Raises CorruptionError; LimitError if there is no room on the disk for keys that don't fit into memory.
    """
    cache, predicates = reader.context.cache, dict[Blob, Predicate]()
    keys = KeysGathering(schema)
    # Inline keys need no request. They are decoded together: there may be thousands of short lists.
    for alike in group_by_types([t for t in tombstones if isinstance(t, KeysTombstone) and t.values is not None]):
        for start in range(0, len(alike), _INLINE_TOGETHER):
            some = alike[start : start + _INLINE_TOGETHER]
            counts = [len(each.values[0]) if each.values else 0 for each in some]
            keys.add(some, all_inline_keys(some), np.repeat(np.array([each.ts for each in some], np.int64), counts))
    # Take cached content before the first fetch.
    missing: dict[BlobKey, list[Tombstone]] = defaultdict(list)
    lists: list[KeysTombstone] = []
    for tombstone in tombstones:
        if isinstance(tombstone, KeysTombstone):
            if tombstone.values is not None:
                continue
            lists.append(tombstone)
        found: Any = inline_predicate(tombstone, schema) or cache.get(cache_key(tombstone.blob))
        if found is None:
            missing[blob_key(tombstone.blob)].append(tombstone)
        elif isinstance(tombstone, WhereTombstone):
            predicates[tombstone.blob] = days_to_timestamps(found, schema.widened_types)
        else:
            keys.add([tombstone], found)
    # Long lists of keys are decoded in parts, and are not cached.
    few = sum(each.count for each in lists) <= _CACHED_KEYS and sum(t.blob.length for t in lists) <= _CACHED_BYTES
    for key, body in reader.stream(each[0].blob for each in missing.values()):
        for tombstone in missing[key]:
            if isinstance(tombstone, WhereTombstone):
                predicate = recorded_predicate(body, tombstone.blob)
                cache.put(cache_key(tombstone.blob), predicate, 4 * len(body))
                predicates[tombstone.blob] = days_to_timestamps(predicate, schema.widened_types)
            elif few:
                whole = decode_keys(body, tombstone)
                cache.put(cache_key(tombstone.blob), whole, whole.nbytes)
                keys.add([tombstone], whole)
            else:
                for part in decode_keys_in_parts(body, tombstone):
                    keys.add([tombstone], part)
    return Deletes(predicates, keys.finish())


class VectorRequest(Struct, frozen=True):
    """One GET, and the files whose vectors it fetches, by the key of the vector."""

    request: BlobRequest
    files: dict[BlobKey, list[tuple[DataFile, Vector]]]


class VectorReader(Struct, frozen=True):
    """Reads vectors of data files, from the cache or with few requests."""

    context: Context
    blobs: BlobReader

    def read(self, files: Sequence[DataFile]) -> dict[str, BitMap]:
        """The vectors of the files that have one, by the path of the file. Raises CorruptionError."""
        bitmaps, requests = self.split(files)
        for some in self.context.runtime.map(self.fetch, requests):
            bitmaps |= some
        return bitmaps

    def split(self, files: Sequence[DataFile]) -> tuple[dict[str, BitMap], list[VectorRequest]]:
        """Splits vectors into those that need no request, by path of the file, and the requests for the others."""
        bitmaps: dict[str, BitMap] = {}
        missing: dict[BlobKey, list[tuple[DataFile, Vector]]] = defaultdict(list)
        for file in files:
            if file.vector is not None:
                bitmap = self.context.cache.get(cache_key(file.vector))
                if bitmap is None:
                    missing[blob_key(file.vector)].append((file, file.vector))
                else:
                    bitmaps[file.path] = bitmap
        cached, fetched = self.blobs.split(vector for some in missing.values() for _, vector in some)
        for key, body in cached.items():
            bitmaps |= self._decode(missing[key], body)
        requests = [
            VectorRequest(request, {blob_key(blob): missing[blob_key(blob)] for blob in some})
            for request, some in fetched.items()
        ]
        return bitmaps, requests

    def fetch(self, request: VectorRequest) -> dict[str, BitMap]:
        """Sends a request. Returns its vectors, by the path of their file. Raises CorruptionError."""
        body = self.blobs.get(request.request)
        bitmaps: dict[str, BitMap] = {}
        blobs = [files[0][1] for files in request.files.values()]
        for key, blob_body in self.blobs.cut(request.request, blobs, body):
            bitmaps |= self._decode(request.files[key], blob_body)
        return bitmaps

    def _decode(self, files: list[tuple[DataFile, Vector]], body: bytes) -> dict[str, BitMap]:
        bitmaps: dict[str, BitMap] = {}
        for file, vector in files:
            bitmap = decode_vector(body, vector, file.rows)
            self.context.cache.put(cache_key(vector), bitmap, vector.length)
            bitmaps[file.path] = bitmap
        return bitmaps


def vector_bytes(plan: FilePlan) -> int:
    return plan.file.vector.length if plan.file.vector else 0


class ErasureMatcher(Struct, frozen=True):
    """Matches rows with the deletes of erasures, which are the only ones in ``entry``."""

    entry: TableEntry
    deletes: Deletes

    @classmethod
    def of(cls, context: Context, entry: TableEntry, erasures: Iterable[Erasure]) -> ErasureMatcher | None:
        """The matcher of a table with this whole entry; None if no erasure reaches it."""
        bare = msgspec.structs.replace(entry, tombstones=(), segments=(), files=())
        entry = with_erasures(bare, erasures, context.segments)
        if not entry.tombstones:
            return None
        return cls(entry, load_deletes(entry.tombstones, entry.schema, BlobReader(context)))

    @property
    def columns(self) -> frozenset[int]:
        return frozenset(id_ for tombstone in self.entry.tombstones for id_ in tombstone.columns)

    def mask(self, columns: Mapping[int, pa.Array], rows: int) -> Mask:
        """A mask of the rows that were erased. Columns, by id, that are missing have their defaults."""
        schema, arrays = self.entry.schema, dict(columns)
        dropped = {field.id for field in schema.dropped}
        for id_ in self.columns - arrays.keys():
            field = schema.by_id[id_]
            arrays[id_] = constant(None if id_ in dropped else field.write_default, field.arrow_type, rows)
        mask = np.zeros(rows, np.bool_)
        for lookups in self.deletes.lookups.values():
            for lookup in lookups:
                mask |= lookup.hidden_mask(Tuples([arrays[id_] for id_ in lookup.columns], lookup.types), 0)
        for id_ in columns.keys() & self.columns:  # rows to be written need no ids
            arrays[id_] = with_field_ids(arrays[id_], schema.by_id[id_].arrow_type)
        for predicate in self.deletes.predicates.values():
            mask |= to_mask(matches(predicate, arrays, rows))
        return mask


@dataclass
class ErasedRowsFilter:
    """Counts rows to be written that match an erasure in force, and leaves them out if ``leaves_out``."""

    matcher: ErasureMatcher
    leaves_out: bool
    count: int = 0

    def filter(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids = {field.name: field.id for field in self.matcher.entry.schema.fields}
        for batch in batches:
            columns = {ids[name]: column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            mask = self.matcher.mask(columns, batch.num_rows)
            matched_rows = int(np.count_nonzero(mask))
            self.count += matched_rows
            yield batch.filter(to_boolean_array(~mask)) if matched_rows and self.leaves_out else batch
