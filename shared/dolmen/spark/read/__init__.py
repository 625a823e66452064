"""Reads a table as a DataFrame: with Spark's own Parquet reader where it can, with dolmen where it cannot.

It imports what ``dolmen.spark`` may import. Begin with ``dolmen.spark.read.to_frame``, then
``dolmen.spark.read.native_parquet``.
"""
