"""A database as a catalog of Spark, which runs SQL on its tables without ``dolmen.spark.sql``.

Begin with ``dolmen.spark.sql.catalog.catalog``. docs/spark-catalog.md shows how to use it.
"""
