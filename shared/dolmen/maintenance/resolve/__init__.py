"""Resolution: turns tombstones into deletion vectors, so that scans need not look deletes up.

It imports what ``dolmen.maintenance`` may import. Begin with ``dolmen.maintenance.resolve.resolution``.
``dolmen.maintenance.resolve.unresolved`` applies the tombstones that are left; compaction uses it too.
"""
