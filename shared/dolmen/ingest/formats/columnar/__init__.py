"""Reads files that know their columns' types: Parquet and Arrow.

It imports what ``dolmen.ingest.formats`` may import.
Begin with ``dolmen.ingest.formats.columnar.typed_batches``, which Avro uses too, then
``dolmen.ingest.formats.columnar.parquet_reader``.
"""
