"""Compaction: rewrites files that make scans slow: small ones, and ones with many deleted rows.

It imports what ``dolmen.maintenance`` may import, and ``dolmen.maintenance.unresolved``.
Begin with ``dolmen.maintenance.compact.compaction``, then ``dolmen.maintenance.compact.compaction_plan``.
"""
