"""Reads dropped files as record batches that fit a table, and writes rows as files that read back equal.

It imports ``dolmen.rows.write`` and the layers below, but nothing that commits.
Begin with ``dolmen.ingest.formats.formats``, which picks the reader.
"""
