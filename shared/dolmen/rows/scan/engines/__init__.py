"""Shows scans to DuckDB, Polars and pandas, and lets DuckDB evaluate SQL.

It imports what ``dolmen.rows.scan`` may import. Begin with ``dolmen.rows.scan.engines.sql``.
"""
