"""How Spark reaches the objects of a store by itself."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dolmen.store.base import ObjectStore

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def spark_paths(spark: SparkSession, store: ObjectStore) -> str | None:
    """The URL that Spark's own readers know a store's root by; None if they can't reach it.

    ``s3://`` is read as ``s3a://``, with hadoop-aws on the class path; how that gets its credentials is Hadoop's
    configuration (docs/spark.md).
    """
    url = store.url
    if url.startswith("file://"):
        return url
    if url.startswith("s3://") and _is_on_class_path(spark, S3A):
        return f"s3a://{url.removeprefix('s3://')}"
    return None


def _is_on_class_path(spark: SparkSession, name: str) -> bool:
    loader = spark._jvm.org.apache.spark.util.Utils
    return bool(loader.classIsLoadable(name))
