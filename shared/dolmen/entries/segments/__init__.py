"""Reads segments: objects with manifest entries that no longer fit into the manifest.

It finds a table's live files, whether their entries are inline or in segments, and judges them by statistics.
It imports ``dolmen.predicate``, ``dolmen.format``, ``dolmen.store`` and the packages below them.
Begin with ``dolmen.entries.segments.live``, then ``dolmen.entries.segments.segment_reader``.
"""
