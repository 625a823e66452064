"""dolmen and Spark: tables read as DataFrames, DataFrames written into tables."""

from __future__ import annotations

from dolmen.spark.read import to_spark
from dolmen.spark.write import append, delete, overwrite, upsert

__all__ = ["append", "delete", "overwrite", "to_spark", "upsert"]
