"""Finds rows by key: through the index, through Bloom filters, and in lists of keys of any length.

It imports what ``dolmen.rows.scan`` may import. Begin with ``dolmen.rows.scan.by_key.lookup``.
"""
