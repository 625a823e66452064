"""Finds the rows that deletes by primary key hide through the index, where that reads less than reading the keys.

The index knows the position of each row that has a key, so nothing is read of data files. What both ways would read is
estimated from the manifest alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from dolmen.commit.context import Context
from dolmen.entries.index.key_bytes import order
from dolmen.entries.index.parts import IndexReader
from dolmen.entries.index.table_index import TableIndex, encoding_of, expected_cost
from dolmen.entries.segments.tombstones import Suspects
from dolmen.format.entries import KeysTombstone
from dolmen.format.manifest import TableEntry
from dolmen.rows.scan.deletes import Deletes
from dolmen.rows.scan.filter_choice import FilterChoice
from dolmen.rows.scan.keys_lookup import KeysLookup
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.ranges import REQUEST_BYTES

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class IndexedDeletes:
    """Deletes of one version of a table by keys whose rows the index may know.

    Args:
        lookup: the keys.
        choice: estimates what it takes to read the keys of files.
    """

    context: Context
    entry: TableEntry
    lookup: KeysLookup
    choice: FilterChoice

    @classmethod
    def of(cls, context: Context, entry: TableEntry, deletes: Deletes, files: int) -> IndexedDeletes | None:
        """The deletes by primary key, if there are any and the table has an index.

        Args:
            files: the number of files that they are looked for in.
        """
        lookups = deletes.lookups.get(tuple(sorted(entry.primary_key)), ())
        if not entry.segments_of("index") or len(lookups) != 1 or not lookups[0].in_memory:
            return None
        choice = FilterChoice(context, entry, None, deletes, frozenset(), files)
        return cls(context, entry, lookups[0], choice)

    def find(self, plans: Sequence[FilePlan]) -> tuple[dict[str, BitMap], int]:
        """The positions of the rows that the deletes hide in files whose rows no other deletes may hide, by path.

        Args:
            plans: files, with all deletes that may hide rows of them. Of those that the result lacks, the keys have to
                be read: the index does not cover them, or that reads less.

        Returns:
            the positions, and the bytes that were fetched for them.

        Raises:
            CorruptionError: a part of the index is missing or damaged.
        """
        wanted = {plan.file.uuid: plan for plan in plans if self._is_by_key(plan)}
        if not self._pays(wanted.values()):
            return {}, 0
        reader = IndexReader(self.context.store, self.context.runtime, self.context.cache)
        index = TableIndex.of(self.entry, reader)
        known = {uuid: plan for uuid, plan in wanted.items() if uuid in index.covered}
        if not self._pays(known.values()):
            return {}, reader.tally.bytes
        found = {plan.file.path: BitMap() for plan in known.values()}
        arrays, ts = self.lookup.keys(-1)
        by_id = dict(zip(self.lookup.columns, arrays, strict=True))
        keys = encoding_of(self.entry).encode([by_id[id_] for id_ in self.entry.primary_key])
        ascending = order(keys)
        ts = ts[ascending]
        for hits in index.hits(keys[ascending]):
            through = np.array([known[u].file.applied_through if u in known else _NEVER for u in hits.uuids], np.int64)
            hidden = ts[hits.at] > through[hits.files]
            files, positions = hits.files[hidden], hits.positions[hidden]
            for number in np.unique(files).tolist():
                found[known[hits.uuids[number]].file.path].update(BitMap(positions[files == number]))
        return found, reader.tally.bytes

    def _is_by_key(self, plan: FilePlan) -> bool:
        """Whether all deletes that may hide rows of a file are among these."""
        tombstones = plan.tombstones
        if isinstance(tombstones, Suspects):
            return False
        return all(isinstance(each, KeysTombstone) and each.columns == self.lookup.columns for each in tombstones)

    def _pays(self, plans: Collection[FilePlan]) -> bool:
        """Whether the index is expected to read less than reading the keys of these files."""
        parts = self.entry.segments_of("index")
        own = sum(expected_cost(part, self.lookup.count, REQUEST_BYTES) for part in parts)
        return own < sum(self.choice.expected_cost(plan) for plan in plans)
