"""Reads Avro object container files; the file's own schema gives the types.

It imports what ``dolmen.ingest.formats`` may import, and fastavro.
Begin with ``dolmen.ingest.formats.avro.container``.
"""
