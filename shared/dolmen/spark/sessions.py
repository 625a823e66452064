"""Sessions: starts the session of a job, registers ``format("dolmen")``, and serves sessions of Spark Connect.

A driver of a standalone cluster waits three times 20 seconds for its master, and then fails with another error. So a
job first connects to the master itself, and fails within a minute. Reads and writes in a session of Spark Connect use
``format("dolmen")`` alone, because this process has no JVM.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.commit.change import find_applied
from dolmen.commit.context import Context, context_of
from dolmen.commit.head import commit_of
from dolmen.errors import RetryableError
from dolmen.format.schema import COMMIT_TS
from dolmen.predicate import Where, to_sql
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.checks import worker_url
from dolmen.spark.failures import raising_dolmen_errors
from dolmen.spark.spark_types import quote, spark_schema
from dolmen.transactions.reading import ReadableTable
from dolmen.transactions.unit_of_work import Commit

ANSWER_SECONDS = 3.0
"""How long a master may take to accept each connection."""
PATIENCE_SECONDS = 15.0
"""How long connecting is repeated, because the cluster may be starting."""
_STANDALONE = re.compile(r"spark://(.+)")
_PORT = 7077


def job_session(name: str) -> SparkSession:
    """Starts the session of a job that ``spark-submit`` runs, by its settings.

    Args:
        name: of the application.

    Raises:
        RetryableError: there is no master where these say, or it refused the application.
    """
    SparkContext._ensure_initialized()
    master = SparkConf().get("spark.master")
    if master is not None and SparkContext._active_spark_context is None:
        call_on(master, shared_runtime())
    session = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    if session.sparkContext._jsc.sc().isStopped():
        raise RetryableError(f"Spark's master {master} did not take this application, and Spark gave up")
    return session


def call_on(master: str, runtime: Runtime) -> None:
    """Checks that a standalone cluster's master accepts connections. Does nothing for other masters.

    Args:
        master: the value of ``spark.master``. If it names several machines, one is enough.

    Raises:
        RetryableError: none did within ``PATIENCE_SECONDS``.
    """
    found = _STANDALONE.fullmatch(master)
    if found is None:
        return
    last = runtime.monotonic() + PATIENCE_SECONDS
    while True:
        addresses = found[1].split(",")
        failures = [failure for address in addresses if (failure := _failure(address))]
        if len(failures) < len(addresses):
            return
        if runtime.monotonic() >= last:
            raise RetryableError(f"no Spark master answers at {master}: {'; '.join(failures)}")
        runtime.sleep(1.0)


def _failure(address: str) -> str | None:
    """Why connecting to ``host:port`` failed; None if it did not."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    number = int(port) if port.isdecimal() else _PORT
    try:
        socket.create_connection((host.strip("[]"), number), ANSWER_SECONDS).close()
    except OSError as error:
        return f"{host}:{number}: {error.strerror or type(error).__name__}"
    return None


def read_remotely(
    spark: SparkSession,
    table: ReadableTable,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    with_commit_ts: bool = False,
) -> DataFrame:
    """The rows of one version of a table. See ``to_spark``."""
    plan = plan_of(table.scan(columns, where, with_commit_ts=with_commit_ts))
    names = spark_schema(plan.output).names
    options = {"table": plan.table, "version": str(plan.version)}
    if with_commit_ts:
        options["with_commit_ts"] = "true"
    stored = [name for name in names if name != COMMIT_TS]
    if all(name == name.strip() and "," not in name for name in stored):  # others are read, and dropped below
        options["columns"] = ",".join(stored)
    if plan.where is not None:
        options["where"] = to_sql(plan.where, plan.entry.schema)
    frame = spark.read.format("dolmen").options(**options).load(worker_url(context_of(table).store))
    return frame.select(*map(quote, names))


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
    """Appends or replaces rows in one commit. The commit is found by its request id, which is a new one by default.

    Args:
        since, force, merge_schema: the options of that name.

    Raises:
        Error: of dolmen, raised by the server's Python.
        PySparkException: the job failed for another reason.
    """
    before = context.head.refresh().manifest
    own = context.runtime.uuid() if request is None else request
    options = {"table": table, "request": own}
    if since is not None:
        options["since"] = str(since)
    options |= {name: "true" for name, is_given in (("force", force), ("merge_schema", merge_schema)) if is_given}
    applied_before = {} if request is None else find_applied(before, [own], context.segments)
    mode = "overwrite" if overwrites else "append"
    with raising_dolmen_errors():
        frame.write.format("dolmen").options(**options).mode(mode).save(worker_url(context.store))
    newest = context.head.refresh().manifest
    if applied_before:
        return Commit.nothing(newest.as_history(), {own: applied_before[own].version})
    applied = find_applied(newest, [own], context.segments)
    entry = commit_of(context.head, newest, applied[own].version) if applied else None
    assert entry is not None, "the commit of this write has left the history at once"
    return Commit.of(entry, [own])


def is_remote_frame(frame: object) -> bool:
    """Whether this is a frame of a session of Spark Connect."""
    return isinstance(frame, DataFrame) and not hasattr(frame, "_jdf")
