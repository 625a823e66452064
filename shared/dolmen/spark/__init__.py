"""dolmen and Spark: tables read as DataFrames."""

from __future__ import annotations

from dolmen.spark.read import to_spark

__all__ = ["to_spark"]
