"""Keeps files and rows that cannot be read, with a report; lists them, and tries them again.

It imports what ``dolmen.ingest`` may import.
Begin with ``dolmen.ingest.rejects.reject``, then ``dolmen.ingest.rejects.reject`` (single rows).
"""
