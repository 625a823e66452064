"""Judges by statistics alone whether a tombstone may hide rows of a data file, or of some file of a segment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, isfinite
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base.cached import cached_property
from dolmen.format.column_history import widened
from dolmen.format.entries import Bounds, DataFile, KeysTombstone, Tombstone, bounds, constant_bounds
from dolmen.format.keys import plain_values
from dolmen.format.manifest import Segment
from dolmen.format.schema import Field, Schema, type_from_json
from dolmen.format.types import Plain, from_json
from dolmen.predicate import Predicate, StatsVerdict, columns, days_to_timestamps, judge
from dolmen.predicate import from_json as predicate_from_json

KeyBounds = Mapping[int, tuple[Plain, Plain]]
Mask = npt.NDArray[np.bool_]
_Int64 = npt.NDArray[np.int64]
_INT64 = np.iinfo(np.int64)


def may_match(tombstone: Tombstone, file: DataFile | Segment, schema: Schema) -> bool:
    """Whether a tombstone may delete rows of a file, or of some file of a segment.

    Looks at statistics only, not at ``applied_through``. True for a predicate that is not in the entry.

    Args:
        schema: the table's, which gives the types of the statistics.
    """
    if isinstance(tombstone, KeysTombstone):
        ends = key_bounds(tombstone, schema)
        return may_hold_keys(ends, known_bounds(file, schema, ends), file.rows)
    predicate = inline_predicate(tombstone, schema)
    if predicate is None:
        return file.rows > 0
    return judge(predicate, known_bounds(file, schema, columns(predicate)), file.rows) is not StatsVerdict.NEVER


def known_bounds(file: DataFile | Segment, schema: Schema, ids: Collection[int]) -> dict[int, Bounds]:
    """Bounds of these columns by their statistics; columns that the schema no longer has are left out: unknown."""
    fields = schema.by_id
    return {id_: column_bounds(file, fields[id_]) for id_ in ids if id_ in fields}


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
    """The predicate of a ``where`` tombstone that stands in its entry; None for every other."""
    if isinstance(tombstone, KeysTombstone) or tombstone.predicate is None:
        return None
    return days_to_timestamps(_predicate(msgspec.json.encode(tombstone.predicate)), schema.widened_types)


@lru_cache(16_384)
def _predicate(document: bytes) -> Predicate:
    """Cached, because each scan, and each commit of a resolution, judges the same few tombstones."""
    return predicate_from_json(document)


def key_bounds(tombstone: Tombstone, schema: Schema) -> KeyBounds:
    """Least and greatest value of each column of a keys tombstone's tuples, in the types of now; nothing for others."""
    if not isinstance(tombstone, KeysTombstone):
        return {}
    found = {}
    for id_, name, (least, greatest) in zip(tombstone.columns, tombstone.types, tombstone.bounds, strict=True):
        bound = type_from_json(name)
        now = schema.widened_types.get(id_, bound)
        found[id_] = (widened(from_json(least, bound), bound, now), widened(from_json(greatest, bound), bound, now))
    return found


def may_hold_keys(keys: KeyBounds, known: Mapping[int, Bounds], rows: int) -> bool:
    """Whether rows with these bounds may have a tuple of values within ``keys``."""
    for id_, (least, greatest) in keys.items():
        own = known.get(id_)
        if own is not None and (own.nulls == rows or _less(own.max, least) or _less(greatest, own.min)):
            return False
    return rows > 0


def one_tuple(known: Iterable[Bounds | None]) -> tuple[Plain, ...] | None:
    """The one tuple of values that all rows with these bounds have; None if they may differ, or one may be NULL.

    Bounds that were cut are never equal, so that equal ones are the value itself.
    """
    found: list[Plain] = []
    for own in known:
        if own is None or own.min is None or own.nulls != 0 or own.min != own.max:
            return None
        found.append(own.min)
    return tuple(found)


def _less(a: Any, b: Any) -> bool:
    """Whether a < b is certain; None is unknown."""
    return a is not None and b is not None and bool(a < b)


