"""Lookups of deleted keys. A lookup has the keys of all tombstones over the same columns, each with its latest delete.

Tuples of any types are looked up by their codes (``key_codes``). Values are compared where equal codes may be those of
different values.

Few keys are compared with every row. For more keys a prefilter in memory tests all rows: 4 to 8 bytes a key, or 1 to 2
if the keys are in a file. The few rows that pass are looked up in the sorted keys. Both are several times faster than
``pyarrow.compute.is_in``, which builds a hash table for every row group; it is used for few text keys, where it costs
less than the codes of all rows. Keys in a file are read in the order of the codes of the rows that passed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from functools import reduce
from tempfile import TemporaryFile
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.runtime import cached_property
from dolmen.base.temporary_files import explaining_full_disk
from dolmen.base.units import MIB
from dolmen.entries.segments.row_bounds import RowBounds
from dolmen.entries.segments.tombstone_judge import KeysTombstones
from dolmen.format.entries import KeysTombstone
from dolmen.format.types import Mask, to_array, to_mask
from dolmen.predicate.prune import StatsVerdict
from dolmen.rows.scan.key_codes import Int64s, codes, from_integers, is_exact

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: Fibonacci hashing (Knuth, TAOCP 3, section 6.4)

_MAX_BUCKET_BITS, _MOST_STEPS = 20, 16
"""The buckets by which hashes in memory are found, and how far they are searched one code after another."""

_SAMPLE_STEP = 1024  # one in this many codes of a file is also in memory

_SPAN = 128 * _SAMPLE_STEP  # the most codes that are read from a file at once: 1 MB

_BLOCK_BYTES = MIB  # the size of the blocks of values in a file; each block is read whole


class KeysInMemory(Struct, frozen=True, dict=True):
    """Keys in memory, which are one span.

    ``arrays`` are empty if codes are exact. Otherwise the values of ``codes[i]`` are at ``order[i]``; at ``i`` if
    ``order`` is None.
    """

    codes: Int64s
    ts: Int64s
    arrays: tuple[pa.Array, ...]
    order: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, arrays: Sequence[pa.Array], ts: Int64s) -> KeysInMemory:
        """Keys without NULL, in any order, for ``merge``; ``ts`` has the timestamp of each."""
        return cls(codes(arrays), ts, () if is_exact([array.type for array in arrays]) else tuple(arrays))

    @classmethod
    def merge(cls, parts: Sequence[KeysInMemory]) -> KeysInMemory:
        """The keys of one or more parts in the order of their codes, each of them once."""
        key_codes, ts = np.concatenate([part.codes for part in parts]), _concat_ts([part.ts for part in parts])
        # Lists are in order, and so are codes that are the values themselves: a stable sort merges them.
        if _is_one(ts) and not parts[0].arrays:
            key_codes.sort(kind="stable")
            key_codes = key_codes[_firsts_mask(key_codes)]
            return cls(key_codes, ts[: len(key_codes)], ())
        order = np.argsort(key_codes, kind=None if parts[0].arrays else "stable")
        key_codes, ts = key_codes[order], _take_ts(ts, order)
        arrays = [pa.chunked_array(column).combine_chunks() for column in zip(*(p.arrays for p in parts), strict=True)]
        if any(part.order is not None for part in parts):
            starts = np.cumsum([0, *(len(part.arrays[0]) for part in parts)])
            own = [np.arange(part.count) if part.order is None else part.order for part in parts]
            order = np.concatenate([start + each for start, each in zip(starts, own, strict=False)])[order]
        is_first = _firsts_mask(key_codes)
        if arrays and not is_first.all():
            alike = np.flatnonzero(~is_first)  # keys after one of the same code, which may still differ
            is_first[alike] = ~_equal(_take(arrays, order[alike]), _take(arrays, order[alike - 1]))
        if is_first.all():
            return cls(key_codes, ts, tuple(arrays), order.astype(np.int32) if arrays else None)
        firsts = np.flatnonzero(is_first)
        ts = ts[: len(firsts)] if _is_one(ts) else np.maximum.reduceat(ts, firsts)
        return cls(key_codes[firsts], ts, tuple(_take(arrays, order[firsts])))  # without the values of duplicates

    @property
    def count(self) -> int:
        return len(self.codes)

    def spans(self, ascending: Int64s) -> Iterator[tuple[Span, slice]]:
        """Yields the spans in which some ascending codes may be, and the codes that may be in each."""
        yield self, slice(0, len(ascending))

    def find(self, wanted: Int64s) -> Int64s:
        """The index of the first code that is not less than each of these, as ``np.searchsorted`` returns it."""
        if not self.arrays:
            return np.searchsorted(self.codes, wanted)
        # Hashes are spread evenly: few codes are in one bucket.
        buckets = _bucket(wanted, self._bucket_bits)
        at, ends = self._bucket_starts[buckets].astype(np.int64), self._bucket_starts[buckets + 1]
        searching = np.flatnonzero(at < ends)
        for _ in range(_MOST_STEPS):
            searching = searching[self.codes[at[searching]] < wanted[searching]]
            at[searching] += 1
            searching = searching[at[searching] < ends[searching]]
        at[searching] = np.searchsorted(self.codes, wanted[searching])
        return at

    @cached_property
    def _bucket_bits(self) -> int:
        return min(_MAX_BUCKET_BITS, max(1, self.count.bit_length()))

    @cached_property
    def _bucket_starts(self) -> npt.NDArray[np.int32]:
        """The index of the first code in each bucket, and the number of codes."""
        counts = np.bincount(_bucket(self.codes, self._bucket_bits), minlength=1 << self._bucket_bits)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def take(self, indexes: Int64s) -> list[pa.Array]:
        return _take(self.arrays, indexes if self.order is None else self.order[indexes])

    def all(self, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], Int64s]:
        """All keys, by column, and the timestamp of each."""
        if not self.arrays:
            return [from_integers(self.codes, types[0])], self.ts
        is_in_order = self.order is None or _is_one(self.ts)  # with one timestamp, any order will do
        return list(self.arrays) if is_in_order else self.take(np.arange(self.count)), self.ts

    def may_hold(self, least: int, greatest: int, applied_through: int) -> bool:
        """True if there are codes between these two with a timestamp greater than ``applied_through``."""
        first, last = np.searchsorted(self.codes, least, "left"), np.searchsorted(self.codes, greatest, "right")
        return bool((self.ts[first:last] > applied_through).any())


def _bucket(key_codes: Int64s, bits: int) -> Int64s:
    """The first bits of each code, as a number that grows with the code."""
    buckets: Int64s = (key_codes >> np.int64(64 - bits)) + (1 << bits - 1)
    return buckets


def _is_one(ts: Int64s) -> bool:
    """True if timestamps are a single one in memory, repeated: see ``np.broadcast_to``."""
    return ts.strides[0] == 0


def _concat_ts(some: Sequence[Int64s]) -> Int64s:
    if all(map(_is_one, some)) and len({int(ts[0]) for ts in some}) == 1:
        return np.broadcast_to(some[0][0], sum(map(len, some)))
    return np.concatenate(some)


def _take_ts(ts: Int64s, indexes: Int64s) -> Int64s:
    return ts[: len(indexes)] if _is_one(ts) else ts[indexes]


def _firsts_mask(ascending: Int64s) -> Mask:
    """A mask of the first of each run of equal codes."""
    return np.append(ascending[:1] == ascending[:1], ascending[1:] != ascending[:-1])


class KeysOnDisk:
    """Merged keys in a temporary file: codes, timestamps, blocks of values. Raises LimitError if the disk is full."""

    def __init__(self, keys: KeysInMemory) -> None:
        self.count = keys.count
        self._block_rows = max(1, _BLOCK_BYTES * keys.count // max(1, sum(array.nbytes for array in keys.arrays)))
        self._schema = pa.schema([(str(index), array.type) for index, array in enumerate(keys.arrays)])
        self.prefilter = Prefilter.of(keys.codes, _SLOTS_ON_DISK)
        self._samples = keys.codes[::_SAMPLE_STEP].copy()
        self._greatest = int(keys.codes[-1])
        self._sample_ts = np.maximum.reduceat(keys.ts, np.arange(0, keys.count, _SAMPLE_STEP))
        self._blocks: list[tuple[int, int]] = []
        """Start and end of each block in the file."""
        self._file = self._write(keys)
        weakref.finalize(self, os.close, self._file)

    def _write(self, keys: KeysInMemory) -> int:
        """Writes the file, which has no name, and returns its descriptor."""
        explaining = explaining_full_disk("there are more unresolved deletes by key")
        with explaining, TemporaryFile(prefix="dolmen-") as file:
            file.write(keys.codes.data)
            file.write(np.ascontiguousarray(keys.ts).data)
            for start in range(0, self.count if keys.arrays else 0, self._block_rows):
                columns = keys.take(np.arange(start, min(start + self._block_rows, self.count)))
                block = pa.RecordBatch.from_arrays(columns, schema=self._schema).serialize()
                self._blocks.append((file.tell(), file.tell() + block.size))
                file.write(block)
            file.flush()
            return os.dup(file.fileno())

    def spans(self, ascending: Int64s) -> Iterator[tuple[Span, slice]]:
        first = max(0, int(np.searchsorted(self._samples, ascending[0], "left")) - 1)
        last = int(np.searchsorted(self._samples, ascending[-1], "right"))
        step = _SPAN // _SAMPLE_STEP
        for start in range(first, last, step):
            end = min(start + step, last)
            begin = np.searchsorted(ascending, self._samples[start], "left")
            stop = len(ascending)
            if end < len(self._samples):  # equal codes may be before and after a sample
                stop = int(np.searchsorted(ascending, self._samples[end], "right"))
            if begin < stop:
                yield (
                    _SpanOnDisk(self, start * _SAMPLE_STEP, min(end * _SAMPLE_STEP, self.count)),
                    slice(int(begin), stop),
                )

    def all(self, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], Int64s]:
        ts = self.integers(self.count, 2 * self.count)
        if not self._blocks:
            return [from_integers(self.integers(0, self.count), types[0])], ts
        blocks = [self.block(number) for number in range(len(self._blocks))]
        return [pa.concat_arrays(column) for column in zip(*(block.columns for block in blocks), strict=True)], ts

    def may_hold(self, least: int, greatest: int, applied_through: int) -> bool:
        if greatest < int(self._samples[0]) or self._greatest < least:
            return False
        first = max(0, int(np.searchsorted(self._samples, least, "right")) - 1)
        last = np.searchsorted(self._samples, greatest, "right")
        return bool((self._sample_ts[first:last] > applied_through).any())

    def integers(self, start: int, end: int) -> Int64s:
        """Some of the integers that the file begins with."""
        return np.frombuffer(self._read(8 * start, 8 * end), np.int64)

    def take(self, indexes: Int64s) -> list[pa.Array]:
        if not self._blocks:
            return []
        numbers = indexes // self._block_rows
        firsts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        batches = [
            self.block(int(part[0] // self._block_rows)).take(pa.array(part % self._block_rows))
            for part in np.split(indexes, firsts[1:])
        ]
        return [pa.concat_arrays(column) for column in zip(*(block.columns for block in batches), strict=True)]

    def block(self, number: int) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self._read(*self._blocks[number])), self._schema)

    def _read(self, start: int, end: int) -> bytes:
        body = os.pread(self._file, end - start, start)
        if len(body) != end - start:
            raise AssertionError(f"{len(body)} bytes of a temporary file at {start}, not {end - start}")
        return body


class _SpanOnDisk:
    """Some keys of a file. Codes are read at once, timestamps and values when they are needed."""

    def __init__(self, keys: KeysOnDisk, start: int, end: int) -> None:
        self._keys, self._start, self._end = keys, start, end
        self.codes = keys.integers(start, end)

    def find(self, wanted: Int64s) -> Int64s:
        return np.searchsorted(self.codes, wanted)

    @property
    def ts(self) -> Int64s:
        return self._keys.integers(self._keys.count + self._start, self._keys.count + self._end)

    def take(self, indexes: Int64s) -> list[pa.Array]:
        return self._keys.take(indexes + self._start)


Span: TypeAlias = KeysInMemory | _SpanOnDisk  # keys with ascending codes. ``take`` returns nothing if codes are exact.


def _take(arrays: Sequence[pa.Array], indexes: Int64s | npt.NDArray[np.int32]) -> list[pa.Array]:
    indices = pa.array(indexes)
    return [array.take(indices) for array in arrays]


def _equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    return reduce(np.logical_and, [to_mask(pc.equal(*columns)) for columns in zip(left, right, strict=True)])


_SLOTS_PER_KEY = 16  # of a table by value
_PREFILTER_SLOTS, _SLOTS_ON_DISK = 32, 8
_SLOTS_AT_ONCE = 1 << 17
_MAX_SLOT_BITS = 24

_FEW = 8  # up to this many keys are compared with every row, which costs less than a look-up in the prefilter

_IN_SET = 1024
"""Up to this many text keys become a hash table for each row group, which costs less than the codes of its rows."""


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
        return bool((self.codes[1:] >= self.codes[:-1]).all())


class ValueTable(Struct, frozen=True):
    """A mask of keys whose codes are exact and near each other, by distance from the least; it ends with False."""

    least: int
    mask: Mask

    @classmethod
    def of(cls, key_codes: Int64s) -> ValueTable | None:
        """The table of ascending codes; None if they are too far apart."""
        least, width = int(key_codes[0]), int(key_codes[-1]) - int(key_codes[0]) + 1
        if width > 1 << min(_MAX_SLOT_BITS, max(6, (_SLOTS_PER_KEY * len(key_codes)).bit_length())):
            return None
        mask = np.zeros(width + 1, np.bool_)
        mask[key_codes - least] = True
        return cls(least, mask)

    def possible(self, row_codes: Int64s) -> Mask:
        """A mask of the codes that are keys."""
        return self.mask[np.minimum((row_codes - np.int64(self.least)).view(np.uint64), len(self.mask) - 1)]


def slots(key_codes: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """The index of each code in a table of 2 to the ``bits`` slots."""
    hashed = key_codes.view(np.uint64) * _GOLDEN
    hashed >>= np.uint64(64 - bits)
    return hashed.view(np.int64)


class Prefilter(Struct, frozen=True):
    """A bit for each slot of a table, which is set if a key is there; few enough bits for a processor's cache."""

    bits: int  # the number of slots is 2 to this power
    table: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, key_codes: Int64s, slots_per_key: int) -> Prefilter:
        bits = min(_MAX_SLOT_BITS + 3, max(6, (slots_per_key * len(key_codes)).bit_length()))
        table = np.zeros(1 << bits - 3, np.uint8)
        for start in range(0, len(key_codes), _SLOTS_AT_ONCE):
            at = np.sort(slots(key_codes[start : start + _SLOTS_AT_ONCE], bits))
            octets = at >> 3
            firsts = np.flatnonzero(_firsts_mask(octets))
            table[octets[firsts]] |= np.bitwise_or.reduceat(np.uint8(1) << (at & 7).astype(np.uint8), firsts)
        return cls(bits, table)

    def possible(self, row_codes: Int64s) -> Mask:
        """A mask of the codes that may be keys."""
        at = slots(row_codes, self.bits)
        return ((self.table.take(at >> 3, mode="clip") >> (at & 7).astype(np.uint8)) & 1).view(np.bool_)


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
    def is_in_memory(self) -> bool:
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
    def _ranges(self) -> list[KeysTombstones]:
        return KeysTombstones.grouped(self._tombstones, dict(zip(self.columns, self.types, strict=True)))

    def judge(self, rows: RowBounds) -> StatsVerdict:
        if self._greatest_ts <= rows.applied_through:
            return StatsVerdict.NEVER
        if rows.rows and (values := rows.one_tuple(self.columns)):
            arrays = [to_array([value], kind) for value, kind in zip(values, self.types, strict=True)]
            is_hidden = self.hidden_mask(Tuples(arrays, self.types), rows.applied_through)[0]
            return StatsVerdict.ALWAYS if is_hidden else StatsVerdict.NEVER
        return StatsVerdict.MAYBE if self._may_match(rows) else StatsVerdict.NEVER

    def _may_match(self, rows: RowBounds) -> bool:
        bounds = rows.columns[self.columns[0]]
        has_codes = self._exact and not pa.types.is_uint64(self.types[0])
        if has_codes and isinstance(bounds.min, int) and isinstance(bounds.max, int):
            has_values = rows.rows > 0 and bounds.nulls != rows.rows
            return has_values and self._keys.may_hold(bounds.min, bounds.max, rows.applied_through)
        return any(ranges.tombstone_mask(rows).any() for ranges in self._ranges)

    def hidden_mask(self, rows: Tuples, applied_through: int) -> Mask:
        """A mask of the rows that are hidden in a file with this ``applied_through``."""
        keys, mask = self._keys, np.zeros(len(rows.arrays[0]), np.bool_)
        if self._greatest_ts <= applied_through or not len(mask):
            return mask
        if isinstance(keys, KeysInMemory):
            if keys.count <= _FEW:
                return self._mask_of_few(keys, rows, applied_through)
            if keys.count <= _IN_SET and len(keys.arrays) == 1:
                (younger,), _ = self.keys(applied_through)
                return to_mask(pc.is_in(rows.arrays[0], value_set=younger))
            if self._exact and not rows.nullable and rows.are_ascending:
                return self._mask_in_order(keys, rows.codes, applied_through)
        possible = self._filter.possible(rows.codes)
        if isinstance(self._filter, ValueTable) and self._least_ts > applied_through:
            return _not_null(possible, rows)
        at = np.flatnonzero(possible)
        if len(at):
            at = at[np.argsort(rows.codes[at])]  # looked up in their order, neighbours are in the processor's cache
            for span, some in keys.spans(rows.codes[at]):
                mask[self._find_matching(span, rows, at[some], applied_through)] = True
        return mask

    @cached_property
    def _filter(self) -> ValueTable | Prefilter:
        if isinstance(self._keys, KeysOnDisk):
            return self._keys.prefilter
        table = ValueTable.of(self._keys.codes) if self._exact else None
        return Prefilter.of(self._keys.codes, _PREFILTER_SLOTS) if table is None else table

    def _mask_of_few(self, keys: KeysInMemory, rows: Tuples, applied_through: int) -> Mask:
        """The mask for few keys: compares each key with all rows."""
        mask = np.zeros(len(rows.arrays[0]), np.bool_)
        columns, ts = keys.all(self.types)
        for index in np.flatnonzero(ts > applied_through).tolist():
            if self._exact:
                mask |= rows.codes == keys.codes[index]
            else:
                each = zip(rows.arrays, columns, strict=True)
                same = reduce(pc.and_, [pc.equal(array, column[index]) for array, column in each])
                mask |= to_mask(same.fill_null(False))
        return _not_null(mask, rows) if self._exact else mask

    def _mask_in_order(self, lookup_keys: KeysInMemory, ascending: Int64s, applied_through: int) -> Mask:
        """The mask for ascending values of one column: looks each key up among the rows."""
        mask = np.zeros(len(ascending), np.bool_)
        start, end = np.searchsorted(lookup_keys.codes, ascending[[0, -1]])
        keys = lookup_keys.codes[start : end + 1][lookup_keys.ts[start : end + 1] > applied_through]
        first, last = np.searchsorted(ascending, keys, "left"), np.searchsorted(ascending, keys, "right")
        is_present = last > first
        first, last = first[is_present], last[is_present]
        if int((last - first).max(initial=0)) <= 1:
            mask[first] = True
            return mask
        steps = np.zeros(len(ascending) + 1, np.int8)  # where rows of a key begin, and where they end
        steps[first] = 1
        steps[last] -= 1  # keys differ, so no two end at the same row
        return np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)

    def _find_matching(self, span: Span, rows: Tuples, at: Int64s, applied_through: int) -> Int64s:
        """Finds the rows among ``at`` (in the order of codes) whose key is in the span, with a younger timestamp."""
        parts: list[Int64s] = []
        indexes = span.find(rows.codes[at])
        ts = span.ts if self._least_ts <= applied_through else None
        while len(at):  # once, and again for rows whose code is that of several keys
            inside = np.minimum(indexes, len(span.codes) - 1)
            same = (inside == indexes) & (span.codes[inside] == rows.codes[at])
            at, indexes = at[same], indexes[same]
            is_key = self._equal(rows, at, span, indexes, ts, applied_through)
            parts.append(at[is_key])
            if self._exact:
                break
            at, indexes = at[~is_key], indexes[~is_key] + 1
        return np.concatenate(parts) if parts else at

    def _equal(
        self, rows: Tuples, at: Int64s, span: Span, indexes: Int64s, ts: Int64s | None, applied_through: int
    ) -> Mask:
        """A mask of the rows that have these keys, if the keys are younger. Compares values: codes may collide."""
        same = np.ones(len(at), np.bool_) if ts is None else ts[indexes] > applied_through
        for array in rows.nullable:
            same &= to_mask(pc.is_valid(array.take(pa.array(at))))
        if self._exact or not same.any():
            return same
        if not same.all():
            same[same] = _equal(_take(rows.arrays, at[same]), span.take(indexes[same]))
            return same
        return _equal(_take(rows.arrays, at), span.take(indexes))


def _not_null(mask: Mask, rows: Tuples) -> Mask:
    """A mask over one column without its NULLs."""
    for array in rows.nullable:
        mask &= to_mask(pc.is_valid(array))
    return mask
