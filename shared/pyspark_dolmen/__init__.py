"""Spark finds this package by itself: ``pyspark_...`` with a ``DefaultSource`` is a data source of each session.

Spark imports this to learn the name, in every session that uses any Python data source. Everything else is imported
when it is used, so that a session without dolmen pays nothing. The source itself is ``dolmen.spark.source.source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from dolmen.spark.source.readers import SourceFeed
    from dolmen.spark.source.source import SourceTable


class DefaultSource(DataSource):  # type: ignore[misc]
    """``format("dolmen")`` for reads, writes and streams; options and limits are in docs/spark-sql.md."""

    source: SourceTable | SourceFeed | None = None
    """The table or feed in the version that ``schema`` chose; Spark sends it to the tasks that read rows."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dolmen"

    def schema(self) -> StructType:
        """The table's columns, or those that the options name. Chooses the version that will be read."""
        from dolmen.spark.source.readers import source_of
        from dolmen.spark.tasks import mark_dolmen_errors

        with mark_dolmen_errors():
            self.source = source_of(self.options)
            return self.source.spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads that version, or the newest one if the columns were given by the user."""
        from dolmen.spark.source.readers import batch_reader
        from dolmen.spark.tasks import mark_dolmen_errors

        with mark_dolmen_errors():
            return batch_reader(self.source, schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows in one commit."""
        from dolmen.spark.source.table_writers import writer
        from dolmen.spark.tasks import mark_dolmen_errors

        with mark_dolmen_errors():
            return writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reads appended rows, or all changes, commit by commit."""
        from dolmen.spark.source.streams import stream_reader
        from dolmen.spark.tasks import mark_dolmen_errors

        with mark_dolmen_errors():
            return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Writes each micro-batch in one commit, once."""
        from dolmen.spark.source.table_writers import stream_writer
        from dolmen.spark.tasks import mark_dolmen_errors

        with mark_dolmen_errors():
            return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Makes sure that a session knows ``format("dolmen")``; usually Spark finds it by itself.

    Spark does not find it if dolmen was installed after the session began, as in a notebook. Calling this twice does no
    harm. It also lets Spark push filters into Python data sources (``spark.sql.python.filterPushdown.enabled``), which
    the option ``push_filters`` needs; without that option none is pushed.
    """
    from dolmen.spark.sessions import check_any_session
    from dolmen.spark.tasks import is_remote

    check_any_session(spark)
    # A session of Spark Connect does not say which formats it knows; there, registering again replaces.
    if is_remote(spark) or not (
        spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(DefaultSource.name())
    ):
        spark.dataSource.register(DefaultSource)
    if spark.version >= "4.1":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
