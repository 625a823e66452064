"""Compaction: rewrites the files that make scans dear, while everybody goes on writing, deleting and reading.

Each planned group is read at the newest version there is when its turn comes, and committed by itself, so a stop loses
one group at most. What others do to its files meanwhile decides at the commit: a tombstone committed since goes on
hiding rows of the new files, as their ``applied_through`` is the snapshot's; if a file got another deletion vector or
is gone, the group is dropped, and tried again in two halves. So a file that others keep changing costs the rewriting
of ever fewer others, and however often somebody commits, the files that are left in peace are compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dolmen.commit.intent import Intent
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Compact, Group
from dolmen.context import Context
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import TableSettings
from dolmen.maintenance import never
from dolmen.maintenance.compact.pending import PendingGroups
from dolmen.maintenance.compact.plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import GroupRewriter, TableVersion
from dolmen.scan.display import html, text

__all__ = ["Compacted", "CompactionOptions", "CompactionPlan", "PlannedGroup", "compact", "plan_compaction"]


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

    def add(self, groups: Sequence[Group]) -> None:
        """Counts the groups of one commit."""
        self.groups, self.commits = self.groups + len(groups), self.commits + 1
        for group in groups:
            rows = sum(file.rows for file in group.outputs)
            self.files_in, self.files_out = self.files_in + len(group.inputs), self.files_out + len(group.outputs)
            self.bytes_in += sum(file.size for file in group.inputs)
            self.bytes_out += sum(file.size for file in group.outputs)
            self.rows += rows
            self.rows_deleted += sum(file.rows for file in group.inputs) - rows

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
        version = TableVersion.of(context, name, manifest)
        target = target_file_bytes(version.entry, options)
        plan = plan_compaction(name, version.entry, version.files, target, options, version.dead())
    done = Compacted(plan, finished=dry_run or not plan.groups)
    if not done.finished:
        _Compaction(context, name, version.entry, options, target, deadline, done).all_groups()
    return done


def target_file_bytes(entry: TableEntry, options: CompactionOptions) -> int:
    """Size of a full file of a table."""
    return options.target_file_bytes or TableSettings.of(entry).target_file_bytes


@dataclass
class _Compaction:
    """One call: takes its groups one by one."""

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

    def all_groups(self) -> None:
        """Compacts the plan's groups, and what is left of those that were dropped."""
        waiting = PendingGroups(self.done.plan.groups)
        while waiting:
            if self.deadline():
                return
            turn = waiting.take()
            committed = self._group(turn.uuids)
            if committed is None:
                return  # the table is gone, or another one now
            if not committed:
                self.done.dropped += 1
                waiting.retry_in_halves(turn)
        self.done.finished = True
        if self.intent and not self.done.dropped:  # else it is revoked in an hour, and takes what was dropped along
            self.intent.finish()

    def _group(self, uuids: tuple[str, ...]) -> bool | None:
        """Rewrites these files, as far as they are still there; whether that was committed. None = stop."""
        head = self.context.head
        manifest = head.refresh().manifest
        if not same_table(manifest.tables.get(self.name), self.entry):
            return None
        with self.context.reading(manifest.version):
            version = TableVersion.of(self.context, self.name, manifest)
            inputs = version.worth_rewriting(uuids, self.options)
            if not inputs:
                return True  # somebody else has done it, or will change them again
            first_upload_us = self.context.store.clock.now_us
            rewritten = self.rewriter.rewrite(version, inputs)
        group = Group(inputs, rewritten.files)
        statement = Compact(self.name, self.entry.uuid, self.entry.epoch, (group,))
        txid = self.intent.txid if self.intent else None
        committed = submit(head, "compact", [statement], first_upload_us=first_upload_us, txid=txid)
        if committed.manifest is None:
            return False
        self.done.add([group])
        self.done.spilled_bytes += rewritten.spilled_bytes
        return True

    def object_name(self) -> str:
        """A name for a new object, under an intent that others can see."""
        if self.intent is None:
            self.intent = Intent.begin(self.context.store, self.context.runtime, f"compact {self.name}", [self.name])
        return self.intent.name()

    def beat(self) -> None:
        """Keeps the intent alive."""
        if self.intent:
            self.intent.beat()


def same_table(there: TableEntry | None, planned: TableEntry) -> bool:
    """Whether a name still stands for the table that was planned for, and not for another, or one overwritten since."""
    return there is not None and (there.uuid, there.epoch) == (planned.uuid, planned.epoch)
