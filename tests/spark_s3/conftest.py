"""Spark on S3: one session whose workers reach it by dolmen, and one that reads it by itself, in its own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.ministack import endpoint_environment
from support.spark import SparkProcess, require_java
from support.spark_jars import find_jars


@pytest.fixture
def spark_on_s3(spark: SparkSession, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session that all tests share, which has no hadoop-aws; its workers find the S3 server."""
    for name, value in endpoint_environment(s3_endpoint).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return spark


@pytest.fixture(scope="session")
def native(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A process whose Spark has hadoop-aws on its class path."""
    require_java()
    class_path, missing = find_jars()
    if class_path is None:
        pytest.skip(missing)
    s3a = {
        "endpoint": s3_endpoint,
        "endpoint__region": "us-east-1",
        "access__key": "test",
        "secret__key": "testtest",
        "path__style__access": "true",
        "connection__ssl__enabled": "false",
        "attempts__maximum": "3",
    }
    with SparkProcess.start(
        tmp_path_factory.mktemp("spark-s3"),
        endpoint_environment(s3_endpoint),
        spark__driver__extraClassPath=class_path,
        **{f"spark__hadoop__fs__s3a__{name}": value for name, value in s3a.items()},
    ) as process:
        yield process
