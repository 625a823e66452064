"""The tombstones of a scan, ready to be applied: predicates decoded, keys made into lookups.

Deletion vectors of data files: the requests that fetch them, and the bitmaps that they bring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap

from dolmen.base.cached import cached_property
from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.entries.segments.judging import inline_predicate
from dolmen.entries.segments.tombstone_judge import Suspects
from dolmen.errors import CorruptionError, PredicateError
from dolmen.format.delete_object import check_blob, decode_vector
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, Vector, WhereTombstone
from dolmen.format.keys import all_inline_keys, decode_keys, decode_keys_in_parts
from dolmen.format.schema import Schema
from dolmen.predicate import Predicate, days_to_timestamps, from_json
from dolmen.predicate.any_of import Conjunction
from dolmen.rows.scan.by_key.keys_lookup import KeysGathering, KeysLookup, group_by_types
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.view import BlobPlace, BlobReader, BlobRequest, cache_key, place
from dolmen.store.cache import ObjectCache

_CACHED_KEYS, _CACHED_BYTES = 1_000_000, 8 * MIB
"""Keys are kept decoded for other scans when a scan needs no more than so many, of lists of so many bytes."""


_INLINE_TOGETHER = 1_000
"""The most inline lists of keys that are decoded at once."""


@dataclass(frozen=True)
class Deletes:
    """The deletes of a scan's tombstones, ready to be applied.

    Args:
        predicates: of ``where`` tombstones, by the place of their blob.
        lookups: of ``keys`` tombstones, by their columns: one for all of the same columns if these are not too many.
    """

    predicates: dict[Blob, Predicate]
    lookups: dict[tuple[int, ...], tuple[KeysLookup, ...]]

    @cached_property
    def _conjunctions(self) -> dict[Blob, Conjunction]:
        return {blob: Conjunction(predicate) for blob, predicate in self.predicates.items()}

    def predicates_of(self, tombstones: Suspects | Iterable[Tombstone]) -> list[Conjunction]:
        """The predicates among these tombstones."""
        where = tombstones.where if isinstance(tombstones, Suspects) else tombstones
        return [self._conjunctions[t.blob] for t in where if isinstance(t, WhereTombstone)]

    def lookups_of(self, tombstones: Suspects | Iterable[Tombstone]) -> list[KeysLookup]:
        """The lookups that these tombstones are in."""
        if isinstance(tombstones, Suspects):
            names = tombstones.key_columns
        else:
            names = list(dict.fromkeys(t.columns for t in tombstones if isinstance(t, KeysTombstone)))
        return [lookup for columns in names for lookup in self.lookups[columns]]


def tombstones_to_fetch(tombstones: Iterable[Tombstone], cache: ObjectCache) -> list[Tombstone]:
    """Lists the tombstones whose content is neither in the manifest nor in the cache."""
    return [
        t
        for t in tombstones
        if (t.predicate if isinstance(t, WhereTombstone) else t.values) is None and cache_key(t.blob) not in cache
    ]


def load_deletes(tombstones: Sequence[Tombstone], schema: Schema, reader: BlobReader, cache: ObjectCache) -> Deletes:
    """Fetches what does not stand in the manifest, and makes it ready, in bounded memory however many keys there are.

    Raises:
        CorruptionError: a blob is not what its entry says.
        LimitError: there is no room on the disk for keys that don't fit into memory.
    """
    predicates: dict[Blob, Predicate] = {}
    keys = KeysGathering(schema)
    for alike in group_by_types([t for t in tombstones if isinstance(t, KeysTombstone) and t.values is not None]):
        for start in range(0, len(alike), _INLINE_TOGETHER):
            some = alike[start : start + _INLINE_TOGETHER]
            counts = [len(each.values[0]) if each.values else 0 for each in some]
            keys.add(some, all_inline_keys(some), np.repeat(np.array([each.ts for each in some], np.int64), counts))
    wanted: dict[BlobPlace, list[Tombstone]] = defaultdict(list)
    lists: list[KeysTombstone] = []
    for tombstone in tombstones:
        if isinstance(tombstone, KeysTombstone):
            if tombstone.values is not None:
                continue
            lists.append(tombstone)
        found: Any = inline_predicate(tombstone, schema) or cache.get(cache_key(tombstone.blob))
        if found is None:
            wanted[place(tombstone.blob)].append(tombstone)
        elif isinstance(tombstone, WhereTombstone):
            predicates[tombstone.blob] = days_to_timestamps(found, schema.widened_types)
        else:
            keys.add([tombstone], found)
    few = sum(each.count for each in lists) <= _CACHED_KEYS and sum(t.blob.length for t in lists) <= _CACHED_BYTES
    for where, body in reader.stream(each[0].blob for each in wanted.values()):
        for tombstone in wanted[where]:
            if isinstance(tombstone, WhereTombstone):
                predicate = _decode(tombstone, body)
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


def _decode(tombstone: WhereTombstone, body: bytes) -> Predicate:
    check_blob(body, tombstone.blob)
    try:
        return from_json(body)
    except PredicateError as error:
        raise CorruptionError(tombstone.blob.object, f"predicate at byte {tombstone.blob.offset}: {error}") from error


VECTOR_BYTES = 16 * MIB
"""Vectors of consecutive files are fetched together up to this much."""


@dataclass(frozen=True)
class VectorRequest:
    """One GET, and the files whose vectors it brings, by the place of the vector."""

    request: BlobRequest
    files: dict[BlobPlace, list[tuple[DataFile, Vector]]]


@dataclass(frozen=True)
class VectorReader:
    """Reads vectors of data files, from the cache or with as few requests as their places allow."""

    context: Context
    blobs: BlobReader

    def read(self, files: Sequence[DataFile]) -> dict[str, BitMap]:
        """The vectors of files that have one, by the path of the file. Raises CorruptionError."""
        found, wanted = self.split(files)
        for some in self.context.runtime.map(self.fetch, wanted):
            found |= some
        return found

    def split(self, files: Sequence[DataFile]) -> tuple[dict[str, BitMap], list[VectorRequest]]:
        """The vectors that are here, by the path of their file, and the requests that bring the others."""
        found: dict[str, BitMap] = {}
        wanted: dict[BlobPlace, list[tuple[DataFile, Vector]]] = defaultdict(list)
        for file in files:
            if file.vector is not None:
                bitmap = self.context.cache.get(cache_key(file.vector))
                if bitmap is None:
                    wanted[place(file.vector)].append((file, file.vector))
                else:
                    found[file.path] = bitmap
        here, asked = self.blobs.split(vector for some in wanted.values() for _, vector in some)
        for where, body in here.items():
            found |= self._decode(wanted[where], body)
        requests = [
            VectorRequest(request, {place(blob): wanted[place(blob)] for blob in some})
            for request, some in asked.items()
        ]
        return found, requests

    def fetch(self, wanted: VectorRequest) -> dict[str, BitMap]:
        """Sends a request: its vectors, by the path of their file. Raises CorruptionError."""
        body = self.blobs.get(wanted.request)
        found: dict[str, BitMap] = {}
        some = [files[0][1] for files in wanted.files.values()]
        for where, own in self.blobs.cut(wanted.request, some, body):
            found |= self._decode(wanted.files[where], own)
        return found

    def _decode(self, wanted: list[tuple[DataFile, Vector]], body: bytes) -> dict[str, BitMap]:
        found: dict[str, BitMap] = {}
        for file, vector in wanted:
            bitmap = decode_vector(body, vector, file.rows)
            self.context.cache.put(cache_key(vector), bitmap, vector.length)
            found[file.path] = bitmap
        return found


def by_vector_bytes(files: Sequence[FilePlan], most: int) -> Iterator[Sequence[FilePlan]]:
    """Cuts files into runs whose vectors take at most ``most`` bytes, or are of one file."""
    held: list[FilePlan] = []
    size = 0
    for plan in files:
        length = plan.file.vector.length if plan.file.vector else 0
        if held and size + length > most:
            yield held
            held, size = [], 0
        held.append(plan)
        size += length
    if held:
        yield held
