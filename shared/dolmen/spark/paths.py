"""Finds the path by which Spark itself reaches the objects of a store."""

from __future__ import annotations

import logging
import re
from functools import cache
from urllib.parse import unquote

from pyspark.sql import SparkSession

from dolmen.errors import InputError
from dolmen.store.base import ObjectStore
from dolmen.store.schemes import S3, scheme_of

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"

_PATTERN = re.compile(r"[]\\*?{}[]")
"""Characters that Hadoop takes for a pattern of paths, or for its escape."""

_log = logging.getLogger("dolmen")


def spark_paths(spark: SparkSession, store: ObjectStore) -> str | None:
    """The path that Spark's own readers know a store's root by; None, and a warning, if they can't reach it.

    It is not percent-encoded, as Hadoop's paths aren't. ``s3://`` is read as ``s3a://``, with hadoop-aws on the class
    path; how that gets its credentials is Hadoop's configuration (docs/spark.md).
    """
    url = store.url
    scheme = scheme_of(url)
    if scheme is None or scheme.hadoop is None:
        return None
    if scheme is S3 and not is_on_class_path(spark, S3A):
        _warn(f"{url} is read by Python workers: Spark's own readers need hadoop-aws on the class path")
        return None
    rest = url.removeprefix(f"{scheme.name}://")
    root = f"{scheme.hadoop}://{unquote(rest) if scheme.is_quoted else rest}"
    if _PATTERN.search(root):
        _warn(rf"{url} is read by Python workers: Spark's own readers take \ * ? [ ] {{ }} for patterns of paths")
        return None
    return root


@cache
def _warn(message: str) -> None:
    """Warns once in a process: every read would repeat it."""
    _log.warning(message)


def is_on_class_path(spark: SparkSession, name: str) -> bool:
    """Whether Spark can load a class of this name."""
    loader = spark._jvm.org.apache.spark.util.Utils
    return bool(loader.classIsLoadable(name))


def worker_url(store: ObjectStore) -> str:
    """A database's URL, for workers. Raises InputError if they can't reach it."""
    scheme = scheme_of(store.url)
    if scheme is not None and not scheme.is_shared:
        raise InputError("Spark's workers can't reach a database in the memory of this process")
    return store.url
