"""Structured Streaming: reads a table version by version, and writes each micro-batch once.

It imports what ``dolmen.spark`` may import.
Begin with ``dolmen.spark.stream.table_stream``, then ``dolmen.spark.stream.feed_stream``;
``dolmen.spark.stream.table_stream`` says where a query stands.
"""
