"""Change data capture: applies files of inserts, updates and deletes, in whatever order they arrive.

It imports the same as ``dolmen.ingest``. docs/cdc.md says which change wins.
Begin with ``dolmen.ingest.cdc.apply_changes``; ``dolmen.ingest.cdc.envelopes`` reads the envelopes.
"""
