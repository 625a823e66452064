"""The data source ``format("dolmen")``: tables for Spark's own readers, writers and SQL.

It imports what ``dolmen.spark`` may import; ``pyspark_dolmen`` lets Spark find it.
Begin with ``dolmen.spark.source.source``, then ``dolmen.spark.source.batch_reader``,
``dolmen.spark.source.feed_reader`` and ``dolmen.spark.source.batch_writer``.
"""
