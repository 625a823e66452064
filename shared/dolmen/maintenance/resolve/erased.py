"""Finds the rows that erasures match among ALL rows of a file, those that older deletes hide included.

Hidden rows are still on the disk. So a file in which an erasure matches any row has to be rewritten in time, and a file
in which none matches need not be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dolmen.commit.context import Context
from dolmen.entries.segments.judging import KeyRanges, known_bounds
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import TableEntry
from dolmen.format.statistics import Bounds
from dolmen.predicate import StatsVerdict, judge, matches
from dolmen.rows.scan.blobs import BlobReader
from dolmen.rows.scan.deletes import Deletes, load_deletes
from dolmen.rows.scan.keys_lookup import KeysLookup, Tuples
from dolmen.rows.scan.read import RowGroupColumns
from dolmen.rows.scan.row_groups import OpenFile, RowGroup
from dolmen.rows.scan.row_masks import as_bound, to_arrow, to_mask


class ErasureMatches:
    """The deletes of a table's erasures, each by itself.

    Args:
        entry: the table's entry in the snapshot.
        tombstones: those of its unresolved tombstones that are of erasures.
    """

    def __init__(self, context: Context, entry: TableEntry, tombstones: Sequence[Tombstone]) -> None:
        self._context, self._schema = context, entry.schema
        self.ids = frozenset(id_ for tombstone in tombstones for id_ in tombstone.columns)
        """Ids of the columns that they name."""
        self._where = [tombstone for tombstone in tombstones if isinstance(tombstone, WhereTombstone)]
        self._ranges = KeyRanges.each(tombstones, entry.schema.widened_types)
        self._together = self._load(tombstones) if tombstones else Deletes({}, {})
        self._alone: dict[Blob, tuple[KeysLookup, ...]] = {}

    def suspects(self, file: DataFile) -> tuple[Tombstone, ...]:
        """The tombstones that may match rows of a file, hidden or not, by its statistics."""
        if not self.ids:
            return ()
        known = known_bounds(file, self._schema, self.ids)
        return tuple(self._suspects(known, file.rows, file.applied_through))

    def row_groups(self, file: OpenFile, suspects: Sequence[Tombstone], hidden: Sequence[RowGroup]) -> list[RowGroup]:
        """All row groups of a file in which suspects may match, in their order.

        Args:
            hidden: the row groups that have to be read in any case. The others are returned without tests.
        """
        there = {group.index: group for group in hidden}
        nans = {id_: stats.nans for id_, stats in file.file.stats.items()}
        found: list[RowGroup] = []
        for index, first in enumerate(file.footer.firsts):
            rows = file.footer.rows(index)
            known = {
                id_: file.footer.bounds(index, self._schema.by_id[id_], nans.get(id_))
                for id_ in self.ids
                if id_ in self._schema.by_id
            }
            if index in there:
                found.append(there[index])
            elif rows and any(self._suspects(known, rows, file.file.applied_through)):
                gone = file.vector.range_cardinality(first, first + rows) if file.vector else 0
                found.append(RowGroup(file, index, first, rows, gone, None, (), ()))
        return found

    def hits(self, group: RowGroup, columns: RowGroupColumns, suspects: Sequence[Tombstone]) -> Counter[int]:
        """How many rows of a row group each erasure matches, by its timestamp."""
        found: Counter[int] = Counter()
        arrays = columns.read(frozenset(id_ for tombstone in suspects for id_ in tombstone.columns))
        keys: dict[tuple[int, ...], list[KeysTombstone]] = defaultdict(list)
        for tombstone in suspects:
            if isinstance(tombstone, KeysTombstone):
                keys[tombstone.columns].append(tombstone)
            else:
                predicate = self._together.predicates[tombstone.blob]
                mask = to_mask(matches(predicate, as_bound(predicate, group, arrays), group.rows))
                found[tombstone.ts] += int(np.count_nonzero(mask))
        through = group.file.file.applied_through
        for ids, tombstones in keys.items():
            mask = np.zeros(group.rows, np.bool_)
            for lookup in self._together.lookups[ids]:
                mask |= lookup.hidden_mask(Tuples([arrays[id_] for id_ in ids], lookup.types), through)
            if not mask.any():
                continue
            few = [arrays[id_].filter(to_arrow(mask)) for id_ in ids]  # all that any of them matches
            for tombstone in tombstones:
                for alone in self._lookups(tombstone):
                    found[tombstone.ts] += int(np.count_nonzero(alone.hidden_mask(Tuples(few, alone.types), through)))
        return +found

    def _suspects(self, known: dict[int, Bounds], rows: int, applied_through: int) -> Iterator[Tombstone]:
        for tombstone in self._where:
            if tombstone.ts > applied_through:
                verdict = judge(self._together.predicates[tombstone.blob], known, rows)
                if verdict is not StatsVerdict.NEVER:
                    yield tombstone
        for ranges in self._ranges:
            mask = ranges.mask(known, rows, applied_through)
            if mask.any():
                yield from ranges.some(mask).tombstones

    def _lookups(self, tombstone: KeysTombstone) -> tuple[KeysLookup, ...]:
        """The keys of one tombstone, without those of others over the same columns."""
        if tombstone.blob not in self._alone:
            self._alone[tombstone.blob] = self._load([tombstone]).lookups[tombstone.columns]
        return self._alone[tombstone.blob]

    def _load(self, tombstones: Sequence[Tombstone]) -> Deletes:
        reader = BlobReader(self._context.store, self._context.runtime)
        return load_deletes(tombstones, self._schema, reader, self._context.cache)
