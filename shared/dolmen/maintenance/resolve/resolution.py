"""Resolution: turns tombstones into deletion vectors, file by file, so that scans need not look deletes up.

Every scan of a file must check each tombstone that is younger than the file. Resolution checks them once: it reads the
columns that the tombstones name, and records the positions of the rows they match. It begins with the oldest files,
which most tombstones cover. A tombstone is dropped when the last file that it may match is done, so this order ends
the oldest deletes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Resolve
from dolmen.context import Context
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance import never
from dolmen.maintenance.resolve.gather import gather_vectors
from dolmen.maintenance.resolve.unresolved import Unresolved, table_reader
from dolmen.scan.display import html, text
from dolmen.scan.hidden_rows import hidden_rows, whole_groups
from dolmen.scan.plan import FilePlan
from dolmen.scan.row_groups import OpenFile, RowGroup, row_groups
from dolmen.segments.live import LiveFiles, tombstones_of
from dolmen.units import GIB

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
        bytes_read: bytes read from data files.
        commits: number of versions made.
        finished: False when it stopped early: call it again.
        gathered: vectors that were moved into few objects.
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

    def facts(self) -> list[tuple[str, str]]:
        """The lines that ``repr`` shows, as pairs of name and value."""
        return [
            ("resolved", f"{self.table}{'' if self.finished else ', as far as time and budget allowed'}"),
            ("tombstones", f"{self.dropped:,} of {self.tombstones:,} are done with"),
            ("files", f"{self.looked_at:,} looked at, {self.read:,} read, {self.changed:,} changed"),
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
        run = _Resolution(context, name, manifest, entry, unresolved, deadline, budget_bytes, batch_files)
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
    looked_at: int = 0
    read: int = 0
    changed: int = 0
    rows: int = 0
    bytes_read: int = 0
    commits: int = 0
    dropped: int = 0
    stopped: bool = False
    positions: dict[str, BitMap] = field(default_factory=dict)
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
        reader = table_reader(self.context, self.name, self.manifest, self.entry)
        left: dict[str, int] = {}
        found: dict[str, BitMap] = {}
        vectors: dict[str, BitMap] = {}

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(wanted):
                if self.deadline() or self.bytes_read >= self.budget_bytes:
                    self.stopped = True
                    return
                some = list(row_groups(file, None, self.unresolved.deletes, self.entry.schema))
                path = file.file.path
                left[path] = len(some)
                found[path], vectors[path] = whole_groups(file, some), file.vector or BitMap()
                self.bytes_read += self._bytes(file, some)
                yield from some

        for path, hidden in reader.read(hidden_rows, groups(), frozenset()):
            found[path] |= hidden
            left[path] -= 1
        assert not any(left.values()), "a row group was not read to its end"
        for path, hidden in found.items():
            fresh = hidden - vectors[path]
            self.positions[path] = fresh
            self.changed += bool(fresh)
            self.rows += len(fresh)
        self.read += len(found)
        return len(found)

    def _bytes(self, file: OpenFile, some: list[RowGroup]) -> int:
        """Bytes read to test these row groups of a file; a small file is fetched whole, with its footer."""
        if file.source is not None and self.context.store.local_path(file.file.path) is None:
            return file.file.size
        return sum(wanted.length for group in some for wanted in file.footer.ranges(group.index, group.tests))

    def _commit(self) -> None:
        entry, head = self.entry, self.context.head
        statement = Resolve.of(
            self.name, entry.uuid, entry.epoch, self.manifest.commit_ts, self.positions, tuple(self.done)
        )
        done = submit(head, "resolve", [statement])
        if done.manifest is not None:
            self.commits += 1
            self.dropped += done.manifest.counts.tombstones_removed
        self.positions, self.done = {}, []
        now = head.cached.manifest.tables.get(self.name) if head.cached else None
        if now is None or (now.uuid, now.epoch) != (entry.uuid, entry.epoch):
            self.stopped = True  # dropped or overwritten: its files need no resolution
