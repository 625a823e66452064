"""Changes of data files since their entries went into segments: newer pairs, and removals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from dolmen.base.cached import cached_property
from dolmen.entries.segments.reader import SegmentReader
from dolmen.entries.segments.uuids import Uuids
from dolmen.format.entries import DataFile, Overlay
from dolmen.format.manifest import TableEntry


@dataclass(frozen=True)
class FileChanges:
    """Changes of files in segments, inline ones and spilled ones together.

    Args:
        removed: uuids of files that are gone.
        pairs: by uuid, the greatest pair that any overlay has.
    """

    removed: frozenset[str]
    pairs: dict[str, Overlay]

    @classmethod
    def of(cls, entry: TableEntry, reader: SegmentReader) -> FileChanges:
        """All changes in a table's entry; fetches those that are in segments."""
        removed = set(entry.removed)
        pairs: dict[str, Overlay] = {}
        for segment in entry.segments:
            if segment.kind == "removed":
                removed.update(reader.removed(segment))
            elif segment.kind == "overlays":
                _take(pairs, reader.overlays(segment))
        _take(pairs, entry.overlays)
        return cls(frozenset(removed), pairs)

    @cached_property
    def uuids(self) -> Uuids:
        """Uuids of the files that changed."""
        return Uuids([*self.removed, *(uuid for uuid in self.pairs if uuid not in self.removed)])


def effective(file: DataFile, overlay: Overlay | None, resolved_through: int) -> DataFile:
    """A file's entry with its newest pair, in whichever place that is."""
    through, vector, erasing = file.applied_through, file.vector, file.erasing
    if overlay is not None and file.newer_pair(overlay.applied_through, overlay.vector):
        through, vector, erasing = overlay.applied_through, overlay.vector, overlay.erasing
    through = max(through, resolved_through)
    if (through, erasing) == (file.applied_through, file.erasing) and vector is file.vector:
        return file
    return msgspec.structs.replace(file, applied_through=through, vector=vector, erasing=erasing)


def _take(pairs: dict[str, Overlay], overlays: Iterable[Overlay]) -> None:
    for overlay in overlays:
        known = pairs.get(overlay.file)
        if known is None or pair_of(known) < pair_of(overlay):
            pairs[overlay.file] = overlay


def pair_of(held: DataFile | Overlay) -> tuple[int, int]:
    """A pair's order: of two pairs of a file the greater one is newer."""
    return held.applied_through, held.vector.cardinality if held.vector else 0
