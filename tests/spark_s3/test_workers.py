"""Spark on S3 without hadoop-aws: all is read and written by dolmen, in Python workers."""

from __future__ import annotations

import logging
import os
import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

import dolmen
from dolmen.spark import append, overwrite, to_spark
from support.spark_checks import BY_WORKERS
from support.spark_history import History, rows_of, sorted_rows

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64())])


def test_without_hadoop_aws_rows_are_read_by_workers_and_it_is_said_why(
    spark_on_s3: SparkSession, s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    history = History(SEED, s3_url)
    history.grow()
    history.append()  # a history may delete all rows, and of an empty table nothing is left to read
    for columns in (history.columns, ["rid"]):
        with caplog.at_level(logging.WARNING, "dolmen"):
            frame = to_spark(history.table, columns)
        assert BY_WORKERS in frame._jdf.queryExecution().toString()
        expected = history.table.scan(columns).to_arrow()
        assert rows_of(frame, expected.schema) == sorted_rows(expected)
    assert [record.getMessage() for record in caplog.records] == [
        f"{s3_url} is read by Python workers: Spark's own readers need hadoop-aws on the class path"
    ], "said once, and not with every read"


def test_workers_write_to_s3_and_the_driver_makes_one_commit_of_it(spark_on_s3: SparkSession, s3_url: str) -> None:
    db = dolmen.open(f"{s3_url}/100% of [2+2]")
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    rows = spark_on_s3.range(0, 300, numPartitions=3).select("id", (F.col("id") / 2).alias("x"))
    done = append(table, rows, request="batch-1")
    assert (done.version, done.rows, done.counts.files_added) == (2, 300, 3)
    assert append(table, rows, request="batch-1").already == {"batch-1": 2}
    table.delete("id < 10")
    overwrite(table, to_spark(table, where="id < 50"))
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(10, 50))
    assert db.verify(deep=True).ok
