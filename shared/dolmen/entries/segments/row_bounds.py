"""Judges rows by their statistics alone: the rows of a data file, of a segment's files, or of a row group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from dolmen.format.column_history import widen
from dolmen.format.entries import Bounds, DataFile, KeysTombstone, Tombstone, bounds, constant_bounds
from dolmen.format.manifest import Segment
from dolmen.format.schema import Field, Schema, type_from_json
from dolmen.format.types import Plain, from_json
from dolmen.predicate import Predicate, StatsVerdict, columns, days_to_timestamps, judge
from dolmen.predicate import from_json as predicate_from_json

KeyBounds = Mapping[int, tuple[Plain, Plain]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Bounds of some rows that are judged together.

    Args:
        columns: bounds by the id of the column; those of a column that is not there are unknown.
        rows: number of rows.
        applied_through: tombstones up to this timestamp hide none of the rows.
    """

    columns: Mapping[int, Bounds]
    rows: int
    applied_through: int = 0

    @classmethod
    def of(cls, file: DataFile | Segment, schema: Schema, ids: Collection[int]) -> RowBounds:
        """The bounds of a file, or of all files of a segment. Columns that the schema no longer has are left out.

        Args:
            ids: the columns.
        """
        fields = schema.by_id
        known = {id_: column_bounds(file, fields[id_]) for id_ in ids if id_ in fields}
        return cls(known, file.rows, file.applied_through)

    def judge(self, predicate: Predicate) -> StatsVerdict:
        """Judges whether a predicate is TRUE for all, some or none of the rows."""
        return judge(predicate, self.columns, self.rows)

    def one_tuple(self, ids: Iterable[int]) -> tuple[Plain, ...] | None:
        """The one tuple of values that all rows have; None if they may differ, or one may be NULL.

        Bounds that were cut are never equal, so equal ones are the value itself.
        """
        found: list[Plain] = []
        for id_ in ids:
            own = self.columns.get(id_)
            if own is None or own.min is None or own.nulls != 0 or own.min != own.max:
                return None
            found.append(own.min)
        return tuple(found)


def undecided(judged: Iterable[tuple[T, StatsVerdict]]) -> list[T] | None:
    """The deletes that may hide some of the rows by which they were judged; None if one of them hides all."""
    found: list[T] = []
    for delete, verdict in judged:
        if verdict is StatsVerdict.ALWAYS:
            return None
        if verdict is StatsVerdict.MAYBE:
            found.append(delete)
    return found


def may_hold_matches(file: DataFile | Segment, predicate: Predicate, schema: Schema) -> bool:
    """Whether a file, or some file of a segment, may have a row for which a predicate is TRUE.

    Args:
        schema: the table's, which gives the types of the statistics.
    """
    return RowBounds.of(file, schema, columns(predicate)).judge(predicate) is not StatsVerdict.NEVER


def may_match(tombstone: Tombstone, file: DataFile | Segment, schema: Schema) -> bool:
    """Whether a tombstone may delete rows of a file, or of some file of a segment, whatever ``applied_through`` is.

    True for a predicate that is not in the entry.
    """
    if isinstance(tombstone, KeysTombstone):
        keys = key_bounds(tombstone, schema)
        return may_hold_keys(keys, RowBounds.of(file, schema, keys))
    predicate = inline_predicate(tombstone, schema)
    return file.rows > 0 if predicate is None else may_hold_matches(file, predicate, schema)


def column_bounds(file: DataFile | Segment, field: Field) -> Bounds:
    """Bounds of one column in a file, or in all files of a segment. All rows older than the column have one value."""
    stats = file.stats.get(field.id)
    if stats is None and 0 < greatest_ts(file) < field.added_ts:
        return constant_bounds(field.initial_default, field.arrow_type, file.rows)
    return bounds(stats, field.arrow_type)


def greatest_ts(file: DataFile | Segment) -> int:
    """Commit timestamp of the youngest row of a file, or of all files of a segment."""
    return file.greatest if isinstance(file, Segment) else file.greatest_row_ts


def inline_predicate(tombstone: Tombstone, schema: Schema) -> Predicate | None:
    """The predicate of a ``where`` tombstone whose entry has it; None for every other tombstone."""
    if isinstance(tombstone, KeysTombstone) or tombstone.predicate is None:
        return None
    return days_to_timestamps(_predicate(msgspec.json.encode(tombstone.predicate)), schema.widened_types)


@lru_cache(16_384)
def _predicate(document: bytes) -> Predicate:
    """Cached, because each scan, and each commit of a resolution, judges the same few tombstones."""
    return predicate_from_json(document)


def key_bounds(tombstone: KeysTombstone, schema: Schema) -> KeyBounds:
    """Least and greatest value of each column of a tombstone's keys, in the column's present type."""
    found = {}
    for id_, name, (least, greatest) in zip(tombstone.columns, tombstone.types, tombstone.bounds, strict=True):
        bound = type_from_json(name)
        wide = schema.widened_types.get(id_, bound)
        found[id_] = (widen(from_json(least, bound), bound, wide), widen(from_json(greatest, bound), bound, wide))
    return found


def may_hold_keys(keys: KeyBounds, rows: RowBounds) -> bool:
    """Whether some of the rows may have a tuple of values within ``keys``."""
    for id_, (least, greatest) in keys.items():
        own = rows.columns.get(id_)
        if own is not None and (own.nulls == rows.rows or _less(own.max, least) or _less(greatest, own.min)):
            return False
    return rows.rows > 0


def _less(a: Any, b: Any) -> bool:
    """Whether a < b is certain; None is unknown."""
    return a is not None and b is not None and bool(a < b)
