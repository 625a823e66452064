"""Garbage collection: deletes objects that no kept version needs. Nothing else deletes data.

It imports what ``dolmen.maintenance`` may import.
Begin with ``dolmen.maintenance.gc.collection``, then ``dolmen.maintenance.gc.mark``.
"""
