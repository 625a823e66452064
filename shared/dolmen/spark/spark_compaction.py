"""Compaction on Spark: the core's plan and the core's rewriting, many groups at once, each in a task of its own.

Tasks read a snapshot and write files under the job's intent. The driver commits their results as they come, by the
core's rules: a group whose files others have changed is dropped, and tried again in halves. So a failed task, or a
killed job, costs only the groups that were running. For a table with a sort key, Spark can instead sort all overlapping
files as a whole, and cut them into files that do not overlap (``recluster``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import never
from dolmen.commit.context import Context, context_of
from dolmen.errors import InputError, SchemaError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance.compact.compaction import Compacted, target_file_bytes
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import Rewritten, TableVersion
from dolmen.maintenance.erasures.erasure_work import rewrite_through
from dolmen.rows.scan.scan import Scan, scan_files
from dolmen.spark import checks
from dolmen.spark.file_tasks import map_in_tasks, run_numbered
from dolmen.spark.group_jobs import (
    REWRITTEN,
    CompactionRun,
    CompactionTask,
    Job,
    Work,
    rewrite_numbered,
    write_sorted,
)
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.spark_types import spark_schema
from dolmen.spark.write.from_frame import without_files
from dolmen.transactions.snapshot import PinnedTable


def can_recluster(entry: TableEntry) -> bool:
    """Whether there is an order to cluster by, and Spark has all columns' types."""
    if not entry.sort_key:
        return False
    try:
        spark_schema(entry.schema.fields)
    except SchemaError:
        return False
    return True


def recluster_work(spark: SparkSession, context: Context) -> Work:
    """The work of jobs that sort each group as a whole."""

    def work(task: CompactionTask, job: Job) -> Sequence[Rewritten]:
        return [_recluster(spark, context, task, job.version, inputs) for inputs in job.groups]

    return work


class _SomeFiles(PinnedTable):
    """Some files of a table in one version."""

    def __init__(self, context: Context, name: str, manifest: Manifest, inputs: Sequence[DataFile]) -> None:
        super().__init__(context, name, manifest)
        self._paths = {file.path for file in inputs}

    def scan(self, *args: Any, **options: Any) -> Scan:
        """A scan of these files alone."""
        return scan_files(super().scan(*args, **options), self._paths)


def _recluster(
    spark: SparkSession, context: Context, task: CompactionTask, version: TableVersion, inputs: tuple[DataFile, ...]
) -> Rewritten:
    """Writes the live rows of some files in order.

    Raises:
        AssertionError: the rows that were written are not those of the files.
    """
    row_ts, entry = version.commit_ts_of(inputs)
    table = _SomeFiles(context, version.name, version.manifest, inputs)
    frame = to_spark(table, with_commit_ts=row_ts is None, spark=spark)
    live_bytes = sum(file.size * file.live_rows // max(1, file.rows) for file in inputs)
    rows = _sorted(frame, version.entry, max(1, round(live_bytes / task.target_file_bytes)))
    found = map_in_tasks(rows, write_sorted(task, msgspec.json.encode(without_files(entry))), REWRITTEN).collect()
    written = [file for row in found for file in msgspec.json.decode(row.files, type=list[DataFile])]
    _check(table, version, inputs, sum(file.rows for file in written))
    return Rewritten(version.complete_entries(written, row_ts))


def _sorted(frame: DataFrame, entry: TableEntry, partitions: int) -> DataFrame:
    names = (entry.schema.by_id[id_].name.replace("`", "``") for id_ in entry.sort_key)
    order = [F.col(f"`{name}`").asc_nulls_last() for name in names]
    return frame.repartitionByRange(partitions, *order).sortWithinPartitions(*order)


def _check(table: _SomeFiles, version: TableVersion, inputs: Sequence[DataFile], written: int) -> None:
    """Checks that Spark has written all rows, which are counted by entries alone if no delete is unresolved."""
    plans = [plan for file in inputs if (plan := version.unresolved.plan(file)) is not None]
    counted = sum(plan.file.live_rows for plan in plans if not plan.tombstones)
    uncertain = {plan.file.path for plan in plans if plan.tombstones}
    if uncertain:
        one_column = scan_files(table.scan([version.entry.schema.fields[0].name]), uncertain)
        counted += sum(batch.num_rows for batch in one_column.to_batches())
    if counted != written:
        raise AssertionError(
            f"clustering of table {version.name!r} has written {written} rows where there are {counted}: "
            "nothing was committed"
        )


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
        tables: names; all by default. They are compacted one after the other, the groups of each at once.
        recluster: for tables with a sort key, rewrite all overlapping files, however large, sorted as a whole by Spark,
            in one commit for each table.
        options: sizes; the tables' own by default. Without a sort key, groups are made smaller than ``group_bytes``,
            down to two full files, if there would be fewer groups than tasks that run at once.
        dry_run: only plan.
        deadline: called before groups are begun; True = commit the running ones, and leave the rest for later.
        progress: called after each commit with the table's name and the result so far.

    Returns:
        the plan and the result of each table. Safe at any time; readers see no change.

    Raises:
        TableNotFoundError: no such table.
        InputError: Spark's workers can't reach the database.
        StaleWriterError: it took so long that its objects may have been collected: begin again.
        PySparkException: a task failed repeatedly. Groups that were finished before are committed.
    """
    checks.session(spark)
    context = context_of(checks.database(database))
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
            plan = planning.entry, planning.options, planning.target
            run = CompactionRun(spark, context, name, *plan, done, deadline, partial(progress, name))
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
        self.work: Work = recluster_work(spark, context) if whole else rewrite_work(spark)
        self.groups_a_job = 1 if whole else -(-self._parallelism // 2)

    def _plan(self, version: TableVersion, options: CompactionOptions) -> CompactionPlan:
        due = rewrite_through(self._context, version.manifest)
        return plan_compaction(self._name, version.entry, version.files, self.target, options, version.dead(), due)

    def _parts(self, version: TableVersion) -> CompactionPlan:
        """The core's plan, with smaller groups if more tasks could run at once."""
        plan = self._plan(version, self.options)
        total = sum(group.bytes_out for group in plan.groups)
        finer = max(2 * self.target, -(-total // self._parallelism))
        if version.entry.sort_key or finer >= self.options.group_bytes:
            return plan
        return self._plan(version, replace(self.options, group_bytes=finer))

    def _whole(self, version: TableVersion) -> CompactionPlan:
        """All files that any merging would improve, as one group."""
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


def rewrite_work(spark: SparkSession) -> Work:
    """The work of jobs whose tasks rewrite one group each, as the core does."""

    def work(task: CompactionTask, job: Job) -> Sequence[Rewritten]:
        groups = [tuple(file.uuid for file in inputs) for inputs in job.groups]
        rows = run_numbered(spark, len(groups), rewrite_numbered(task, groups), REWRITTEN)
        return [
            Rewritten(tuple(msgspec.json.decode(row.files, type=list[DataFile])), row.spilled_bytes, row.copied_bytes)
            for row in rows
        ]

    return work
