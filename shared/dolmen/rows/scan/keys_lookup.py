"""Lookups of keys: all keys tombstones over one tuple of columns, as value -> greatest timestamp that deletes it.

Few keys are compared with every row. For more keys in memory a prefilter, a table of about 16 bytes a key, tests all
rows; the few rows that pass are looked up in the sorted keys. Both are several times faster than
``pyarrow.compute.is_in``, which builds a hash table for every row group; it is used for few text keys, where it costs
less than the codes of all rows. Keys in a file are read in the order of the rows' codes, as a row group needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.cached import cached_property
from dolmen.base.units import MIB
from dolmen.entries.segments.row_bounds import RowBounds
from dolmen.entries.segments.tombstone_judge import KeyRanges
from dolmen.format.arrow_arrays import to_mask
from dolmen.format.column_history import widened_keys
from dolmen.format.entries import KeysTombstone
from dolmen.format.schema import Schema
from dolmen.format.types import to_array
from dolmen.predicate import StatsVerdict
from dolmen.rows.scan.key_codes import Int64s, KeysInMemory, KeysOnDisk, Mask, Span, codes, is_exact, slots

_SLOTS_PER_KEY = 16
_MAX_SLOT_BITS = 24

_FEW = 8
"""Up to this many keys are compared with every row, which costs less than a look into the prefilter."""

_IN_SET = 1024
"""Up to this many text keys become a hash table for each row group, which costs less than the codes of its rows."""

MEMORY_BYTES = 32 * MIB
"""The most memory of keys, over all tuples of columns; about three times as much while they are sorted."""


class Tuples:
    """Rows' values of a tuple of columns, cast to the table's current types, for any number of lookups."""

    def __init__(self, arrays: Sequence[pa.Array], types: Sequence[pa.DataType]) -> None:
        self.arrays = [
            array if array.type == own else array.cast(own) for array, own in zip(arrays, types, strict=True)
        ]
        self.nullable = [array for array in self.arrays if array.null_count]

    @cached_property
    def codes(self) -> Int64s:
        return codes(self.arrays)

    @cached_property
    def are_ascending(self) -> bool:
        """True if the codes are in order."""
        return bool((self.codes[1:] >= self.codes[:-1]).all())

    @cached_property
    def order(self) -> Int64s:
        """The rows in the order of their codes."""
        return np.arange(len(self.codes)) if self.are_ascending else np.argsort(self.codes)

    @cached_property
    def ascending(self) -> Int64s:
        return self.codes if self.are_ascending else self.codes[self.order]


class KeysLookup:
    """Finds the rows that some merged keys over the same columns, of these tombstones, hide."""

    def __init__(
        self,
        columns: tuple[int, ...],
        types: Sequence[pa.DataType],
        keys: KeysInMemory | KeysOnDisk,
        tombstones: Sequence[KeysTombstone],
    ) -> None:
        self.columns, self.types = columns, types
        self._keys, self._tombstones = keys, tombstones
        self._exact = is_exact(types)
        self._least_ts = min(tombstone.ts for tombstone in tombstones)
        self._greatest_ts = max(tombstone.ts for tombstone in tombstones)

    @property
    def count(self) -> int:
        return self._keys.count

    @property
    def in_memory(self) -> bool:
        return isinstance(self._keys, KeysInMemory)

    def all_keys(self) -> list[pa.Array]:
        """All keys, by column, also those that hide only rows of older files. They must be in memory."""
        assert isinstance(self._keys, KeysInMemory)
        return self._keys.all(self.types)[0]

    def keys(self, applied_through: int) -> tuple[list[pa.Array], Int64s]:
        """The tuples that hide rows of files with this ``applied_through``, by column, and the timestamp of each."""
        arrays, ts = self._keys.all(self.types)
        if self._least_ts > applied_through:
            return arrays, ts
        younger = pa.array(ts > applied_through)
        return [array.filter(younger) for array in arrays], ts[ts > applied_through]

    @cached_property
    def _ranges(self) -> list[KeyRanges]:
        return KeyRanges.each(self._tombstones, dict(zip(self.columns, self.types, strict=True)))

    def judge(self, rows: RowBounds) -> StatsVerdict:
        """Judges whether all, some or none of the rows are hidden."""
        if self._greatest_ts <= rows.applied_through:
            return StatsVerdict.NEVER
        if rows.rows and (values := rows.one_tuple(self.columns)):
            arrays = [to_array([value], own) for value, own in zip(values, self.types, strict=True)]
            is_hidden = self.hidden_mask(Tuples(arrays, self.types), rows.applied_through)[0]
            return StatsVerdict.ALWAYS if is_hidden else StatsVerdict.NEVER
        return StatsVerdict.MAYBE if self._may_match(rows) else StatsVerdict.NEVER

    def _may_match(self, rows: RowBounds) -> bool:
        own = rows.columns[self.columns[0]]
        has_codes = self._exact and not pa.types.is_uint64(self.types[0])
        if has_codes and isinstance(own.min, int) and isinstance(own.max, int):
            has_values = rows.rows > 0 and own.nulls != rows.rows
            return has_values and self._keys.may_hold(own.min, own.max, rows.applied_through)
        return any(ranges.mask(rows).any() for ranges in self._ranges)

    def hidden_mask(self, rows: Tuples, applied_through: int) -> Mask:
        """A mask of the rows that are hidden in a file with this ``applied_through``."""
        keys, mask = self._keys, np.zeros(len(rows.arrays[0]), np.bool_)
        if self._greatest_ts <= applied_through or not len(mask):
            return mask
        if isinstance(keys, KeysInMemory):
            if keys.count <= _FEW:
                return self._mask_of_few(keys, rows, applied_through)
            if keys.count <= _IN_SET and len(keys.arrays) == 1:
                younger = keys.arrays[0].filter(pa.array(keys.ts > applied_through))
                return to_mask(pc.is_in(rows.arrays[0], value_set=younger))
        if isinstance(keys, KeysOnDisk):
            for span, some in keys.spans(rows.ascending):
                mask[self._matching(span, rows, rows.order[some], applied_through)] = True
            return mask
        if self._exact and not rows.nullable and rows.are_ascending:
            return self._mask_in_order(keys, rows.codes, applied_through)
        if self._table is None:
            possible = self._prefilter[slots(rows.codes, self._bits)]
        else:
            possible = self._table[np.minimum((rows.codes - keys.codes[0]).view(np.uint64), len(self._table) - 1)]
            if self._least_ts > applied_through:
                return _not_null(possible, rows)
        mask[self._matching(keys, rows, np.flatnonzero(possible), applied_through)] = True
        return mask

    @cached_property
    def _table(self) -> Mask | None:
        """A mask of the keys by distance from the least, with a last False; None if they are too far apart for it."""
        assert isinstance(self._keys, KeysInMemory)
        own = self._keys.codes
        width = int(own[-1]) - int(own[0]) + 1
        if not self._exact or width > 1 << self._bits:
            return None
        table = np.zeros(width + 1, np.bool_)
        table[own - own[0]] = True
        return table

    @cached_property
    def _bits(self) -> int:
        return min(_MAX_SLOT_BITS, max(6, (_SLOTS_PER_KEY * self._keys.count).bit_length()))

    @cached_property
    def _prefilter(self) -> Mask:
        assert isinstance(self._keys, KeysInMemory)
        prefilter = np.zeros(1 << self._bits, np.bool_)
        prefilter[slots(self._keys.codes, self._bits)] = True
        return prefilter

    def _mask_of_few(self, own: KeysInMemory, rows: Tuples, applied_through: int) -> Mask:
        """The mask for few keys: compares each key with all rows."""
        mask = np.zeros(len(rows.arrays[0]), np.bool_)
        for index in np.flatnonzero(own.ts > applied_through).tolist():
            if self._exact:
                mask |= rows.codes == own.codes[index]
            else:
                each = zip(rows.arrays, own.arrays, strict=True)
                same = reduce(pc.and_, [pc.equal(array, column[index]) for array, column in each])
                mask |= to_mask(same.fill_null(False))
        return _not_null(mask, rows) if self._exact else mask

    def _mask_in_order(self, own: KeysInMemory, ascending: Int64s, applied_through: int) -> Mask:
        """The mask for ascending values of one column: looks each key up among the rows."""
        mask = np.zeros(len(ascending), np.bool_)
        start, end = np.searchsorted(own.codes, ascending[[0, -1]])
        keys = own.codes[start : end + 1][own.ts[start : end + 1] > applied_through]
        first, last = np.searchsorted(ascending, keys, "left"), np.searchsorted(ascending, keys, "right")
        there = last > first
        first, last = first[there], last[there]
        if int((last - first).max(initial=0)) <= 1:
            mask[first] = True
            return mask
        steps = np.zeros(len(ascending) + 1, np.int8)  # where rows of a key begin, and where they end
        steps[first] = 1
        steps[last] -= 1  # keys differ, so no two end at the same row
        return np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)

    def _matching(self, span: Span, rows: Tuples, at: Int64s, applied_through: int) -> Int64s:
        """Finds those of the rows ``at``, in the order of codes for a span of a file, that are a younger key."""
        found: list[Int64s] = []
        indexes = np.searchsorted(span.codes, rows.codes[at])
        ts = span.ts if self._least_ts <= applied_through else None
        while len(at):  # once, and again for rows whose code is that of several keys
            inside = np.minimum(indexes, len(span.codes) - 1)
            same = (inside == indexes) & (span.codes[inside] == rows.codes[at])
            at, indexes = at[same], indexes[same]
            is_key = self._equal(rows, at, span, indexes, ts, applied_through)
            found.append(at[is_key])
            if self._exact:
                break
            at, indexes = at[~is_key], indexes[~is_key] + 1
        return np.concatenate(found) if found else at

    def _equal(
        self, rows: Tuples, at: Int64s, span: Span, indexes: Int64s, ts: Int64s | None, applied_through: int
    ) -> Mask:
        """A mask of the rows whose tuples are these keys, if these are younger. Codes may collide."""
        same = np.ones(len(at), np.bool_) if ts is None else ts[indexes] > applied_through
        for array in rows.nullable:
            same &= to_mask(pc.is_valid(array.take(pa.array(at))))
        if self._exact or not same.any():
            return same
        if not same.all():
            same[same] = _are_equal(rows, at[same], span.take(indexes[same]))
            return same
        return _are_equal(rows, at, span.take(indexes))


def _are_equal(rows: Tuples, at: Int64s, keys: list[pa.Array]) -> Mask:
    same: Mask = np.ones(len(at), np.bool_)
    picked = pa.array(at)
    for array, column in zip(rows.arrays, keys, strict=True):
        same &= to_mask(pc.equal(array.take(picked), column))
    return same


def _not_null(mask: Mask, rows: Tuples) -> Mask:
    """A mask over one column without its NULLs."""
    for array in rows.nullable:
        mask &= to_mask(pc.is_valid(array))
    return mask


@dataclass
class _KeysOfColumns:
    """The keys over one tuple of columns, whose current types are ``types``."""

    types: list[pa.DataType]
    parts: list[KeysInMemory] = field(default_factory=list)
    tombstones: list[KeysTombstone] = field(default_factory=list)
    lookups: list[KeysLookup] = field(default_factory=list)
    bytes: int = 0


class KeysGathering:
    """Makes lookups of the keys of any number of tombstones of a table in bounded memory.

    It collects keys up to a limit. Then it sorts the largest collection and drops duplicates; if much is left, that
    becomes a lookup in a temporary file.
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
            ts = np.full(keys.num_rows, tombstones[0].ts, np.int64)
        names = [str(id_) for id_ in columns]
        whole = widened_keys(keys, pa.schema(zip(names, gathered.types, strict=True))).combine_chunks()
        if whole.num_rows:
            part = KeysInMemory.of([column.chunk(0) for column in whole.columns], ts)
            gathered.parts.append(part)
            gathered.bytes += part.nbytes
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
        if keys.nbytes <= most.bytes // 2:  # there were many duplicates
            most.parts, most.bytes = [keys], keys.nbytes
            return
        most.lookups.append(KeysLookup(columns, most.types, KeysOnDisk(keys), most.tombstones))
        most.parts, most.bytes, most.tombstones = [], 0, most.tombstones[-1:]


def group_by_types(tombstones: Sequence[KeysTombstone]) -> list[list[KeysTombstone]]:
    """Groups tombstones over the same columns of the same types."""
    alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[KeysTombstone]] = defaultdict(list)
    for tombstone in tombstones:
        alike[tombstone.columns, tombstone.types].append(tombstone)
    return list(alike.values())
