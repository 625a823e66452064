"""Reads a table: plans from metadata what to read, fetches it, removes deleted rows, and streams the rest.

It imports ``dolmen.context``, ``dolmen.segments``, ``dolmen.predicate``, ``dolmen.format`` and what lies below those,
but not ``dolmen.write``. DuckDB, Polars and pandas are imported here, when they are asked for.
Begin with ``dolmen.scan.scan``, then ``dolmen.scan.plan`` and ``dolmen.scan.read``.
"""
