"""A table's live data files in one version, whether their entries are inline or in segments.

An entry is inline if it is in the manifest itself. Entries in segments never change: ``FileChanges`` has their later
changes, which are removals and newer pairs. A *pair* is a file's ``applied_through`` with its deletion vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import cached_property
from dolmen.entries.segments.row_bounds import column_bounds, may_hold_matches, may_match_mask
from dolmen.entries.segments.segment_reader import LiveSegment, SegmentReader, Totals, Uuids
from dolmen.errors import SchemaError
from dolmen.format.column_history import LAST_DAY
from dolmen.format.entries import DataFile, Overlay, Tombstone, pair_of
from dolmen.format.manifest import Segment, TableEntry
from dolmen.format.schema import Field
from dolmen.predicate.ast import Predicate, columns


class FileChanges(Struct, frozen=True, dict=True):
    """Changes of files in segments, inline and spilled ones: removed uuids, and by uuid the newest pair."""

    removed: frozenset[str]
    pairs: dict[str, Overlay]

    @classmethod
    def of(cls, entry: TableEntry, reader: SegmentReader) -> FileChanges:
        """The changes in a table's entry; fetches spilled ones."""
        removed = set(entry.removed)
        overlays: list[Overlay] = []
        for segment in entry.segments:
            if segment.kind == "removed":
                removed.update(reader.removed(segment))
            elif segment.kind == "overlays":
                overlays += reader.overlays(segment)
        return cls(frozenset(removed), newest_pairs([*overlays, *entry.overlays]))

    @cached_property
    def uuids(self) -> Uuids:
        """Uuids of the files that changed."""
        return Uuids([*self.removed, *(uuid for uuid in self.pairs if uuid not in self.removed)])


def newest_pairs(overlays: Iterable[Overlay]) -> dict[str, Overlay]:
    """The newest of some pairs for each file, by its uuid."""
    newest: dict[str, Overlay] = {}
    for overlay in overlays:
        earlier = newest.get(overlay.file)
        if earlier is None or pair_of(earlier) < pair_of(overlay):
            newest[overlay.file] = overlay
    return newest


class LiveFiles:
    """The live data files of a table, each with its newest pair. Segments are fetched only when they are needed."""

    def __init__(self, entry: TableEntry, reader: SegmentReader) -> None:
        self.entry, self._reader = reader.whole(entry), reader
        self.segments = self.entry.segments_of("files")
        self._found_in: dict[str, str] = {}

    @classmethod
    def of(cls, entry: TableEntry, reader: SegmentReader) -> LiveFiles:
        return cls(entry, reader)

    @cached_property
    def changes(self) -> FileChanges:
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
        """The number of live files."""
        spilled = sum(segment.count for segment in self.segments)
        return len(self.entry.files) + spilled - (min(len(self.changes.removed), spilled) if spilled else 0)

    def live_segments(
        self, segments: Iterable[Segment] | None = None, *, ahead: int | None = None
    ) -> Iterator[LiveSegment]:
        """Its segments of files (or some of them), oldest first, each with the changes of its files."""
        removed, pairs, uuids = self.changes.removed, self.changes.pairs, self.changes.uuids
        for segment, table in self._reader.map_files(self.segments if segments is None else segments, ahead):
            live, overlays = None, dict[int, Overlay]()
            if len(uuids):
                positions, which = table.find(uuids)
                is_removed = which < len(removed)
                if is_removed.any():
                    live = np.ones(len(table), np.bool_)
                    live[positions[is_removed]] = False
                kept = zip(positions[~is_removed].tolist(), which[~is_removed].tolist(), strict=True)
                overlays = {position: pairs[uuids.names[number]] for position, number in kept}
            yield LiveSegment(segment, table, live, overlays, self.entry.schema)

    def find(self, uuids: Collection[str]) -> dict[str, DataFile]:
        """The effective entries of the files that are still live, by uuid."""
        requested = set(uuids)
        found = {file.uuid: file for file in self.entry.files if file.uuid in requested}
        remaining = requested - found.keys()
        if self.segments and remaining:
            remaining -= self.changes.removed
        for segment in reversed(self.segments):  # the newest one is the most likely to have them
            if not remaining:
                break
            (each,) = self.live_segments([segment])
            positions, _ = each.table.find(Uuids(remaining))
            for file in each.entries(positions):
                found[file.uuid] = file
                self._found_in[file.uuid] = segment.object
            remaining -= found.keys()
        return found

    def segment_of(self, uuid: str) -> str | None:
        """The key of the segment with a live file's entry; None if it is inline, or there is no such file."""
        if uuid not in self._found_in:
            self.find([uuid])
        return self._found_in.get(uuid)

    def find_matching(self, where: Predicate | None, ids: Collection[int] | None = None) -> Iterator[DataFile]:
        """Effective entries of the files that may have rows for which a bound predicate is TRUE, oldest first.

        They have the bounds of columns ``ids``; all by default.
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
        """Its segments of files that may have rows for which a predicate is TRUE, by their bounds in the manifest."""
        if where is None:
            return list(self.segments)
        return [segment for segment in self.segments if may_hold_matches(segment, where, self.entry.schema)]

    def totals(self) -> Totals:
        """Sums over all live files. Segments are fetched only if files in them have changed."""
        inline = self.entry.files
        inline_totals = Totals(
            len(inline),
            sum(file.rows for file in inline),
            sum(file.rows - file.live_rows for file in inline),
            sum(file.size for file in inline),
        )
        if not len(self.changes.uuids):
            return sum((Totals(s.count, s.rows, s.deleted, s.bytes) for s in self.segments), inline_totals)
        return sum((each.totals() for each in self.live_segments()), inline_totals)


def tombstones_of(entry: TableEntry, reader: SegmentReader) -> tuple[Tombstone, ...]:
    """A table's unresolved deletes, spilled and inline, oldest first."""
    entry = reader.whole(entry)
    spilled = (t for some in reader.runtime.map(reader.tombstones, entry.segments_of("tombstones")) for t in some)
    return (*spilled, *entry.tombstones)


def check_days(files: Iterable[DataFile], field: Field) -> None:
    """Raises SchemaError unless statistics prove that all days of a column in some files are timestamps at midnight."""
    for file in files:
        if not _is_in_range(file, field):
            least, greatest, *_ = column_bounds(file, field)
            problem = f"a day in {file.path} is before -290308 or after 294247, the years that timestamps have"
            if least is None or greatest is None:
                problem = f"the statistics of {file.path} don't show which days it has"
            raise SchemaError(f"column {field.name!r} can't become a timestamp: {problem}")


def check_days_of_table(entry: TableEntry, field: Field, reader: SegmentReader) -> None:
    """``check_days`` for a table's live files. Reads segments only if their bounds in the manifest do not suffice."""
    check_days(entry.files, field)
    live = LiveFiles.of(entry, reader)
    unclear = [segment for segment in live.segments if not _is_in_range(segment, field)]
    for each in live.live_segments(unclear):
        check_days(each.entries(ids=(field.id,)), field)


def _is_in_range(file: DataFile | Segment, field: Field) -> bool:
    bounds = column_bounds(file, field)
    if bounds.nulls == file.rows:
        return True
    least, greatest = bounds.min, bounds.max
    return isinstance(least, int) and isinstance(greatest, int) and least >= -LAST_DAY and greatest <= LAST_DAY


def may_round_differently(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a predicate bound to the narrower type may mean other rows in files of the wider one (floats)."""
    return bool(pa.types.is_floating(narrow)) and narrow != wide
