"""Whether a tombstone may hide rows of a data file, or of any in a segment, judged by statistics alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from dolmen.format.entries import DataFile, KeysTombstone, Tombstone
from dolmen.format.manifest import Segment
from dolmen.format.schema import Schema, type_from_json
from dolmen.format.statistics import Bounds, bounds
from dolmen.format.values import Plain, from_json
from dolmen.predicate import Predicate, Verdict, columns, judge
from dolmen.predicate import from_json as predicate_from_json

KeyBounds = Mapping[int, tuple[Plain, Plain]]


def may_match(tombstone: Tombstone, file: DataFile | Segment, schema: Schema) -> bool:
    """Whether rows of a file, or of some file of a segment, may be among those that a tombstone names.

    Looks at statistics only, not at ``applied_through``. True when that is unknown: a long predicate is not fetched.

    Args:
        schema: the table's, by which the statistics are read.
    """
    if isinstance(tombstone, KeysTombstone):
        ends = key_bounds(tombstone)
        return may_hold_keys(ends, known_bounds(file, schema, ends), file.rows)
    predicate = inline_predicate(tombstone)
    if predicate is None:
        return file.rows > 0
    return judge(predicate, known_bounds(file, schema, columns(predicate)), file.rows) is not Verdict.NEVER


def known_bounds(file: DataFile | Segment, schema: Schema, ids: Collection[int]) -> dict[int, Bounds]:
    """What statistics tell of these columns; those that the schema has no more are left out: unknown."""
    stats, fields = file.stats, schema.by_id
    return {id_: bounds(stats.get(id_), fields[id_].arrow_type) for id_ in ids if id_ in fields}


def inline_predicate(tombstone: Tombstone) -> Predicate | None:
    """The predicate of a ``where`` tombstone that stands in its entry; None for every other."""
    if isinstance(tombstone, KeysTombstone) or tombstone.predicate is None:
        return None
    return _predicate(msgspec.json.encode(tombstone.predicate))


@lru_cache(4096)
def _predicate(document: bytes) -> Predicate:
    """The same few tombstones are judged again and again: by each commit of a resolution, by each scan."""
    return predicate_from_json(document)


def key_bounds(tombstone: Tombstone) -> KeyBounds:
    """Least and greatest value of each column of a keys tombstone's tuples; nothing for others."""
    if not isinstance(tombstone, KeysTombstone):
        return {}
    found = {}
    for id_, name, (least, greatest) in zip(tombstone.columns, tombstone.types, tombstone.bounds, strict=True):
        arrow_type = type_from_json(name)
        found[id_] = (from_json(least, arrow_type), from_json(greatest, arrow_type))
    return found


def may_hold_keys(keys: KeyBounds, known: Mapping[int, Bounds], rows: int) -> bool:
    """Whether rows with these bounds may have a tuple of values within ``keys``."""
    for id_, (least, greatest) in keys.items():
        own = known.get(id_)
        if own is not None and (own.nulls == rows or _less(own.max, least) or _less(greatest, own.min)):
            return False
    return rows > 0


def _less(a: Any, b: Any) -> bool:
    """Whether a < b is certain; None is unknown."""
    return a is not None and b is not None and bool(a < b)
