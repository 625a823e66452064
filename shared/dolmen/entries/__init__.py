"""Finds the entries that a version consists of, without reading rows.

It imports ``dolmen.predicate``, ``dolmen.format``, ``dolmen.store`` and the packages below them.
Begin with ``dolmen.entries.segments.live``, then ``dolmen.entries.index.table_index``.
"""
