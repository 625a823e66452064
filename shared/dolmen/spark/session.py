"""Starts the session of a job, or raises an error within a minute where no Spark runs it.

A driver of a standalone cluster waits for its master: 20 seconds three times over, beside what the names of machines
take to look up, and what then fails says something else. So the master is called on first.
"""

from __future__ import annotations

import re
import socket

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import RetryableError

ANSWER_SECONDS = 3.0
"""How long a master may take to answer each call."""
PATIENCE_SECONDS = 15.0
"""How long calls are repeated, as the cluster may be starting."""

_STANDALONE = re.compile(r"spark://(.+)")
_PORT = 7077


def job_session(name: str) -> SparkSession:
    """Starts the session of a job that ``spark-submit`` runs, by its settings.

    Args:
        name: of the application.

    Raises:
        RetryableError: there is no master where these say, or it took no application.
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
    """Checks that something listens where a standalone cluster's master should be. Does nothing for other masters.

    Args:
        master: as ``spark.master`` has it. Of several machines, for one that stands in for another, one is enough.

    Raises:
        RetryableError: nothing does, ``PATIENCE_SECONDS`` long.
    """
    found = _STANDALONE.fullmatch(master)
    if found is None:
        return
    last = runtime.monotonic() + PATIENCE_SECONDS
    while True:
        failures = [failure for place in found[1].split(",") if (failure := _failure(place))]
        if len(failures) < len(found[1].split(",")):
            return
        if runtime.monotonic() >= last:
            raise RetryableError(f"no Spark master answers at {master}: {'; '.join(failures)}")
        runtime.sleep(1.0)


def _failure(place: str) -> str | None:
    """Why nothing listens at ``host:port``; None if something does."""
    host, _, port = place.rpartition(":") if ":" in place else (place, "", "")
    number = int(port) if port.isdecimal() else _PORT
    try:
        socket.create_connection((host.strip("[]"), number), ANSWER_SECONDS).close()
    except OSError as error:
        return f"{host}:{number}: {error.strerror or type(error).__name__}"
    return None
