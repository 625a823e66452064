"""The tasks of compaction: each rewrites one planned group as the core does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from dolmen.commit.context import Context
from dolmen.commit.head import Head
from dolmen.commit.versions import manifest_at_version
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.maintenance.compact.plan import CompactionOptions
from dolmen.maintenance.compact.rewrite import GroupRewriter, Rewritten, TableVersion, write_options
from dolmen.rows.write.conform import conform
from dolmen.rows.write.data_file import write_data_files
from dolmen.spark.failures import mark_errors
from dolmen.spark.tasks import chain_batches, open_to_write, task_runtime
from dolmen.store.url import open_store

REWRITTEN = "place INT, files BINARY, spilled_bytes BIGINT, copied_bytes BIGINT"
"""The report of a task: the group that it has rewritten, and the entries of the new files, encoded."""


@dataclass(frozen=True)
class CompactionTask:
    """The facts that each task of a compaction needs.

    Args:
        url: of the database.
        version: of the snapshot; everything is read in this one.
        table: its name.
        txid: of the job's intent, which begins the names of all new objects.
        target_file_bytes: size of a full file.
    """

    url: str
    version: int
    table: str
    txid: str
    options: CompactionOptions
    target_file_bytes: int

    def object_name(self) -> str:
        """A name for a new object. A repeated or speculative attempt gets other names."""
        return f"{self.txid}-{task_runtime().uuid()}"

    def rewrite(self, uuids: tuple[str, ...]) -> Rewritten:
        """Rewrites one group, in bounded memory.

        Raises:
            AssertionError: other rows were written than there are.
            VersionExpiredError: it took so long that what it reads has expired.
        """
        runtime = task_runtime()
        store = open_store(self.url, runtime)
        context = Context(store, runtime, Head(store, runtime))
        manifest = manifest_at_version(context.head, context.head.refresh().manifest, self.version)
        with context.reading(self.version):
            version = TableVersion.of(context, self.table, manifest)
            found = version.files.find(uuids)
            inputs = tuple(found[uuid] for uuid in uuids)
            return GroupRewriter(context, self.options, self.target_file_bytes, self.object_name).rewrite(
                version, inputs
            )

    def write(self, batches: Iterator[pa.RecordBatch], entry: TableEntry) -> list[DataFile]:
        """Writes rows that Spark has sorted; their entries are not stamped yet."""
        first = next(batches, None)
        if first is None:
            return []
        rows = conform(pa.RecordBatchReader.from_batches(first.schema, chain_batches(first, batches)), entry.schema)
        runtime = task_runtime()
        store = open_to_write(self.url, runtime)
        options = write_options(self.options, self.target_file_bytes)
        return write_data_files(store, self.table, entry, rows, runtime, options, self.object_name)


def rewrite_groups(
    task: CompactionTask, groups: list[tuple[str, ...]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: places of groups become what they were rewritten to."""

    def rewrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                rewritten = task.rewrite(groups[place])
                yield reported(place, list(rewritten.files), rewritten.spilled_bytes, rewritten.copied_bytes)

    return mark_errors(rewrite)


def write_sorted(task: CompactionTask, entry: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: a partition's rows, sorted by Spark, become data files.

    Args:
        entry: the table without its files and deletes, as the files are written, encoded.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = task.write(batches, msgspec.json.decode(entry, type=TableEntry))
        if written:
            yield reported(0, written)

    return mark_errors(write)


def reported(place: int, files: list[DataFile], spilled_bytes: int = 0, copied_bytes: int = 0) -> pa.RecordBatch:
    """One row of ``REWRITTEN``."""
    arrays = [
        pa.array([place], pa.int32()),
        pa.array([msgspec.json.encode(files)], pa.binary()),
        pa.array([spilled_bytes], pa.int64()),
        pa.array([copied_bytes], pa.int64()),
    ]
    return pa.record_batch(arrays, ["place", "files", "spilled_bytes", "copied_bytes"])
