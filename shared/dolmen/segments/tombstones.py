"""Which of a table's tombstones may hide rows of a file, for many files and many tombstones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dolmen.format.entries import DataFile, KeysTombstone, Tombstone
from dolmen.format.manifest import Segment
from dolmen.format.schema import Schema, type_from_json
from dolmen.format.statistics import Bounds
from dolmen.format.values import Plain
from dolmen.predicate import Predicate, Verdict, judge
from dolmen.predicate.domain import Domain, domain_of
from dolmen.segments.judging import KeyBounds, inline_predicate, key_bounds, known_bounds, may_hold_keys
from dolmen.segments.mask import may_match_mask
from dolmen.segments.part import Part
from dolmen.segments.spreads import Mask, compared, spread

_MANY = 64
"""From so many predicates on, files are not judged all at once, which would take longer than one by one."""

_Int64 = npt.NDArray[np.int64]
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class _Judged:
    """A tombstone with what is the same for all files; ``place`` is its place among all."""

    place: int
    tombstone: Tombstone
    predicate: Predicate | None
    ends: KeyBounds


class TombstoneJudge:
    """Judges files by statistics against some tombstones.

    Args:
        tombstones: oldest first.
        schema: the table's.
    """

    def __init__(self, tombstones: Sequence[Tombstone], schema: Schema) -> None:
        judged = [_Judged(place, t, inline_predicate(t), key_bounds(t)) for place, t in enumerate(tombstones)]
        self._take(judged, schema)

    def _take(self, judged: Sequence[_Judged], schema: Schema) -> None:
        self._judged, self._schema = judged, schema
        self.ids = frozenset(id_ for each in judged for id_ in each.tombstone.columns)
        self._ranges: list[_Ranges] = []
        self._others: list[_Judged] = []
        by_column: dict[int, list[_Judged]] = defaultdict(list)
        for each in judged:
            ends = [end for pair in each.ends.values() for end in pair]
            if len(each.ends) == 1 and all(type(end) is int and _INT64.min <= end <= _INT64.max for end in ends):
                by_column[each.tombstone.columns[0]].append(each)
            else:
                self._others.append(each)
        self._ranges = [_Ranges.of(id_, some) for id_, some in by_column.items()]

    def __len__(self) -> int:
        return len(self._judged)

    def of_segment(self, segment: Segment) -> TombstoneJudge:
        """Those that may hide rows of any file of a segment."""
        if not self._judged:
            return self
        found = self._candidates(segment, known_bounds(segment, self._schema, self.ids), segment.applied_through)
        if found is None:
            found = [each for each in self._judged if each.tombstone.ts > segment.applied_through]
        judge_ = TombstoneJudge.__new__(TombstoneJudge)
        judge_._take(found, self._schema)
        return judge_

    def of_file(self, file: DataFile) -> tuple[Tombstone, ...] | None:
        """Those that may hide rows of a file, oldest first; None when one of them certainly hides all."""
        if not self._judged:
            return ()
        found = self._candidates(file, known_bounds(file, self._schema, self.ids), file.applied_through)
        return None if found is None else tuple(each.tombstone for each in found)

    def _candidates(
        self, file: DataFile | Segment, known: dict[int, Bounds], applied_through: int
    ) -> list[_Judged] | None:
        found: list[_Judged] = []
        for each in self._others:
            if each.tombstone.ts <= applied_through:
                continue
            if each.predicate is not None:
                verdict = judge(each.predicate, known, file.rows)
                if verdict is Verdict.ALWAYS:
                    return None
                if verdict is Verdict.NEVER:
                    continue
            elif not may_hold_keys(each.ends, known, file.rows):
                continue
            found.append(each)
        for ranges in self._ranges:
            found += ranges.candidates(known.get(ranges.id), file.rows, applied_through)
        return sorted(found, key=lambda each: each.place)

    def mask(self, part: Part) -> Mask:
        """Which entries of a segment have files whose rows some tombstone may hide; never too few."""
        mask = np.zeros(len(part.table), np.bool_)
        if not self._judged:
            return mask
        through = part.applied_through()
        predicates = [each for each in self._judged if not isinstance(each.tombstone, KeysTombstone)]
        if len(predicates) > _MANY:
            mask |= through < max(each.tombstone.ts for each in predicates)
        else:
            for each in predicates:
                older = through < each.tombstone.ts
                if each.predicate is not None:
                    older &= may_match_mask(each.predicate, part.table)
                mask |= older
        for tombstones in self._by_columns():
            mask |= (through < max(each.tombstone.ts for each in tombstones)) & self._keys_mask(tombstones, part)
        return mask

    def _by_columns(self) -> list[list[_Judged]]:
        found: dict[tuple[int, ...], list[_Judged]] = defaultdict(list)
        for each in self._judged:
            if isinstance(each.tombstone, KeysTombstone):
                found[each.tombstone.columns].append(each)
        return list(found.values())

    def _keys_mask(self, tombstones: list[_Judged], part: Part) -> Mask:
        """Where files may hold keys between the least and the greatest of all these tombstones."""
        count = len(part.table)
        mask = np.ones(count, np.bool_)
        for id_ in tombstones[0].ends:
            field = self._schema.by_id.get(id_)
            domains = {_domain(each.tombstone, id_) for each in tombstones}
            if field is None or domains != {domain_of(field.arrow_type)}:
                continue
            (domain,) = domains
            assert domain is not None
            own = spread(part.table, id_, field.arrow_type)
            least = _extreme([each.ends[id_][0] for each in tombstones], least=True)
            greatest = _extreme([each.ends[id_][1] for each in tombstones], least=False)
            mask &= own.ordinary
            if least is not None:
                mask &= ~compared(own.greatest, "<", least, domain, count)[0]
            if greatest is not None:
                mask &= ~compared(own.least, ">", greatest, domain, count)[0]
        return mask


@dataclass(frozen=True)
class _Ranges:
    """Keys tombstones over one column of integers: their bounds and timestamps as arrays."""

    id: int
    judged: list[_Judged]
    least: _Int64
    greatest: _Int64
    ts: _Int64

    @classmethod
    def of(cls, id_: int, judged: list[_Judged]) -> _Ranges:
        ends = [each.ends[id_] for each in judged]
        return cls(
            id_,
            judged,
            np.array([least for least, _ in ends], np.int64),
            np.array([greatest for _, greatest in ends], np.int64),
            np.array([each.tombstone.ts for each in judged], np.int64),
        )

    def candidates(self, own: Bounds | None, rows: int, applied_through: int) -> list[_Judged]:
        """Those that may hide rows of a file with these bounds."""
        if rows == 0 or (own is not None and own.nulls == rows):
            return []
        mask = self.ts > applied_through
        if own is not None and isinstance(own.min, int):
            mask &= self.greatest >= own.min
        if own is not None and isinstance(own.max, int):
            mask &= self.least <= own.max
        return [self.judged[place] for place in np.flatnonzero(mask)]


def _domain(tombstone: Tombstone, id_: int) -> Domain | None:
    assert isinstance(tombstone, KeysTombstone)
    return domain_of(type_from_json(tombstone.types[tombstone.columns.index(id_)]))


def _extreme(ends: Sequence[Plain], *, least: bool) -> Plain:
    if None in ends:
        return None
    return min(ends) if least else max(ends)  # type: ignore[type-var]
