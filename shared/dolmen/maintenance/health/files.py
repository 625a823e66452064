"""Sums up the data files of one table by its entries, a segment at a time, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.live_segment import LiveSegment
from dolmen.entries.segments.reader import SegmentReader
from dolmen.entries.segments.tombstones import TombstoneJudge
from dolmen.format.entries import DataFile, Tombstone, WhereTombstone
from dolmen.format.manifest import TableEntry
from dolmen.maintenance.health.health import DeleteCost, FileSizes, SortOverlap
from dolmen.maintenance.health.overlap import BoundsCollector
from dolmen.predicate import Predicate
from dolmen.predicate.any_of import LOOK_UP_NS, row_cost_ns

_EXPONENTS = 64

_FILE_NS, _ROW_NS = 400_000, 20
"""About what a scan takes for a file in a directory, and for a row with few columns: a bucket is farther away."""

_TEST_NS = 5_000
"""About what one more delete by predicate takes for each file, however few rows it has."""

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass
class FilesSurvey:
    """Figures of the live files of a table.

    Args:
        target_bytes: size of a full file.
        newest_delete: timestamp of the newest unresolved delete; 0 if there is none.
        judge: judges which files may hold rows that unresolved deletes hide.
        bounds: collects bounds of the sort key; None for a table without one.
    """

    target_bytes: int
    newest_delete: int
    judge: TombstoneJudge
    bounds: BoundsCollector | None
    files: int = 0
    rows: int = 0
    dead_rows: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    unresolved_files: int = 0
    suspect_files: int = 0
    suspect_rows: int = 0
    deletes_ns: int = 0
    exponents: Numbers = field(default_factory=lambda: np.zeros(_EXPONENTS, np.int64))

    @classmethod
    def of(
        cls, entry: TableEntry, tombstones: tuple[Tombstone, ...], target_bytes: int, reader: SegmentReader
    ) -> FilesSurvey:
        """Surveys a table's files: one request for each segment that is not cached.

        Args:
            entry: the table's whole entry.
            tombstones: its unresolved deletes.
        """
        newest = max((tombstone.ts for tombstone in tombstones), default=0)
        sorted_by = entry.schema.by_id[entry.sort_key[0]] if entry.sort_key else None
        bounds = BoundsCollector(sorted_by) if sorted_by is not None else None
        survey = cls(target_bytes, newest, TombstoneJudge(tombstones, entry.schema), bounds)
        for each in LiveFiles.of(entry, reader).live_segments():
            survey._add_segment(each)
        survey._add_files(entry.files)
        return survey

    def _add_segment(self, each: LiveSegment) -> None:
        places, table = each.places(), each.table
        through = each.applied_through()[places] if self.newest_delete else np.zeros(0, np.int64)
        suspects = self.judge.mask(each)[places] if self.judge else np.zeros(len(places), np.bool_)
        rows = table.numbers("rows")[places]
        for predicate, some in self.judge.where_masks(each):
            self._add_predicate(predicate, int(np.count_nonzero(some[places])), int(rows[some[places]].sum()))
        dead = each.cardinalities()[places]
        self._add(table.numbers("size")[places], rows, dead, through, suspects)
        if self.bounds:
            self.bounds.add_segment(each, places)

    def _add_files(self, files: tuple[DataFile, ...]) -> None:
        if not files:
            return
        figures = [(file.size, file.rows, file.rows - file.live_rows, file.applied_through) for file in files]
        size, rows, dead, through = np.array(figures, np.int64).T
        suspects = np.zeros(len(files), np.bool_)
        if self.judge:
            found = [self.judge.of_file(file) for file in files]
            suspects = np.array([each is None or bool(each) for each in found], np.bool_)
            for file, each in zip(files, found, strict=True):
                for predicate in each.predicates if each is not None else ():
                    self._add_predicate(predicate, 1, file.rows)
        self._add(size, rows, dead, through, suspects)
        if self.bounds:
            self.bounds.add_files(files)

    def _add(self, size: Numbers, rows: Numbers, dead: Numbers, through: Numbers, suspects: Mask) -> None:
        small = size < self.target_bytes // 2
        self.files += len(size)
        self.rows += int(rows.sum())
        self.dead_rows += int(dead.sum())
        self.bytes += int(size.sum())
        self.small_files += int(np.count_nonzero(small))
        self.small_bytes += int(size[small].sum())
        self.unresolved_files += int(np.count_nonzero(through < self.newest_delete)) if self.newest_delete else 0
        self.suspect_files += int(np.count_nonzero(suspects))
        self.suspect_rows += int(rows[suspects].sum())
        exponents = np.maximum(np.frexp(size.astype(np.float64))[1] - 1, 0)
        self.exponents += np.bincount(exponents, minlength=_EXPONENTS)[:_EXPONENTS]

    def _add_predicate(self, predicate: Predicate | None, files: int, rows: int) -> None:
        """Adds what a delete by predicate costs a scan that tests so many rows of so many files."""
        self.deletes_ns += files * _TEST_NS + rows * row_cost_ns(predicate)

    @property
    def slowdown(self) -> float:
        """See ``DeleteCost``."""
        read = self.files * _FILE_NS + self.rows * _ROW_NS
        return 1 + (self.deletes_ns + self.suspect_rows * LOOK_UP_NS) / read if read else 1.0

    @property
    def sizes(self) -> FileSizes:
        """The sizes of the files."""
        counts = {int(e): int(self.exponents[e]) for e in np.flatnonzero(self.exponents)}
        return FileSizes(counts, self.target_bytes // 2, self.small_files, self.small_bytes)

    @property
    def overlap(self) -> SortOverlap | None:
        """The overlap of the files in the sort key."""
        return self.bounds.overlap() if self.bounds else None

    def delete_cost(self, tombstones: tuple[Tombstone, ...], now_us: int) -> DeleteCost | None:
        """The cost of unresolved deletes for a scan; None if there are none."""
        if not tombstones:
            return None
        fetched = [tombstone.blob for tombstone in tombstones if not _is_inline(tombstone)]
        return DeleteCost(
            len(tombstones),
            max(0, now_us - min(tombstone.ts for tombstone in tombstones)),
            self.suspect_files,
            self.suspect_rows,
            len({blob.object for blob in fetched}),
            sum(blob.length for blob in fetched),
            self.slowdown,
        )


def _is_inline(tombstone: Tombstone) -> bool:
    """Whether a scan needs nothing but the entry."""
    return (tombstone.predicate if isinstance(tombstone, WhereTombstone) else tombstone.values) is not None
