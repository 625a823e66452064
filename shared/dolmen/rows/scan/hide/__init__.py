"""Hides deleted rows: fetches tombstones and deletion vectors, and turns them into masks of rows.

It imports what ``dolmen.rows.scan`` may import. Begin with ``dolmen.rows.scan.hide.row_masks``.
"""
