"""Reads a table: plans from metadata what to read, fetches it, removes deleted rows, and streams the rest.

It imports ``dolmen.commit.context``, ``dolmen.entries.segments``, ``dolmen.predicate``, ``dolmen.format`` and what lies
below those, but not ``dolmen.rows.write``. DuckDB, Polars and pandas are imported here, when they are asked for.
Begin with ``dolmen.rows.scan.scan``, then ``dolmen.rows.scan.plan`` and ``dolmen.rows.scan.read.reading``.
"""
