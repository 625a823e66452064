"""Finds the tombstones of a table that may hide rows of a file, for many files and many tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import overload

import numpy as np
import numpy.typing as npt

from dolmen.entries.segments.file_masks import Mask, in_range_mask, may_match_mask, verdict_masks
from dolmen.entries.segments.file_table import Positions
from dolmen.entries.segments.judging import KeyRanges, inline_predicate, known_bounds
from dolmen.entries.segments.live import LiveSegment
from dolmen.format.entries import Bounds, DataFile, Tombstone, WhereTombstone
from dolmen.format.manifest import Segment
from dolmen.format.schema import Schema
from dolmen.predicate import Predicate, StatsVerdict, judge
from dolmen.predicate.ast import Column
from dolmen.predicate.constants import domain_of

_SEVERAL = 8
"""The least number of files for which a predicate judges all files of a segment at once."""

_MANY = 64
"""With more predicates than this, files are not judged all at once: that would take longer than one by one."""


@dataclass(frozen=True)
class _Judged:
    """A ``where`` tombstone with its decoded predicate; ``place`` is its place among all tombstones."""

    place: int
    tombstone: WhereTombstone
    predicate: Predicate | None


class Suspects(Sequence[Tombstone]):
    """The tombstones that may hide rows of one file, oldest first.

    There may be ten thousand keys tombstones, the same ones for each of a thousand files: they are listed only when
    asked for. Whether there are any, and over which columns, is known without a list.

    Args:
        where: ``where`` tombstones.
        ranges: groups of keys tombstones; some tombstones of each group may hide rows.
        known, rows, applied_through: the file's bounds, number of rows, and ``applied_through``.
    """

    def __init__(
        self,
        where: tuple[_Judged, ...] = (),
        ranges: tuple[KeyRanges, ...] = (),
        known: Mapping[int, Bounds] | None = None,
        rows: int = 0,
        applied_through: int = 0,
    ) -> None:
        self._where, self._ranges = where, ranges
        self._of = known or {}, rows, applied_through

    @property
    def where(self) -> list[WhereTombstone]:
        """The ``where`` tombstones among them, oldest first."""
        return [each.tombstone for each in self._where]

    @property
    def predicates(self) -> list[Predicate | None]:
        """The predicates of the ``where`` tombstones among them; None for one that its entry does not have."""
        return [each.predicate for each in self._where]

    @property
    def key_columns(self) -> list[tuple[int, ...]]:
        """The columns of the keys tombstones among them."""
        return list(dict.fromkeys(ranges.columns for ranges in self._ranges))

    def places(self) -> npt.NDArray[np.int64]:
        """Their places among all tombstones of the table, in no order."""
        where = np.array([each.place for each in self._where], np.int64)
        return np.concatenate([where, *(ranges.places[ranges.mask(*self._of)] for ranges in self._ranges)])

    def __bool__(self) -> bool:
        return bool(self._where or self._ranges)

    def __len__(self) -> int:
        return len(self._where) + sum(int(np.count_nonzero(ranges.mask(*self._of))) for ranges in self._ranges)

    def __iter__(self) -> Iterator[Tombstone]:
        found: list[tuple[int, Tombstone]] = [(each.place, each.tombstone) for each in self._where]
        for ranges in self._ranges:
            kept = np.flatnonzero(ranges.mask(*self._of))
            found += zip(ranges.places[kept].tolist(), (ranges.tombstones[at] for at in kept.tolist()), strict=True)
        return iter([tombstone for _, tombstone in sorted(found, key=itemgetter(0))])

    @overload
    def __getitem__(self, at: int) -> Tombstone: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Tombstone, ...]: ...

    def __getitem__(self, at: int | slice) -> Tombstone | tuple[Tombstone, ...]:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Suspects, tuple)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class TombstoneJudge:
    """Judges files by statistics against some tombstones.

    Args:
        tombstones: oldest first.
        schema: the table's.
    """

    def __init__(self, tombstones: Sequence[Tombstone], schema: Schema) -> None:
        where = [
            _Judged(place, tombstone, inline_predicate(tombstone, schema))
            for place, tombstone in enumerate(tombstones)
            if isinstance(tombstone, WhereTombstone)
        ]
        self._take(where, KeyRanges.each(tombstones, schema.widened_types), schema)

    def _take(self, where: Sequence[_Judged], ranges: Sequence[KeyRanges], schema: Schema) -> None:
        self._where, self._ranges, self._schema = where, ranges, schema
        self.ids = frozenset(id_ for each in where for id_ in each.tombstone.columns) | frozenset(
            id_ for each in ranges for id_ in each.columns
        )

    def __bool__(self) -> bool:
        return bool(self._where or self._ranges)

    def of_segment(self, segment: Segment) -> TombstoneJudge:
        """The tombstones that may hide rows of some file of a segment."""
        if not self:
            return self
        known, through = known_bounds(segment, self._schema, self.ids), segment.applied_through
        masks = [ranges.mask(known, segment.rows, through) for ranges in self._ranges]
        where = self._of_where(known, segment.rows, through)
        if where is None:  # one hides all rows: the files are judged one by one
            where = [each for each in self._where if each.tombstone.ts > through]
        judge_ = TombstoneJudge.__new__(TombstoneJudge)
        some = [ranges.some(mask) for ranges, mask in zip(self._ranges, masks, strict=True) if mask.any()]
        judge_._take(where, some, self._schema)
        return judge_

    def of_files(
        self, segment: LiveSegment, places: Positions, files: Iterable[DataFile]
    ) -> Iterator[tuple[DataFile, Callable[[], Suspects | None]]]:
        """Many files of a segment, each with what finds its ``of_file``.

        Args:
            places: their places in it.
            files: their entries.
        """
        if len(places) < _SEVERAL or not self._where or any(each.predicate is None for each in self._where):
            yield from ((file, partial(self.of_file, file)) for file in files)
            return
        through, ts = segment.applied_through()[places], np.array([each.tombstone.ts for each in self._where])
        may = np.empty((len(places), len(ts)), np.bool_)
        hides_all = np.zeros(len(places), np.bool_)
        predicates = (each.predicate for each in self._where if each.predicate is not None)
        for at, (some, every) in enumerate(verdict_masks(predicates, segment.table)):
            younger = ts[at] > through
            may[:, at] = some[places] & younger
            hides_all |= every[places] & younger
        for file, row, is_hidden in zip(files, may, hides_all.tolist(), strict=True):
            where = [self._where[at] for at in np.flatnonzero(row).tolist()]
            yield file, (lambda: None) if is_hidden and file.rows else partial(self._suspects, file, where)

    def of_file(self, file: DataFile) -> Suspects | None:
        """The tombstones that may hide rows of a file; None when one of them certainly hides all."""
        return self._suspects(file, None) if self else Suspects()

    def _suspects(self, file: DataFile, where: list[_Judged] | None) -> Suspects | None:
        """``of_file``; ``where`` are the ``where`` tombstones that may hide some rows, if they are known."""
        known, through = known_bounds(file, self._schema, self.ids), file.applied_through
        if where is None:
            where = self._of_where(known, file.rows, through)
        if where is None:
            return None
        if any(each.hide_all(known, file.rows, through) for each in self._ranges):
            return None
        ranges = tuple(each for each in self._ranges if each.mask(known, file.rows, through).any())
        own = {id_: known[id_] for each in ranges for id_ in each.columns if id_ in known}
        return Suspects(tuple(where), ranges, own, file.rows, through)

    def _of_where(self, known: Mapping[int, Bounds], rows: int, applied_through: int) -> list[_Judged] | None:
        """The ``where`` tombstones that may hide some rows; None when one hides all."""
        found: list[_Judged] = []
        for each in self._where:
            if each.tombstone.ts <= applied_through:
                continue
            if each.predicate is not None:
                verdict = judge(each.predicate, known, rows)
                if verdict is StatsVerdict.ALWAYS:
                    return None
                if verdict is StatsVerdict.NEVER:
                    continue
            elif rows == 0:
                continue
            found.append(each)
        return found

    def mask(self, segment: LiveSegment) -> Mask:
        """A mask of the segment's entries whose rows some tombstone may hide; never too few."""
        mask = np.zeros(len(segment.table), np.bool_)
        if not self:
            return mask
        through = segment.applied_through()
        if len(self._where) > _MANY:
            mask |= through < max(each.tombstone.ts for each in self._where)
        else:
            for _, some in self.where_masks(segment):
                mask |= some
        for ranges in self._ranges:
            mask |= (through < ranges.greatest_ts) & self._keys_mask(ranges, segment)
        return mask

    def where_masks(self, segment: LiveSegment) -> Iterator[tuple[Predicate | None, Mask]]:
        """Each ``where`` tombstone's predicate, if its entry has it, with a mask of the entries it may hide rows of."""
        through = segment.applied_through()
        is_exact = len(self._where) <= _MANY
        for each in self._where:
            older = through < each.tombstone.ts
            if each.predicate is not None and is_exact:
                older &= may_match_mask(each.predicate, segment.table)
            yield each.predicate, older

    def _keys_mask(self, ranges: KeyRanges, segment: LiveSegment) -> Mask:
        """A mask of files that may hold keys between the least and the greatest of all these tombstones."""
        mask = np.ones(len(segment.table), np.bool_)
        for id_, ends in ranges.ends.items():
            field = self._schema.by_id.get(id_)
            domain = None if field is None else domain_of(field.arrow_type)
            if field is not None and domain is not None:
                mask &= in_range_mask(Column(id_, str(field.type)), *ends.extremes, domain, segment.table)
        return mask
