"""What Spark finds by itself: a package named ``pyspark_...`` with a ``DefaultSource`` is a data source of sessions.

Spark imports this to learn the name, in every session that uses any Python data source; so that one without need of
dolmen pays nothing for it, all else is imported when it is used. The source itself is ``dolmen.spark.source.source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from dolmen.spark.source.source import SourceTable


class DefaultSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("dolmen")`` and its kin; options and limits are in docs/spark-sql.md."""

    pinned: SourceTable | None = None
    """The version that ``schema`` has looked at; it goes along to where rows are read."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dolmen"

    def schema(self) -> StructType:
        """The table's columns, or those asked for; pins the version that will be read."""
        from dolmen.spark.failures import marked
        from dolmen.spark.source.options import READ, STREAM_READ
        from dolmen.spark.source.source import pin

        with marked():
            self.pinned = pin(self.options, {*READ, *STREAM_READ})  # for either: Spark does not say which
            return self.pinned.spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the pinned version, or the newest one if the columns were given by the user."""
        from dolmen.spark.failures import marked
        from dolmen.spark.source.read import reader
        from dolmen.spark.source.source import pin

        with marked():
            return reader(self.pinned or pin(self.options), schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows in one commit."""
        from dolmen.spark.failures import marked
        from dolmen.spark.source.write import writer

        with marked():
            return writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Reads what is appended, commit by commit."""
        from dolmen.spark.failures import marked
        from dolmen.spark.stream.read import stream_reader

        with marked():
            return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Writes each micro-batch in one commit, once."""
        from dolmen.spark.failures import marked
        from dolmen.spark.stream.write import stream_writer

        with marked():
            return stream_writer(self.options, schema, overwrite)
