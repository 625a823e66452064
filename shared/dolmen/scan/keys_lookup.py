"""All keys tombstones over one tuple of columns as ONE lookup: value -> greatest timestamp that deletes it.

Rows are first sifted by a table of one byte per slot, about 16 slots a key, which is small enough for the
processor's cache; the few that pass are looked up in the sorted keys. Both are several times faster than building
a hash table of the keys for every row group, as ``pyarrow.compute.is_in`` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.entries import KeysTombstone
from dolmen.format.keys import Keys, all_inline_keys
from dolmen.format.statistics import Bounds
from dolmen.scan.key_codes import codes, is_exact, slots
from dolmen.segments.judging import KeyRanges

Mask = npt.NDArray[np.bool_]

_SLOTS_PER_KEY = 16
_MAX_SLOT_BITS = 24


class KeysLookup:
    """Tells which rows are hidden by some keys tombstones over the same columns.

    Args:
        tombstones: with their keys.
        types: the columns' types in the table now, to which older ones are cast: types only ever widen.
        inline: tombstones whose keys stand in their entries. There must be one at least of either kind.
    """

    def __init__(
        self,
        tombstones: Sequence[tuple[KeysTombstone, Keys]],
        types: Sequence[pa.DataType],
        inline: Sequence[KeysTombstone] = (),
    ) -> None:
        self._tombstones = [*(tombstone for tombstone, _ in tombstones), *inline]
        self.columns = self._tombstones[0].columns
        self._types = types
        self._given = tombstones, inline, types
        keys, ts = _merged(*self._given)
        self._exact = is_exact(types)
        found = codes(keys)
        order = np.argsort(found, kind="stable")
        self._codes, self._ts = found[order], ts[order]
        self._keys = [] if self._exact else [column.take(pa.array(order)) for column in keys]
        self._longest_run = 1 if self._exact else _longest_run(self._codes)
        self._bits = min(_MAX_SLOT_BITS, max(6, (_SLOTS_PER_KEY * len(found)).bit_length()))
        self._sieve = np.zeros(1 << self._bits, np.bool_)
        self._sieve[slots(self._codes, self._bits)] = True
        self._least_ts = int(ts.min())

    def keys(self) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
        """The distinct tuples, by column, and the greatest timestamp of each; made anew for each caller."""
        return _merged(*self._given)

    @cached_property
    def _ranges(self) -> list[KeyRanges]:
        """Asked only where the keys themselves can't tell."""
        return KeyRanges.each(self._tombstones)

    def may_match(self, known: Mapping[int, Bounds], rows: int, applied_through: int) -> bool:
        """Whether rows with these bounds may be hidden in a file with this ``applied_through``."""
        own = known[self.columns[0]]
        if (
            not self._exact
            or pa.types.is_uint64(self._types[0])
            or not isinstance(own.min, int)
            or not isinstance(own.max, int)
        ):
            return any(ranges.mask(known, rows, applied_through).any() for ranges in self._ranges)
        if rows == 0 or own.nulls == rows:
            return False
        first = np.searchsorted(self._codes, own.min, "left")
        last = np.searchsorted(self._codes, own.max, "right")
        return bool((self._ts[first:last] > applied_through).any())

    def hidden(self, arrays: Sequence[pa.Array], applied_through: int) -> Mask:
        """Which rows are hidden in a file with this ``applied_through``.

        Args:
            arrays: the columns of the tuple, in the order of ``columns``, as the file has them.
        """
        widened = [
            array if array.type == own else array.cast(own) for array, own in zip(arrays, self._types, strict=True)
        ]
        sifted = codes(widened)
        if self._exact and not widened[0].null_count and _is_ascending(sifted):
            return self._hidden_in_order(sifted, applied_through)
        mask = np.zeros(len(sifted), np.bool_)
        rows = np.flatnonzero(self._sieve[slots(sifted, self._bits)])
        first = np.searchsorted(self._codes, sifted[rows])
        for step in range(self._longest_run):
            place = np.minimum(first + step, len(self._codes) - 1)
            same = self._codes[place] == sifted[rows]
            if self._least_ts <= applied_through:
                same &= self._ts[place] > applied_through
            hits = rows[same]
            if len(hits):
                mask[hits] |= self._equal(widened, hits, place[same])
        return mask

    def _hidden_in_order(self, ascending: npt.NDArray[np.int64], applied_through: int) -> Mask:
        """The same for ascending values of one column: here each key is looked up among the rows."""
        mask = np.zeros(len(ascending), np.bool_)
        start, end = np.searchsorted(self._codes, ascending[[0, -1]] if len(ascending) else [0, 0])
        keys = self._codes[start : end + 1][self._ts[start : end + 1] > applied_through]
        first, last = np.searchsorted(ascending, keys, "left"), np.searchsorted(ascending, keys, "right")
        for step in range(int((last - first).max(initial=0))):  # as often as the most frequent key
            mask[first[first + step < last] + step] = True
        return mask

    def _equal(self, arrays: list[pa.Array], rows: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]) -> Mask:
        """Whether the tuples at these rows are these keys: NULL never is, and codes may collide."""
        same = np.ones(len(rows), np.bool_)
        picked_rows, picked_keys = pa.array(rows), pa.array(keys)
        for array in arrays:
            if array.null_count:
                same &= pc.is_valid(array.take(picked_rows)).to_numpy(zero_copy_only=False)
        for array, column in zip(arrays, self._keys, strict=False):
            equal = pc.equal(array.take(picked_rows), column.take(picked_keys))
            same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
        return same


def _merged(
    tombstones: Sequence[tuple[KeysTombstone, Keys]], inline: Sequence[KeysTombstone], types: Sequence[pa.DataType]
) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    """The distinct tuples of all tombstones, each with its greatest timestamp."""
    names = [str(id_) for id_ in (inline[0] if inline else tombstones[0][0]).columns]
    schema = pa.schema(zip(names, types, strict=True))
    tables = [
        keys.cast(schema).append_column("ts", pa.repeat(pa.scalar(tombstone.ts, pa.int64()), keys.num_rows))
        for tombstone, keys in tombstones
    ]
    by_types: dict[tuple[str, ...], list[KeysTombstone]] = defaultdict(list)
    for tombstone in inline:
        by_types[tombstone.types].append(tombstone)
    for alike in by_types.values():
        counts = [len(each.values[0]) if each.values else 0 for each in alike]
        ts = np.repeat(np.array([each.ts for each in alike], np.int64), counts)
        tables.append(all_inline_keys(alike).cast(schema).append_column("ts", pa.array(ts)))
    merged = pa.concat_tables(tables)
    if len(tombstones) + len(inline) > 1:
        merged = merged.group_by(names, use_threads=False).aggregate([("ts", "max")])
        merged = merged.rename_columns(["ts" if name == "ts_max" else name for name in merged.column_names])
    arrays = [merged[name].combine_chunks() for name in names]
    return arrays, merged["ts"].combine_chunks().to_numpy()


def _is_ascending(values: npt.NDArray[np.int64]) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _longest_run(ascending: npt.NDArray[np.int64]) -> int:
    starts = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
    return int(np.diff(np.append(starts, len(ascending))).max())
