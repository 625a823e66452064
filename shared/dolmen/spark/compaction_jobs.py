"""Compaction on Spark: the core's plan and the core's rewriting, many groups at once, each in a task of its own.

Tasks read a snapshot and write files under the job's intent. The driver commits their results as they come, by the
core's rules: a group whose files others have changed is dropped, and tried again in halves. So a failed task, or a
killed job, costs only the groups that were running. For a table with a sort key, Spark can instead sort all overlapping
files as a whole, and cut them into files that do not overlap (``recluster``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.base.runtime import never
from dolmen.commit.head import Context, context_of
from dolmen.commit.uploads import BEAT_SECONDS
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.column_terms import sort_terms
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.transforms import Transform
from dolmen.maintenance.compact.compaction import (
    Compacted,
    CompactionJob,
    CompactionRun,
    plan_version,
    target_file_bytes,
)
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, CompactionPlan, PlannedGroup
from dolmen.maintenance.compact.rewrite import GroupRewriter, Rewritten, TableVersion, write_options
from dolmen.rows.scan.scan import Scan, scan_files
from dolmen.rows.write.data_file import write_data_files
from dolmen.spark.frame_types import quote, spark_schema
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.sessions import check_database, check_session
from dolmen.spark.tasks import (
    FAILURES,
    collect_objects,
    conform_batches,
    dolmen_error,
    open_to_write,
    run_numbered,
    snapshot_in_task,
    task_runtime,
)
from dolmen.spark.write.frame_columns import partition_columns
from dolmen.spark.write.write_tasks import decode_entry, encode_entry
from dolmen.store import portable_url
from dolmen.transactions.snapshot import PinnedTable

JOBS_AT_ONCE = 3  # A job's slowest task holds up its commit, while tasks of the next jobs keep the processors busy
_UNLIMITED = 1 << 62  # bytes


class CompactionTask(Struct, frozen=True):
    """The values that each task of a compaction needs; everything is read in one version."""

    url: str
    version: int
    table: str
    txid: str
    options: CompactionOptions
    target_file_bytes: int

    def object_name(self) -> str:
        """A new object's name. A repeated or speculative attempt gets other names."""
        return f"{self.txid}-{task_runtime().uuid()}"

    def rewrite(self, uuids: tuple[str, ...]) -> Rewritten:
        """Rewrites one group, in bounded memory. Raises AssertionError if rows are lost, VersionExpiredError."""
        with snapshot_in_task(self.url, self.version) as (context, manifest):
            version = TableVersion.of(context, self.table, manifest)
            files = version.files.find(uuids)
            rewriter = GroupRewriter(context, self.options, self.target_file_bytes, self.object_name)
            return rewriter.rewrite(version, tuple(files[uuid] for uuid in uuids))

    def write(self, batches: Iterator[pa.RecordBatch], encoded: bytes) -> list[DataFile]:
        """Writes rows that Spark has sorted, by the table's encoded entry; the files' have no timestamps yet."""
        entry = decode_entry(encoded)
        rows = conform_batches(batches, entry.schema)
        if rows is None:
            return []
        runtime = task_runtime()
        store = open_to_write(self.url, runtime)
        options = write_options(self.options, self.target_file_bytes)
        return write_data_files(store, self.table, entry, rows, runtime, options, self.object_name)


def rewrite_numbered(task: CompactionTask, groups: Sequence[tuple[str, ...]]) -> Callable[[int], Rewritten]:
    """For ``run_numbered``: rewrites the group of a number."""
    return lambda number: task.rewrite(groups[number])


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
    check_session(spark)
    context = context_of(check_database(database))
    recluster, dry_run = arguments.flag("recluster", recluster), arguments.flag("dry_run", dry_run)
    if not (options is None or isinstance(options, CompactionOptions)):
        raise InputError(f"options={short_repr(options)}: give CompactionOptions")
    manifest = context.head.refresh().manifest
    names = sorted(manifest.tables) if tables is None else arguments.names("tables", tables)
    for name in names:
        manifest.table(name)
    results: dict[str, Compacted] = {}
    for name in names:
        run = SparkCompaction(spark, context, name, options or CompactionOptions(), recluster=recluster)
        results[name] = run.done
        if not dry_run:
            run.compact(deadline, partial(progress, name))
    return results


