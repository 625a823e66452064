"""Spark: dolmen beside plain Parquet, Delta and Iceberg, each in a session of its own, in turns of one run."""
