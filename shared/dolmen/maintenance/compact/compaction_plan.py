"""Plans compactions: which files to rewrite, and why, from the entries of a table's files alone.

A file is rewritten only where that pays:

- when more than half of its rows are deleted;
- together with others of similar size, so that the output is at least ``growth`` times as large as the largest input,
  and a row is rewritten a logarithmic number of times;
- by the same rule, for tables with a sort key: files that do not overlap form a run, and runs of similar size are
  merged into one.

In a table with partitions, the last two rules apply to the files of each partition, and small files with rows of
several partitions are rewritten at once. Files with rows of an erasure that is due are rewritten in any case, all at
once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct

from dolmen.base.records import FactSheet
from dolmen.base.units import MIB, count_text
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.format.column_terms import sort_terms
from dolmen.format.entries import TEXT_LIMIT, DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import ROW_GROUP_BYTES, TableSettings, clustered_columns
from dolmen.rows.scan.data_objects import GAP_BYTES

MOST_FILES = 50_000  # the most candidates of a plan. The next plan has the others.
NEXT_PLAN = "with the next plan, this one is full"  # the reason for leaving a candidate alone

_SCANS_PER_SELECTIVE_SCAN = 8  # one scan in 8 is assumed to filter by the sort key. Only such scans gain by clustering.

# Reasons for being a candidate
_DEAD, _ERASED, _WITH_FOLDER_VALUES = "all rows deleted", "erased rows", "values only in names of folders"
_DELETED, _MIXED, _SMALL = "mostly deleted", "several partitions", "small files"
_SCATTERED, _FULL = "z-order", "unclustered"
_CANDIDATES = (_DEAD, _ERASED, _WITH_FOLDER_VALUES, _DELETED, _MIXED, _SMALL, _SCATTERED, _FULL)

Bound: TypeAlias = tuple[tuple[Any, ...], ...]  # values of the sort key's first columns: bounds have the order of keys
Range: TypeAlias = tuple[Bound, Bound]
"""Least and greatest sort key of a file, as far as statistics show. See ``_Planner._range``."""
_BEFORE_ALL, _AFTER_ALL = (-1,), (1,)
"""The last element of a bound, so that files that share an end value alone do not overlap.

