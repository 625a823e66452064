"""Finds rows by key: B+ trees of pages, from the bytes of keys to files and positions.

It imports ``dolmen.format``, ``dolmen.store`` and the packages below them.
Begin with ``dolmen.entries.index.pages``, then ``dolmen.entries.index.table_index``.
"""
