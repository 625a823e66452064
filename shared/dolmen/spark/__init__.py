"""dolmen and Spark: tables read as DataFrames, DataFrames written into tables."""

from __future__ import annotations

from dolmen.spark.read import to_spark
from dolmen.spark.write import append, overwrite

__all__ = ["append", "overwrite", "to_spark"]
