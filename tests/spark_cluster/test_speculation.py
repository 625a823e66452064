"""Tasks that Spark runs twice at once, because one is slow: their rows are there once.

Spark never runs two attempts of a task on one host, so these workers have addresses of their own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import dolmen
from support.ministack import free_port
from support.spark import SparkProcess, require_java
from support.spark_checks import write_speculatively

pytestmark = pytest.mark.skipif(not os.environ.get("DOLMEN_LONG"), reason="five JVMs more: DOLMEN_LONG=1")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPECULATION = {"spark__speculation": "true", "spark__speculation__quantile": "0.5"}


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, until the end of the block."""
    # Not Java's children: the class itself runs in the place of the script.
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([SPARK_CLASS, *arguments], stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkProcess]:
    require_java()
    package, port = "org.apache.spark.deploy", free_port()
    master = f"spark://127.0.0.1:{port}"
    here = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with daemon(tmp_path, "master", f"{package}.master.Master", *here):
        wait_for(tmp_path / "master.log", "I have been elected leader")
        common = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work"), master]
        worker = f"{package}.worker.Worker"
        with (
            daemon(tmp_path, "first", worker, "--host", "127.0.0.1", *common),
            daemon(tmp_path, "second", worker, "--host", "127.0.0.2", *common),
            SparkProcess.start(tmp_path, {}, master, **SPECULATION) as process,
        ):
            yield process


def wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + 120
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_tasks_that_run_twice_at_once_write_their_rows_once(cluster: SparkProcess, tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    cluster.run(write_speculatively, db.url, str(tmp_path), 400)
    assert {path.name for path in tmp_path.glob("twice-*")} == {"twice-append", "twice-upsert"}, "both attempts ended"
    found = sorted((row["id"], row["x"]) for row in table.to_arrow().to_pylist())
    assert found == [(n, n / 2) for n in range(200)] + [(n, -1.0) for n in range(200, 600)]
    assert db.verify(deep=True).ok
