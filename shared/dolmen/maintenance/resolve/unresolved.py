"""The unresolved deletes of a snapshot, prepared once and applied to any of its files.

Finds the rows that erasures match among ALL rows of a file, those that older deletes hide included.

Hidden rows are still on the disk. So a file in which an erasure matches any row has to be rewritten in time, and a file
in which none matches need not be.

Gathers deletion vectors: a scan fetches vectors that are side by side in one request.

Every delete by position leaves a ``.del`` object of its own. When a table's vectors are spread over too many objects,
the small vectors are moved into one. This is done only in a table without unresolved deletes: a moved vector needs a
greater pair than before, so its file's ``applied_through`` becomes that of the snapshot, and that is correct only if
nothing is left to resolve.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pyroaring import BitMap

from dolmen.base.units import KIB, MIB
from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Resolve
from dolmen.entries.segments.judging import KeyRanges, known_bounds
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.arrow_arrays import to_boolean_array, to_mask
from dolmen.format.entries import Blob, Bounds, DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field
from dolmen.maintenance import never
from dolmen.predicate import StatsVerdict, judge, matches
from dolmen.rows.scan.by_key.keys_lookup import KeysLookup, Tuples
from dolmen.rows.scan.hide.row_masks import as_bound
from dolmen.rows.scan.hide.scan_deletes import Deletes, load_deletes
from dolmen.rows.scan.plan import FilePlan, ScanPlan
from dolmen.rows.scan.read.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.read.row_groups import OpenFile, RowGroup
from dolmen.rows.scan.view import BlobReader


class Unresolved:
    """Finds the tombstones that may hide rows of a file, by statistics.

    Keys tombstones over the same columns are tested together: one look-up covers ten thousand of them.

    Args:
        entry: the table's entry in the snapshot.
        tombstones: all of the table's tombstones.
    """

    def __init__(self, context: Context, entry: TableEntry, tombstones: Sequence[Tombstone]) -> None:
        reader = BlobReader(context.store, context.runtime)
        self.deletes = load_deletes(tombstones, entry.schema, reader, context.cache)
        self.greatest_ts = max((tombstone.ts for tombstone in tombstones), default=0)
        self._where = [t for t in tombstones if isinstance(t, WhereTombstone)]
        self._keys = {t.columns: t for t in tombstones if isinstance(t, KeysTombstone)}  # one represents all like it
        self._schema = entry.schema
        self._ids = {id_ for tombstone in tombstones for id_ in tombstone.columns}

    def hides_all_of(self, file: DataFile) -> bool:
        """Whether all rows of a file are certainly hidden."""
        return self.plan(file) is None

    def plan(self, file: DataFile) -> FilePlan | None:
        """The file with the tombstones that may hide rows of it; None when all its rows are certainly hidden."""
        if not file.live_rows:
            return None
        if file.applied_through >= self.greatest_ts:
            return FilePlan(file, False, ())
        known = known_bounds(file, self._schema, self._ids)
        tests = self._by_predicates(file, known)
        if tests is None:
            return None
        for columns, tombstone in self._keys.items():
            lookups = self.deletes.lookups[columns]
            found = {lookup.judge(known, file.rows, file.applied_through) for lookup in lookups}
            if StatsVerdict.ALWAYS in found:
                return None
            if StatsVerdict.MAYBE in found:
                tests.append(tombstone)
        return FilePlan(file, False, tuple(tests))

    def _by_predicates(self, file: DataFile, known: dict[int, Bounds]) -> list[Tombstone] | None:
        """The ``where`` tombstones that may hide some rows; None when one hides all rows."""
        tests: list[Tombstone] = []
        for tombstone in self._where:
            if tombstone.ts > file.applied_through:
                verdict = judge(self.deletes.predicates[tombstone.blob], known, file.rows)
                if verdict is StatsVerdict.ALWAYS:
                    return None
                if verdict is StatsVerdict.MAYBE:
                    tests.append(tombstone)
        return tests


def table_reader(
    context: Context, name: str, manifest: Manifest, entry: TableEntry, output: tuple[Field, ...] = ()
) -> PlanReader:
    """A reader of the table's files; its caller chooses files and columns at each step."""
    plan = ScanPlan(name, manifest.version, entry, output, None, None, (), {})
    return PlanReader(context, plan)


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
            few = [arrays[id_].filter(to_boolean_array(mask)) for id_ in ids]  # all that any of them matches
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


MOST_OBJECTS = 32
"""Vectors are gathered when they are spread over more ``.del`` objects than this."""

SMALL_BYTES = 64 * KIB
"""A vector larger than this, in bytes, stays where it is: it is worth a request of its own."""

_BATCH_FILES = 1_000
_BATCH_BYTES = 16 * MIB


def gather_vectors(context: Context, name: str, *, deadline: Callable[[], bool] = never) -> int:
    """Moves a table's small vectors into few objects, if they are in many. Returns the number of vectors moved.

    Args:
        deadline: asked before each commit of at most a thousand vectors.

    Raises:
        TableNotFoundError: no such table.
    """
    manifest = (context.head.cached or context.head.refresh()).manifest  # it need not be the newest
    entry = context.segments.whole(manifest.table(name))
    if entry.tombstones or entry.segments_of("tombstones"):
        return 0
    scattered = _scattered_files(LiveFiles.of(entry, context.segments))
    moved = 0
    while scattered and not deadline():
        batch, size = list[DataFile](), 0
        while scattered and len(batch) < _BATCH_FILES and size < _BATCH_BYTES:
            file = scattered.pop()
            batch.append(file)
            size += file.vector.length if file.vector else 0
        positions = {file.path: BitMap() for file in batch}
        statement = Resolve.of(
            name, entry.uuid, entry.epoch, manifest.commit_ts, positions, gather=frozenset(positions)
        )
        if submit(context.head, "gather", [statement]).manifest is None:
            break
        moved += len(batch)
    return moved


def _scattered_files(live: LiveFiles) -> list[DataFile]:
    """Files with small vectors, if these are in too many objects; otherwise none."""
    small = [file for file in live if file.vector and file.vector.length <= SMALL_BYTES]
    objects = {file.vector.object for file in small if file.vector}
    return small if len(objects) > MOST_OBJECTS else []
