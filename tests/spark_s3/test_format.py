"""``format("dolmen")`` on S3 without hadoop-aws: read, written and streamed by Python workers alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from pyspark_dolmen import DefaultSource
from support.spark import streams_arrow

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


@streams_arrow
def test_tables_on_s3_are_written_read_and_streamed_without_hadoop_aws(
    spark_on_s3: SparkSession, s3_url: str, tmp_path: Path
) -> None:
    class OnS3(DefaultSource):  # registered here, its processes get the environment of this test
        @classmethod
        def name(cls) -> str:
            return "dolmen_on_s3"

    spark, db = spark_on_s3, dolmen.open(s3_url)
    spark.dataSource.register(OnS3)
    table, copy = (db.create_table(name, SCHEMA) for name in ("t", "copy"))
    rows = spark.range(0, 100, numPartitions=2).selectExpr("id", "concat('s', id % 3) AS s")
    rows.write.format("dolmen_on_s3").mode("append").option("table", "t").save(s3_url)
    table.delete("id < 10")
    frame = spark.read.format("dolmen_on_s3").option("table", "t").option("where", "s = 's1'").load(s3_url)
    assert sorted(row.id for row in frame.collect()) == list(range(10, 100, 3))
    stream = spark.readStream.format("dolmen_on_s3").option("table", "t").load(s3_url)
    writer = stream.writeStream.format("dolmen_on_s3").option("table", "copy").option("path", s3_url)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert sorted(copy.to_arrow()["id"].to_pylist()) == list(range(10, 100))
    assert db.verify(deep=True).ok
