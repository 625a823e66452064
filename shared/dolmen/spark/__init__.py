"""dolmen on Spark: reads tables as DataFrames, writes DataFrames into tables, and runs large jobs.

It imports everything but ``dolmen.cli`` and ``dolmen.service.check_store``; in the package only a table's ``to_spark``
imports it, when it is called.
Begin with ``dolmen.spark.read.frame``, then ``dolmen.spark.write.frame``. docs/spark.md shows how to use it.
"""

from __future__ import annotations

import pyspark

from dolmen.spark.supported import check_supported

try:
    from dolmen.spark.collection import gc
    from dolmen.spark.compact.compaction import compact
    from dolmen.spark.export import export
    from dolmen.spark.failures import raising_dolmen_errors
    from dolmen.spark.indexing import index
    from dolmen.spark.load.load import load
    from dolmen.spark.merge.merge import merge
    from dolmen.spark.read.frame import to_spark
    from dolmen.spark.source.register import register
    from dolmen.spark.sql.attachment import attach, detach
    from dolmen.spark.sql.run import sql
    from dolmen.spark.stream.batches import batches_into
    from dolmen.spark.write.frame import append, delete, overwrite, upsert
    from dolmen.transactions.merge.clauses import Delete, Insert, Update
except ImportError:
    check_supported(pyspark.__version__)
    raise

__all__ = [
    "Delete",
    "Insert",
    "Update",
    "append",
    "attach",
    "batches_into",
    "compact",
    "delete",
    "detach",
    "export",
    "gc",
    "index",
    "load",
    "merge",
    "overwrite",
    "raising_dolmen_errors",
    "register",
    "sql",
    "to_spark",
    "upsert",
]
