"""Shows scans to DuckDB, Polars and pandas, and lets DuckDB evaluate SQL."""
