"""Figures of a table's data files from its entries alone, a segment at a time.

The overlap in a sort key is measured by ranks of bounds, which show their order, but not their values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import MIB
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.entries.segments.segment_reader import LiveSegment, SegmentReader
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.format.column_history import widen_bounds
from dolmen.format.column_terms import sort_ids
from dolmen.format.entries import DataFile, Tombstone, WhereTombstone
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.segments import bound_type
from dolmen.format.types import to_array
from dolmen.maintenance.compact.compaction_plan import small_below
from dolmen.maintenance.debt import FileSums, Numbers
from dolmen.maintenance.health.health import DeleteCost, FileSizes, SortOverlap
from dolmen.predicate.any_of import LOOK_UP_NS, row_cost_ns
from dolmen.predicate.ast import Predicate

MOST_PARTS = 120  # the most parts into which the range is divided

MOST_BOUNDS_BYTES = 96 * MIB
"""Bounds are not ranked if they take more memory: four million files of integers, or a million of texts."""

Ranks = npt.NDArray[np.int64]


class BoundsCollector:
    """Collects the bounds of one column in a table's files."""

    def __init__(self, field: Field) -> None:
        self._field, self._type = field, bound_type(field.arrow_type)
        self._bounds: list[tuple[pa.Array, pa.Array]] = []
        self._bytes = self._ranked_files = self._unknown_files = 0

    def add_segment(self, segment: LiveSegment, positions: npt.NDArray[np.int64]) -> None:
        least, greatest = (segment.table.column(f"{end}_{self._field.id}") for end in ("min", "max"))
        if self._type is None or least is None or greatest is None:
            self._unknown_files += len(positions)
            return
        bounds = [end if len(positions) == len(end) else end.take(pa.array(positions)) for end in (least, greatest)]
        try:
            self._add(*(widen_bounds(end, self._field.arrow_type).cast(self._type) for end in bounds))
        except pa.ArrowException:  # bounds of another type, which only a damaged segment has
            self._unknown_files += len(positions)

    def add_files(self, files: Iterable[DataFile]) -> None:
        bounds = [column_bounds(file, self._field) for file in files]
        if self._type is None:
            self._unknown_files += len(bounds)
        elif bounds:
            self._add(*(to_array(list(end), self._type) for end in zip(*((b.min, b.max) for b in bounds), strict=True)))

    def _add(self, least: pa.Array, greatest: pa.Array) -> None:
        is_known = pc.and_(least.is_valid(), greatest.is_valid())
        count = is_known.true_count
        self._ranked_files += count
        self._unknown_files += len(is_known) - count
        if self._bytes > MOST_BOUNDS_BYTES:
            return
        if count < len(is_known):
            least, greatest = least.filter(is_known), greatest.filter(is_known)
        self._bounds.append((least, greatest))
        self._bytes += least.nbytes + greatest.nbytes

    def overlap(self) -> SortOverlap | None:
        """The overlap of all added files; None if there was none."""
        ranked, unranked, name = self._ranked_files, self._unknown_files, self._field.name
        if not ranked and not unranked:
            return None
        if not ranked or self._bytes > MOST_BOUNDS_BYTES:
            return SortOverlap(name, ranked, unranked, 0, 0.0, ())
        least, greatest = (pa.chunked_array([ends[end] for ends in self._bounds]) for end in (0, 1))
        self._bounds = []
        depths = _count_depths(*_rank_bounds(least, greatest))
        return SortOverlap(name, ranked, unranked, int(depths.max()), float(depths.mean()), _summarize_parts(depths))


def _rank_bounds(least: pa.ChunkedArray, greatest: pa.ChunkedArray) -> tuple[Ranks, Ranks]:
    """The ranks of the bounds among all distinct ones, from 0."""
    if pa.types.is_boolean(least.type):
        least, greatest = least.cast(pa.int8()), greatest.cast(pa.int8())
    ends = pa.chunked_array([*least.chunks, *greatest.chunks])
    ranks: Ranks = pc.rank(ends, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64) - 1
    return ranks[: len(least)], ranks[len(least) :]


def _count_depths(least: Ranks, greatest: Ranks) -> npt.NDArray[np.int64]:
    """The number of files at each bound, and in the gap after it, alternately."""
    count = int(max(least.max(), greatest.max())) + 1
    started = np.cumsum(np.bincount(least, minlength=count))
    ended = np.cumsum(np.bincount(greatest, minlength=count))
    depths = np.empty(2 * count - 1, np.int64)
    depths[0::2] = started
    depths[2::2] -= ended[:-1]
    depths[1::2] = (started - ended)[:-1]
    return depths


def _summarize_parts(depths: npt.NDArray[np.int64]) -> tuple[tuple[float, int], ...]:
    """The mean and the greatest depth of ``MOST_PARTS`` parts of about equal length, or of each point if fewer."""
    starts = np.unique(np.linspace(0, len(depths), MOST_PARTS + 1).astype(np.int64)[:-1])
    lengths = np.diff([*starts, len(depths)])
    means = np.add.reduceat(depths, starts) / lengths
    greatest = np.maximum.reduceat(depths, starts)
    return tuple(zip(means.tolist(), greatest.tolist(), strict=True))


