"""dolmen on Spark: reads tables as DataFrames, writes DataFrames into tables, and runs large jobs.

It imports everything but ``dolmen.cli`` and ``dolmen.service.check_store``; in the package only a table's ``to_spark``
imports it, when it is called.
Begin with ``dolmen.spark.read.to_frame``, then ``dolmen.spark.write.from_frame``. docs/spark.md shows how to use it.
"""

from __future__ import annotations

import pyspark

from dolmen.spark.sessions import check_supported

try:
    import dolmen.spark.sql.catalog.procedures  # noqa: F401 - gives catalogs their procedures
    from dolmen.spark.compaction_jobs import compact
    from dolmen.spark.file_export import export
    from dolmen.spark.gc_and_index import gc, index
    from dolmen.spark.load.load import load
    from dolmen.spark.read.to_frame import to_spark
    from dolmen.spark.source.table_writers import batches_into
    from dolmen.spark.sql.attach_database import attach, detach
    from dolmen.spark.sql.run_sql import sql
    from dolmen.spark.tasks import raising_dolmen_errors
    from dolmen.spark.write.from_frame import append, delete, overwrite, upsert
    from dolmen.spark.write.merge_frame import merge
    from dolmen.transactions.merge.clauses import Delete, Insert, Update
    from pyspark_dolmen import register
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
