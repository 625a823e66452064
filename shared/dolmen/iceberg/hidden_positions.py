"""Positions of the hidden rows of a version: those in vectors, and those that only tombstones hide so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from pyroaring import BitMap

from dolmen.base.cached import cached_property
from dolmen.commit.context import Context
from dolmen.entries.segments.live import tombstones_of
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.errors import LimitError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.read.reading import PlanReader, hidden_rows, whole_groups
from dolmen.rows.scan.read.row_groups import RowGroup, row_groups
from dolmen.rows.scan.scan_deletes import BlobReader, Deletes, load_deletes


class HiddenPositions:
    """Finds hidden rows. Reads only files that a tombstone may match, and of these only the columns that it names.

    Args:
        name: the table's name.
        entry: its whole entry in the version.
        lookup_bytes: the most bytes of files to look through; None for all.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        manifest: Manifest,
        entry: TableEntry,
        lookup_bytes: int | None = None,
    ) -> None:
        self._lookup_bytes_left = math.inf if lookup_bytes is None else lookup_bytes
        self._context, self._name, self._manifest, self._entry = context, name, manifest, entry
        self._tombstones = tombstones_of(entry, context.segments)
        self.judge = TombstoneJudge(self._tombstones, entry.schema)
        self.files_read = 0

    def plan(self, file: DataFile) -> FilePlan | None:
        """The file with the tombstones that may hide rows of it; None when all its rows are certainly hidden."""
        if not file.live_rows:
            return None
        suspects = self.judge.of_file(file)
        return None if suspects is None else FilePlan(file, False, suspects)

    def find(self, plans: Iterable[FilePlan]) -> dict[str, BitMap]:
        """All hidden positions of files that tombstones may match, by path. Raises LimitError."""
        wanted = list(plans)
        if not wanted:
            return {}
        self._lookup_bytes_left -= sum(plan.file.size for plan in wanted)
        if self._lookup_bytes_left < 0:
            raise LimitError(
                f"table {self._name!r}: too many files may hold rows of unresolved deletes to look through now; "
                "resolve them, or let the next round of maintenance do it"
            )
        reader = self._reader()
        found: dict[str, BitMap] = {}

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(wanted):
                some = list(row_groups(file, None, self._deletes, self._entry.schema))
                found[file.file.path] = (file.vector or BitMap()) | whole_groups(file, some)
                yield from some

        for path, hidden in reader.read(hidden_rows, groups(), frozenset()):
            found[path] |= hidden
        self.files_read += len(wanted)
        return found

    def vectors(self, files: Iterable[DataFile]) -> dict[str, BitMap]:
        """The vectors of files, by path."""
        return self._reader().vectors([FilePlan(file, False, ()) for file in files])

    @cached_property
    def _deletes(self) -> Deletes:
        blobs = BlobReader(self._context.store, self._context.runtime, None, self._context.cache)
        return load_deletes(self._tombstones, self._entry.schema, blobs, self._context.cache)

    def _reader(self) -> PlanReader:
        return PlanReader.of_table(self._context, self._name, self._manifest, self._entry)
