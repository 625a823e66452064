"""Reads a table: plans from metadata what to read, fetches it, removes deleted rows, and streams the rest.

It never imports ``dolmen.rows.write``. Begin with ``scan``, then ``plan`` and ``plan_reader``; to find rows
by key, with ``rows_by_key``.
"""
