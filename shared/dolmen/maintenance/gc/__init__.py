"""Garbage collection: deletes what no kept version needs. Nothing else deletes data.

It marks what must stay, moves the fence by a commit, and only then deletes.
It imports what ``dolmen.maintenance`` may import.
Begin with ``dolmen.maintenance.gc.collection``, then ``dolmen.maintenance.gc.mark``.
"""
