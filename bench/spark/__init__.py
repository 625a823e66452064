"""Spark: dolmen compared with plain Parquet, Delta and Iceberg, each in its own session, alternating in one run."""
