"""Reads and writes of publications by Spark with Iceberg's own runtime, in another process (``SparkProcess.run``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession


def read(folder: str, columns: Sequence[str], where: str | None = None, snapshot: int | None = None) -> pa.Table:
    """The rows that Spark sees in a publication, by the folder above its ``metadata/``."""
    reader = _session().read.format("iceberg")
    if snapshot is not None:
        reader = reader.option("versionAsOf", str(snapshot))
    frame = reader.load(folder)
    if where is not None:
        frame = frame.where(where)
    chosen = frame.select([f"`{name}`" for name in columns])
    if not hasattr(chosen, "toArrow"):  # before Spark 4
        return _to_arrow_of_old(chosen)
    return chosen.toArrow()


def count_files(folder: str, where: str) -> int:
    """The number of data files that Spark plans to read. Each is a task, because opening it counts as a task's size."""
    reader = _session().read.format("iceberg").option("file-open-cost", str(1 << 30))
    plan: Any = reader.load(folder).where(where)._jdf.queryExecution().toRdd()
    return int(plan.getNumPartitions())


def _to_arrow_of_old(frame: Any) -> pa.Table:
    """``toArrow`` of a Spark that has none."""
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = frame._collect_as_arrow()
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
