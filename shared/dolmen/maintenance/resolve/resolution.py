"""Resolution: turns tombstones into deletion vectors, file by file, so that scans need not look deletes up.

Every scan of a file must check each tombstone that is younger than the file. Resolution checks them once: it reads the
columns that the tombstones name, and records the positions of the rows they match. It begins with the oldest files,
which most tombstones cover. A tombstone is dropped when the last file that it may match is done, so this order ends
the oldest deletes first.

For the tombstones of erasures it also tests the rows that are hidden already: they are still in the file. Files in
which an erasure matches a row are noted in its receipt and in their entries, and compaction rewrites them in time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from dolmen.base.units import GIB
from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Resolve
from dolmen.entries.segments.erasures_in_force import erasures_of
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance import never
from dolmen.maintenance.erasures.erasure_work import note_held_files
from dolmen.maintenance.resolve.unresolved import ErasureMatches, Unresolved, gather_vectors, table_reader
from dolmen.rows.scan.by_key.filter_choice import FilterChoice
from dolmen.rows.scan.by_key.indexed import IndexedDeletes
from dolmen.rows.scan.plan import FilePlan, html, text
from dolmen.rows.scan.read.byte_ranges import local_path
from dolmen.rows.scan.read.reading import RowGroupColumns, hidden_rows, whole_groups
from dolmen.rows.scan.read.row_groups import OpenFile, RowGroup, row_groups

BUDGET_BYTES = 64 * GIB
"""A call stops after reading about this many bytes, whatever its deadline."""

BATCH_FILES = 1_000
_BATCH_ROWS = 1 << 28
"""The most files and physical rows of one commit. Positions take 32 MB if every other row is deleted."""


@dataclass(frozen=True, repr=False)
class Resolved:
    """The result of a resolution.

    Args:
        table: the table's name.
        tombstones: number of unresolved deletes when it began.
        dropped: tombstones that its commits removed.
        looked_at: files that were older than a tombstone.
        read: files whose columns had to be read; statistics decided about the others.
        changed: files in which rows were deleted.
        rows: rows that are now hidden by position.
        bytes_read: bytes read from data files, Bloom filters included.
        commits: number of versions made.
        finished: False when it stopped early: call it again.
        gathered: vectors that were moved into few objects.
        excluded: files of which Bloom filters proved that they hold none of the keys; they count as read, too.
        indexed: files whose rows with the keys the index told, so that they were not read.
    """

    table: str
    tombstones: int = 0
    dropped: int = 0
    looked_at: int = 0
    read: int = 0
    changed: int = 0
    rows: int = 0
    bytes_read: int = 0
    commits: int = 0
    finished: bool = True
    gathered: int = 0
    excluded: int = 0
    indexed: int = 0

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
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

    def __repr__(self) -> str:
        return text(self.facts())

    def _repr_html_(self) -> str:
        return html(self.facts())


def resolve(
    context: Context,
    name: str,
    *,
    deadline: Callable[[], bool] = never,
    budget_bytes: int = BUDGET_BYTES,
    batch_files: int = BATCH_FILES,
) -> Resolved:
    """Resolves a table's files up to the deletes of its newest version, in several commits if there are many.

    Safe at any time and beside anything. Commits of others stay as they are, and files that they replace are left out.

    Args:
        deadline: asked before each file; when it returns True, finished files are committed and the rest is left.
        budget_bytes: stop after reading about this much.
        batch_files: the most files of a commit.

    Raises:
        TableNotFoundError: no such table.
        VersionExpiredError: it took so long that its snapshot has expired: call it again.
        CorruptionError: a file or a tombstone is damaged or missing.
    """
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        entry = context.segments.whole(manifest.table(name))
        tombstones = tombstones_of(entry, context.segments)
        if not tombstones:
            return Resolved(name, gathered=gather_vectors(context, name, deadline=deadline))
        unresolved = Unresolved(context, entry, tombstones)
        listed = {
            each.ts: each for each in erasures_of(manifest, context.segments, after=min(t.ts for t in tombstones) - 1)
        }
        erased = ErasureMatches(context, entry, [tombstone for tombstone in tombstones if tombstone.ts in listed])
        run = _Resolution(
            context, name, manifest, entry, unresolved, deadline, budget_bytes, batch_files, listed, erased
        )
        run.all_files()
        gathered = 0 if run.stopped else gather_vectors(context, name, deadline=deadline)
    return Resolved(
        name,
        len(tombstones),
        run.dropped,
        run.looked_at,
        run.read,
        run.changed,
        run.rows,
        run.bytes_read,
        run.commits,
        not run.stopped,
        gathered,
        run.excluded,
        run.indexed,
    )


@dataclass
class _Resolution:
    """One call of ``resolve``. Its snapshot stays the same, so that all files come up to the same deletes."""

    context: Context
    name: str
    manifest: Manifest
    entry: TableEntry
    unresolved: Unresolved
    deadline: Callable[[], bool]
    budget_bytes: int
    batch_files: int
    erasures: Mapping[int, Erasure]
    """Listed erasures that may have tombstones here, by timestamp."""
    erased: ErasureMatches
    looked_at: int = 0
    read: int = 0
    changed: int = 0
    rows: int = 0
    bytes_read: int = 0
    commits: int = 0
    dropped: int = 0
    excluded: int = 0
    indexed: int = 0
    stopped: bool = False
    positions: dict[str, BitMap] = field(default_factory=dict)
    held: dict[int, dict[str, int | None]] = field(default_factory=dict)
    """By timestamp of an erasure, the number of its rows in each file that holds some, for the next commit; None if all
    rows of the file are hidden, so that it was not read."""
    done: list[str] = field(default_factory=list)
    """Segments whose files are all looked at, for the next commit."""

    def all_files(self) -> None:
        """Resolves batch after batch, and commits each."""
        waiting: list[tuple[DataFile, str | None]] = []
        rows = 0
        segment: str | None = None
        for file, own in self._files():
            full = len(waiting) >= self.batch_files or rows + file.rows > _BATCH_ROWS
            if waiting and (full or (own != segment and len(waiting) >= self.batch_files // 2)):
                self._batch(waiting, own)
                waiting, rows = [], 0
                if self.stopped:
                    return
            segment = own
            waiting.append((file, own))
            rows += file.rows
        self._batch(waiting, None)

    def _files(self) -> Iterator[tuple[DataFile, str | None]]:
        """Yields live files that may need resolution, oldest first, with their segments; a segment's files all or
        none."""
        files = LiveFiles.of(self.entry, self.context.segments)
        for segment in files.segments:
            if segment.applied_through < self.unresolved.greatest_ts:
                for file in files.of_segment(segment.object):
                    yield file, segment.object
        for file in self.entry.files:
            if file.applied_through < self.unresolved.greatest_ts:
                yield file, None

    def _batch(self, files: list[tuple[DataFile, str | None]], following: str | None) -> None:
        """Looks at these files and commits the result.

        Args:
            following: the segment of the next file; all other segments are complete with this batch.
        """
        behind = [(file, own) for file, own in files if file.applied_through < self.unresolved.greatest_ts]
        wanted: list[FilePlan] = []
        for file, own in behind:
            plan = self.unresolved.plan(file)
            if plan is None:
                for tombstone in self.erased.suspects(file):
                    self.held.setdefault(tombstone.ts, {})[file.path] = None
                self.positions[file.path] = BitMap(range(file.rows)) if file.live_rows else BitMap()
                self.changed += bool(file.live_rows)
                self.rows += file.live_rows
            elif plan.tombstones:
                wanted.append(plan)
            elif own is None:
                self.positions[file.path] = BitMap()
        finished = self._read(wanted)
        if not self.stopped:
            self.done += [own for own in dict.fromkeys(own for _, own in files) if own not in (None, following)]
        self.looked_at += len(behind) - (len(wanted) - finished)
        self._commit()

    def _read(self, wanted: list[FilePlan]) -> int:
        """Reads files to find their hidden rows. Returns the number of files finished."""
        suspects = {plan.file.path: self.erased.suspects(plan.file) for plan in wanted}
        plain = [plan for plan in wanted if not suspects[plan.file.path]]
        held = [plan for plan in wanted if suspects[plan.file.path]]
        by_index = self._ask_index(plain)
        plain = [plan for plan in plain if plan.file.path not in by_index]
        finished = len(by_index) + self._read_some(plain, suspects, frozenset())
        return finished if self.stopped else finished + self._read_some(held, suspects, self.erased.ids)

    def _ask_index(self, wanted: list[FilePlan]) -> set[str]:
        """Finds the hidden rows of files through the index. Returns the paths of those files."""
        indexed = IndexedDeletes.of(self.context, self.entry, self.unresolved.deletes, len(wanted))
        if indexed is None or self.deadline():
            return set()
        found, fetched = indexed.find(wanted)
        self.bytes_read += fetched
        self.indexed += len(found)
        plans = [plan for plan in wanted if plan.file.path in found]
        gone = table_reader(self.context, self.name, self.manifest, self.entry).vectors(plans)
        for path, hidden in found.items():
            self._note(path, hidden - gone.get(path, BitMap()))
        return set(found)

    def _note(self, path: str, fresh: BitMap) -> None:
        """Notes the rows of a file that are hidden now and were not before."""
        self.positions[path] = fresh
        self.changed += bool(fresh)
        self.rows += len(fresh)

    def _read_some(
        self, wanted: list[FilePlan], suspects: Mapping[str, Sequence[Tombstone]], ids: frozenset[int]
    ) -> int:
        """Reads these files.

        Args:
            suspects: by path, the tombstones of erasures that may match rows of the file, hidden or not.
            ids: columns that these name.
        """
        reader = table_reader(self.context, self.name, self.manifest, self.entry)
        deletes = self.unresolved.deletes
        choice = None if ids else FilterChoice.of(self.context, self.entry, None, deletes, ids, len(wanted))
        left: dict[str, int] = {}
        found: dict[str, BitMap] = {}
        vectors: dict[str, BitMap] = {}
        hits: dict[str, Counter[int]] = defaultdict(Counter)

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(wanted, choice):
                if self.deadline() or self.bytes_read >= self.budget_bytes:
                    self.stopped = True
                    return
                some = list(row_groups(file, None, deletes, self.entry.schema))
                reader.filters.judge(file, some, tests_only=True)
                path = file.file.path
                found[path], vectors[path] = whole_groups(file, some), file.vector or BitMap()
                if suspects[path]:
                    some = self.erased.row_groups(file, suspects[path], some)
                left[path] = len(some)
                self.bytes_read += self._bytes(file, some, ids)
                yield from some

        def work(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap, Counter[int]]:
            path, hidden = hidden_rows(group, columns)
            erased = self.erased.hits(group, columns, suspects[path]) if suspects[path] else Counter[int]()
            return path, hidden, erased

        for path, hidden, erased in reader.read(work, groups(), ids):
            found[path] |= hidden
            left[path] -= 1
            hits[path] += erased
        assert not any(left.values()), "a row group was not read to its end"
        for path, hidden in found.items():
            self._note(path, hidden - vectors[path])
            for ts, rows in hits[path].items():
                self.held.setdefault(ts, {})[path] = rows
        self.read += len(found)
        self.excluded += reader.filters.excluded
        self.bytes_read += reader.filters.bytes
        return len(found)

    def _bytes(self, file: OpenFile, some: list[RowGroup], ids: frozenset[int]) -> int:
        """Bytes read to test these row groups of a file; a small file is fetched whole, with its footer."""
        if file.source is not None and local_path(self.context.store, file.file.path) is None:
            return file.file.size
        return sum(wanted.length for group in some for wanted in file.footer.ranges(group.index, group.tests | ids))

    def _commit(self) -> None:
        entry, head, context = self.entry, self.context.head, self.context
        facts = [(self.erasures[ts], rows) for ts, rows in sorted(self.held.items())]
        note_held_files(context.store, context.runtime, self.manifest, facts)
        erasing = {path: ts for ts, rows in sorted(self.held.items(), reverse=True) for path in rows}  # the earliest
        statement = Resolve.of(
            self.name,
            entry.uuid,
            entry.epoch,
            self.manifest.commit_ts,
            self.positions,
            tuple(self.done),
            erasing=erasing,
        )
        done = submit(head, "resolve", [statement])
        if done.manifest is not None:
            self.commits += 1
            self.dropped += done.manifest.counts.tombstones_removed
        self.positions, self.held, self.done = {}, {}, []
        now = head.cached.manifest.tables.get(self.name) if head.cached else None
        if now is None or (now.uuid, now.epoch) != (entry.uuid, entry.epoch):
            self.stopped = True  # dropped or overwritten: its files need no resolution
