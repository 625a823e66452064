"""The jobs of a compaction on Spark: several at once, each of whose tasks rewrites a group as the core does.

The driver commits the result of each job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Compact, Group
from dolmen.commit.uploads import BEAT_SECONDS, Intent
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance.compact.compaction import Compacted, PendingGroup, PendingGroups, same_table
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.maintenance.compact.rewrite import GroupRewriter, Rewritten, TableVersion, write_options
from dolmen.rows.write.data_file import write_data_files
from dolmen.spark.checks import worker_url
from dolmen.spark.failures import FAILURES, dolmen_error, mark_errors
from dolmen.spark.file_tasks import MapBatches, conform_batches, open_to_write, snapshot_in_task, task_runtime
from dolmen.store import open_store

REWRITTEN = "number INT, files BINARY, spilled_bytes BIGINT, copied_bytes BIGINT"
"""The report of a task: the group that it has rewritten, and the entries of the new files, encoded."""


@dataclass(frozen=True)
class CompactionTask:
    """The values that each task of a compaction needs.

    Args:
        version: of the snapshot, in which everything is read.
        txid: of the job's intent; it begins the names of all new objects.
        target_file_bytes: size of a full file.
    """

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
        """Rewrites one group, in bounded memory.

        Raises:
            AssertionError: the rows that were written are not those of the group.
            VersionExpiredError: the job took so long that the version has expired.
        """
        with snapshot_in_task(open_store(self.url, task_runtime()), self.version) as (context, manifest):
            version = TableVersion.of(context, self.table, manifest)
            found = version.files.find(uuids)
            rewriter = GroupRewriter(context, self.options, self.target_file_bytes, self.object_name)
            return rewriter.rewrite(version, tuple(found[uuid] for uuid in uuids))

    def write(self, batches: Iterator[pa.RecordBatch], entry: TableEntry) -> list[DataFile]:
        """Writes rows that Spark has sorted; their entries have no timestamps yet."""
        rows = conform_batches(batches, entry.schema)
        if rows is None:
            return []
        runtime = task_runtime()
        store = open_to_write(self.url, runtime)
        options = write_options(self.options, self.target_file_bytes)
        return write_data_files(store, self.table, entry, rows, runtime, options, self.object_name)


def rewrite_numbered(task: CompactionTask, groups: Sequence[tuple[str, ...]]) -> Callable[[int], pa.RecordBatch]:
    """For ``run_numbered``: rewrites the group of a number."""

    def rewrite(number: int) -> pa.RecordBatch:
        rewritten = task.rewrite(groups[number])
        return report_group(number, list(rewritten.files), rewritten.spilled_bytes, rewritten.copied_bytes)

    return rewrite


def write_sorted(task: CompactionTask, entry: bytes) -> MapBatches:
    """For ``mapInArrow``: a partition's rows, sorted by Spark, become data files.

    Args:
        entry: the table without its files and deletes, as the files are written, encoded.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = task.write(batches, msgspec.json.decode(entry, type=TableEntry))
        if written:
            yield report_group(0, written)

    return mark_errors(write)


def report_group(number: int, files: list[DataFile], spilled_bytes: int = 0, copied_bytes: int = 0) -> pa.RecordBatch:
    """One row of ``REWRITTEN``."""
    arrays = [
        pa.array([number], pa.int32()),
        pa.array([msgspec.json.encode(files)], pa.binary()),
        pa.array([spilled_bytes], pa.int64()),
        pa.array([copied_bytes], pa.int64()),
    ]
    return pa.record_batch(arrays, ["number", "files", "spilled_bytes", "copied_bytes"])


JOBS_AT_ONCE = 3
"""A job's slowest task holds up its commit, while those of the next jobs keep the processors busy."""


@dataclass(frozen=True)
class Job:
    """Groups in one version.

    Args:
        pending: the groups as the queue has them.
        groups: the files of each that still exist.
        first_upload_us: the server's clock before the first object is uploaded.
    """

    version: TableVersion
    pending: tuple[PendingGroup, ...]
    groups: tuple[tuple[DataFile, ...], ...]
    first_upload_us: int


Work: TypeAlias = Callable[[CompactionTask, Job], Sequence[Rewritten]]
"""Runs a job on Spark, in a thread, and returns the results of its groups in their order."""


