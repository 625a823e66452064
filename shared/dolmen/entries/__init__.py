"""Finds the entries that a version consists of, without reading rows.

A module belongs here if it finds entries. It imports ``dolmen.predicate``, ``dolmen.format``, ``dolmen.store`` and
what lies below.
Begin with ``dolmen.entries.segments.live``, then ``dolmen.entries.index.pages``.
"""
