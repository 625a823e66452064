"""Resolution: turns tombstones into deletion vectors, so that scans need not look deletes up.

It imports what ``dolmen.maintenance`` may import. Begin with ``dolmen.maintenance.resolve.resolution``.
``dolmen.maintenance.resolve.unresolved`` applies tombstones that are still unresolved; compaction uses it too.
"""
