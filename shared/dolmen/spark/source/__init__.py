"""The data source ``format("dolmen")``: tables for Spark's own readers, writers, SQL and streams.

It imports what ``dolmen.spark`` may import; ``pyspark_dolmen`` lets Spark find it.
Begin with ``dolmen.spark.source.source``, then ``dolmen.spark.source.readers``, ``dolmen.spark.source.streams`` and
``dolmen.spark.source.table_writers``.
"""
