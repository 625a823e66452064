"""The data source ``format("dolmen")``: tables for Spark's own readers, writers, SQL and streams.

It imports what ``dolmen.spark`` may import; ``pyspark_dolmen`` lets Spark find it.
Begin with ``dolmen.spark.source.source``, then ``dolmen.spark.source.batch_reader``,
``dolmen.spark.source.feed_reader`` and ``dolmen.spark.source.table_writers``; ``dolmen.spark.source.table_stream`` says
where a streaming query is in the history.
"""
