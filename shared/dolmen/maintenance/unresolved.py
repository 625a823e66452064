"""Unresolved deletes of a snapshot, loaded once, and applied to any of its files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.row_bounds import RowBounds, undecided_deletes
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.entries.segments.tombstone_judge import FileTombstones, TombstoneJudge
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import TableEntry
from dolmen.format.types import to_boolean_array, to_mask
from dolmen.predicate.evaluate import matches
from dolmen.predicate.prune import StatsVerdict
from dolmen.rows.scan.load_deletes import BlobReader, load_deletes
from dolmen.rows.scan.plan_reader import RowGroupColumns
from dolmen.rows.scan.row_groups import Deletes, FilePlan, OpenFile, RowGroup, narrow_absent
from dolmen.rows.scan.tombstone_keys import KeysLookup, Tuples


class UnresolvedDeletes:
    """Finds the tombstones that may hide rows of a file, from its statistics and from the keys, not only their bounds.

    Keys tombstones over the same columns are tested together: one look-up covers ten thousand of them. ``greatest_ts``
    is the timestamp of the youngest delete; 0 if there is none.
    """

    def __init__(self, context: Context, entry: TableEntry, tombstones: Sequence[Tombstone]) -> None:
        self.deletes = _load(context, entry, tombstones)
        self.greatest_ts = max((tombstone.ts for tombstone in tombstones), default=0)
        self._where_deletes = [t for t in tombstones if isinstance(t, WhereTombstone)]
        self._keys_by_columns = {
            t.columns: t for t in tombstones if isinstance(t, KeysTombstone)
        }  # one represents all like it
        self._schema = entry.schema
        self._ids = {id_ for tombstone in tombstones for id_ in tombstone.columns}

    def hides_all_rows(self, file: DataFile) -> bool:
        return self.plan(file) is None

    def plan(self, file: DataFile) -> FilePlan | None:
        """The file with the tombstones that may hide some of its rows; None if all its rows are certainly hidden."""
        if not file.live_rows:
            return None
        if file.applied_through >= self.greatest_ts:
            return FilePlan(file, False, ())
        rows, deletes = RowBounds.of(file, self._schema, self._ids), self.deletes
        younger_deletes = (tombstone for tombstone in self._where_deletes if tombstone.ts > file.applied_through)
        where = ((each, rows.judge(deletes.predicates[each.blob])) for each in younger_deletes)
        keys = ((each, deletes.judge_keys(columns, rows)) for columns, each in self._keys_by_columns.items())
        tombstones = undecided_deletes(chain[tuple[Tombstone, StatsVerdict]](where, keys))
        return None if tombstones is None else FilePlan(file, False, tuple(tombstones))


def files_behind(entry: TableEntry, reader: SegmentReader, ts: int) -> Iterator[tuple[DataFile, str | None]]:
    """Yields the live files that may lack deletes up to ``ts``, oldest first, with their segments; of a segment all."""
    files = LiveFiles.of(entry, reader)
    for segment in files.segments:
        if segment.applied_through < ts:
            yield from ((file, segment.object) for file in files.of_segment(segment.object))
    yield from ((file, None) for file in entry.files if file.applied_through < ts)


def _load(context: Context, entry: TableEntry, tombstones: Sequence[Tombstone]) -> Deletes:
    return load_deletes(tombstones, entry.schema, BlobReader(context))


class ErasureCounter:
    """Counts the rows, including hidden ones, that each delete of a table's erasures matches."""

    def __init__(self, context: Context, entry: TableEntry, tombstones: Sequence[Tombstone]) -> None:
        self._context, self._entry = context, entry
        self._all_deletes = _load(context, entry, tombstones) if tombstones else Deletes({}, {})
        self._judge = TombstoneJudge(tombstones, entry.schema, self._all_deletes.predicates)
        self.ids = self._judge.ids
        """Ids of the columns that the deletes name."""
        self._lookups_by_blob: dict[Blob, tuple[KeysLookup, ...]] = {}

    def tombstones_for(self, file: DataFile) -> FileTombstones:
        return self._judge.judge_rows(RowBounds.of(file, self._entry.schema, self.ids))

    def row_groups(self, file: OpenFile, to_read: Sequence[RowGroup]) -> list[RowGroup]:
        """Adds to ``to_read`` the other row groups of a file in which the tombstones may match; in order."""
        groups_by_index = {group.index: group for group in to_read}
        groups: list[RowGroup] = []
        for index, first in enumerate(file.footer.firsts):
            rows = file.footer.rows(index)
            if index in groups_by_index:
                groups.append(groups_by_index[index])
            elif rows and self._judge.judge_rows(file.bounds(index, self.ids, self._entry.schema)):
                deleted = file.vector.range_cardinality(first, first + rows) if file.vector else 0
                groups.append(RowGroup(file, index, first, rows, deleted, None, (), ()))
        return groups

    def count(self, group: RowGroup, columns: RowGroupColumns, tombstones: Iterable[Tombstone]) -> Counter[int]:
        """By an erasure's timestamp, the number of rows of a row group that it matches, if there are any."""
        counts: Counter[int] = Counter()
        arrays = columns.read(frozenset(id_ for tombstone in tombstones for id_ in tombstone.columns))
        by_columns: dict[tuple[int, ...], list[KeysTombstone]] = defaultdict(list)
        for tombstone in tombstones:
            if isinstance(tombstone, KeysTombstone):
                by_columns[tombstone.columns].append(tombstone)
            else:
                predicate = self._all_deletes.predicates[tombstone.blob]
                mask = to_mask(matches(predicate, narrow_absent(predicate, group, arrays), group.rows))
                counts[tombstone.ts] += int(np.count_nonzero(mask))
        through = group.file.file.applied_through
        for ids, keys_tombstones in by_columns.items():
            # All keys over the columns are looked up at once, then each tombstone's keys in the few matching rows.
            mask = np.zeros(group.rows, np.bool_)
            for lookup in self._all_deletes.lookups[ids]:
                mask |= lookup.hidden_mask(Tuples([arrays[id_] for id_ in ids], lookup.types), through)
            if not mask.any():
                continue
            matched = [arrays[id_].filter(to_boolean_array(mask)) for id_ in ids]
            for tombstone in keys_tombstones:
                for lookup in self._lookups(tombstone):
                    mask = lookup.hidden_mask(Tuples(matched, lookup.types), through)
                    counts[tombstone.ts] += int(np.count_nonzero(mask))
        return +counts

    def _lookups(self, tombstone: KeysTombstone) -> tuple[KeysLookup, ...]:
        """The keys of one tombstone, without other tombstones' keys over the same columns."""
        if tombstone.blob not in self._lookups_by_blob:
            deletes = _load(self._context, self._entry, [tombstone])
            self._lookups_by_blob[tombstone.blob] = deletes.lookups[tombstone.columns]
        return self._lookups_by_blob[tombstone.blob]
