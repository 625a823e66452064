"""Compaction: rewrites the files that make scans dear, while everybody goes on writing, deleting and reading.

Each planned group is read at the newest version there is when its turn comes, and committed by itself, so a stop loses
one group at most. What others do to its files meanwhile decides at the commit: a tombstone committed since goes on
hiding rows of the new files, as their ``applied_through`` is the snapshot's; if a file got another deletion vector or
is gone, the group is dropped, and tried again in two halves. So a file that others keep changing costs the rewriting
of ever fewer others, and however often somebody commits, the files that are left in peace are compacted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import pyarrow as pa

from dolmen.commit.loop import submit
from dolmen.commit.upkeep import Compact, Group
from dolmen.context import Context
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.intent import Intent
from dolmen.maintenance import never
from dolmen.maintenance.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compaction_rows import LiveRows
from dolmen.maintenance.compaction_sort import Sorter
from dolmen.maintenance.resolution_unresolved import Unresolved, table_reader
from dolmen.scan.display import html, text
from dolmen.scan.plan import FilePlan
from dolmen.segments.live import LiveFiles, tombstones_of
from dolmen.write.data_file import with_commit_ts, write_data_files
from dolmen.write.options import DEFAULT, WriteOptions

__all__ = ["Compacted", "CompactionOptions", "CompactionPlan", "PlannedGroup", "compact", "plan_compaction"]

_REQUESTS_AT_ONCE = 4
"""Of up to 8 MB each, which is what reading ahead takes of memory."""

_TRIES_ALONE = 2
"""So often a single file is tried: who changes it so often will go on doing it."""


@dataclass(repr=False)
class Compacted:
    """What a compaction has planned and done.

    Args:
        plan: what was worth doing when it began.
        groups: of the plan, or parts of them, that were committed.
        dropped: that were not, because others changed their files meanwhile; parts of them may be in ``groups``.
        files_in, files_out: files replaced, and files that took their place.
        bytes_in, bytes_out: their size.
        rows: in the new files.
        rows_deleted: rows that the new files hold no more.
        spilled_bytes: what was sorted by way of the temporary directory.
        commits: versions it made.
        finished: False when it stopped before its end: call it again.
    """

    plan: CompactionPlan
    groups: int = 0
    dropped: int = 0
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    rows_deleted: int = 0
    spilled_bytes: int = 0
    commits: int = 0
    finished: bool = True

    def facts(self) -> list[tuple[str, str]]:
        """What ``repr`` shows, line by line: the plan, and what came of it."""
        dropped = f"; {self.dropped:,} changed by others meanwhile" if self.dropped else ""
        return [
            *self.plan.facts(),
            ("done", f"{self.groups:,} groups in {self.commits:,} commits{dropped}"),
            (
                "rewritten",
                f"{self.files_in:,} files, {self.bytes_in:,} bytes -> {self.files_out:,} files, "
                f"{self.bytes_out:,} bytes",
            ),
            ("rows", f"{self.rows:,} kept, {self.rows_deleted:,} deleted ones gone"),
            ("finished", "yes" if self.finished else "no, call it again"),
        ]

    def __repr__(self) -> str:
        return text(self.facts())

    def _repr_html_(self) -> str:
        return html(self.facts())


def compact(
    context: Context,
    name: str,
    *,
    deadline: Callable[[], bool] = never,
    options: CompactionOptions | None = None,
    dry_run: bool = False,
) -> Compacted:
    """Compacts a table in bounded memory, whatever its size. Safe at any time and beside anything.

    Args:
        deadline: asked before each group; when it says True, what is done is committed and the rest left for later.
        options: sizes; the table's own by default.
        dry_run: only plan.

    Raises:
        TableNotFoundError: no such table.
        StaleWriterError: it took so long that its objects may have been collected: begin anew.
        VersionExpiredError: it took so long that what it reads has expired: begin anew.
        CorruptionError: a file or a tombstone is damaged or missing.
    """
    options = options or CompactionOptions()
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        snapshot = _Snapshot.of(context, name, manifest)
        target = options.target_file_bytes or TableSettings.of(snapshot.entry).target_file_bytes
        plan = plan_compaction(name, snapshot.entry, snapshot.files, target, options, snapshot.dead())
    done = Compacted(plan, finished=dry_run or not plan.groups)
    if not done.finished:
        _Run(context, name, snapshot.entry, options, _write_options(options, target), deadline, done).all_groups()
    return done


def _write_options(options: CompactionOptions, target: int) -> WriteOptions:
    return replace(
        DEFAULT,
        target_file_bytes=target,
        run_bytes=options.run_bytes or DEFAULT.run_bytes,
        row_group_bytes=options.row_group_bytes or DEFAULT.row_group_bytes,
    )


@dataclass(frozen=True)
class _Snapshot:
    """A table in one version, with its deletes made ready."""

    manifest: Manifest
    entry: TableEntry
    files: LiveFiles
    unresolved: Unresolved

    @classmethod
    def of(cls, context: Context, name: str, manifest: Manifest) -> _Snapshot:
        """Raises TableNotFoundError."""
        entry = context.segments.whole(manifest.table(name))
        unresolved = Unresolved(context, entry, tombstones_of(entry, context.segments))
        return cls(manifest, entry, LiveFiles.of(entry, context.segments), unresolved)

    def dead(self) -> set[str]:
        """Files of which tombstones certainly hide every row."""
        if not self.unresolved.greatest_ts:
            return set()
        return {file.uuid for file in self.files if self.unresolved.hides_all_of(file)}


@dataclass
class _Run:
    """One call: takes its groups one by one."""

    context: Context
    name: str
    entry: TableEntry
    options: CompactionOptions
    write_options: WriteOptions
    deadline: Callable[[], bool]
    done: Compacted
    intent: Intent | None = field(default=None)

    @cached_property
    def reading(self) -> Context:
        """The context with few requests at once: whole files are read, so each brings as much as it may."""
        runtime = self.context.runtime
        return replace(self.context, runtime=replace(runtime, threads=min(runtime.threads, _REQUESTS_AT_ONCE)))

    def all_groups(self) -> None:
        """Compacts the plan's groups, and what is left of those that were dropped."""
        waiting: deque[tuple[tuple[str, ...], int]] = deque(
            (tuple(file.uuid for file in group.inputs), 0) for group in self.done.plan.groups
        )
        while waiting:
            if self.deadline():
                return
            uuids, tries = waiting.popleft()
            committed = self._group(uuids)
            if committed is None:
                return  # the table is gone, or another one now
            if committed:
                continue
            self.done.dropped += 1
            if len(uuids) > 1:
                middle = len(uuids) // 2
                waiting += [(uuids[:middle], 0), (uuids[middle:], 0)]
            elif tries + 1 < _TRIES_ALONE:
                waiting.append((uuids, tries + 1))
        self.done.finished = True
        if self.intent and not self.done.dropped:  # else it is revoked in an hour, and takes what was dropped along
            self.intent.done()

    def _group(self, uuids: tuple[str, ...]) -> bool | None:
        """Rewrites these files, as far as they are still there; whether that was committed. None = stop."""
        head = self.context.head
        manifest = head.refresh().manifest
        there = manifest.tables.get(self.name)
        if there is None or (there.uuid, there.epoch) != (self.entry.uuid, self.entry.epoch):
            return None
        with self.context.reading(manifest.version):
            snapshot = _Snapshot.of(self.context, self.name, manifest)
            found = snapshot.files.find(uuids)
            inputs = tuple(found[uuid] for uuid in uuids if uuid in found)
            if not inputs or (len(inputs) == 1 and not self._worth_it_alone(inputs[0], snapshot)):
                return True  # somebody else has done it, or will change them again
            first_upload_us = self.context.store.clock.now_us
            rewriting = _Rewriting(self, snapshot, inputs)
            group = Group(inputs, rewriting.outputs())
        statement = Compact(self.name, self.entry.uuid, self.entry.epoch, (group,))
        txid = self.intent.txid if self.intent else None
        committed = submit(head, "compact", [statement], first_upload_us=first_upload_us, txid=txid)
        if committed.manifest is None:
            return False
        done = self.done
        done.groups, done.commits = done.groups + 1, done.commits + 1
        done.files_in, done.files_out = done.files_in + len(inputs), done.files_out + len(group.outputs)
        done.bytes_in += sum(file.size for file in inputs)
        done.bytes_out += sum(file.size for file in group.outputs)
        rows = sum(file.rows for file in group.outputs)
        done.rows += rows
        done.rows_deleted += sum(file.rows for file in inputs) - rows
        done.spilled_bytes += rewriting.spilled_bytes
        return True

    def _worth_it_alone(self, file: DataFile, snapshot: _Snapshot) -> bool:
        deleted = file.rows - file.live_rows
        return deleted > file.rows * self.options.deleted_share or snapshot.unresolved.hides_all_of(file)

    def object_name(self) -> str:
        """A name for a new object, under an intent that others can see."""
        if self.intent is None:
            self.intent = Intent.begin(self.context.store, self.context.runtime, f"compact {self.name}", [self.name])
        return self.intent.name()

    def beat(self) -> None:
        """Keeps the intent alive."""
        if self.intent:
            self.intent.beat()


