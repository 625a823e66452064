"""Matches rows that a change deleted with rows that it added: equal rows, and rows of the same key.

Deleted rows are buffered in memory and the others stream past them. If they do not fit, both go to temporary files in
parts by key, or by the whole row without a key, and part after part is matched.

Rows are compared bit by bit: NaN equals NaN, -0.0 is not 0.0, NULL equals NULL, also inside lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.temporary_files import BatchFile
from dolmen.base.units import MIB
from dolmen.format.types import Mask, to_mask
from dolmen.rows.write.row_digest import Hashes, row_hashes

Indexes: TypeAlias = npt.NDArray[np.int64]

MEMORY_BYTES = 64 * MIB
"""The most bytes of deleted rows that are buffered in memory; matching takes a few times as much."""

_LEVELS = 3  # rows that do not fit into memory are divided at most this many times: into 32,768 parts


def equal_rows(first: Sequence[pa.Array], second: Sequence[pa.Array]) -> Mask:
    """A mask of the indexes at which two groups of columns, of the same types and length, have the same row."""
    mask = np.ones(len(first[0]) if first else 0, np.bool_)
    for one, other in zip(first, second, strict=True):
        mask &= _equal(one, other)
    return mask


def _equal(first: pa.Array, second: pa.Array) -> Mask:
    same = _equal_values(first, second)
    if first.null_count or second.null_count:
        nulls, others = _nulls(first), _nulls(second)
        same = np.where(nulls | others, nulls & others, same)
    return same


def _equal_values(first: pa.Array, second: pa.Array) -> Mask:
    """The mask for values that are not NULL; its other values mean nothing."""
    kind = first.type
    if t.is_struct(kind):
        return equal_rows(first.flatten(), second.flatten())
    if t.is_list(kind) or t.is_map(kind):
        return _equal_lists(first, second)
    if t.is_floating(kind):
        bits = pa.int32() if t.is_float32(kind) else pa.int64()
        both_nan = to_mask(pc.and_(pc.is_nan(first), pc.is_nan(second)).fill_null(False))
        same_bits = pc.equal(first.view(bits), second.view(bits)).fill_null(False)
        return to_mask(same_bits) | both_nan
    return to_mask(pc.fill_null(pc.equal(first, second), False))


def _equal_lists(first: pa.Array, second: pa.Array) -> Mask:
    starts, lengths = _spans(first)
    others, other_lengths = _spans(second)
    same: Mask = lengths == other_lengths
    rows = np.flatnonzero(same & (lengths > 0))
    if len(rows):
        counts = lengths[rows]
        each = equal_rows(
            _elements(first, _offsets(starts[rows], counts)), _elements(second, _offsets(others[rows], counts))
        )
        same[rows] = np.logical_and.reduceat(each, np.cumsum(counts) - counts)
    return same


def _spans(array: pa.Array) -> tuple[Indexes, Indexes]:
    """The start of each list among the elements, and its length, which is 0 for NULL."""
    ends = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[_nulls(array)] = 0
    return ends[:-1], lengths


def _offsets(starts: Indexes, lengths: Indexes) -> Indexes:
    """The indexes of the elements of some lists, one list after the other."""
    firsts = np.cumsum(lengths) - lengths
    indexes: Indexes = np.repeat(starts - firsts, lengths) + np.arange(int(lengths.sum()))
    return indexes


def _elements(array: pa.Array, indexes: Indexes) -> list[pa.Array]:
    columns = [array.keys, array.items] if t.is_map(array.type) else [array.values]
    return [column.take(pa.array(indexes)) for column in columns]


def _nulls(array: pa.Array) -> Mask:
    return to_mask(array.is_null())


Change: TypeAlias = Literal["insert", "delete", "update_before", "update_after"]
Changed: TypeAlias = tuple[Change, pa.RecordBatch]


class RowMatcher:
    """Matches deleted and added rows by the columns ``key``, if any. With ``drop_equal``, equal rows are no change."""

    def __init__(
        self,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        drop_equal: bool,
        memory_bytes: int = MEMORY_BYTES,
        level: int = 0,
    ) -> None:
        self._schema, self._key, self._drop_equal = schema, list(key), drop_equal
        self._memory_bytes, self._level = memory_bytes, level

    def match(self, deleted: Iterator[pa.RecordBatch], inserted: Iterable[pa.RecordBatch]) -> Iterator[Changed]:
        """Yields the changes: the row of a key is deleted before another one is added. Raises LimitError."""
        if not self._key and not self._drop_equal:
            yield from chain(_each("delete", deleted), _each("insert", inserted))
            return
        buffered: list[pa.RecordBatch] = []
        size = 0
        for batch in deleted:
            buffered.append(batch)
            size += batch.nbytes
            if size > self._memory_bytes and self._level < _LEVELS:
                yield from self._match_parts(
                    chain(_each("delete", chain(buffered, deleted)), _each("insert", inserted))
                )
                return
        if buffered:
            yield from self._match_in_memory(buffered, inserted)
        else:
            yield from _each("insert", inserted)

    def match_mixed(self, changes: Iterator[Changed]) -> Iterator[Changed]:
        """Matches inserts and deletes of several commits, in any order."""
        buffered: list[Changed] = []
        size = 0
        for change in changes:
            buffered.append(change)
            size += change[1].nbytes
            if size > self._memory_bytes:
                yield from self._match_parts(chain(buffered, changes))
                return
        deleted = [batch for change, batch in buffered if change == "delete"]
        yield from self.match(iter(deleted), [batch for change, batch in buffered if change == "insert"])

    def _match_parts(self, changes: Iterable[Changed]) -> Iterator[Changed]:
        deleted, new = SpilledRows(self._schema, self._level), SpilledRows(self._schema, self._level)
        for change, batch in changes:
            hashes = row_hashes(batch.select(self._key) if self._key else batch)
            (deleted if change == "delete" else new).add(batch, hashes)
        deleted.finish()
        new.finish()
        inner = RowMatcher(
            self._schema,
            self._key,
            drop_equal=self._drop_equal,
            memory_bytes=self._memory_bytes,
            level=self._level + 1,
        )
        for part in range(PARTS):
            yield from inner.match(deleted.take(part), new.take(part))

    def _match_in_memory(self, buffered: list[pa.RecordBatch], inserted: Iterable[pa.RecordBatch]) -> Iterator[Changed]:
        deleted = _concatenate(buffered, self._schema)
        is_unmatched = np.ones(deleted.num_rows, np.bool_)
        equals = _Groups(row_hashes(deleted)) if self._drop_equal else None
        keys = deleted.select(self._key) if self._key else None
        key_hashes = None if keys is None else np.sort(row_hashes(keys))
        later: list[pa.RecordBatch] = []
        for batch in inserted:
            if equals is not None:
                rows, indexes = equals.take(row_hashes(batch))
                same = equal_rows(_columns(batch, rows), _columns(deleted, indexes))
                is_unmatched[indexes[same]] = False
                batch = _drop_rows(batch, rows[same])
            if key_hashes is not None:
                hashes = row_hashes(batch.select(self._key))
                at = np.minimum(np.searchsorted(key_hashes, hashes), len(key_hashes) - 1)
                may_pair = key_hashes[at] == hashes
                if may_pair.any():
                    later.append(batch.filter(pa.array(may_pair)))
                    batch = batch.filter(pa.array(~may_pair))
            if batch.num_rows:
                yield "insert", batch
        unmatched = deleted.filter(pa.array(is_unmatched))
        if later:
            yield from self._pair(unmatched, _concatenate(later, self._schema))
        elif unmatched.num_rows:
            yield "delete", unmatched

    def _pair(self, deleted: pa.RecordBatch, inserted: pa.RecordBatch) -> Iterator[Changed]:
        """Pairs rows of the same key; several of one key in their order."""
        keys, new = deleted.select(self._key), inserted.select(self._key)
        rows, indexes = _Groups(row_hashes(keys)).take(row_hashes(new))
        same = equal_rows(_columns(new, rows), _columns(keys, indexes))
        rows, indexes = rows[same], indexes[same]
        changes: list[Changed] = [
            ("delete", _drop_rows(deleted, indexes)),
            ("update_before", deleted.take(pa.array(indexes))),
            ("update_after", inserted.take(pa.array(rows))),
            ("insert", _drop_rows(inserted, rows)),
        ]
        yield from (change for change in changes if change[1].num_rows)


class _Groups:
    """Indexes of rows by their hashes; ``take`` returns each index once."""

    def __init__(self, hashes: Hashes) -> None:
        self._order = np.argsort(hashes, kind="stable")
        self._numbers, self._starts, self._counts = np.unique(
            hashes[self._order], return_index=True, return_counts=True
        )
        self._used_counts = np.zeros(len(self._numbers), np.int64)

    def take(self, hashes: Hashes) -> tuple[Indexes, Indexes]:
        """Takes indexes for rows with these hashes, while there are any. Returns the rows and their indexes."""
        if not len(self._numbers):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        order = np.argsort(hashes, kind="stable")
        ascending = hashes[order]
        group = np.minimum(np.searchsorted(self._numbers, ascending), len(self._numbers) - 1)
        rank = np.arange(len(ascending)) - np.searchsorted(ascending, ascending, "left") + self._used_counts[group]
        is_match = (self._numbers[group] == ascending) & (rank < self._counts[group])
        group, rank = group[is_match], rank[is_match]
        np.add.at(self._used_counts, group, 1)
        return order[is_match], self._order[self._starts[group] + rank]


def _each(change: Change, batches: Iterable[pa.RecordBatch]) -> Iterator[Changed]:
    return ((change, batch) for batch in batches)


def _columns(batch: pa.RecordBatch, indexes: Indexes) -> list[pa.Array]:
    return list(batch.take(pa.array(indexes)).columns)


def _drop_rows(batch: pa.RecordBatch, indexes: Indexes) -> pa.RecordBatch:
    if not len(indexes):
        return batch
    keep = np.ones(batch.num_rows, np.bool_)
    keep[indexes] = False
    return batch.filter(pa.array(keep))


def _concatenate(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of some batches as one. Empties the list, so that memory is freed."""
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    batches.clear()
    return batch.cast(schema) if batch.schema != schema else batch