It sorts before, or after, all values of the next column, which are ``(0, value)``. A low bound is raised by
``_AFTER_ALL``, and a high bound lowered by ``_BEFORE_ALL``: of files with the keys 5 to 7 and 7 to 9, the first ends at
(7, before all), and the second begins at (7, after all)."""


class CompactionOptions(Struct, frozen=True):
    """Sizes and limits of a compaction."""

    target_file_bytes: int | None = None  # size of a full file; None for the table's property
    # the output of a merge must be at least this many times as large as its largest input file (or run)
    growth: int = 4
    deleted_share: float = 0.5  # a file is rewritten when more than this share of its rows is deleted by position
    group_bytes: int = 768 * MIB  # about how much is rewritten at once, and lost when others change one of the files
    memory_bytes: int = 24 * MIB  # Arrow size of the rows that are sorted at once. Peak memory is several times that.
    directory: str | None = None  # for rows that do not fit into memory; the system's temporary directory by default
    # see ``WriteOptions``; less than there, because other data is in memory, and rows come sorted
    run_bytes: int = 8 * MIB
    row_group_bytes: int = ROW_GROUP_BYTES  # see ``WriteOptions``
    # row groups without deleted rows are copied as they are, where at least this many bytes of them are adjacent in one
    # file; 0: all rows are decoded and encoded again
    splice_bytes: int = 16 * MIB
    repartition: bool = False  # full files with rows of several partitions are rewritten, too
    recluster: bool = False  # all files of a table with ``cluster_by`` are rewritten, those of each partition together


class PlannedGroup(Struct, frozen=True):
    """Files that are rewritten together."""

    reason: str  # why they are rewritten, for people
    inputs: tuple[DataFile, ...]  # the files, in the order in which they are read
    bytes_out: int  # estimated size of the output; 0 when all rows are deleted, so that no file has to be read
    files_out: int  # estimated number of files in the output
    deleted_bytes: int  # estimated size of the deleted rows, which the output does not contain
    overlap: int = 1  # the most files that share a point in the range of the sort key; 1 if none overlap

    @property
    def bytes_in(self) -> int:
        return sum(file.size for file in self.inputs)

    @property
    def requests_saved(self) -> int:
        """Requests that a scan of the whole table saves, at least one per file."""
        return max(0, len(self.inputs) - self.files_out)

    @property
    def benefit(self) -> float:
        """Bytes that scans save per byte rewritten; a saved request counts as the bytes that it costs."""
        pruned = self.bytes_in * (1 - 1 / self.overlap) / _SCANS_PER_SELECTIVE_SCAN
        return (self.requests_saved * GAP_BYTES + self.deleted_bytes + pruned) / max(1, self.bytes_out)

    def __str__(self) -> str:
        saved = [
            (self.requests_saved, f"{self.requests_saved:,} requests"),
            (self.deleted_bytes, f"{self.deleted_bytes:,} bytes of deleted rows"),
            (self.overlap - 1, f"up to {count_text(self.overlap, 'file')} read for one value of the sort key"),
        ]
        return (
            f"{count_text(len(self.inputs), 'file')}, {self.bytes_in:,} bytes -> about "
            f"{count_text(self.files_out, 'file')}, "
            f"{self.bytes_out:,} bytes; saves each scan {', '.join(words for count, words in saved if count)}"
        )


@dataclass(frozen=True, repr=False)
class CompactionPlan(FactSheet):
    """The groups worth compacting, best first, and the reasons for leaving other files alone."""

    table: str
    # files, bytes: number and size of live files
    files: int
    bytes: int
    groups: tuple[PlannedGroup, ...]
    left: dict[str, int] = field(default_factory=dict)  # number of files that are left alone, by reason

    @property
    def bytes_in(self) -> int:
        return sum(group.bytes_in for group in self.groups)

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("compact", f"{self.table}: {count_text(self.files, 'file')}, {self.bytes:,} bytes"),
            *((group.reason, str(group)) for group in self.groups),
            *(("left alone", f"{count_text(count, 'file')}: {reason}") for reason, count in self.left.items()),
            *([] if self.groups else [("to do", "nothing")]),
        ]


def plan_compaction(
    table: str,
    entry: TableEntry,
    files: Iterable[DataFile],
    target_file_bytes: int,
    options: CompactionOptions,
    dead_uuids: Collection[str] = (),
    erase_through: int = 0,
) -> CompactionPlan:
    """Plans the compaction of a table. Pure.

    Args:
        files: live files, oldest first, each with its newest (``applied_through``, ``vector``); iterated once.
        dead_uuids: uuids of files whose rows are certainly all hidden by tombstones.
        erase_through: timestamp of the youngest erasure whose rows must leave their files now; 0 if there is none.
    """
    return _Planner(table, entry, target_file_bytes, options).plan(files, dead_uuids, erase_through)


def is_clustered(entry: TableEntry) -> bool:
    """Whether compaction sorts rows by z-order. A sort key that was set at the same time as ``cluster_by`` wins."""
    return bool(clustered_columns(entry.properties)) and not entry.sort_key


def small_below(target_file_bytes: int) -> int:
    """A file is merged with others if it has fewer live bytes than this."""
    return target_file_bytes // 2


class _Planner:
    def __init__(self, table: str, entry: TableEntry, target_file_bytes: int, options: CompactionOptions) -> None:
        self._table, self._entry, self._target, self._options = table, entry, target_file_bytes, options
        self._left_alone: Counter[str] = Counter()
        self._spec = PartitionSpec.of(entry)
        self._is_published = TableSettings.of(entry).iceberg is not None
        self._recluster = options.recluster and is_clustered(entry)
        self._ranges: dict[str, Range] = {}  # by path, of candidates that are full files

    def plan(self, files: Iterable[DataFile], dead_uuids: Collection[str], erase_through: int) -> CompactionPlan:
        # First the files: why each is a candidate, or is left alone.
        chosen: dict[str, list[DataFile]] = {reason: [] for reason in _CANDIDATES}
        count = size = 0
        for file in files:
            count, size = count + 1, size + file.size
            is_full = sum(map(len, chosen.values())) >= MOST_FILES
            reason = NEXT_PLAN if is_full else self._reason(file, dead_uuids, erase_through)
            if reason in chosen:
                chosen[reason].append(file)
            else:
                self._left_alone[reason] += 1
        # Then the groups: those that must be rewritten, and the others by their benefit.
        groups = list[PlannedGroup]()
        if dead := chosen[_DEAD]:
            groups.append(PlannedGroup(_DEAD, tuple(dead), 0, 0, sum(file.size for file in dead)))
        for reason in (_ERASED, _WITH_FOLDER_VALUES):
            groups += self._groups(reason, chosen[reason])
        others = self._groups_to_rewrite(chosen[_DELETED], chosen[_SMALL]) + self._unclustered_groups(chosen[_FULL])
        others += [self._group(_SCATTERED, part) for part in self._by_partition(chosen[_SCATTERED]).values()]
        others += self._groups(_MIXED, chosen[_MIXED])
        groups += sorted(others, key=lambda group: -group.benefit)
        return CompactionPlan(self._table, count, size, tuple(groups), dict(self._left_alone))

    def _reason(self, file: DataFile, dead_uuids: Collection[str], erase_through: int) -> str:
        """Why a file is a candidate (``_CANDIDATES``), or is left alone."""
        is_small = file.live_bytes < small_below(self._target)
        if not file.live_rows or file.uuid in dead_uuids:
            return _DEAD
        if 0 < file.erasing <= erase_through:  # it still holds rows of an erasure that is due
            return _ERASED
        if file.constants and self._is_published:  # Iceberg's readers do not know values of folders
            return _WITH_FOLDER_VALUES
        if self._recluster:
            return _SCATTERED
        if file.rows - file.live_rows > file.rows * self._options.deleted_share:
            return _DELETED
        if self._spec and self._partition(file) is None:
            return _MIXED if self._options.repartition or is_small else "full, with rows of several partitions"
        if is_small:
            return _SMALL
        if not self._entry.sort_key:
            return "full"
        if (range_ := self._range(file)) is None:
            return "full, with unknown bounds of the sort key"
        self._ranges[file.path] = range_
        return _FULL

    def _groups(self, reason: str, files: list[DataFile]) -> list[PlannedGroup]:
        return [self._group(reason, part) for part in self._split(self._sort_files(files))] if files else []

    def _groups_to_rewrite(self, deleted: list[DataFile], small: list[DataFile]) -> list[PlannedGroup]:
        parts, with_deletes = (self._by_partition(some) for some in (small, deleted))
        merged = [each for key, files in parts.items() for each in self._merge(with_deletes.get(key, []), files)]
        if len(merged) < len(small):
            self._left_alone["small, but too few of similar size"] += len(small) - len(merged)
        chosen = self._sort_files([*deleted, *merged])
        merged_paths = {file.path for file in merged}
        groups = []
        for part in self._split(chosen):
            smalls = sum(file.path in merged_paths for file in part)
            reason = _SMALL if smalls == len(part) else f"{_DELETED}, {_SMALL}" if smalls else _DELETED
            groups.append(self._group(reason, part))
        return groups

    def _merge(self, deleted: list[DataFile], small: list[DataFile]) -> list[DataFile]:
        """The small files to rewrite together, and with mostly deleted ones."""
        ascending = sorted(small, key=lambda file: file.live_bytes)
        extra = sum(file.live_bytes for file in deleted)
        merged = ascending[: _count_to_merge([file.live_bytes for file in ascending], self._options.growth, extra)]
        return merged if deleted or len(merged) > 1 else []

    def _partition(self, file: DataFile) -> Partition | None:
        return self._spec.of_file(file) if self._spec else None

    def _by_partition(self, files: Iterable[DataFile]) -> dict[Partition | None, list[DataFile]]:
        parts: dict[Partition | None, list[DataFile]] = {}
        for file in files:
            parts.setdefault(self._partition(file), []).append(file)
        return parts

    def _unclustered_groups(self, full: list[DataFile]) -> list[PlannedGroup]:
        """Groups of full files that overlap in the sort key, a part of its range at a time."""
        parts = self._by_partition(full).values()
        return [group for part in parts for group in self._overlapping_groups(part)]

    def _overlapping_groups(self, files: list[DataFile]) -> list[PlannedGroup]:
        full = [(self._ranges[file.path], file) for file in files]
        runs = _divide_into_runs(full)
        runs.sort(key=lambda run: sum(file.live_bytes for _, file in run))
        sizes = [sum(file.live_bytes for _, file in run) for run in runs]
        chosen = [item for run in runs[: _count_to_merge(sizes, self._options.growth)] for item in run]
        groups: list[PlannedGroup] = []
        for part in _group_overlapping(chosen):
            for piece in self._split([file for _, file in part]):
                if len(piece) > 1:
                    paths = {file.path for file in piece}
                    overlap = len(_divide_into_runs([item for item in part if item[1].path in paths]))
                    if overlap > 1:
                        groups.append(self._group(_FULL, piece, overlap))
        left_alone = len(full) - sum(len(group.inputs) for group in groups)
        if left_alone:
            self._left_alone["full, and few overlap by the sort key"] += left_alone
        return groups

    def _group(self, reason: str, files: Sequence[DataFile], overlap: int = 1) -> PlannedGroup:
        out = sum(file.live_bytes for file in files)
        deleted = sum(file.size for file in files) - out
        files_out = max(1, round(out / self._target), len(set(map(self._partition, files))))
        return PlannedGroup(reason, tuple(files), out, files_out, deleted, overlap)

    def _split(self, files: Sequence[DataFile]) -> list[list[DataFile]]:
        """Splits files into parts of about equal size, none much larger than ``group_bytes``."""
        total = sum(file.live_bytes for file in files)
        parts = max(1, -(-total // max(1, self._options.group_bytes)))
        cut: list[list[DataFile]] = [[] for _ in range(parts)]
        done = 0
        for file in files:
            cut[min(parts - 1, done * parts // max(1, total))].append(file)
            done += file.live_bytes
        return [part for part in cut if part]

    def _sort_files(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Sorts files by the sort key, or by age in a table without one."""
        if not self._entry.sort_key:
            return sorted(files, key=lambda file: file.greatest_row_ts)
        with_range = [(self._range(file), file) for file in files]
        unknown = [file for range_, file in with_range if range_ is None]
        return unknown + [
            file for _, file in sorted(((r, f) for r, f in with_range if r is not None), key=lambda item: item[0][0])
        ]

    def _range(self, file: DataFile) -> Range | None:
        """Bounds of a file's keys: of the first column that has more than one value, and of the columns before it.

        Files count as overlapping only if statistics prove it. Otherwise files with many rows of one key, or long texts
        with the same beginning, would be sorted again and again. Descending keys overlap where ascending ones do.
        """
        low: list[tuple[Any, ...]] = []
        high: list[tuple[Any, ...]] = []
        for term in sort_terms(self._entry.sort_key):
            field = self._entry.schema.by_id[term.id]
            column = column_bounds(file, field)
            if column.min is None or column.max is None or not term.transform.keeps_order:
                break
            least, greatest = (term.transform.value(end, field.arrow_type) for end in column[:2])
            one_value = least == greatest and column.nulls == 0 and not column.nans
            low.append((0, least))
            high.append((0, greatest if one_value else _round_down(greatest)))
            if not one_value:
                break
        return ((*low, _AFTER_ALL), (*high, _BEFORE_ALL)) if low else None


