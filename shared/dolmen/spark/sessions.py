"""Starts the session of a job, and checks arguments: sessions, databases and tables."""

from __future__ import annotations

import re
import socket
from typing import TypeVar

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.api.table import Table
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError, RetryableError, short_repr
from dolmen.spark.tasks import is_remote
from dolmen.transactions.readable_table import ReadableTable

T = TypeVar("T")
CONNECT_SECONDS = 3.0  # how long a master may take to accept each connection
PATIENCE_SECONDS = 15.0  # how long to retry connecting: the cluster may be starting
_STANDALONE = re.compile(r"spark://(.+)")
_PORT = 7077
_OLDEST = 4  # the oldest major version of Spark that has data sources in Python


def job_session(name: str) -> SparkSession:
    """Starts the session of a job that ``spark-submit`` runs, by its settings.

    A driver of a standalone cluster waits three times 20 seconds for its master, and then fails with another error. So
    this connects to the master itself first.

    Raises:
        RetryableError: there is no master, or it refused the application.
    """
    SparkContext._ensure_initialized()
    master = SparkConf().get("spark.master")
    if master is not None and SparkContext._active_spark_context is None:
        call_on(master, shared_runtime())
    session = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    if session.sparkContext._jsc.sc().isStopped():
        raise RetryableError(f"Spark's master {master} did not accept this application, and Spark gave up")
    return session


def call_on(master: str, runtime: Runtime) -> None:
    """Checks that at least one master of a standalone cluster accepts connections. Raises RetryableError."""
    address = _STANDALONE.fullmatch(master)
    if address is None:
        return
    last = runtime.monotonic() + PATIENCE_SECONDS
    addresses = address[1].split(",")
    while True:
        failures = [failure for address in addresses if (failure := _failure(address))]
        if len(failures) < len(addresses):
            return
        if runtime.monotonic() >= last:
            raise RetryableError(f"no Spark master answers at {master}: {'; '.join(failures)}")
        runtime.sleep(1.0)


def _failure(address: str) -> str | None:
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    number = int(port) if port.isdecimal() else _PORT
    try:
        socket.create_connection((host.strip("[]"), number), CONNECT_SECONDS).close()
    except OSError as error:
        return f"{host}:{number}: {error.strerror or type(error).__name__}"
    return None


def active_session(spark: SparkSession | None) -> SparkSession:
    """This session, by default the one of this process. Raises InputError if there is none."""
    if spark is not None:
        return spark
    from pyspark.errors import PySparkRuntimeError  # which a PySpark that ``check_supported`` refuses may lack

    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise InputError(
            "there is no Spark session: make one by SparkSession.builder...getOrCreate(), or give spark=..."
        ) from error


def check_session(value: object) -> SparkSession:
    """A session of this process. Raises InputError."""
    session = check_any_session(value)
    if is_remote(session):
        raise InputError(
            "this needs a session of this process's own JVM, and the session is one of Spark Connect: "
            "docs/spark-statements.md says what works there"
        )
    return session


def check_any_session(value: object) -> SparkSession:
    """A session, of this process or of Spark Connect. Raises InputError."""
    if not (hasattr(value, "session_id") and hasattr(value, "createDataFrame")):
        return _check(SparkSession, "spark", value, "a SparkSession")
    session: SparkSession = value
    return session


def check_database(value: object) -> Database:
    return _check(Database, "database", value, "a database, as dolmen.open gives it")


def check_table(value: object) -> Table:
    return _check(Table, "table", value, 'a table of a database, as db.table("name") gives it')


def check_readable(value: object) -> ReadableTable:
    return _check(ReadableTable, "table", value, 'a table, as db.table("name") or db.at(...).table("name") gives it')


def _check(kind: type[T], name: str, value: object, expected: str) -> T:
    if not isinstance(value, kind):
        raise InputError(f"{name}={short_repr(value)} is a {type(value).__name__}: give {expected}")
    return value


def check_supported(version: str) -> None:
    """Raises InputError, which names the alternative, for a PySpark without data sources in Python ("3.5.7")."""
    major, _, rest = version.partition(".")
    if not major.isdecimal() or int(major) >= _OLDEST:
        return
    line = f"{major}.{rest.partition('.')[0]}"
    raise InputError(
        f"dolmen.spark needs PySpark 4.1, and this is {version}, which has no data sources in Python. Publish the "
        "table as Iceberg (dolmen publish-iceberg, or table.publish_iceberg(): docs/iceberg.md), and read that with "
        f"Iceberg's runtime for this Spark (iceberg-spark-runtime-{line}_2.12)"
    )
