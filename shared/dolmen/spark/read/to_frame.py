"""Reads a table into Spark: natively where possible, else by dolmen itself in Python workers, with the same rows.

Two readers are needed because Spark's own is several times faster, but lacks types and conditions, and S3 without
hadoop-aws. Both read the files that one plan selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

from dolmen.base import arguments
from dolmen.commit.context import context_of
from dolmen.errors import InputError, SchemaError
from dolmen.format.schema import COMMIT_TS
from dolmen.predicate import Where
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import checks
from dolmen.spark.checks import spark_paths
from dolmen.spark.file_tasks import FILE, ROW, ReadTask, read_files
from dolmen.spark.origin import Origin
from dolmen.spark.read.native import native_frames
from dolmen.spark.sessions import read_remotely
from dolmen.spark.spark_types import is_own, spark_schema, to_frame
from dolmen.transactions.reading import ReadableTable


def to_spark(
    table: ReadableTable,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    with_commit_ts: bool = False,
    with_positions: bool = False,
    native: bool = True,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The rows of one version of a table, the same as those of ``table.scan``.

    Args:
        table: of a database, of ``at(...)``; a DataFrame shows the version that was the newest when it was made.
        columns: names, in order; all by default.
        where: only rows for which this is TRUE.
        with_commit_ts: add the column ``_commit_ts``.
        with_positions: add the columns ``__file`` and ``__row``: the name of each row's file, and its position there.
        native: False = dolmen itself reads everything, in Python workers, as it always does in Spark Connect.
        spark: the session; the active one by default.

    Raises:
        PredicateError, SchemaError: as ``scan`` does; also if Spark lacks the type of a column.
    """
    checks.readable(table)
    native = arguments.flag("native", native)
    with_positions = arguments.flag("with_positions", with_positions)
    spark = checks.any_session(active_session() if spark is None else spark)
    if checks.is_remote(spark):
        if with_positions:
            checks.session(spark)
        return read_remotely(spark, table, columns, where, with_commit_ts=with_commit_ts)
    scan = table.scan(columns, where, with_commit_ts=with_commit_ts)
    plan = plan_of(scan)
    origin = Origin(plan.entry.uuid, plan.version)
    schema = origin.mark(spark_schema(plan.output))
    if with_positions:
        if own := [name for name in schema.names if is_own(name)]:
            raise SchemaError(f"column {own[0]!r} has a name that rows' positions need: leave it out")
        schema = schema.add(FILE, s.StringType()).add(ROW, s.LongType())
    paths = spark_paths(spark, context_of(table).store) if native else None
    frames, rest = (
        ([], list(plan.files)) if paths is None else native_frames(spark, scan, paths, with_positions=with_positions)
    )
    if rest:
        names = tuple(field.name for field in plan.output if field.name != COMMIT_TS or not with_commit_ts)
        url = context_of(table).store.url
        task = ReadTask(url, plan.version, plan.table, names, plan.where, with_commit_ts, with_positions)
        frames.append(_by_dolmen(spark, task, rest, schema, origin))
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionAll, frames)


def active_session() -> SparkSession:
    """The session of this process. Raises InputError if there is none."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        said = "there is no Spark session: make one by SparkSession.builder...getOrCreate(), or give spark=..."
        raise InputError(said) from error


def _by_dolmen(
    spark: SparkSession, task: ReadTask, files: Sequence[FilePlan], schema: s.StructType, origin: Origin
) -> DataFrame:
    few = min(len(files), 4 * max(1, spark.sparkContext.defaultParallelism))
    paths = to_frame(spark, pa.table({"path": [file.file.path for file in files]}), origin.mark)
    return paths.repartition(few, "path").mapInArrow(read_files(task), schema)
