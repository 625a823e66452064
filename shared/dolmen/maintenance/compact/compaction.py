"""Compaction: rewrites files that make scans slow, while others write, delete and read.

Each planned group is read in the newest version, and has a commit of its own. Tombstones that are committed meanwhile
still hide rows of the new files, because these have the snapshot's ``applied_through``. If a file got another deletion
vector or is gone, the group is dropped, and tried again in two halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from msgspec import Struct

from dolmen.base.records import FactSheet
from dolmen.base.runtime import never
from dolmen.base.units import count_text
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Compact, Group
from dolmen.commit.uploads import Intent
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import GroupRewriter, Rewritten, TableVersion
from dolmen.maintenance.erasures.erasure_work import last_due_ts

_TRIES_ALONE = 2
"""How often a single file is tried. A writer that has changed it that often is likely to change it again."""


class PendingGroup(Struct, frozen=True):
    """A group of files, or a part of one; ``tries`` counts earlier attempts with a single file."""

    uuids: tuple[str, ...]
    tries: int = 0


class PendingGroups:
    """The queue of groups. Groups whose files others changed come back in halves."""

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._queue = deque(PendingGroup(tuple(file.uuid for file in group.inputs)) for group in groups)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def take(self) -> PendingGroup:
        return self._queue.popleft()

    def retry_in_halves(self, group: PendingGroup) -> None:
        """Puts back a group that was not committed: in two halves, or as it is if a single file has tries left."""
        uuids = group.uuids
        if len(uuids) > 1:
            middle = len(uuids) // 2
            self._queue += [PendingGroup(uuids[:middle]), PendingGroup(uuids[middle:])]
        elif group.tries + 1 < _TRIES_ALONE:
            self._queue.append(PendingGroup(uuids, group.tries + 1))


__all__ = ["Compacted", "CompactionOptions", "CompactionPlan", "PlannedGroup", "compact", "plan_compaction"]


@dataclass(repr=False)
class Compacted(FactSheet):
    """The result of a compaction."""

    plan: CompactionPlan  # the plan when it began
    groups: int = 0  # groups of the plan, or parts of them, that were committed
    # groups that were not committed, because others changed their files; ``groups`` may have parts of them
    dropped: int = 0
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    rows_deleted: int = 0  # deleted rows that the new files no longer contain
    spilled_bytes: int = 0  # bytes that were sorted in the temporary directory
    bytes_copied: int = 0  # bytes of row groups without deleted rows that were copied, not encoded again
    commits: int = 0
    finished: bool = True  # False when it stopped early: call it again

    def add(self, groups: Sequence[tuple[Group, Rewritten]]) -> None:
        """Counts the groups of one commit."""
        self.groups, self.commits = self.groups + len(groups), self.commits + 1
        for group, rewritten in groups:
            self.spilled_bytes += rewritten.spilled_bytes
            self.bytes_copied += rewritten.copied_bytes
            rows = sum(file.rows for file in group.outputs)
            self.files_in, self.files_out = self.files_in + len(group.inputs), self.files_out + len(group.outputs)
            self.bytes_in += sum(file.size for file in group.inputs)
            self.bytes_out += sum(file.size for file in group.outputs)
            self.rows += rows
            self.rows_deleted += sum(file.rows for file in group.inputs) - rows

    def facts(self) -> list[tuple[str, str]]:
        dropped = f"; {self.dropped:,} changed by others meanwhile" if self.dropped else ""
        return [
            *self.plan.facts(),
            ("done", f"{count_text(self.groups, 'group')} in {count_text(self.commits, 'commit')}{dropped}"),
            (
                "rewritten",
                f"{count_text(self.files_in, 'file')}, {self.bytes_in:,} bytes -> "
                f"{count_text(self.files_out, 'file')}, {self.bytes_out:,} bytes",
            ),
            *([("copied", f"{self.bytes_copied:,} bytes as they are")] if self.bytes_copied else []),
            ("rows", f"{self.rows:,} kept, {self.rows_deleted:,} deleted ones gone"),
            ("finished", "yes" if self.finished else "no, call it again"),
        ]


def compact(
    context: Context,
    name: str,
    *,
    deadline: Callable[[], bool] = never,
    options: CompactionOptions | None = None,
    dry_run: bool = False,
) -> Compacted:
    """Compacts a table in bounded memory, whatever its size. Safe at any time, beside any other work.

    Args:
        deadline: called before each group; when it returns True, finished groups are committed and the rest is left.
        options: sizes and limits; by default those of the table.

    Raises:
        TableNotFoundError: no such table.
        StaleWriterError: it took so long that its objects may have been collected: call it again.
        VersionExpiredError: it took so long that the version it reads has expired: call it again.
        CorruptionError: a file or a tombstone is damaged or missing.
    """
    options = options or CompactionOptions()
    manifest = context.head.refresh().manifest
    with context.reading(manifest.version):
        version = TableVersion.of(context, name, manifest)
        target = target_file_bytes(version.entry, options)
        plan = plan_version(context, version, target, options)
    run = CompactionRun(context, version, plan, options, target)
    if not dry_run:
        run.compact(deadline)
    return run.done


def plan_version(context: Context, version: TableVersion, target: int, options: CompactionOptions) -> CompactionPlan:
    through, dead = last_due_ts(context, version.manifest), version.dead_uuids()
    return plan_compaction(version.name, version.entry, version.files, target, options, dead, through)


def target_file_bytes(entry: TableEntry, options: CompactionOptions) -> int:
    return options.target_file_bytes or TableSettings.of(entry).target_file_bytes


class CompactionJob(Struct, frozen=True):
    """Groups in one version, each with its files that still exist; and the clock before the first upload."""

    version: TableVersion
    groups: Sequence[tuple[PendingGroup, tuple[DataFile, ...]]]
    first_upload_us: int


class CompactionRun:
    """The compaction of one table by a plan of ``version``: rewrites groups, and commits the results to ``done``."""

    def __init__(
        self, context: Context, version: TableVersion, plan: CompactionPlan, options: CompactionOptions, target: int
    ) -> None:
        self._context, self._name, self._entry = context, version.name, version.entry
        self._options, self._target = options, target
        self.done = Compacted(plan)
        self._waiting = PendingGroups(plan.groups)
        self._groups_a_job = 1
        self._is_stopped = False
        self._intent: Intent | None = None

    def compact(self, deadline: Callable[[], bool], progress: Callable[[Compacted], None] = lambda done: None) -> None:
        """Compacts the plan's groups, and the halves of groups that were dropped."""
        while self._waiting and not self._is_stopped:
            for job, rewritten in self._rewrite(self._jobs(deadline)):
                self._commit(job, rewritten)
                progress(self.done)
        self.done.finished = not self._is_stopped
        if self._intent and self.done.finished and not self.done.dropped:  # else it is revoked in an hour, with objects
            self._intent.finish()

    def _jobs(self, deadline: Callable[[], bool]) -> Iterator[CompactionJob]:
        while self._waiting and not self._is_stopped:
            if deadline():
                self._is_stopped = True
                return
            pending = [self._waiting.take()]
            while self._waiting and len(pending) < self._groups_a_job:
                pending.append(self._waiting.take())
            job = self._job(pending)
            if job is None:
                self._is_stopped = True  # the table was dropped or created again
                return
            if job.groups:
                yield job

    def _job(self, pending: Sequence[PendingGroup]) -> CompactionJob | None:
        """Makes a job of the groups that still need work in the newest version. None = stop."""
        context = self._context
        manifest = context.head.refresh().manifest
        if is_replaced(manifest.tables.get(self._name), self._entry):
            return None
        with context.reading(manifest.version):
            version = TableVersion.of(context, self._name, manifest)
            found = [(group, version.select_inputs(group.uuids, self._options)) for group in pending]
        return CompactionJob(
            version, [(group, inputs) for group, inputs in found if inputs], context.store.clock.now_us
        )

    def _rewrite(self, jobs: Iterable[CompactionJob]) -> Iterator[tuple[CompactionJob, Sequence[Rewritten]]]:
        """Writes the new files of each job."""
        rewriter = GroupRewriter(self._context, self._options, self._target, self._object_name, self._beat)
        for job in jobs:
            with self._context.reading(job.version.manifest.version):
                rewritten = [rewriter.rewrite(job.version, inputs) for _, inputs in job.groups]
            yield job, rewritten

    def begin_intent(self) -> Intent:
        """The intent that names new objects, so that collection sees them."""
        if self._intent is None:
            context, name = self._context, self._name
            self._intent = Intent.begin(context.store, context.runtime, f"compact {name}", [name])
        return self._intent

    def _object_name(self) -> str:
        return self.begin_intent().name()

    def _beat(self) -> None:
        if self._intent:
            self._intent.beat()

    def _commit(self, job: CompactionJob, rewritten: Sequence[Rewritten]) -> None:
        """Commits the groups of a job at once. Groups that others have changed go back to the queue, in halves."""
        groups = [Group(inputs, result.files) for (_, inputs), result in zip(job.groups, rewritten, strict=True)]
        statement = Compact(self._name, self._entry.uuid, self._entry.epoch, tuple(groups), job.version.entry.schema)
        txid = self._intent.txid if self._intent else None
        committed = submit(self._context.head, "compact", [statement], first_upload_us=job.first_upload_us, txid=txid)
        are_committed = self._are_in_version(groups, committed.manifest)
        if any(are_committed):
            self.done.add(list(compress(zip(groups, rewritten, strict=True), are_committed)))
        for (pending, _), is_committed in zip(job.groups, are_committed, strict=True):
            if not is_committed:
                self.done.dropped += 1
                self._waiting.retry_in_halves(pending)

    def _are_in_version(self, groups: Sequence[Group], manifest: Manifest | None) -> list[bool]:
        """Whether a version has the result of each group."""
        if manifest is None:
            return [False] * len(groups)
        if not manifest.counts.groups_dropped:
            return [True] * len(groups)
        live = LiveFiles.of(manifest.tables[self._name], self._context.segments)
        live_uuids = live.find([file.uuid for group in groups for file in (*group.inputs, *group.outputs)]).keys()
        return [
            all(file.uuid in live_uuids for file in group.outputs)
            and not any(file.uuid in live_uuids for file in group.inputs)
            for group in groups
        ]


def is_replaced(current: TableEntry | None, planned: TableEntry) -> bool:
    """Whether the table was dropped, or has another uuid or epoch than the plan."""
    return current is None or (current.uuid, current.epoch) != (planned.uuid, planned.epoch)
