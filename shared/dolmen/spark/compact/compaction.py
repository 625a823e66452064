"""Compaction on Spark: the core's plan and the core's rewriting, many groups at once, each in a task of its own.

Tasks read a snapshot and write files under the job's intent; the driver commits what they report, as it comes, by the
core's rules: a group whose files others have changed meanwhile is dropped and tried again in halves. So a task that
fails, or a job that is killed, costs the groups that were under way. Of a table with a sort key, all files that overlap
can be made one sorted whole instead (``recluster``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.commit.context import Context
from dolmen.errors import InputError
from dolmen.format.entries import DataFile
from dolmen.maintenance import never
from dolmen.maintenance.compact.compaction import Compacted, target_file_bytes
from dolmen.maintenance.compact.plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import Rewritten, TableVersion
from dolmen.maintenance.erasures.times import rewrite_through
from dolmen.spark import arguments as given
from dolmen.spark.compact.range import can_recluster, reclustering
from dolmen.spark.compact.run import CompactionRun, Job, Work
from dolmen.spark.compact.tasks import REWRITTEN, CompactionTask, rewrite_groups

_UNLIMITED = 1 << 62
"""Bytes."""


def compact(
    spark: SparkSession,
    database: Database,
    tables: str | Collection[str] | None = None,
    *,
    recluster: bool = False,
    options: CompactionOptions | None = None,
    dry_run: bool = False,
    deadline: Callable[[], bool] = never,
    progress: Callable[[str, Compacted], None] = lambda table, done: None,
) -> dict[str, Compacted]:
    """Rewrites small and mostly deleted files of tables into full ones, where that pays. See ``Database.compact``.

    Args:
        tables: names; all by default. One after the other, the groups of each at once.
        recluster: of tables with a sort key rewrite all files that overlap, however large, sorted as a whole by Spark
            and in one commit for each table.
        options: sizes; the tables' own by default. Of a table without a sort key groups are made smaller than
            ``group_bytes``, down to two full files, if there would be fewer than tasks run at once.
        dry_run: only plan.
        deadline: asked before groups are begun; True = what is under way is committed, the rest left for later.
        progress: called after each commit with the table's name and what was done so far.

    Returns:
        by table, what was planned and done. Safe at any time, beside anything; changes nothing that a reader sees.

    Raises:
        TableNotFoundError: no such table.
        InputError: Spark's workers can't reach the database.
        StaleWriterError: it took so long that its objects may have been collected: begin anew.
        PySparkException: a task failed, again and again. Groups that were done by then are committed.
    """
    given.session(spark)
    context = given.database(database).context
    recluster, dry_run = arguments.flag("recluster", recluster), arguments.flag("dry_run", dry_run)
    if not (options is None or isinstance(options, CompactionOptions)):
        raise InputError(f"options={arguments.short_repr(options)}: give CompactionOptions")
    manifest = context.head.refresh().manifest
    names = sorted(manifest.tables) if tables is None else arguments.names("tables", tables)
    for name in names:
        manifest.table(name)
    found: dict[str, Compacted] = {}
    for name in names:
        planning = _Planning(spark, context, name, options or CompactionOptions(), recluster=recluster)
        found[name] = done = Compacted(planning.plan, finished=dry_run or not planning.plan.groups)
        if not done.finished:
            run = CompactionRun(
                spark,
                context,
                name,
                planning.entry,
                planning.options,
                planning.target,
                done,
                deadline,
                partial(progress, name),
            )
            run.all_groups(planning.work, planning.groups_a_job)
    return found


class _Planning:
    """The plan of one table: its groups, and the way to rewrite them."""

    def __init__(
        self, spark: SparkSession, context: Context, name: str, options: CompactionOptions, *, recluster: bool
    ) -> None:
        self._context, self._name, self.options = context, name, options
        self._parallelism = max(1, spark.sparkContext.defaultParallelism)
        manifest = context.head.refresh().manifest
        with context.reading(manifest.version):
            version = TableVersion.of(context, name, manifest)
            self.entry, self.target = version.entry, target_file_bytes(version.entry, options)
            whole = recluster and can_recluster(version.entry)
            self.plan = self._whole(version) if whole else self._parts(version)
        self.work: Work = reclustering(spark, context) if whole else rewriting(spark)
        self.groups_a_job = 1 if whole else -(-self._parallelism // 2)

    def _plan(self, version: TableVersion, options: CompactionOptions) -> CompactionPlan:
        due = rewrite_through(self._context, version.manifest)
        return plan_compaction(self._name, version.entry, version.files, self.target, options, version.dead(), due)

    def _parts(self, version: TableVersion) -> CompactionPlan:
        """The core's plan, cut finer if more could be done at once."""
        plan = self._plan(version, self.options)
        total = sum(group.bytes_out for group in plan.groups)
        finer = max(2 * self.target, -(-total // self._parallelism))
        if version.entry.sort_key or finer >= self.options.group_bytes:
            return plan
        return self._plan(version, replace(self.options, group_bytes=finer))

    def _whole(self, version: TableVersion) -> CompactionPlan:
        """All files that any merging would make better, as one group."""
        self.options = replace(self.options, growth=1, group_bytes=_UNLIMITED)
        plan = self._plan(version, self.options)
        if not plan.groups:
            return plan
        one = PlannedGroup(
            ", ".join(dict.fromkeys(group.reason for group in plan.groups)),
            tuple(file for group in plan.groups for file in group.inputs),
            sum(group.bytes_out for group in plan.groups),
            sum(group.files_out for group in plan.groups),
            sum(group.deleted_bytes for group in plan.groups),
            max(group.overlap for group in plan.groups),
        )
        return replace(plan, groups=(one,))


def rewriting(spark: SparkSession) -> Work:
    """The work of jobs whose tasks rewrite one group each, as the core does."""

    def work(task: CompactionTask, job: Job) -> Sequence[Rewritten]:
        groups = [tuple(file.uuid for file in inputs) for inputs in job.groups]
        places = spark.range(0, len(groups), 1, len(groups))
        rows = sorted(places.mapInArrow(rewrite_groups(task, groups), REWRITTEN).collect())
        if [row.place for row in rows] != list(range(len(groups))):
            raise AssertionError(
                f"{len(groups)} groups were given to tasks, {len(rows)} came back: nothing was committed"
            )
        return [
            Rewritten(tuple(msgspec.json.decode(row.files, type=list[DataFile])), row.spilled_bytes, row.copied_bytes)
            for row in rows
        ]

    return work
