"""Dropped files become rows, each file exactly once.

It imports the same as ``dolmen.ingest``, and ``dolmen.ingest.formats`` to read the files.
Begin with ``dolmen.ingest.drops.ingest_drops``, then ``dolmen.ingest.drops.drop_ingestion`` (one file).
"""
