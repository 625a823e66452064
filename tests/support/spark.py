"""Spark sessions for tests: one in the test's own process, and others of their own processes.

A JVM has one class path and one master, and a process one JVM. What needs another one than all tests share runs in a
process of its own, with ``SparkProcess``.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from pyspark.sql import SparkSession

try:
    from pyspark.sql import datasource
except ImportError:  # before Spark 4
    datasource = None

P = ParamSpec("P")
R = TypeVar("R")

TESTS = Path(__file__).parents[1]

streams_arrow = pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"), reason="Spark 4.0 hands rows of streams one by one"
)
"""For tests of what ``writeStream.format("dolmen")`` does from 4.1."""

SINCE_4_1 = (
    "INSERT INTO lake.events (id, s) VALUES (101, 'a')",
    "INSERT INTO lake.events BY NAME SELECT 102L AS id",
    "SHOW PROCEDURES IN lake",
)
"""Statements of docs/spark-sql.md that Spark 4.0 does not run: it fills in no columns that an INSERT leaves out."""

QUICK_WORKERS = TESTS / "support" / "spark_workers"
"""Folder with what Python workers import at their start."""

NO_JAVA = "Spark needs Java 17 or newer, and there is none: apt install openjdk-17-jre-headless"


def has_java() -> bool:
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


def start_session(scratch: Path, master: str = "local[2,3]", **settings: str) -> SparkSession:
    """Starts a session with two cores, three attempts per task, little parallelism and no UI.

    Args:
        scratch: folder for its files.
        settings: more Spark settings, with ``__`` for dots.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(master)
        .appName("dolmen tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    with pytest.MonkeyPatch.context() as patch:  # the JVM, and what it starts, keep what they begin with
        paths = [path for path in (os.environ.get("PYTHONPATH"), str(QUICK_WORKERS)) if path]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class SparkProcess:
    """A process with a Spark session of its own, in which functions are run, one at a time."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    @classmethod
    @contextmanager
    def start(
        cls, scratch: Path, environment: Mapping[str, str], master: str = "local[2,3]", **settings: str
    ) -> Iterator[SparkProcess]:
        """Starts a process with a JVM of its own; both end with the block.

        Args:
            environment: variables for it, and for Spark's workers.
            settings: see ``start_session``.
        """
        spawn = multiprocessing.get_context("spawn")
        variables = {**environment, "PYTHONPATH": str(TESTS)}
        with ProcessPoolExecutor(1, spawn, _begin, (scratch, variables, master, settings)) as pool:
            try:
                yield cls(pool)
            finally:
                pool.submit(_end).result()

    @classmethod
    @contextmanager
    def start_client(cls, url: str) -> Iterator[SparkProcess]:
        """Starts a process without a JVM, whose session is one of Spark Connect; it ends with the block."""
        from support.connect_client import begin

        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, (url,)) as pool:
            try:
                yield cls(pool)
            finally:
                pool.submit(_end).result()

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function of an importable module (``support``) with the session active, and returns its result.

        An error of the function fails the test, with its own traceback.
        """
        return self.begin(function, *args, **kwargs)()

    def begin(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Begins to run a function. What is returned waits for its result."""
        running = self._pool.submit(_call, function, args, kwargs)

        def wait() -> R:
            result, error = running.result()
            assert not error, f"in Spark's own process:\n{error}"
            return result

        return wait


def _begin(scratch: Path, environment: Mapping[str, str], master: str, settings: dict[str, str]) -> None:
    os.environ.update(environment)
    start_session(scratch, master, **settings)


def _call(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[R | None, str]:
    try:
        return function(*args, **kwargs), ""
    except Exception:  # noqa: BLE001 - told in words: not every exception of Spark's can be sent
        return None, traceback.format_exc()


def _end() -> None:
    if session := SparkSession.getActiveSession():
        session.stop()


def require_java() -> None:
    """Skips the test where there is no Java."""
    if not has_java():
        pytest.skip(NO_JAVA)
