"""Compaction: rewrites files that make scans slow, while others write, delete and read.

Each planned group is read in the newest version, and has a commit of its own. Tombstones that are committed meanwhile
still hide rows of the new files, because these have the snapshot's ``applied_through``. If a file got another deletion
vector or is gone, the group is dropped, and tried again in two halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dolmen.base.runtime import never
from dolmen.base.units import count_text
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Compact, Group
from dolmen.commit.uploads import Intent
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import TableSettings
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import GroupRewriter, Rewritten, TableVersion
from dolmen.maintenance.erasures.erasure_work import rewrite_through
from dolmen.rows.scan.plan import FactSheet

_TRIES_ALONE = 2
"""How often a single file is tried. A writer that has changed it that often is likely to change it again."""


@dataclass(frozen=True)
class PendingGroup:
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
    """The result of a compaction.

    Args:
        plan: the plan when it began.
        groups: groups of the plan, or parts of them, that were committed.
        dropped: groups that were not committed, because others changed their files; ``groups`` may have parts of them.
        rows_deleted: deleted rows that the new files no longer contain.
        spilled_bytes: bytes that were sorted in the temporary directory.
        bytes_copied: bytes of row groups without deleted rows that were copied, not encoded again.
        finished: False when it stopped early: call it again.
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
    bytes_copied: int = 0
    commits: int = 0
    finished: bool = True

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
    result = Compacted(plan, finished=dry_run or not plan.groups)
    if not result.finished:
        _Compaction(context, name, version.entry, options, target, deadline, result).run()
    return result


def plan_version(context: Context, version: TableVersion, target: int, options: CompactionOptions) -> CompactionPlan:
    through, dead = rewrite_through(context, version.manifest), version.dead_uuids()
    return plan_compaction(version.name, version.entry, version.files, target, options, dead, through)


def target_file_bytes(entry: TableEntry, options: CompactionOptions) -> int:
    return options.target_file_bytes or TableSettings.of(entry).target_file_bytes


@dataclass
class _Compaction:
    context: Context
    name: str
    entry: TableEntry
    options: CompactionOptions
    target: int
    deadline: Callable[[], bool]
    done: Compacted
    intent: Intent | None = field(default=None)

    def __post_init__(self) -> None:
        self.rewriter = GroupRewriter(self.context, self.options, self.target, self.object_name, self.beat)

    def run(self) -> None:
        queue = PendingGroups(self.done.plan.groups)
        while queue:
            if self.deadline():
                return
            pending = queue.take()
            committed = self._group(pending.uuids)
            if committed is None:
                return  # the table was dropped or replaced
            if not committed:
                self.done.dropped += 1
                queue.retry_in_halves(pending)
        self.done.finished = True
        if self.intent and not self.done.dropped:  # else the intent is revoked in an hour, with the dropped objects
            self.intent.finish()

    def _group(self, uuids: tuple[str, ...]) -> bool | None:
        """Rewrites the files that still exist. Returns whether that was committed; None if the table was replaced."""
        head = self.context.head
        manifest = head.refresh().manifest
        if is_replaced(manifest.tables.get(self.name), self.entry):
            return None
        with self.context.reading(manifest.version):
            version = TableVersion.of(self.context, self.name, manifest)
            inputs = version.select_inputs(uuids, self.options)
            if not inputs:
                return True  # others have done the work, or will change these files again
            first_upload_us = self.context.store.clock.now_us
            rewritten = self.rewriter.rewrite(version, inputs)
        group = Group(inputs, rewritten.files)
        statement = Compact(self.name, self.entry.uuid, self.entry.epoch, (group,), version.entry.schema)
        txid = self.intent.txid if self.intent else None
        committed = submit(head, "compact", [statement], first_upload_us=first_upload_us, txid=txid)
        if committed.manifest is None:
            return False
        self.done.add([(group, rewritten)])
        return True

    def object_name(self) -> str:
        """A name for a new object, under an intent that collection can see."""
        if self.intent is None:
            self.intent = Intent.begin(self.context.store, self.context.runtime, f"compact {self.name}", [self.name])
        return self.intent.name()

    def beat(self) -> None:
        if self.intent:
            self.intent.beat()


def is_replaced(current: TableEntry | None, planned: TableEntry) -> bool:
    """Whether the table was dropped, or has another uuid or epoch than the plan."""
    return current is None or (current.uuid, current.epoch) != (planned.uuid, planned.epoch)
