"""Makes a session know ``format("dolmen")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dolmen.spark.arguments import session

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

    session(spark)
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(DefaultSource.name()):
        spark.dataSource.register(DefaultSource)
    if spark.version >= "4.1":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
