"""The unresolved deletes of a snapshot, prepared once and applied to any of its files."""

from __future__ import annotations

from collections.abc import Sequence

from dolmen.commit.context import Context
from dolmen.entries.segments.judging import known_bounds
from dolmen.format.entries import DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field
from dolmen.format.statistics import Bounds
from dolmen.predicate import StatsVerdict, judge
from dolmen.rows.scan.blobs import BlobReader
from dolmen.rows.scan.deletes import load_deletes
from dolmen.rows.scan.plan import FilePlan, ScanPlan
from dolmen.rows.scan.read import PlanReader


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
