"""A table's data files in one version, wherever their entries are: inline, or in segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dolmen.base.cached import cached_property
from dolmen.entries.segments.changes import FileChanges
from dolmen.entries.segments.judging import known_bounds
from dolmen.entries.segments.live_segment import LiveSegment, Totals
from dolmen.entries.segments.mask import may_match_mask
from dolmen.entries.segments.reader import SegmentReader
from dolmen.entries.segments.uuids import Uuids
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.manifest import Segment, TableEntry
from dolmen.predicate import Predicate, StatsVerdict, columns, judge


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
        """The effective entries of these files, by uuid, as far as the files are still there."""
        wanted = set(uuids)
        found = {file.uuid: file for file in self.entry.files if file.uuid in wanted}
        left = wanted - found.keys()
        if self.segments and left:
            left -= self.changes.removed
        for segment in reversed(self.segments):  # the newest is the likeliest
            if not left:
                break
            (each,) = self.live_segments([segment])
            places, _ = each.table.find(Uuids(left))
            for file in each.entries(places):
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
        needed = columns(where)
        judged = ids if ids is None else {*ids, *needed}
        for each in self.live_segments(self.segments_for(where)):
            for file in each.entries(each.places(may_match_mask(where, each.table)), judged):
                if self._may_match(where, needed, file):
                    yield file
        for file in self.entry.files:
            if self._may_match(where, needed, file):
                yield file

    def segments_for(self, where: Predicate | None) -> list[Segment]:
        """Its segments of files that may hold rows for which a predicate is TRUE, by their bounds in the root."""
        if where is None:
            return list(self.segments)
        needed = columns(where)
        return [segment for segment in self.segments if self._may_match(where, needed, segment)]

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

    def _may_match(self, where: Predicate, needed: Collection[int], file: DataFile | Segment) -> bool:
        return judge(where, known_bounds(file, self.entry.schema, needed), file.rows) is not StatsVerdict.NEVER


def tombstones_of(entry: TableEntry, reader: SegmentReader) -> tuple[Tombstone, ...]:
    """A table's unresolved deletes, spilled and inline, oldest first."""
    entry = reader.whole(entry)
    spilled = (t for some in reader.runtime.map(reader.tombstones, entry.segments_of("tombstones")) for t in some)
    return (*spilled, *entry.tombstones)