_MOST_EXPONENTS = 64

_FILE_NS, _ROW_NS = 400_000, 20
"""Approximate time of a scan for a file in a directory, and for a row with few columns. A bucket takes longer."""

_TEST_NS = 5_000  # approximate time of one more delete by predicate for each file, however few rows it has

Mask = npt.NDArray[np.bool_]


@dataclass
class FilesSurvey:
    """Figures of the live files of a table; ``bounds`` is None for a table without a sort key."""

    sums: FileSums
    judge: TombstoneJudge
    bounds: BoundsCollector | None
    suspect_files: int = 0
    suspect_rows: int = 0
    deletes_ns: int = 0
    exponents: Numbers = field(default_factory=lambda: np.zeros(_MOST_EXPONENTS, np.int64))

    @classmethod
    def of(
        cls, entry: TableEntry, tombstones: tuple[Tombstone, ...], target_bytes: int, reader: SegmentReader
    ) -> FilesSurvey:
        """Surveys a table's files from its whole entry: one request for each segment that is not cached."""
        newest = max((tombstone.ts for tombstone in tombstones), default=0)
        sorted_by = entry.schema.by_id[sort_ids(entry.sort_key)[0]] if entry.sort_key else None
        bounds = BoundsCollector(sorted_by) if sorted_by is not None else None
        survey = cls(FileSums(target_bytes, newest), TombstoneJudge(tombstones, entry.schema), bounds)
        for each in LiveFiles.of(entry, reader).live_segments():
            survey._add_segment(each)
        survey._add_files(entry.files)
        return survey

    def _add_segment(self, segment: LiveSegment) -> None:
        positions, table = segment.positions(), segment.table
        suspects = self.judge.file_mask(segment)[positions] if self.judge else np.zeros(len(positions), np.bool_)
        rows = table.numbers("rows")[positions]
        for predicate, mask in self.judge.where_masks(segment):
            self._add_predicate(predicate, int(np.count_nonzero(mask[positions])), int(rows[mask[positions]].sum()))
        self.sums.add_segment(segment)
        self._add(table.numbers("size")[positions], rows, suspects)
        if self.bounds:
            self.bounds.add_segment(segment, positions)

    def _add_files(self, files: tuple[DataFile, ...]) -> None:
        if not files:
            return
        size, rows = np.array([(file.size, file.rows) for file in files], np.int64).T
        suspects = np.zeros(len(files), np.bool_)
        if self.judge:
            tombstones = [self.judge.of_file(file) for file in files]
            suspects = np.array([each is None or bool(each) for each in tombstones], np.bool_)
            for file, each in zip(files, tombstones, strict=True):
                for predicate in each.predicates if each is not None else ():
                    self._add_predicate(predicate, 1, file.rows)
        self.sums.add_files(files)
        self._add(size, rows, suspects)
        if self.bounds:
            self.bounds.add_files(files)

    def _add(self, size: Numbers, rows: Numbers, suspects: Mask) -> None:
        self.suspect_files += int(np.count_nonzero(suspects))
        self.suspect_rows += int(rows[suspects].sum())
        exponents = np.maximum(np.frexp(size.astype(np.float64))[1] - 1, 0)
        self.exponents += np.bincount(exponents, minlength=_MOST_EXPONENTS)[:_MOST_EXPONENTS]

    def _add_predicate(self, predicate: Predicate | None, files: int, rows: int) -> None:
        """Adds the cost of a delete by predicate for a scan that tests these numbers of files and rows."""
        self.deletes_ns += files * _TEST_NS + rows * row_cost_ns(predicate)

    @property
    def slowdown(self) -> float:
        read = self.sums.files * _FILE_NS + self.sums.rows * _ROW_NS
        return 1 + (self.deletes_ns + self.suspect_rows * LOOK_UP_NS) / read if read else 1.0

    @property
    def sizes(self) -> FileSizes:
        counts = {int(e): int(self.exponents[e]) for e in np.flatnonzero(self.exponents)}
        sums = self.sums
        return FileSizes(counts, small_below(sums.target_file_bytes), sums.small_files, sums.small_bytes)

    @property
    def overlap(self) -> SortOverlap | None:
        return self.bounds.overlap() if self.bounds else None

    def delete_cost(self, tombstones: tuple[Tombstone, ...], now_us: int) -> DeleteCost | None:
        if not tombstones:
            return None
        # For other tombstones a scan fetches nothing: their entries are complete.
        fetched = [t.blob for t in tombstones if (t.predicate if isinstance(t, WhereTombstone) else t.values) is None]
        return DeleteCost(
            len(tombstones),
            max(0, now_us - min(tombstone.ts for tombstone in tombstones)),
            self.suspect_files,
            self.suspect_rows,
            len({blob.object for blob in fetched}),
            sum(blob.length for blob in fetched),
            self.slowdown,
        )