def _round_down(greatest: Any) -> Any:
    """The least possible maximum: for a long text, statistics hold its beginning, rounded up."""
    if isinstance(greatest, str) and len(greatest) == TEXT_LIMIT and greatest[-1] > "\0":
        return greatest[:-1] + chr(ord(greatest[-1]) - 1)
    if isinstance(greatest, bytes) and len(greatest) == TEXT_LIMIT and greatest[-1]:
        return greatest[:-1] + bytes([greatest[-1] - 1])
    return greatest


def _count_to_merge(sizes: Sequence[int], growth: int, extra: int = 0) -> int:
    """The greatest number of the first ``sizes`` (ascending) whose sum is at least ``growth`` times the last of them.

    ``extra`` counts towards the sum: with ``growth`` 4, the sizes 1, 1, 1, 1 and 9 give 4.
    """
    total, count = extra, 0
    for index, size in enumerate(sizes, 1):
        total += size
        if size * growth <= total:
            count = index
    return count


def _divide_into_runs(files: Iterable[tuple[Range, DataFile]]) -> list[list[tuple[Range, DataFile]]]:
    """Divides files into as few runs as possible. No two files of a run overlap; they may touch."""
    runs: list[list[tuple[Range, DataFile]]] = []
    ends: list[tuple[Bound, int]] = []  # the greatest key and the number of each run, ascending
    for range_, file in sorted(files, key=lambda item: item[0]):
        index = bisect_right(ends, range_[0], key=lambda end: end[0]) - 1
        if index >= 0:
            _, number = ends.pop(index)
            runs[number].append((range_, file))
        else:
            number = len(runs)
            runs.append([(range_, file)])
        insort(ends, (range_[1], number))
    return runs


def _group_overlapping(files: Iterable[tuple[Range, DataFile]]) -> list[list[tuple[Range, DataFile]]]:
    """Groups overlapping files; files of different groups do not overlap."""
    parts: list[list[tuple[Range, DataFile]]] = []
    greatest: Any = None
    for range_, file in sorted(files, key=lambda item: item[0]):
        if parts and range_[0] < greatest:
            parts[-1].append((range_, file))
            greatest = max(greatest, range_[1])
        else:
            parts.append([(range_, file)])
            greatest = range_[1]
    return parts
