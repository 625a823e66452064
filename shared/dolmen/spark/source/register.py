"""Makes a session know ``format("dolmen")``."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dolmen.spark.sessions import check_any_session, is_remote
from pyspark_dolmen import DefaultSource


def register(spark: SparkSession) -> None:
    """Makes sure that a session knows ``format("dolmen")``; usually Spark finds it by itself.

    Spark does not find it if dolmen was installed after the session began, as in a notebook. Calling this twice does no
    harm. It also lets Spark push filters into Python data sources (``spark.sql.python.filterPushdown.enabled``), which
    the option ``push_filters`` needs; without that option none is pushed.
    """
    check_any_session(spark)
    # A session of Spark Connect does not say which formats it knows; there, registering again replaces.
    if is_remote(spark) or not _knows(spark):
        spark.dataSource.register(DefaultSource)
    if spark.version >= "4.1":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def _knows(spark: SparkSession) -> bool:
    return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(DefaultSource.name()))
