"""The live files of one segment."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dolmen.entries.segments.changes import FileChanges, effective
from dolmen.entries.segments.file_table import FileTable, Positions
from dolmen.format.entries import DataFile, Overlay
from dolmen.format.manifest import Segment
from dolmen.format.schema import Schema


@dataclass(frozen=True)
class Totals:
    """Sums over live files: how many, their physical rows, the rows that vectors delete, and their bytes."""

    files: int = 0
    rows: int = 0
    deleted: int = 0
    bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.files + other.files, self.rows + other.rows, self.deleted + other.deleted, self.bytes + other.bytes
        )


@dataclass(frozen=True)
class LiveSegment:
    """A segment of files, and the changes of these files since it was written.

    Args:
        live: a mask of the entries whose files are still there; None = all.
        overlays: newer pairs of some of them, by place.
        schema: the table's, which gives the types of the bounds.
    """

    segment: Segment
    table: FileTable
    live: npt.NDArray[np.bool_] | None
    overlays: dict[int, Overlay]
    schema: Schema

    @classmethod
    def of(cls, segment: Segment, table: FileTable, changes: FileChanges, schema: Schema) -> LiveSegment:
        """Finds the changes of this segment's files."""
        if not len(changes.uuids):
            return cls(segment, table, None, {}, schema)
        places, which = table.find(changes.uuids)
        gone = which < len(changes.removed)
        live = None
        if gone.any():
            live = np.ones(len(table), np.bool_)
            live[places[gone]] = False
        names = changes.uuids.names
        overlays = {
            place: changes.pairs[names[at]]
            for place, at in zip(places[~gone].tolist(), which[~gone].tolist(), strict=True)
        }
        return cls(segment, table, live, overlays, schema)

    @property
    def files(self) -> int:
        """Number of files that are still there."""
        return len(self.table) if self.live is None else int(np.count_nonzero(self.live))

    def places(self, mask: npt.NDArray[np.bool_] | None = None) -> Positions:
        """Places of live files, those of ``mask`` only if there is one."""
        if mask is None:
            mask = self.live
        elif self.live is not None:
            mask = mask & self.live
        return np.arange(len(self.table)) if mask is None else np.flatnonzero(mask)

    def entries(self, places: Positions | None = None, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Effective entries of live files.

        Args:
            places: places of the wanted entries; all by default.
            ids: columns whose bounds the entries have; all by default. The others are unknown then.
        """
        wanted = self.places() if places is None else places
        at = iter(wanted.tolist())
        for some in self.table.entries(wanted, ids, self.schema.widened_types):
            for file in some:
                yield effective(file, self.overlays.get(next(at)), self.segment.resolved_through)

    def totals(self, places: Positions | None = None) -> Totals:
        """Sums over live files, or over those at these places."""
        segment = self.segment
        if places is None and self.live is None and not self.overlays:
            return Totals(segment.count, segment.rows, segment.deleted, segment.bytes)
        wanted = self.places() if places is None else places
        table = self.table
        deleted = self.cardinalities()
        return Totals(
            len(wanted),
            int(table.numbers("rows")[wanted].sum()),
            int(deleted[wanted].sum()),
            int(table.numbers("size")[wanted].sum()),
        )

    def cardinalities(self) -> npt.NDArray[np.int64]:
        """By place, the number of rows that the file's newest vector deletes."""
        own = np.maximum(self.table.numbers("vector_cardinality"), 0)
        through = self.table.numbers("applied_through")
        for place, overlay in self.overlays.items():
            cardinality = overlay.vector.cardinality if overlay.vector else 0
            if (overlay.applied_through, cardinality) > (int(through[place]), int(own[place])):
                own[place] = cardinality
        return own

    def applied_through(self) -> npt.NDArray[np.int64]:
        """By place, the file's effective ``applied_through``."""
        through = np.maximum(self.table.numbers("applied_through"), self.segment.resolved_through)
        for place, overlay in self.overlays.items():
            through[place] = max(int(through[place]), overlay.applied_through)
        return through
