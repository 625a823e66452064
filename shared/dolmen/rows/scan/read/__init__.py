"""Reads row groups: footers, byte ranges, single pages, and the columns of adopted files.

It imports what ``dolmen.rows.scan`` may import. Begin with ``dolmen.rows.scan.read.reading``.
"""
