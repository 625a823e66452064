"""Change data capture: applies files of inserts, updates and deletes, in whatever order they arrive.

It imports what ``dolmen.ingest`` may import. docs/cdc.md says which change wins.
Begin with ``dolmen.ingest.cdc.apply_changes``; ``dolmen.ingest.cdc.envelopes`` has the envelopes that it reads.
"""
