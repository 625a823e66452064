"""Reads and writes in a session of Spark Connect: all goes by ``format("dolmen")``, as this process has no JVM."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from dolmen.commit.applied import find_applied
from dolmen.commit.context import Context
from dolmen.commit.versions import commit_of
from dolmen.format.schema import COMMIT_TS
from dolmen.predicate import Where, to_sql
from dolmen.spark.failures import raising_dolmen_errors
from dolmen.spark.paths import worker_url
from dolmen.spark.types import quoted, spark_schema
from dolmen.transactions.reading import ReadableTable
from dolmen.transactions.results import Commit


def read_remotely(
    spark: SparkSession,
    table: ReadableTable,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    with_commit_ts: bool = False,
) -> DataFrame:
    """The rows of one version of a table, as ``to_spark`` gives them.

    Raises:
        PredicateError, SchemaError: as ``scan`` does; also for a column of a type that Spark does not have.
        InputError: Spark's workers can't reach the database.
    """
    plan = table.scan(columns, where, with_commit_ts=with_commit_ts).plan
    names = spark_schema(plan.output).names
    options = {"table": plan.table, "version": str(plan.version)}
    if with_commit_ts:
        options["with_commit_ts"] = "true"
    stored = [name for name in names if name != COMMIT_TS]
    if all(name == name.strip() and "," not in name for name in stored):  # others are read, and left out below
        options["columns"] = ",".join(stored)
    if plan.where is not None:
        options["where"] = to_sql(plan.where, plan.entry.schema)
    frame = spark.read.format("dolmen").options(**options).load(worker_url(table.context.store))
    return frame.select(*map(quoted, names))


def write_remotely(
    context: Context,
    table: str,
    frame: DataFrame,
    request: str | None,
    *,
    overwrites: bool,
    since: int | None = None,
    force: bool = False,
    merge_schema: bool = False,
) -> Commit:
    """Appends or replaces rows in one commit, and returns that.

    The commit is found by its request id. Without one it gets an id of its own.

    Args:
        since, force, merge_schema: the options of that name.

    Raises:
        Error: of dolmen, raised by the server's Python.
        PySparkException: something else failed there.
    """
    before = context.head.refresh().manifest
    own = context.runtime.uuid() if request is None else request
    options = {"table": table, "request": own}
    if since is not None:
        options["since"] = str(since)
    options |= {name: "true" for name, is_given in (("force", force), ("merge_schema", merge_schema)) if is_given}
    already = {} if request is None else find_applied(before, [own], context.segments)
    mode = "overwrite" if overwrites else "append"
    with raising_dolmen_errors():
        frame.write.format("dolmen").options(**options).mode(mode).save(worker_url(context.store))
    newest = context.head.refresh().manifest
    if already:
        return Commit.nothing(newest.as_history(), {own: already[own].version})
    applied = find_applied(newest, [own], context.segments)
    entry = commit_of(context.head, newest, applied[own].version) if applied else None
    assert entry is not None, "the commit of this write has left the history at once"
    return Commit.of(entry, [own])


def is_remote_frame(frame: object) -> bool:
    """Whether this is a frame of a session of Spark Connect."""
    return isinstance(frame, DataFrame) and not hasattr(frame, "_jdf")
