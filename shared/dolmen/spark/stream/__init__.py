"""Structured Streaming: reads a table version by version, and writes each micro-batch once.

It imports what ``dolmen.spark`` may import.
Begin with ``dolmen.spark.stream.read``, then ``dolmen.spark.stream.feed``; ``dolmen.spark.stream.offsets`` says where a
query stands.
"""
