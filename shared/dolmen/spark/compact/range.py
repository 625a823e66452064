"""Clustering a table anew: files that overlap are sorted as a whole by Spark, and cut into files that don't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.commit.context import Context
from dolmen.errors import SchemaError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance.compact.rewrite import Rewritten, TableVersion
from dolmen.rows.scan.scan import Scan
from dolmen.spark.compact.run import Job, Work
from dolmen.spark.compact.tasks import REWRITTEN, CompactionTask, write_sorted
from dolmen.spark.read.frame import to_spark
from dolmen.spark.tasks import map_in_tasks
from dolmen.spark.types import spark_schema
from dolmen.spark.write.frame import without_files
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
