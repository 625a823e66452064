"""The tombstones of a scan, ready to be applied: predicates decoded, keys made into lookups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dolmen.errors import CorruptionError, PredicateError
from dolmen.format.entries import Blob, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.keys import Keys, decode_keys
from dolmen.format.schema import Schema
from dolmen.format.tombstone_object import check_blob
from dolmen.predicate import Predicate, from_json
from dolmen.scan.blobs import BlobReader, Place, cache_key, place
from dolmen.scan.keys_lookup import KeysLookup
from dolmen.segments.judging import inline_predicate
from dolmen.segments.tombstones import Suspects
from dolmen.store.cache import ObjectCache


@dataclass(frozen=True)
class Deletes:
    """What a scan's tombstones say.

    Args:
        predicates: of ``where`` tombstones, by the place of their blob.
        lookups: of ``keys`` tombstones, by their columns: one for all of the same columns.
    """

    predicates: dict[Blob, Predicate]
    lookups: dict[tuple[int, ...], KeysLookup]

    def predicates_of(self, tombstones: Suspects | Iterable[Tombstone]) -> list[Predicate]:
        """The predicates among these tombstones."""
        where = tombstones.where if isinstance(tombstones, Suspects) else tombstones
        return [self.predicates[t.blob] for t in where if isinstance(t, WhereTombstone)]

    def lookups_of(self, tombstones: Suspects | Iterable[Tombstone]) -> list[KeysLookup]:
        """The lookups that these tombstones are in."""
        if isinstance(tombstones, Suspects):
            return [self.lookups[columns] for columns in tombstones.key_columns]
        return [self.lookups[columns] for columns in {t.columns for t in tombstones if isinstance(t, KeysTombstone)}]


def not_inline(tombstones: Iterable[Tombstone], cache: ObjectCache) -> list[Tombstone]:
    """The tombstones whose content has to be fetched."""
    return [
        t
        for t in tombstones
        if (t.predicate if isinstance(t, WhereTombstone) else t.values) is None and cache_key(t.blob) not in cache
    ]


def load_deletes(tombstones: Sequence[Tombstone], schema: Schema, reader: BlobReader, cache: ObjectCache) -> Deletes:
    """Fetches what does not stand in the manifest, and makes it ready.

    Raises:
        CorruptionError: a blob is not what its entry says.
    """
    predicates: dict[Blob, Predicate] = {}
    keys: dict[tuple[int, ...], list[tuple[KeysTombstone, Keys]]] = defaultdict(list)
    inline: dict[tuple[int, ...], list[KeysTombstone]] = defaultdict(list)
    held: dict[Place, Predicate | Keys | None] = {}
    others: list[Tombstone] = []
    for tombstone in tombstones:
        if isinstance(tombstone, KeysTombstone) and tombstone.values is not None:
            inline[tombstone.columns].append(tombstone)  # thousands of them are decoded together
        else:
            others.append(tombstone)
            held[place(tombstone.blob)] = inline_predicate(tombstone) or cache.get(cache_key(tombstone.blob))
    bodies = reader.read(t.blob for t in others if held[place(t.blob)] is None)
    for tombstone in others:
        found: Any = held[place(tombstone.blob)]
        if found is None:
            body = bodies[place(tombstone.blob)]
            found = _decode(tombstone, body)
            cache.put(cache_key(tombstone.blob), found, 4 * len(body))
        if isinstance(tombstone, WhereTombstone):
            predicates[tombstone.blob] = found
        else:
            keys[tombstone.columns].append((tombstone, found))
    lookups = {}
    for columns in keys.keys() | inline.keys():
        types = [schema.by_id[id_].arrow_type for id_ in columns]
        lookups[columns] = KeysLookup(keys.get(columns, ()), types, inline.get(columns, ()))
    return Deletes(predicates, lookups)


def _decode(tombstone: Tombstone, body: bytes) -> Predicate | Keys:
    if isinstance(tombstone, KeysTombstone):
        return decode_keys(body, tombstone)
    check_blob(body, tombstone.blob)
    try:
        return from_json(body)
    except PredicateError as error:
        raise CorruptionError(tombstone.blob.object, f"predicate at byte {tombstone.blob.offset}: {error}") from error
