"""What older versions of Spark than the pinned one don't have is not tested on them (``make test-spark-versions``)."""

from __future__ import annotations

from pyspark.sql import datasource

collect_ignore = [] if hasattr(datasource, "Filter") else ["test_source_filters.py"]