class SparkCompaction(CompactionRun):
    """The compaction of one table, by jobs of several groups, some of which run at once.

    After a failure no job is begun; the results of the running jobs are committed, and then the error is raised.
    """

    def __init__(
        self, spark: SparkSession, context: Context, name: str, options: CompactionOptions, *, recluster: bool
    ) -> None:
        self._spark, self._url = spark, portable_url(context.store)
        parallelism = max(1, spark.sparkContext.defaultParallelism)
        manifest = context.head.refresh().manifest
        with context.reading(manifest.version):
            version = TableVersion.of(context, name, manifest)
            target = target_file_bytes(version.entry, options)
            is_whole = recluster and can_recluster(version.entry)
            if is_whole:
                options = replace(options, growth=1, group_bytes=_UNLIMITED)
                plan = _join_groups(plan_version(context, version, target, options))
            else:
                plan = _plan_parts(context, version, target, options, parallelism)
        super().__init__(context, version, plan, options, target)
        self._work = self._recluster_groups if is_whole else self._rewrite_groups
        self._groups_a_job = 1 if is_whole else -(-parallelism // 2)

    def _task(self, job: CompactionJob) -> CompactionTask:
        version = job.version.manifest.version
        return CompactionTask(self._url, version, self._name, self.begin_intent().txid, self._options, self._target)

    def _rewrite_groups(self, job: CompactionJob) -> list[Rewritten]:
        groups = [tuple(file.uuid for file in inputs) for _, inputs in job.groups]
        return run_numbered(self._spark, len(groups), rewrite_numbered(self._task(job), groups), Rewritten)

    def _recluster_groups(self, job: CompactionJob) -> list[Rewritten]:
        return [self._recluster(self._task(job), job.version, inputs) for _, inputs in job.groups]

    def _recluster(self, task: CompactionTask, version: TableVersion, inputs: tuple[DataFile, ...]) -> Rewritten:
        row_ts, entry = version.commit_ts_of(inputs)
        table = _FilesOfTable(self._context, version.name, version.manifest, inputs)
        frame = to_spark(table, with_commit_ts=row_ts is None, spark=self._spark)
        live_bytes = sum(file.live_bytes for file in inputs)
        order = [column.asc_nulls_last() for column in partition_columns(frame, entry)]
        for term in sort_terms(version.entry.sort_key):
            column, nulls = F.col(quote(entry.schema.by_id[term.id].name)), "first" if term.nulls_first else "last"
            order.append(getattr(column, f"{'desc' if term.descending else 'asc'}_nulls_{nulls}")())
        ranges = frame.repartitionByRange(max(1, round(live_bytes / task.target_file_bytes)), *order)
        work = partial(task.write, encoded=encode_entry(entry))
        written = collect_objects(ranges.sortWithinPartitions(*order), work, DataFile)
        _check_rows(table, version, inputs, sum(file.rows for file in written))
        return Rewritten(version.complete_entries(written, row_ts))

    def _rewrite(self, jobs: Iterable[CompactionJob]) -> Iterator[tuple[CompactionJob, Sequence[Rewritten]]]:
        """Runs several jobs at once, yields their results in order, and keeps the intent alive."""
        spark, runtime, intent = self._spark, self._context.runtime, self.begin_intent()
        tag = f"dolmen-{intent.txid}"

        def run(job: CompactionJob) -> tuple[CompactionJob, Sequence[Rewritten] | Exception]:
            thread = threads.pop()
            try:
                return job, thread(self._work)(job)
            except FAILURES as failure:
                return job, dolmen_error(failure) or failure
            except Exception as error:  # noqa: BLE001 - raised when the results of the others are committed
                return job, error
            finally:
                spark.removeTag(tag)
                threads.append(thread)

        spark.addTag(tag)
        try:
            # One for each running job, with its own copy of this thread's local properties.
            threads = deque(inheritable_thread_target(spark) for _ in range(JOBS_AT_ONCE))
        finally:
            spark.removeTag(tag)
        outcomes = runtime.map(run, jobs, ahead=JOBS_AT_ONCE)
        failure: Exception | None = None
        is_over = False
        try:
            while (outcome := runtime.attend(lambda: next(outcomes, None), BEAT_SECONDS / 10, intent.beat)) is not None:
                job, rewritten = outcome
                if isinstance(rewritten, Exception):
                    failure, self._is_stopped = failure or rewritten, True
                else:
                    yield job, rewritten
            is_over = True
        finally:
            if not is_over:  # nothing will commit the results of running jobs
                self._is_stopped = True
                spark.interruptTag(tag)
        if failure is not None:
            raise failure


def _plan_parts(
    context: Context, version: TableVersion, target: int, options: CompactionOptions, parallelism: int
) -> CompactionPlan:
    """The core's plan, with smaller groups if more tasks could run at once."""
    plan = plan_version(context, version, target, options)
    total = sum(group.bytes_out for group in plan.groups)
    finer = max(2 * target, -(-total // parallelism))
    if version.entry.sort_key or finer >= options.group_bytes:
        return plan
    return plan_version(context, version, target, replace(options, group_bytes=finer))


def _join_groups(plan: CompactionPlan) -> CompactionPlan:
    """The plan with one group of all files."""
    if not plan.groups:
        return plan
    group_of_all = PlannedGroup(
        ", ".join(dict.fromkeys(group.reason for group in plan.groups)),
        tuple(file for group in plan.groups for file in group.inputs),
        sum(group.bytes_out for group in plan.groups),
        sum(group.files_out for group in plan.groups),
        sum(group.deleted_bytes for group in plan.groups),
        max(group.overlap for group in plan.groups),
    )
    return replace(plan, groups=(group_of_all,))


def can_recluster(entry: TableEntry) -> bool:
    """Whether there is an order of columns to cluster by, and Spark has all their types."""
    try:
        spark_schema(entry.schema.fields)
    except SchemaError:
        return False
    return bool(entry.sort_key) and all(term.transform == Transform() for term in sort_terms(entry.sort_key))


class _FilesOfTable(PinnedTable):
    """Some files of a table in one version."""

    def __init__(self, context: Context, name: str, manifest: Manifest, inputs: Sequence[DataFile]) -> None:
        super().__init__(context, name, manifest)
        self._paths = {file.path for file in inputs}

    def scan(self, *args: Any, **options: Any) -> Scan:
        return scan_files(super().scan(*args, **options), self._paths)


def _check_rows(table: _FilesOfTable, version: TableVersion, inputs: Sequence[DataFile], written: int) -> None:
    """Raises AssertionError unless Spark wrote all rows. Counts by entries, or by a scan if deletes are unresolved."""
    plans = [plan for file in inputs if (plan := version.unresolved.plan(file)) is not None]
    expected = sum(plan.file.live_rows for plan in plans if not plan.tombstones)
    if uncertain := {plan.file.path for plan in plans if plan.tombstones}:
        one_column = scan_files(table.scan([version.entry.schema.fields[0].name]), uncertain)
        expected += sum(batch.num_rows for batch in one_column.to_batches())
    if expected != written:
        raise AssertionError(
            f"clustering of table {version.name!r} has written {written} rows where there are {expected}: "
            "nothing was committed"
        )