class CompactionRun:
    """Compacts the groups of a plan, some at a time, and commits the results.

    Args:
        entry: the table that was planned for.
        target_file_bytes: size of a full file.
        done: the plan, and the result so far.
        deadline: called before each job; True = begin no more.
        progress: called after each commit.
    """

    def __init__(
        self,
        spark: SparkSession,
        context: Context,
        name: str,
        entry: TableEntry,
        options: CompactionOptions,
        target_file_bytes: int,
        done: Compacted,
        deadline: Callable[[], bool],
        progress: Callable[[Compacted], None],
    ) -> None:
        self._spark, self._context, self._name, self._entry = spark, context, name, entry
        self._options, self._target = options, target_file_bytes
        self._done, self._deadline, self._progress = done, deadline, progress
        self._url = worker_url(context.store)
        self._waiting = PendingGroups(done.plan.groups)
        self._intent = Intent.begin(context.store, context.runtime, f"compact {name}", [name])
        self._stopped = False
        self._failure: Exception | None = None

    def all_groups(self, work: Work, groups_a_job: int) -> None:
        """Compacts the plan's groups, and the halves of groups that were dropped.

        After a failure no job is begun; the results of the running jobs are committed, and then the error is raised.
        """
        while self._waiting and not self._stopped:
            for job, outcome in self._side_by_side(work, self._jobs(groups_a_job)):
                if isinstance(outcome, Exception):
                    self._failure, self._stopped = self._failure or outcome, True
                else:
                    self._commit(job, outcome)
        if self._failure is not None:
            raise self._failure
        self._done.finished = not self._stopped
        if self._done.finished and not self._done.dropped:  # else it is revoked in an hour, with the dropped files
            self._intent.finish()

    def _jobs(self, groups_a_job: int) -> Iterator[Job]:
        while self._waiting and not self._stopped:
            if self._deadline():
                self._stopped = True
                return
            pending = [self._waiting.take()]
            while self._waiting and len(pending) < groups_a_job:
                pending.append(self._waiting.take())
            job = self._job(pending)
            if job is None:
                self._stopped = True  # the table was dropped or created again
                return
            if job.groups:
                yield job

    def _job(self, pending: Sequence[PendingGroup]) -> Job | None:
        """Makes a job of the groups that still need work in the newest version. None = stop."""
        context = self._context
        manifest = context.head.refresh().manifest
        if not same_table(manifest.tables.get(self._name), self._entry):
            return None
        with context.reading(manifest.version):
            version = TableVersion.of(context, self._name, manifest)
            found = [(group, version.worth_rewriting(group.uuids, self._options)) for group in pending]
        left = [(group, inputs) for group, inputs in found if inputs]
        now_us = context.store.clock.now_us
        return Job(version, tuple(group for group, _ in left), tuple(inputs for _, inputs in left), now_us)

    def _side_by_side(self, work: Work, jobs: Iterable[Job]) -> Iterator[tuple[Job, Sequence[Rewritten] | Exception]]:
        """Runs several jobs at once, yields their results in order, and keeps the intent alive."""
        spark, runtime = self._spark, self._context.runtime
        tag = f"dolmen-{self._intent.txid}"

        def run(job: Job) -> tuple[Job, Sequence[Rewritten] | Exception]:
            thread = threads.pop()
            try:
                return job, thread(work)(self._task(job), job)
            except FAILURES as failure:
                return job, dolmen_error(failure) or failure
            except Exception as error:  # noqa: BLE001 - raised when the results of the others are committed
                return job, error
            finally:
                spark.removeTag(tag)
                threads.append(thread)

        spark.addTag(tag)
        try:
            # One for each running job: each has its own copy of this thread's local properties.
            threads = deque(inheritable_thread_target(spark) for _ in range(JOBS_AT_ONCE))
        finally:
            spark.removeTag(tag)
        outcomes = runtime.map(run, jobs, ahead=JOBS_AT_ONCE)
        is_over = False
        try:
            while (
                found := runtime.attend(lambda: next(outcomes, None), BEAT_SECONDS / 10, self._intent.beat)
            ) is not None:
                yield found
            is_over = True
        finally:
            if not is_over:  # nothing will commit the results of running jobs
                self._stopped = True
                spark.interruptTag(tag)

    def _task(self, job: Job) -> CompactionTask:
        version = job.version.manifest.version
        return CompactionTask(self._url, version, self._name, self._intent.txid, self._options, self._target)

    def _commit(self, job: Job, rewritten: Sequence[Rewritten]) -> None:
        """Commits the groups of a job at once. Groups that others have changed go back to the queue, in halves."""
        groups = [Group(inputs, one.files) for inputs, one in zip(job.groups, rewritten, strict=True)]
        statement = Compact(self._name, self._entry.uuid, self._entry.epoch, tuple(groups), job.version.entry.schema)
        committed = submit(
            self._context.head, "compact", [statement], first_upload_us=job.first_upload_us, txid=self._intent.txid
        )
        landed = self._landed(groups, committed.manifest)
        if any(landed):
            self._done.add([group for group, is_done in zip(groups, landed, strict=True) if is_done])
            results = [result for result, is_done in zip(rewritten, landed, strict=True) if is_done]
            self._done.spilled_bytes += sum(result.spilled_bytes for result in results)
            self._done.bytes_copied += sum(result.copied_bytes for result in results)
        for pending, is_done in zip(job.pending, landed, strict=True):
            if not is_done:
                self._done.dropped += 1
                self._waiting.retry_in_halves(pending)
        self._progress(self._done)

    def _landed(self, groups: Sequence[Group], manifest: Manifest | None) -> list[bool]:
        """Whether each group is in a version after a commit."""
        if manifest is None:
            return [False] * len(groups)
        if not manifest.counts.groups_dropped:
            return [True] * len(groups)
        live = LiveFiles.of(manifest.tables[self._name], self._context.segments)
        there = live.find([file.uuid for group in groups for file in (*group.inputs, *group.outputs)]).keys()
        return [
            all(file.uuid in there for file in group.outputs) and not any(file.uuid in there for file in group.inputs)
            for group in groups
        ]
