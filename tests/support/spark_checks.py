"""What tests have run in a Spark process of its own (``support.spark.SparkProcess``): its session is the active one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import dolmen
from dolmen.spark import to_spark

NATIVE = "FileScan parquet"
BY_WORKERS = "MapInArrow"


@dataclass(frozen=True)
class Answer:
    """The rows of a DataFrame, and what Spark did for them."""

    rows: pa.Table
    plan: str


def read(
    url: str,
    table: str = "t",
    columns: Sequence[str] | None = None,
    where: str | None = None,
    *,
    with_commit_ts: bool = False,
    native: bool = True,
) -> Answer:
    """``to_spark`` on a database opened there."""
    frame = to_spark(dolmen.open(url).table(table), columns, where, with_commit_ts=with_commit_ts, native=native)
    return Answer(frame.toArrow(), frame._jdf.queryExecution().executedPlan().toString())


def read_without(url: str, lost: Sequence[str]) -> str:
    """What a frame says whose files ``lost`` are gone by the time it is run; nothing if it gives rows none the less."""
    db = dolmen.open(url)
    frame = to_spark(db.table("t"))
    db.context.store.delete(list(lost))
    try:
        frame.collect()
    except (PySparkException, Py4JJavaError) as error:
        return str(error)
    return ""


def environment(*names: str) -> dict[str, str | None]:
    """Variables of a Python worker."""

    def look(_: int) -> list[tuple[str, str | None]]:
        return [(name, os.environ.get(name)) for name in names]

    return dict(_context().parallelize([0], 1).flatMap(look).collect())


def _context() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.active().sparkContext