class _Rewriting:
    """The live rows of some files, written into new ones."""

    def __init__(self, run: _Run, snapshot: _Snapshot, inputs: tuple[DataFile, ...]) -> None:
        self._run, self._snapshot, self._inputs = run, snapshot, inputs
        timestamps = {file.row_ts for file in inputs}
        self._row_ts = timestamps.pop() if len(timestamps) == 1 else None
        self._entry = snapshot.entry if self._row_ts is not None else with_commit_ts(snapshot.entry)
        self.spilled_bytes = 0

    def outputs(self) -> tuple[DataFile, ...]:
        """Writes the files; their entries, complete.

        Raises:
            AssertionError: other rows were written than there are. Nothing is committed then.
        """
        context, name, snapshot = self._run.context, self._run.name, self._snapshot
        plans = [plan for file in self._inputs if (plan := snapshot.unresolved.plan(file)) is not None]
        reader = table_reader(self._run.reading, name, snapshot.manifest, snapshot.entry, self._entry.schema.fields)
        rows = LiveRows(reader, self._entry, snapshot.unresolved)
        written = write_data_files(
            context.store,
            name,
            self._entry,
            self._batches(rows, plans),
            context.runtime,
            self._run.write_options,
            self._run.object_name,
        )
        self._check(rows, plans, sum(file.rows for file in written))
        through = snapshot.manifest.commit_ts  # never the compaction's own: rows deleted meanwhile would come back
        return tuple(msgspec.structs.replace(file, row_ts=self._row_ts, applied_through=through) for file in written)

    def _batches(self, rows: LiveRows, plans: list[FilePlan]) -> Iterator[pa.RecordBatch]:
        if not self._entry.sort_key:
            for batch in rows.in_file_order(plans):
                self._run.beat()
                yield batch
            return
        options, schema = self._run.options, self._entry.schema
        key = [schema.by_id[id_].name for id_ in self._entry.sort_key]
        sorter = Sorter(self._run.context.runtime, schema.arrow, key, options.memory_bytes, options.directory)
        for batch in sorter.sort(self._beating(rows, plans)):
            self._run.beat()
            yield batch
        self.spilled_bytes = sorter.spilled_bytes

    def _beating(
        self, rows: LiveRows, plans: list[FilePlan]
    ) -> Iterator[tuple[tuple[pa.Scalar, ...] | None, pa.RecordBatch]]:
        for item in rows.in_about_key_order(plans):
            self._run.beat()
            yield item

    def _check(self, rows: LiveRows, plans: list[FilePlan], written: int) -> None:
        """Rows out are rows in less the deleted, by the entries, by what was read and by what was written."""
        physical = sum(plan.file.rows for plan in plans)
        by_vector = sum(plan.file.rows - plan.file.live_rows for plan in plans)
        certain = not any(plan.tombstones for plan in plans)
        if (
            rows.physical != physical
            or written != physical - rows.hidden
            or rows.hidden < by_vector
            or (certain and rows.hidden != by_vector)
        ):
            raise AssertionError(
                f"compaction of table {self._run.name!r} has read {rows.physical} of {physical} rows, found "
                f"{rows.hidden} deleted ({by_vector} by vectors) and written {written}: nothing was committed"
            )
