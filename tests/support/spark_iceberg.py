"""Reads and writes of publications by Spark with Iceberg's own runtime, in another process (``SparkProcess.run``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def read(folder: str, columns: Sequence[str], where: str | None = None, snapshot: int | None = None) -> pa.Table:
    """The rows that Spark sees in a publication, by the folder above its ``metadata/``."""
    reader = _session().read.format("iceberg")
    if snapshot is not None:
        reader = reader.option("versionAsOf", str(snapshot))
    frame = reader.load(folder)
    if where is not None:
        frame = frame.where(where)
    return _to_arrow(frame.select([f"`{name}`" for name in columns]))


def read_each(folder: str, columns: Sequence[str], conditions: Sequence[str | None], snapshot: int) -> pa.Table:
    """The rows that Spark sees for each of several conditions, each in a branch of one query with a scan of its own.

    Returns:
        the rows of all conditions, with the number of each row's condition in ``_condition``.
    """
    return _to_arrow(_union(folder, columns, conditions, snapshot))


def pushed(folder: str, columns: Sequence[str], conditions: Sequence[str | None], snapshot: int) -> list[str]:
    """What Spark gives to each scan of ``read_each``, and what the scan takes of it."""
    plan: Any = _union(folder, columns, conditions, snapshot)._jdf.queryExecution().sparkPlan()
    leaves = plan.collectLeaves()
    return [str(leaves.apply(number).scan().description()) for number in range(leaves.size())]


def _union(folder: str, columns: Sequence[str], conditions: Sequence[str | None], snapshot: int) -> DataFrame:
    reader = _session().read.format("iceberg").option("versionAsOf", str(snapshot))
    reader.load(folder).createOrReplaceTempView("published")
    names = ", ".join(f"`{name}`" for name in columns)
    branches = (
        f"SELECT {names}, {number} AS _condition FROM published WHERE {each or 'TRUE'}"
        for number, each in enumerate(conditions)
    )
    return _session().sql(f"SELECT /*+ COALESCE(1) */ * FROM ({' UNION ALL '.join(branches)})")


def count_files(folder: str, where: str) -> int:
    """The number of data files that Spark plans to read. Each is a task, because opening it counts as a task's size."""
    reader = _session().read.format("iceberg").option("file-open-cost", str(1 << 30))
    plan: Any = reader.load(folder).where(where)._jdf.queryExecution().toRdd()
    return int(plan.getNumPartitions())


def _to_arrow(frame: Any) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    if hasattr(frame, "toArrow"):
        found: pa.Table = frame.toArrow()
        return found
    batches = frame._collect_as_arrow()  # before Spark 4
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(frame.schema).empty_table()


def names(folder: str) -> list[str]:
    """The columns that Spark sees."""
    return list(_session().read.format("iceberg").load(folder).columns)


def error_of_format(name: str, path: str) -> str:
    """Spark's error on reading by a format; "" without one."""
    try:
        _session().read.format(name).load(path)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def write(folder: str, statement: str) -> str:
    """Runs a statement on the publication as ``{table}`` of ``{catalog}``; returns its error, or "" without one."""
    spark = _session()
    warehouse, _, name = folder.rpartition("/")
    catalog = f"of_{name}"  # a catalog keeps its first settings
    spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", warehouse)
    spark.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
    try:
        spark.sql(statement.format(table=f"{catalog}.`{name}`", catalog=catalog, name=f"`{name}`"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def _session() -> SparkSession:
    found = SparkSession.getActiveSession()
    assert found is not None
    return found
