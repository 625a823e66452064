"""Compaction on Spark: the core's plan and the core's rewriting, many groups at once, each in a task of its own.

Tasks read a snapshot and write files under the job's intent; the driver commits what they report, as it comes, by the
core's rules: a group whose files others have changed meanwhile is dropped and tried again in halves. So a task that
fails, or a job that is killed, costs the groups that were under way. Of a table with a sort key, all files that overlap
can be made one sorted whole instead (``recluster``).

Clustering a table anew: files that overlap are sorted as a whole by Spark, and cut into files that don't.
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
from dolmen.commit.context import Context
from dolmen.errors import InputError, SchemaError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance import never
from dolmen.maintenance.compact.compaction import Compacted, target_file_bytes
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup, plan_compaction
from dolmen.maintenance.compact.rewrite import Rewritten, TableVersion
from dolmen.maintenance.erasures.erasure_work import rewrite_through
from dolmen.rows.scan.scan import Scan
from dolmen.spark import checks as given
from dolmen.spark.compact.group_jobs import (
    REWRITTEN,
    CompactionRun,
    CompactionTask,
    Job,
    Work,
    rewrite_groups,
    write_sorted,
)
from dolmen.spark.file_tasks import map_in_tasks
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


def reclustering(spark: SparkSession, context: Context) -> Work:
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
        return super().scan(*args, **options).of_files(self._paths)


def _recluster(
    spark: SparkSession, context: Context, task: CompactionTask, version: TableVersion, inputs: tuple[DataFile, ...]
) -> Rewritten:
    """Writes the live rows of some files in order.

    Raises:
        AssertionError: other rows were written than there are.
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
    """Checks that Spark has written as many rows as dolmen counts: by entries alone if no delete is unresolved."""
    plans = [plan for file in inputs if (plan := version.unresolved.plan(file)) is not None]
    counted = sum(plan.file.live_rows for plan in plans if not plan.tombstones)
    uncertain = {plan.file.path for plan in plans if plan.tombstones}
    if uncertain:
        one_column = table.scan([version.entry.schema.fields[0].name]).of_files(uncertain)
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
