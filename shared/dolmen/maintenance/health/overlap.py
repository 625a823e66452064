"""Measures how many files share each place in the range of a sort key, by the ranks of their bounds.

A rank tells the order of a bound among all bounds, and nothing of its value.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.entries.segments.judging import column_bounds
from dolmen.entries.segments.live_segment import LiveSegment
from dolmen.format.entries import DataFile
from dolmen.format.schema import Field
from dolmen.format.segment_files import bound_type
from dolmen.format.values import to_array
from dolmen.format.widening import widened_ends
from dolmen.maintenance.health.health import SortOverlap

MOST_PARTS = 120
"""The most parts of the range that are told apart."""
MOST_BOUNDS_BYTES = 96 * MIB
"""Bounds that take more memory are not ranked: four million files of integers, or a million of texts."""

Ranks = npt.NDArray[np.int64]


class BoundsCollector:
    """Collects the bounds of one column in a table's files.

    Args:
        field: the column.
    """

    def __init__(self, field: Field) -> None:
        self._field, self._type = field, bound_type(field.arrow_type)
        self._ends: list[tuple[pa.Array, pa.Array]] = []
        self._bytes = self._known = self._unknown = 0

    def add_segment(self, each: LiveSegment, places: npt.NDArray[np.int64]) -> None:
        """Adds the files at some places of a segment."""
        least, greatest = (each.table.column(f"{end}_{self._field.id}") for end in ("min", "max"))
        if self._type is None or least is None or greatest is None:
            self._unknown += len(places)
            return
        taken = [end if len(places) == len(end) else end.take(pa.array(places)) for end in (least, greatest)]
        try:
            self._add(*(widened_ends(end, self._field.arrow_type).cast(self._type) for end in taken))
        except pa.ArrowException:  # bounds of another type, as only a damaged segment has
            self._unknown += len(places)

    def add_files(self, files: Iterable[DataFile]) -> None:
        """Adds files one by one."""
        known = [column_bounds(file, self._field) for file in files]
        if self._type is None:
            self._unknown += len(known)
        elif known:
            self._add(*(to_array(list(end), self._type) for end in zip(*((k.min, k.max) for k in known), strict=True)))

    def _add(self, least: pa.Array, greatest: pa.Array) -> None:
        both = pc.and_(least.is_valid(), greatest.is_valid())
        known = both.true_count
        self._known += known
        self._unknown += len(both) - known
        if self._bytes > MOST_BOUNDS_BYTES:
            return
        if known < len(both):
            least, greatest = least.filter(both), greatest.filter(both)
        self._ends.append((least, greatest))
        self._bytes += least.nbytes + greatest.nbytes

    def overlap(self) -> SortOverlap | None:
        """The overlap of all files that were added; None if there was none."""
        files, unknown, name = self._known, self._unknown, self._field.name
        if not files and not unknown:
            return None
        if not files or self._bytes > MOST_BOUNDS_BYTES:
            return SortOverlap(name, files, unknown, 0, 0.0, ())
        least, greatest = (pa.chunked_array([ends[end] for ends in self._ends]) for end in (0, 1))
        self._ends = []
        depths = _depths(*_ranks(least, greatest))
        return SortOverlap(name, files, unknown, int(depths.max()), float(depths.mean()), _parts(depths))


def _ranks(least: pa.ChunkedArray, greatest: pa.ChunkedArray) -> tuple[Ranks, Ranks]:
    """The ranks of the bounds among all distinct ones, from 0."""
    if pa.types.is_boolean(least.type):
        least, greatest = least.cast(pa.int8()), greatest.cast(pa.int8())
    ends = pa.chunked_array([*least.chunks, *greatest.chunks])
    ranks: Ranks = pc.rank(ends, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64) - 1
    return ranks[: len(least)], ranks[len(least) :]


def _depths(least: Ranks, greatest: Ranks) -> npt.NDArray[np.int64]:
    """The number of files at each bound, and in each gap between two neighbouring bounds, in turns."""
    count = int(max(least.max(), greatest.max())) + 1
    begun = np.cumsum(np.bincount(least, minlength=count))
    ended = np.cumsum(np.bincount(greatest, minlength=count))
    depths = np.empty(2 * count - 1, np.int64)
    depths[0::2] = begun
    depths[2::2] -= ended[:-1]
    depths[1::2] = (begun - ended)[:-1]
    return depths


def _parts(depths: npt.NDArray[np.int64]) -> tuple[tuple[float, int], ...]:
    """The mean and the greatest depth of ``MOST_PARTS`` consecutive parts of about equal length, or of each place."""
    starts = np.unique(np.linspace(0, len(depths), MOST_PARTS + 1).astype(np.int64)[:-1])
    lengths = np.diff([*starts, len(depths)])
    means = np.add.reduceat(depths, starts) / lengths
    greatest = np.maximum.reduceat(depths, starts)
    return tuple(zip(means.tolist(), greatest.tolist(), strict=True))
