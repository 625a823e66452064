"""dolmen on a Spark cluster: executors are processes of their own, and may die."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from support.spark import TESTS, SparkProcess
from support.spark_checks import (
    BY_WORKERS,
    NATIVE,
    append_while_an_executor_is_killed,
    environment,
    read,
    write,
)
from support.spark_history import History, sorted_rows

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])


def test_workers_run_the_interpreter_and_find_the_modules_that_the_driver_names(cluster: SparkProcess) -> None:
    found = cluster.run(environment, "PYTHONPATH", "PYSPARK_PYTHON")
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert str(TESTS) in str(found["PYTHONPATH"]).split(os.pathsep)


def test_executors_read_the_rows_of_dolmen_natively_and_by_workers(cluster: SparkProcess, tmp_path: Path) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    history = History(SEED, str(tmp_path))
    history.grow()
    history.delete_keys()
    for native in (True, False):
        where = history.predicate()
        expected = history.table.scan(history.columns, where, with_commit_ts=native).to_arrow()
        found = cluster.run(read, str(tmp_path), "t", history.columns, where, with_commit_ts=native, native=native)
        assert sorted_rows(found.rows.cast(expected.schema)) == sorted_rows(expected), where
        assert native or NATIVE not in found.plan


def test_executors_write_and_each_job_is_one_commit(cluster: SparkProcess, tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path))
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    commits = cluster.run(write, str(tmp_path), 0, 400)
    assert [commit.version for commit in commits] == [2, 3, 4, 5]
    expected = [(n, n / 2 if n < 200 else -1.0) for n in range(100, 600, 2)]
    assert sorted((row["id"], row["x"]) for row in table.to_arrow().to_pylist()) == expected
    assert db.verify(deep=True).ok


def test_a_job_whose_executor_is_killed_adds_its_rows_once(cluster: SparkProcess, tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    killed = tmp_path / "killed"
    done = cluster.run(append_while_an_executor_is_killed, db.url, str(killed), 400)
    assert "CoarseGrainedExecutorBackend" in killed.read_text()
    assert (done.version, done.rows, done.counts.files_added) == (2, 400, 4)
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(400))
    assert db.verify(deep=True).ok
    again = cluster.run(read, db.url, native=False)
    assert again.rows.num_rows == 400, "the cluster goes on"
    assert BY_WORKERS in again.plan
