"""Reads row groups: footers, byte ranges, single pages, and masks of live rows.

It imports what ``dolmen.rows.scan`` may import. Begin with ``dolmen.rows.scan.read.reading``.
"""
