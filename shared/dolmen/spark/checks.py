"""Checks arguments (sessions, databases, tables), the version of Spark, and how Spark reaches a store."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import TypeVar
from urllib.parse import unquote

from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.api.table import Table
from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
from dolmen.store.base import ObjectStore, scheme_of
from dolmen.transactions.reading import ReadableTable

T = TypeVar("T")


def session(value: object) -> SparkSession:
    """A session of this process. Raises InputError."""
    found = any_session(value)
    if is_remote(found):
        raise InputError(
            "this needs a session of this process's own JVM, and the session is one of Spark Connect: "
            "docs/spark-statements.md says what works there"
        )
    return found


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, whose JVM is in another process."""
    return not hasattr(spark, "_jsparkSession")


def any_session(value: object) -> SparkSession:
    """A session, of this process or of Spark Connect. Raises InputError."""
    if not (hasattr(value, "session_id") and hasattr(value, "createDataFrame")):
        return _of(SparkSession, "spark", value, "a SparkSession")
    found: SparkSession = value
    return found


def database(value: object) -> Database:
    """A database. Raises InputError."""
    return _of(Database, "database", value, "a database, as dolmen.open gives it")


def table(value: object) -> Table:
    """A table that can be written to. Raises InputError."""
    return _of(Table, "table", value, 'a table of a database, as db.table("name") gives it')


def readable(value: object) -> ReadableTable:
    """A table that can be read. Raises InputError."""
    return _of(ReadableTable, "table", value, 'a table, as db.table("name") or db.at(...).table("name") gives it')


def _of(kind: type[T], name: str, value: object, expected: str) -> T:
    if not isinstance(value, kind):
        raise InputError(f"{name}={short_repr(value)} is a {type(value).__name__}: give {expected}")
    return value


_OLDEST = 4


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


_PATTERN = re.compile(r"[]\\*?{}[]")
"""Characters that Hadoop reads as a pattern of paths, or as its escape."""
_log = logging.getLogger("dolmen")


def spark_paths(spark: SparkSession, store: ObjectStore) -> str | None:
    """The path of a store's root for Spark's own readers; None, and a warning, if they can't reach it.

    Like all paths of Hadoop it is not percent-encoded. ``s3://`` is read as ``s3a://``, with hadoop-aws on the class
    path, whose credentials are part of Hadoop's configuration (docs/spark.md).
    """
    url = store.url
    scheme = scheme_of(url)
    if scheme is None or scheme.hadoop is None:
        return None
    if scheme.hadoop_class is not None and not is_on_class_path(spark, scheme.hadoop_class):
        _warn(f"{url} is read by Python workers: Spark's own readers need {scheme.hadoop_package} on the class path")
        return None
    rest = url.removeprefix(f"{scheme.name}://")
    root = f"{scheme.hadoop}://{unquote(rest) if scheme.is_quoted else rest}"
    if _PATTERN.search(root):
        _warn(rf"{url} is read by Python workers: Spark's own readers take \ * ? [ ] {{ }} for patterns of paths")
        return None
    return root


@cache
def _warn(message: str) -> None:
    """Warns once in a process, and not in every read."""
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