@dataclass(frozen=True)
class KeyRanges:
    """Keys tombstones over the same columns of the same types: judged all at once, whatever their number.

    Args:
        tombstones: oldest first; at least one.
        places: the place of each among all tombstones of the table.
        ts: the timestamp of each.
        ends: the least and greatest values of each, by column.
    """

    tombstones: Sequence[KeysTombstone]
    places: _Int64
    ts: _Int64
    ends: Mapping[int, _Ends]

    @classmethod
    def each(cls, tombstones: Iterable[Tombstone], types: Mapping[int, pa.DataType]) -> list[KeyRanges]:
        """Groups the keys tombstones among all tombstones of a table by columns and types.

        Args:
            types: the types of now of columns that had a narrower one, by id.
        """
        alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[int]] = defaultdict(list)
        every = list(tombstones)
        for place, tombstone in enumerate(every):
            if isinstance(tombstone, KeysTombstone):
                alike[tombstone.columns, tombstone.types].append(place)
        return [cls._of([every[place] for place in places], places, types) for places in alike.values()]  # type: ignore[misc]

    @classmethod
    def _of(cls, tombstones: list[KeysTombstone], places: list[int], types: Mapping[int, pa.DataType]) -> KeyRanges:
        first = tombstones[0]
        ends = {}
        for at, (id_, name) in enumerate(zip(first.columns, first.types, strict=True)):
            bound = type_from_json(name)
            pairs = [tombstone.bounds[at] for tombstone in tombstones]
            plain = [plain_values([pair[end] for pair in pairs], bound) for end in (0, 1)]
            now = types.get(id_, bound)
            if now != bound:
                plain = [[widened(value, bound, now) for value in values] for values in plain]
            ends[id_] = _Ends.of(*plain)
        ts = np.array([tombstone.ts for tombstone in tombstones], np.int64)
        return cls(tombstones, np.array(places, np.int64), ts, ends)

    @property
    def columns(self) -> tuple[int, ...]:
        """Ids of the columns of the tuple."""
        return self.tombstones[0].columns

    @property
    def types(self) -> tuple[str, ...]:
        """Stored types of these columns when the tombstones were written."""
        return self.tombstones[0].types

    def hide_all(self, known: Mapping[int, Bounds], rows: int, applied_through: int) -> bool:
        """Whether one of them certainly hides all rows with these bounds: its only tuple is that of all the rows."""
        values = one_tuple(known.get(id_) for id_ in self.columns)
        if values is None or rows == 0:
            return False
        mask = (self.ts > applied_through) & self._single
        for ends, value in zip(self.ends.values(), values, strict=True):
            ends.keep_equal(mask, value)
        return bool(mask.any())

    @cached_property
    def _single(self) -> Mask:
        return np.array([tombstone.count == 1 for tombstone in self.tombstones], np.bool_)

    @cached_property
    def greatest_ts(self) -> int:
        """Timestamp of the youngest."""
        return int(self.ts.max())

    def some(self, mask: Mask) -> KeyRanges:
        """The tombstones of a mask, which must have one at least."""
        if mask.all():
            return self
        kept = np.flatnonzero(mask)
        ends = {id_: ends.some(kept) for id_, ends in self.ends.items()}
        return KeyRanges([self.tombstones[at] for at in kept.tolist()], self.places[kept], self.ts[kept], ends)

    def mask(self, known: Mapping[int, Bounds], rows: int, applied_through: int) -> Mask:
        """A mask of the tombstones that may hide rows with these bounds and this ``applied_through``."""
        mask = self.ts > applied_through
        if rows == 0:
            return np.zeros(len(mask), np.bool_)
        for id_, ends in self.ends.items():
            own = known.get(id_)
            if own is None:
                continue
            if own.nulls == rows:
                return np.zeros(len(mask), np.bool_)
            ends.narrow(mask, own)
        return mask


@dataclass(frozen=True)
class _Ends:
    """The least and greatest values of many tombstones in one column.

    Args:
        least, greatest: the integers themselves, or ranks among ``values``: -1 and ``len(values)`` when unknown.
        values: all distinct ends in ascending order, None where they are integers.
    """

    least: _Int64
    greatest: _Int64
    values: list[Any] | None

    @classmethod
    def of(cls, least: list[Plain], greatest: list[Plain]) -> _Ends:
        if set(map(type, least)) | set(map(type, greatest)) == {int}:
            try:
                return cls(np.array(least, np.int64), np.array(greatest, np.int64), None)
            except OverflowError:  # uint64 beyond the other's range
                pass
        values: list[Any] = sorted({end for ends in (least, greatest) for end in ends if end is not None})
        ranks = {value: rank for rank, value in enumerate(values)}
        return cls(
            np.array([-1 if end is None else ranks[end] for end in least], np.int64),
            np.array([len(values) if end is None else ranks[end] for end in greatest], np.int64),
            values,
        )

    def some(self, kept: _Int64) -> _Ends:
        return _Ends(self.least[kept], self.greatest[kept], self.values)

    def keep_equal(self, mask: Mask, value: Any) -> None:
        """Takes tombstones out of a mask whose least and greatest value are not both this one."""
        if self.values is not None:
            rank = bisect_left(self.values, value)
            there = rank < len(self.values) and self.values[rank] == value
        else:
            rank, there = value, isinstance(value, int) and _INT64.min <= value <= _INT64.max
        mask &= (self.least == rank) & (self.greatest == rank) if there else False

    def narrow(self, mask: Mask, own: Bounds) -> None:
        """Takes tombstones out of a mask that end before ``own`` begins, or begin after it ends."""
        least: Any = own.min
        greatest: Any = own.max
        if self.values is not None:
            if least is not None:
                mask &= self.greatest >= bisect_left(self.values, least)
            if greatest is not None:
                mask &= self.least < bisect_right(self.values, greatest)
            return
        if least is not None and isfinite(least):
            least = ceil(least)
            mask &= self.greatest >= least if least <= _INT64.max else False
        if greatest is not None and isfinite(greatest):
            greatest = floor(greatest)
            mask &= self.least <= greatest if greatest >= _INT64.min else False

    @property
    def extremes(self) -> tuple[Plain, Plain]:
        """The least and the greatest of all; None where one is unknown."""
        least, greatest = int(self.least.min()), int(self.greatest.max())
        if self.values is None:
            return least, greatest
        return (
            self.values[least] if least >= 0 else None,
            self.values[greatest] if greatest < len(self.values) else None,
        )
