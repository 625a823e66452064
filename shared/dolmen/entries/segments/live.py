"""A table's data files in one version, wherever their entries are: inline, or in segments.

Entries in segments never change. ``FileChanges`` has their later changes: newer pairs, and removals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.entries.segments.file_masks import may_match_mask
from dolmen.entries.segments.file_table import FileTable, Positions, Uuids
from dolmen.entries.segments.row_bounds import column_bounds, may_hold_matches
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import SchemaError
from dolmen.format.column_history import LAST_DAY
from dolmen.format.entries import DataFile, Overlay, Tombstone
from dolmen.format.manifest import Segment, TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.predicate import Predicate, columns


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
    """A file's entry with its newest pair, wherever that is."""
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


def pair_of(file: DataFile | Overlay) -> tuple[int, int]:
    """A pair's order: of two pairs of a file the greater one is newer."""
    return file.applied_through, file.vector.cardinality if file.vector else 0


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
        overlays: newer pairs of some of them, by position.
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
        positions, which = table.find(changes.uuids)
        gone = which < len(changes.removed)
        live = None
        if gone.any():
            live = np.ones(len(table), np.bool_)
            live[positions[gone]] = False
        names = changes.uuids.names
        overlays = {
            position: changes.pairs[names[at]]
            for position, at in zip(positions[~gone].tolist(), which[~gone].tolist(), strict=True)
        }
        return cls(segment, table, live, overlays, schema)

    @property
    def files(self) -> int:
        """Number of files that are still there."""
        return len(self.table) if self.live is None else int(np.count_nonzero(self.live))

    def positions(self, mask: npt.NDArray[np.bool_] | None = None) -> Positions:
        """Positions of live files, those of ``mask`` only if there is one."""
        if mask is None:
            mask = self.live
        elif self.live is not None:
            mask = mask & self.live
        return np.arange(len(self.table)) if mask is None else np.flatnonzero(mask)

    def entries(self, positions: Positions | None = None, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Effective entries of live files.

        Args:
            positions: positions of the requested entries; all by default.
            ids: columns whose bounds the entries have; all by default. The others are unknown then.
        """
        requested = self.positions() if positions is None else positions
        at = iter(requested.tolist())
        for some in self.table.entries(requested, ids, self.schema.widened_types):
            for file in some:
                yield effective(file, self.overlays.get(next(at)), self.segment.resolved_through)

    def totals(self, positions: Positions | None = None) -> Totals:
        """Sums over live files, or over those at these positions."""
        segment = self.segment
        if positions is None and self.live is None and not self.overlays:
            return Totals(segment.count, segment.rows, segment.deleted, segment.bytes)
        requested = self.positions() if positions is None else positions
        table = self.table
        deleted = self.cardinalities()
        return Totals(
            len(requested),
            int(table.numbers("rows")[requested].sum()),
            int(deleted[requested].sum()),
            int(table.numbers("size")[requested].sum()),
        )

    def cardinalities(self) -> npt.NDArray[np.int64]:
        """By position, the number of rows that the file's newest vector deletes."""
        own = np.maximum(self.table.numbers("vector_cardinality"), 0)
        through = self.table.numbers("applied_through")
        for position, overlay in self.overlays.items():
            cardinality = overlay.vector.cardinality if overlay.vector else 0
            if (overlay.applied_through, cardinality) > (int(through[position]), int(own[position])):
                own[position] = cardinality
        return own

    def applied_through(self) -> npt.NDArray[np.int64]:
        """By position, the file's effective ``applied_through``."""
        through = np.maximum(self.table.numbers("applied_through"), self.segment.resolved_through)
        for position, overlay in self.overlays.items():
            through[position] = max(int(through[position]), overlay.applied_through)
        return through


class LiveFiles:
    """The live data files of a table, each with its newest pair.

    Nothing is fetched before it is asked for, and never more segments than the question needs.

    Args:
        entry: the table; an idle one's section is fetched.
    """

    def __init__(self, entry: TableEntry, reader: SegmentReader) -> None:
        self.entry, self._reader = reader.whole(entry), reader
        self.segments = self.entry.segments_of("files")
        self._found_in: dict[str, str] = {}

    @classmethod
    def of(cls, entry: TableEntry, reader: SegmentReader) -> LiveFiles:
        """The live files of a table's entry."""
        return cls(entry, reader)

    @cached_property
    def changes(self) -> FileChanges:
        """The changes of files that are in segments."""
        return FileChanges.of(self.entry, self._reader)

    def __iter__(self) -> Iterator[DataFile]:
        """Effective entries, oldest first, a segment at a time."""
        for each in self.live_segments():
            yield from each.entries()
        yield from self.entry.files

    def of_segment(self, key: str) -> Iterator[DataFile]:
        """Effective entries of the live files of one segment, by its key, oldest first."""
        for each in self.live_segments(segment for segment in self.segments if segment.object == key):
            yield from each.entries()

    @property
    def count(self) -> int:
        """Number of files."""
        spilled = sum(segment.count for segment in self.segments)
        return len(self.entry.files) + spilled - (min(len(self.changes.removed), spilled) if spilled else 0)

    def live_segments(
        self, segments: Iterable[Segment] | None = None, *, ahead: int | None = None
    ) -> Iterator[LiveSegment]:
        """Its segments of files, oldest first, or some of them, each with the changes of its files.

        Args:
            ahead: number of segments that are fetched at once.
        """
        changes = self.changes
        for segment, table in self._reader.each_files(self.segments if segments is None else segments, ahead):
            yield LiveSegment.of(segment, table, changes, self.entry.schema)

    def find(self, uuids: Collection[str]) -> dict[str, DataFile]:
        """The effective entries of those of these files that are still there, by uuid."""
        requested = set(uuids)
        found = {file.uuid: file for file in self.entry.files if file.uuid in requested}
        left = requested - found.keys()
        if self.segments and left:
            left -= self.changes.removed
        for segment in reversed(self.segments):  # the newest is the likeliest
            if not left:
                break
            (each,) = self.live_segments([segment])
            positions, _ = each.table.find(Uuids(left))
            for file in each.entries(positions):
                found[file.uuid] = file
                self._found_in[file.uuid] = segment.object
            left -= found.keys()
        return found

    def segment_of(self, uuid: str) -> str | None:
        """Key of the segment in which a live file's entry is; None when it is inline, or there is no such file."""
        if uuid not in self._found_in:
            self.find([uuid])
        return self._found_in.get(uuid)

    def matching(self, where: Predicate | None, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Effective entries of the files that may hold rows for which a predicate is TRUE, oldest first.

        Args:
            where: bound to the table's schema; None = every row.
            ids: columns whose bounds the entries have; all by default.
        """
        if where is None:
            for each in self.live_segments():
                yield from each.entries(ids=ids)
            yield from self.entry.files
            return
        schema = self.entry.schema
        judged = ids if ids is None else {*ids, *columns(where)}
        for each in self.live_segments(self.segments_for(where)):
            for file in each.entries(each.positions(may_match_mask(where, each.table)), judged):
                if may_hold_matches(file, where, schema):
                    yield file
        for file in self.entry.files:
            if may_hold_matches(file, where, schema):
                yield file

    def segments_for(self, where: Predicate | None) -> list[Segment]:
        """Its segments of files that may hold rows for which a predicate is TRUE, by their bounds in the root."""
        if where is None:
            return list(self.segments)
        return [segment for segment in self.segments if may_hold_matches(segment, where, self.entry.schema)]

    def totals(self) -> Totals:
        """Sums over all live files. Segments are fetched only if something changed in any."""
        inline = self.entry.files
        known = Totals(
            len(inline),
            sum(file.rows for file in inline),
            sum(file.rows - file.live_rows for file in inline),
            sum(file.size for file in inline),
        )
        if not len(self.changes.uuids):
            return sum((Totals(s.count, s.rows, s.deleted, s.bytes) for s in self.segments), known)
        return sum((each.totals() for each in self.live_segments()), known)


def tombstones_of(entry: TableEntry, reader: SegmentReader) -> tuple[Tombstone, ...]:
    """A table's unresolved deletes, spilled and inline, oldest first."""
    entry = reader.whole(entry)
    spilled = (t for some in reader.runtime.map(reader.tombstones, entry.segments_of("tombstones")) for t in some)
    return (*spilled, *entry.tombstones)


def check_days(files: Iterable[DataFile], field: Field) -> None:
    """Checks that the midnights of all days in some files are timestamps.

    Args:
        field: the column as long as it has days.

    Raises:
        SchemaError: one is not, or the statistics do not tell.
    """
    for file in files:
        if not _is_in_range(file, field):
            least, greatest, *_ = column_bounds(file, field)
            raise SchemaError(
                f"column {field.name!r} can't become a timestamp: "
                + (
                    f"the statistics of {file.path} don't tell its days"
                    if least is None or greatest is None
                    else f"a day in {file.path} is before -290308 or after 294247, the years that timestamps have"
                )
            )


def check_days_of_table(entry: TableEntry, field: Field, reader: SegmentReader) -> None:
    """Checks this for all live files of a table. Reads segments only where their bounds in the root do not tell."""
    check_days(entry.files, field)
    live = LiveFiles.of(entry, reader)
    unclear = [segment for segment in live.segments if not _is_in_range(segment, field)]
    for each in live.live_segments(unclear):
        check_days(each.entries(ids=(field.id,)), field)


def _is_in_range(file: DataFile | Segment, field: Field) -> bool:
    known = column_bounds(file, field)
    if known.nulls == file.rows:
        return True
    least, greatest = known.min, known.max
    return isinstance(least, int) and isinstance(greatest, int) and least >= -LAST_DAY and greatest <= LAST_DAY


def rounds_otherwise(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a predicate that was bound to the narrower type may mean other rows in files of the wider one.

    A comparison of floats rounds its other side to the nearest float of their width; those of exact numbers, and of
    days with their midnights, do not depend on the width.
    """
    return bool(pa.types.is_floating(narrow)) and narrow != wide
