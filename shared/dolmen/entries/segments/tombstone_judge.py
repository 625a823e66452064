"""Finds the tombstones that may hide rows of a table, by statistics, for many files and many tombstones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil, floor, isfinite
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.entries.segments.row_bounds import (
    Mask,
    RowBounds,
    in_range_mask,
    inline_predicate,
    may_match_mask,
    undecided_deletes,
    verdict_masks,
)
from dolmen.entries.segments.segment_reader import LiveSegment, Positions
from dolmen.format.column_history import widen
from dolmen.format.del_object import plain_values
from dolmen.format.entries import Blob, Bounds, DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import Segment
from dolmen.format.schema import Schema, type_from_json
from dolmen.format.types import Plain
from dolmen.predicate.ast import Column, Predicate
from dolmen.predicate.domains import domain_of
from dolmen.predicate.prune import StatsVerdict

_Int64 = npt.NDArray[np.int64]
_INT64 = np.iinfo(np.int64)

_SEVERAL = 8  # the least number of files for which a predicate judges all files of a segment at once

_MANY = 64  # with more predicates than this, files are not judged all at once: that would take longer than one by one


class KeysTombstones(Struct, frozen=True, dict=True):
    """Keys tombstones over the same columns of the same types, oldest first, judged all at once.

    ``indexes`` are their indexes among all tombstones; ``ends`` the least and greatest values, by column.
    """

    tombstones: Sequence[KeysTombstone]
    indexes: _Int64
    ts: _Int64
    ends: Mapping[int, _KeyEnds]

    @classmethod
    def grouped(cls, tombstones: Iterable[Tombstone], types: Mapping[int, pa.DataType]) -> list[KeysTombstones]:
        """Groups keys tombstones by columns and types; ``types`` are the present ones of columns that were widened."""
        groups: dict[tuple[tuple[int, ...], tuple[str, ...]], dict[int, KeysTombstone]] = defaultdict(dict)
        for index, tombstone in enumerate(tombstones):
            if isinstance(tombstone, KeysTombstone):
                groups[tombstone.columns, tombstone.types][index] = tombstone
        return [cls._of(list(group.values()), list(group), types) for group in groups.values()]

    @classmethod
    def _of(
        cls, tombstones: list[KeysTombstone], indexes: list[int], types: Mapping[int, pa.DataType]
    ) -> KeysTombstones:
        first = tombstones[0]
        ends = {}
        for at, (id_, name) in enumerate(zip(first.columns, first.types, strict=True)):
            bound = type_from_json(name)
            pairs = [tombstone.bounds[at] for tombstone in tombstones]
            plain = [plain_values([pair[end] for pair in pairs], bound) for end in (0, 1)]
            wide = types.get(id_, bound)
            if wide != bound:
                plain = [[widen(value, bound, wide) for value in values] for values in plain]
            ends[id_] = _KeyEnds.of(*plain)
        ts = np.array([tombstone.ts for tombstone in tombstones], np.int64)
        return cls(tombstones, np.array(indexes, np.int64), ts, ends)

    @property
    def columns(self) -> tuple[int, ...]:
        return self.tombstones[0].columns

    def hides_all(self, rows: RowBounds) -> bool:
        """Whether one of them certainly hides all rows: all rows have its only tuple."""
        values = rows.one_tuple(self.columns)
        if values is None or rows.rows == 0:
            return False
        mask = (self.ts > rows.applied_through) & self._single
        for ends, value in zip(self.ends.values(), values, strict=True):
            ends.keep_equal(mask, value)
        return bool(mask.any())

    @cached_property
    def _single(self) -> Mask:
        return np.array([tombstone.count == 1 for tombstone in self.tombstones], np.bool_)

    @cached_property
    def greatest_ts(self) -> int:
        return int(self.ts.max())

    def some(self, mask: Mask) -> KeysTombstones:
        """The tombstones of a mask, at least one."""
        if mask.all():
            return self
        kept = np.flatnonzero(mask)
        ends = {id_: ends.some(kept) for id_, ends in self.ends.items()}
        return KeysTombstones([self.tombstones[at] for at in kept.tolist()], self.indexes[kept], self.ts[kept], ends)

    def tombstone_mask(self, rows: RowBounds) -> Mask:
        """A mask of the tombstones that may hide some of the rows."""
        mask = self.ts > rows.applied_through
        if rows.rows == 0:
            return np.zeros(len(mask), np.bool_)
        for id_, ends in self.ends.items():
            own = rows.columns.get(id_)
            if own is None:
                continue
            if own.nulls == rows.rows:
                return np.zeros(len(mask), np.bool_)
            ends.narrow(mask, own)
        return mask


class _KeyEnds(Struct, frozen=True):
    """The least and greatest values of many tombstones in one column."""

    # least, greatest: the integers themselves, or ranks among ``values``: -1 and ``len(values)`` if unknown
    least: _Int64
    greatest: _Int64
    values: list[Any] | None  # all distinct ends in ascending order; None for integers

    @classmethod
    def of(cls, least: list[Plain], greatest: list[Plain]) -> _KeyEnds:
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

    def some(self, kept: _Int64) -> _KeyEnds:
        return _KeyEnds(self.least[kept], self.greatest[kept], self.values)

    def keep_equal(self, mask: Mask, value: Any) -> None:
        """Keeps those tombstones of a mask whose least and greatest value both equal ``value``."""
        if self.values is not None:
            rank = bisect_left(self.values, value)
            is_present = rank < len(self.values) and self.values[rank] == value
        else:
            rank, is_present = value, isinstance(value, int) and _INT64.min <= value <= _INT64.max
        mask &= (self.least == rank) & (self.greatest == rank) if is_present else False

    def narrow(self, mask: Mask, own: Bounds) -> None:
        """Removes tombstones from a mask that end before ``own`` begins, or begin after it ends."""
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
        """The least and the greatest of all; None if one is unknown."""
        least, greatest = int(self.least.min()), int(self.greatest.max())
        if self.values is None:
            return least, greatest
        has_greatest = greatest < len(self.values)
        return self.values[least] if least >= 0 else None, self.values[greatest] if has_greatest else None


class _WherePredicate(Struct, frozen=True):
    """A ``where`` tombstone, its index among all tombstones, and its predicate if that is known."""

    index: int
    tombstone: WhereTombstone
    predicate: Predicate | None

    def judge(self, rows: RowBounds) -> StatsVerdict:
        """Judges whether it hides all, some or none of the rows; some if its predicate is unknown."""
        if self.tombstone.ts <= rows.applied_through:
            return StatsVerdict.NEVER
        if self.predicate is not None:
            return rows.judge(self.predicate)
        return StatsVerdict.MAYBE if rows.rows else StatsVerdict.NEVER


class FileTombstones:
    """The tombstones that may hide rows of one file, oldest first.

    They are made into a list only on demand, because there may be ten thousand keys tombstones, the same for each of
    many files.

    Args:
        where: the ``where`` tombstones.
        key_groups: groups of keys tombstones. Of each group, those count that may hide some of ``rows``.
        rows: the bounds of the file's rows.
    """

    def __init__(
        self,
        where: tuple[_WherePredicate, ...] = (),
        key_groups: tuple[KeysTombstones, ...] = (),
        rows: RowBounds | None = None,
    ) -> None:
        self._where, self._key_groups, self._rows = where, key_groups, rows or RowBounds({}, 0)

    @property
    def where(self) -> list[WhereTombstone]:
        return [each.tombstone for each in self._where]

    @property
    def predicates(self) -> list[Predicate | None]:
        """The predicates of the ``where`` tombstones; None for an unknown one."""
        return [each.predicate for each in self._where]

    @property
    def key_columns(self) -> list[tuple[int, ...]]:
        """The columns of the keys tombstones."""
        return list(dict.fromkeys(group.columns for group in self._key_groups))

    def indexes(self) -> npt.NDArray[np.int64]:
        """Their indexes among all tombstones of the table, in no order."""
        where = np.array([each.index for each in self._where], np.int64)
        return np.concatenate([where, *(group.indexes[group.tombstone_mask(self._rows)] for group in self._key_groups)])

    def __bool__(self) -> bool:
        return bool(self._where or self._key_groups)

    def __len__(self) -> int:
        return len(self.indexes())

    def __iter__(self) -> Iterator[Tombstone]:
        found: list[tuple[int, Tombstone]] = [(each.index, each.tombstone) for each in self._where]
        for group in self._key_groups:
            kept = np.flatnonzero(group.tombstone_mask(self._rows))
            found += zip(group.indexes[kept].tolist(), (group.tombstones[at] for at in kept.tolist()), strict=True)
        return iter([tombstone for _, tombstone in sorted(found, key=itemgetter(0))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (FileTombstones, tuple)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


NO_TOMBSTONES = FileTombstones()


class TombstoneJudge:
    """Judges rows by their bounds against some tombstones, oldest first.

    ``predicates``: of the ``where`` tombstones, if they were loaded; by default, the ones in the entries.
    """

    def __init__(
        self, tombstones: Sequence[Tombstone], schema: Schema, predicates: Mapping[Blob, Predicate] | None = None
    ) -> None:
        def predicate(tombstone: WhereTombstone) -> Predicate | None:
            return inline_predicate(tombstone, schema) if predicates is None else predicates[tombstone.blob]

        where = [
            _WherePredicate(index, tombstone, predicate(tombstone))
            for index, tombstone in enumerate(tombstones)
            if isinstance(tombstone, WhereTombstone)
        ]
        self._set(where, KeysTombstones.grouped(tombstones, schema.widened_types), schema)

    def _set(self, where: Sequence[_WherePredicate], key_groups: Sequence[KeysTombstones], schema: Schema) -> None:
        self._where, self._key_groups, self._schema = where, key_groups, schema
        columns = (*(each.tombstone.columns for each in where), *(each.columns for each in key_groups))
        self.ids = frozenset(chain.from_iterable(columns))

    def __bool__(self) -> bool:
        return bool(self._where or self._key_groups)

    def of_segment(self, segment: Segment) -> TombstoneJudge:
        """The tombstones that may hide rows of some file of a segment."""
        if not self:
            return self
        rows = RowBounds.of(segment, self._schema, self.ids)
        where, key_groups = self._may_hide(rows)
        judge = TombstoneJudge.__new__(TombstoneJudge)
        judge._set(where, key_groups, self._schema)
        return judge

    def of_files(
        self, segment: LiveSegment, positions: Positions, files: Iterable[DataFile]
    ) -> Iterator[tuple[DataFile, Callable[[], FileTombstones | None]]]:
        """Pairs files of a segment, given by position and entry, with a function that returns their ``of_file``."""
        if len(positions) < _SEVERAL or not self._where or any(each.predicate is None for each in self._where):
            yield from ((file, partial(self.of_file, file)) for file in files)
            return
        through, ts = segment.applied_through()[positions], np.array([each.tombstone.ts for each in self._where])
        may = np.empty((len(positions), len(ts)), np.bool_)
        hides_all = np.zeros(len(positions), np.bool_)
        predicates = (each.predicate for each in self._where if each.predicate is not None)
        for at, (some, every) in enumerate(verdict_masks(predicates, segment.table)):
            younger = ts[at] > through
            may[:, at] = some[positions] & younger
            hides_all |= every[positions] & younger
        for file, row, is_hidden in zip(files, may, hides_all.tolist(), strict=True):
            where = [self._where[at] for at in np.flatnonzero(row).tolist()]
            yield file, (lambda: None) if is_hidden and file.rows else partial(self._of, file, where)

    def of_file(self, file: DataFile) -> FileTombstones | None:
        """The tombstones that may hide rows of a file; None if one of them certainly hides all."""
        if not self:
            return NO_TOMBSTONES
        rows = RowBounds.of(file, self._schema, self.ids)
        where = undecided_deletes((each, each.judge(rows)) for each in self._where)
        return None if where is None else self._of(file, where, rows)

    def judge_rows(self, rows: RowBounds) -> FileTombstones:
        """The tombstones that may hide some of the rows, or all of them."""
        where, key_groups = self._may_hide(rows)
        return FileTombstones(tuple(where), tuple(key_groups), rows)

    def _of(self, file: DataFile, where: list[_WherePredicate], rows: RowBounds | None = None) -> FileTombstones | None:
        """``of_file``, once the ``where`` tombstones that may hide some rows have been found."""
        rows = rows or RowBounds.of(file, self._schema, self.ids)
        if any(each.hides_all(rows) for each in self._key_groups):
            return None
        key_groups = tuple(each for each in self._key_groups if each.tombstone_mask(rows).any())
        own = {id_: rows.columns[id_] for each in key_groups for id_ in each.columns if id_ in rows.columns}
        return FileTombstones(tuple(where), key_groups, RowBounds(own, rows.rows, rows.applied_through))

    def _may_hide(self, rows: RowBounds) -> tuple[list[_WherePredicate], list[KeysTombstones]]:
        where = [each for each in self._where if each.judge(rows) is not StatsVerdict.NEVER]
        masks = ((group, group.tombstone_mask(rows)) for group in self._key_groups)
        return where, [group.some(mask) for group, mask in masks if mask.any()]

    def file_mask(self, segment: LiveSegment) -> Mask:
        """A mask of the segment's entries whose rows some tombstone may hide; perhaps too many."""
        mask = np.zeros(len(segment.table), np.bool_)
        if not self:
            return mask
        through = segment.applied_through()
        if len(self._where) > _MANY:
            mask |= through < max(each.tombstone.ts for each in self._where)
        else:
            for _, some in self.where_masks(segment):
                mask |= some
        for group in self._key_groups:
            mask |= (through < group.greatest_ts) & self._keys_mask(group, segment)
        return mask

    def where_masks(self, segment: LiveSegment) -> Iterator[tuple[Predicate | None, Mask]]:
        """Each ``where`` tombstone's predicate, if it is known, with a mask of the entries whose rows it may hide."""
        through = segment.applied_through()
        is_exact = len(self._where) <= _MANY
        for each in self._where:
            older = through < each.tombstone.ts
            if each.predicate is not None and is_exact:
                older &= may_match_mask(each.predicate, segment.table)
            yield each.predicate, older

    def _keys_mask(self, group: KeysTombstones, segment: LiveSegment) -> Mask:
        """A mask of files that may have keys between the least and the greatest of all these tombstones."""
        mask = np.ones(len(segment.table), np.bool_)
        for id_, ends in group.ends.items():
            field = self._schema.by_id.get(id_)
            domain = None if field is None else domain_of(field.arrow_type)
            if field is not None and domain is not None:
                mask &= in_range_mask(Column(id_, str(field.type)), *ends.extremes, domain, segment.table)
        return mask
