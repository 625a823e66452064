"""Resolution: turns tombstones into deletion vectors, file by file, so that scans need not evaluate deletes.

It reads the columns that the tombstones name, oldest files first, and records the positions of matching rows. A
tombstone is dropped when the last file that it may match is done.

For tombstones of erasures it also tests hidden rows, which are still in the file. Entries and receipts record the files
with matches; compaction rewrites these in time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from dolmen.base.records import FactSheet
from dolmen.base.runtime import never
from dolmen.base.units import GIB, KIB, MIB, cut_by_size
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Resolve
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.entries.segments.tombstone_judge import FileTombstones
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Erasure, Manifest, TableEntry
from dolmen.maintenance.erasures.erasure_receipts import note_erased_files
from dolmen.maintenance.unresolved import ErasureCounter, UnresolvedDeletes, files_behind
from dolmen.rows.scan.access_path import FilterChoice, IndexedDeletes
from dolmen.rows.scan.data_objects import local_path
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns, hidden_rows, whole_groups
from dolmen.rows.scan.row_groups import FilePlan, OpenFile, RowGroup, row_groups

BUDGET_BYTES = 64 * GIB  # A call stops after reading about this many bytes, whatever its deadline

MOST_OBJECTS = 32  # vectors are gathered when they are spread over more ``.del`` objects than this

SMALL_BYTES = 64 * KIB  # A vector larger than this, in bytes, stays where it is: it is worth a request of its own

BATCH_FILES = 1_000
_BATCH_ROWS = 1 << 28
"""The most files and physical rows of one commit. Positions take 32 MB if every other row is deleted."""


@dataclass(frozen=True, repr=False)
class Resolved(FactSheet):
    """The result of a resolution."""

    table: str
    tombstones: int = 0  # number of unresolved deletes when it began
    dropped: int = 0  # tombstones that its commits removed
    looked_at: int = 0  # files that were older than a tombstone
    read: int = 0  # files whose columns were read; statistics decided about the others
    changed: int = 0  # files that got a vector with more rows
    rows: int = 0  # rows that were added to these vectors
    bytes_read: int = 0  # bytes read from data files, Bloom filters included
    commits: int = 0
    finished: bool = True  # False when it stopped early: call it again
    gathered: int = 0  # vectors that were moved into few objects
    excluded: int = 0  # files without any of the keys, by their Bloom filters; they count as read, too
    indexed: int = 0  # files that were not read, because the index has the positions of the keys

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("resolved", f"{self.table}{'' if self.finished else ', as far as time and budget allowed'}"),
            ("tombstones", f"{self.dropped:,} of {self.tombstones:,} are done with"),
            (
                "files",
                f"{self.looked_at:,} looked at, {self.read:,} read, {self.changed:,} changed"
                f"{f'; Bloom filters excluded {self.excluded:,}' if self.excluded else ''}"
                f"{f'; by the index {self.indexed:,}' if self.indexed else ''}",
            ),
            ("rows hidden", f"{self.rows:,}"),
            ("read", f"{self.bytes_read:,} bytes"),
            ("vectors gathered", f"{self.gathered:,}"),
            ("commits", f"{self.commits:,}"),
        ]


def resolve(
    context: Context,
    name: str,
    *,
    deadline: Callable[[], bool] = never,
    budget_bytes: int = BUDGET_BYTES,
    batch_files: int = BATCH_FILES,
) -> Resolved:
    """Resolves a table's files up to the deletes of its newest version, in several commits if there are many.

    Safe at any time, beside any other work. Files that other commits replace meanwhile are left out.

    Args:
        deadline: called before each file; when it returns True, finished files are committed and the rest is left.
        budget_bytes: stop after reading about this much.

    Raises:
        TableNotFoundError: no such table.
        VersionExpiredError: it took so long that its snapshot has expired: call it again.
        CorruptionError: a file or a tombstone is damaged or missing.
    """
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        entry = context.segments.whole(manifest.table(name))
        tombstones = tombstones_of(entry, context.segments)
        # Vectors can only be gathered where nothing is left to resolve.
        if not tombstones:
            return Resolved(name, gathered=gather_vectors(context, name, deadline=deadline))
        # All deletes are loaded once. Deletes of erasures are also matched one by one, for the receipts.
        unresolved = UnresolvedDeletes(context, entry, tombstones)
        oldest = min(tombstone.ts for tombstone in tombstones)
        erasures = {each.ts: each for each in erasures_of(manifest, context.segments, after=oldest - 1)}
        erasure_counter = ErasureCounter(
            context, entry, [tombstone for tombstone in tombstones if tombstone.ts in erasures]
        )
        resolution = _Resolution(
            context, name, manifest, entry, unresolved, deadline, budget_bytes, batch_files, erasures, erasure_counter
        )
        resolution.run()
        gathered = 0 if resolution.is_stopped else gather_vectors(context, name, deadline=deadline)
    return Resolved(name, len(tombstones), finished=not resolution.is_stopped, gathered=gathered, **resolution.counts)


@dataclass
class _Resolution:
    """One call of ``resolve``. Its snapshot stays the same, so that all files come up to the same deletes."""

    context: Context
    name: str
    manifest: Manifest
    entry: TableEntry
    unresolved: UnresolvedDeletes
    deadline: Callable[[], bool]
    budget_bytes: int
    batch_files: int
    erasures: Mapping[int, Erasure]  # listed erasures that may have tombstones here, by timestamp
    erasure_counter: ErasureCounter
    counts: Counter[str] = field(default_factory=Counter)  # counts for the result, by the names of ``Resolved``
    is_stopped: bool = False
    positions: dict[str, BitMap] = field(default_factory=dict)
    """By path of a file, the rows that the next commit deletes; none for a file without a match."""
    erased_rows: dict[int, dict[str, int | None]] = field(default_factory=dict)
    """For the next commit, by timestamp of an erasure: the number of its rows in each file with some; None if the file
    was not read, because all its rows are hidden."""
    segments: list[str] = field(default_factory=list)  # for the next commit: segments whose files are all resolved

    def run(self) -> None:
        batch: list[tuple[DataFile, str | None]] = []
        rows = 0
        segment: str | None = None
        for file, file_segment in files_behind(self.entry, self.context.segments, self.unresolved.greatest_ts):
            # A full batch is committed, and a half-full one at the end of a segment, which is then done.
            is_full = len(batch) >= self.batch_files or rows + file.rows > _BATCH_ROWS
            if batch and (is_full or (file_segment != segment and len(batch) >= self.batch_files // 2)):
                self._resolve_batch(batch, file_segment)
                batch, rows = [], 0
                if self.is_stopped:
                    return
            segment = file_segment
            batch.append((file, file_segment))
            rows += file.rows
        self._resolve_batch(batch, None, is_last=True)

    def _resolve_batch(
        self, files: list[tuple[DataFile, str | None]], next_segment: str | None, *, is_last: bool = False
    ) -> None:
        """Resolves these files. Their segments are then done, except ``next_segment``, the next file's.

        Commits, unless statistics alone have decided about all and found little: then the next batch commits it.
        """
        behind = [(file, segment) for file, segment in files if file.applied_through < self.unresolved.greatest_ts]
        to_read: list[FilePlan] = []
        # Statistics decide about most files.
        for file, segment in behind:
            plan = self.unresolved.plan(file)
            if plan is None:  # all rows are hidden
                for tombstone in self.erasure_counter.tombstones_for(file):
                    self.erased_rows.setdefault(tombstone.ts, {})[file.path] = None
                self.positions[file.path] = BitMap(range(file.rows)) if file.live_rows else BitMap()
                self.counts["changed"] += bool(file.live_rows)
                self.counts["rows"] += file.live_rows
            elif plan.tombstones:
                to_read.append(plan)
            elif segment is None:  # no row is hidden; a file in a segment is recorded as done with its whole segment
                self.positions[file.path] = BitMap()
        finished = self._read(to_read)
        # A segment is done when its last file is, and only if none was left out.
        if not self.is_stopped:
            self.segments += [key for key in dict.fromkeys(key for _, key in files) if key not in (None, next_segment)]
        self.counts["looked_at"] += len(behind) - (len(to_read) - finished)
        rows = sum(len(each) for each in self.positions.values())
        if to_read or is_last or self.is_stopped or len(self.positions) >= self.batch_files or rows >= _BATCH_ROWS:
            self._commit()

    def _read(self, plans: list[FilePlan]) -> int:
        erasing = {plan.file.path: self.erasure_counter.tombstones_for(plan.file) for plan in plans}
        plain = [plan for plan in plans if not erasing[plan.file.path]]
        # The index first: it reads no data file. It cannot count the hidden rows that erasures match.
        by_index = self._find_by_index(plain)
        plain = [plan for plan in plain if plan.file.path not in by_index]
        # Then the files without erased rows, which need fewer columns.
        finished = len(by_index) + self._read_files(plain, erasing, frozenset())
        if self.is_stopped:
            return finished
        erased = [plan for plan in plans if erasing[plan.file.path]]
        return finished + self._read_files(erased, erasing, self.erasure_counter.ids)

    def _find_by_index(self, plans: list[FilePlan]) -> set[str]:
        """Finds the hidden rows of files through the index. Returns the paths of those files."""
        indexed = IndexedDeletes.of(self.context, self.entry, self.unresolved.deletes, len(plans))
        if indexed is None or self.deadline():
            return set()
        positions_by_path, fetched = indexed.find(plans)
        self.counts["bytes_read"] += fetched
        self.counts["indexed"] += len(positions_by_path)
        reader = PlanReader.of_table(self.context, self.name, self.manifest, self.entry)
        vectors = reader.vectors([plan for plan in plans if plan.file.path in positions_by_path])
        for path, hidden in positions_by_path.items():
            self._add_positions(path, hidden - vectors.get(path, BitMap()))
        return set(positions_by_path)

    def _add_positions(self, path: str, fresh: BitMap) -> None:
        """Adds the rows of a file that are hidden and that its vector does not have."""
        self.positions[path] = fresh
        self.counts["changed"] += bool(fresh)
        self.counts["rows"] += len(fresh)

    def _read_files(self, plans: list[FilePlan], erasing: Mapping[str, FileTombstones], ids: frozenset[int]) -> int:
        """Reads files to find their hidden rows. Returns the number of files finished.

        Args:
            erasing: by path, the tombstones of erasures that may match rows of the file, hidden or not.
            ids: columns that these name.
        """
        reader = PlanReader.of_table(self.context, self.name, self.manifest, self.entry)
        deletes = self.unresolved.deletes
        choice = None if ids else FilterChoice(self.context, self.entry, None, deletes, ids, len(plans)).or_none()
        groups_left: dict[str, int] = {}
        hidden: dict[str, BitMap] = {}
        vectors: dict[str, BitMap] = {}
        erased: dict[str, Counter[int]] = defaultdict(Counter)

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(plans, choice):
                # Files of which nothing is read yet are left to the next call.
                if self.deadline() or self.counts["bytes_read"] >= self.budget_bytes:
                    self.is_stopped = True
                    return
                to_read = list(row_groups(file, None, deletes, self.entry.schema))
                reader.filters.judge(file, to_read, tests_only=True)
                path = file.file.path
                # A row group that need not be read is hidden as a whole, or has no hidden row beyond the vector.
                hidden[path], vectors[path] = whole_groups(file, to_read), file.vector or BitMap()
                if erasing[path]:  # erasures also match rows that the vector or older deletes hide
                    to_read = self.erasure_counter.row_groups(file, to_read)
                groups_left[path] = len(to_read)
                self.counts["bytes_read"] += self._bytes(file, to_read, ids)
                yield from to_read

        def work(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap, Counter[int]]:
            path, positions = hidden_rows(group, columns)
            counts = self.erasure_counter.count(group, columns, erasing[path]) if erasing[path] else Counter[int]()
            return path, positions, counts

        for path, positions, counts in reader.read(work, groups(), ids):
            hidden[path] |= positions
            groups_left[path] -= 1
            erased[path] += counts
        # A file is finished only if all its row groups were read.
        assert not any(groups_left.values()), "a row group was not read to its end"
        for path, positions in hidden.items():
            self._add_positions(path, positions - vectors[path])
            for ts, rows in erased[path].items():
                self.erased_rows.setdefault(ts, {})[path] = rows
        self.counts["read"] += len(hidden)
        self.counts["excluded"] += reader.filters.excluded
        self.counts["bytes_read"] += reader.filters.bytes
        return len(hidden)

    def _bytes(self, file: OpenFile, groups: list[RowGroup], ids: frozenset[int]) -> int:
        """Bytes read to test these row groups of a file; a small file is fetched whole, with its footer."""
        if file.source is not None and local_path(self.context.store, file.file.path) is None:
            return file.file.size
        return sum(each.length for group in groups for each in group.ranges(ids))

    def _commit(self) -> None:
        entry, head, context = self.entry, self.context.head, self.context
        # Receipts come before the commit: once it has landed, compaction may replace the files that they name.
        by_erasure = [(self.erasures[ts], rows) for ts, rows in sorted(self.erased_rows.items())]
        note_erased_files(context.store, context.runtime, self.manifest, by_erasure)
        # A file with rows of several erasures is due by the earliest.
        erasing = {path: ts for ts, rows in sorted(self.erased_rows.items(), reverse=True) for path in rows}
        statement = Resolve(
            self.name,
            entry.uuid,
            entry.epoch,
            self.manifest.commit_ts,
            self.positions,
            tuple(self.segments),
            erasing=erasing,
        )
        commit = submit(head, "resolve", [statement])
        if commit.manifest is not None:
            self.counts["commits"] += 1
            self.counts["dropped"] += commit.manifest.counts.tombstones_removed
        self.positions, self.erased_rows, self.segments = {}, {}, []
        # A table that was dropped or overwritten in the meantime has other files, which need no resolution.
        newest = head.cached.manifest.tables.get(self.name) if head.cached else None
        if newest is None or (newest.uuid, newest.epoch) != (entry.uuid, entry.epoch):
            self.is_stopped = True


_BATCH_BYTES = 16 * MIB


def gather_vectors(context: Context, name: str, *, deadline: Callable[[], bool] = never) -> int:
    """Moves a table's small vectors into few objects, if they are in many. Returns the number of vectors moved.

    Nothing must be left to resolve: a moved vector needs a greater pair, so its file's ``applied_through`` becomes that
    of the snapshot.
    """
    manifest = (context.head.cached or context.head.refresh()).manifest  # it need not be the newest
    entry = context.segments.whole(manifest.table(name))
    if entry.tombstones or entry.segments_of("tombstones"):
        return 0
    moved = 0
    scattered = _scattered_files(LiveFiles.of(entry, context.segments))
    for batch in cut_by_size(scattered, lambda f: f.vector.length if f.vector else 0, _BATCH_BYTES, BATCH_FILES):
        if deadline():
            break
        positions = {file.path: BitMap() for file in batch}
        statement = Resolve(name, entry.uuid, entry.epoch, manifest.commit_ts, positions, gather=frozenset(positions))
        if submit(context.head, "gather", [statement]).manifest is None:
            break
        moved += len(batch)
    return moved


def _scattered_files(live: LiveFiles) -> list[DataFile]:
    """Files with small vectors, if these are in too many objects; otherwise none."""
    small = [file for file in live if file.vector and file.vector.length <= SMALL_BYTES]
    objects = {file.vector.object for file in small if file.vector}
    return small if len(objects) > MOST_OBJECTS else []
