"""Checks the arguments of the public functions: sessions, databases and tables."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql import SparkSession

from dolmen.api.database import Database
from dolmen.api.table import Table
from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
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


def _of(kind: type[T], name: str, value: object, wanted: str) -> T:
    if not isinstance(value, kind):
        raise InputError(f"{name}={short_repr(value)} is a {type(value).__name__}: give {wanted}")
    return value
