"""Reads segments: objects that hold manifest entries which no longer fit into the manifest.

It finds a table's live files wherever their entries are, and judges by statistics which of them matter.
It imports ``dolmen.predicate``, ``dolmen.format``, ``dolmen.store`` and what lies below those.
Begin with ``dolmen.entries.segments.live``, then ``dolmen.entries.segments.segment_reader``.
"""