PARTS_BITS = 5
PARTS = 1 << PARTS_BITS

_BUFFERED = 4 * MIB  # rows of all parts are collected up to this size before they are written


class SpilledRows:
    """Rows in temporary files, one for each part.

    ``level`` chooses the bits of a row's hash that give its part; the next level divides rows of one part further.
    """

    def __init__(self, schema: pa.Schema, level: int) -> None:
        self._schema, self._shift = schema, np.uint64(64 - PARTS_BITS * (level + 1))
        self._buffers: list[list[pa.RecordBatch]] = [[] for _ in range(PARTS)]
        self._files: dict[int, BatchFile] = {}
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """Adds rows with their hashes. Raises LimitError if the disk is full."""
        part_of = (hashes >> self._shift) & np.uint64(PARTS - 1)
        order = np.argsort(part_of, kind="stable")
        sorted_rows = batch.take(pa.array(order))
        ends = np.searchsorted(part_of[order], np.arange(PARTS + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(ends)).tolist():
            self._buffers[part].append(sorted_rows.slice(ends[part], ends[part + 1] - ends[part]))
        self._bytes += batch.nbytes
        if self._bytes > _BUFFERED:
            self._write()

    def finish(self) -> None:
        """Ends the files. Raises LimitError if the disk is full."""
        self._write()
        for file in self._files.values():
            file.finish()

    def take(self, part: int) -> Iterator[pa.RecordBatch]:
        """The rows of a part, whose file goes once they are read."""
        yield from self._files.pop(part, ())

    def _write(self) -> None:
        for part, batches in enumerate(self._buffers):
            if not batches:
                continue
            if part not in self._files:
                advice = "set TMPDIR to a directory that has more, or ask for fewer versions"
                self._files[part] = BatchFile(self._schema, "more rows were changed", advice)
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                self._files[part].write(batch)
            batches.clear()
        self._bytes = 0
