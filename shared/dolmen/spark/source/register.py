"""Makes a session know ``format("dolmen")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dolmen.spark.checks import any_session, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes sure that a session knows ``format("dolmen")``; usually Spark finds it by itself.

    It does not where Python's path of the planner was not yet the one of this process: a notebook that has installed
    dolmen since the session began, for instance. Calling it twice does no harm. Filters are allowed to be pushed into
    Python data sources from here on (``spark.sql.python.filterPushdown.enabled``), which the option ``push_filters``
    needs; nothing is pushed without that option.
    """
    from pyspark_dolmen import DefaultSource  # PySpark: only for those who ask

    any_session(spark)
    # A session of Spark Connect can't be asked what it knows; there, registering again replaces.
    if is_remote(spark) or not _knows(spark):
        spark.dataSource.register(DefaultSource)
    if spark.version >= "4.1":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def _knows(spark: SparkSession) -> bool:
    """Whether a session of this process's own JVM knows the format."""
    from pyspark_dolmen import DefaultSource

    return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(DefaultSource.name()))
