"""Chooses the column from which Spark gets a row's position in its file."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from dolmen.spark.py4j_errors import Py4JError

_NAME = "_tmp_metadata_row_index"
_PRUNING = "spark.sql.optimizer.nestedSchemaPruning.enabled"


@dataclass(frozen=True)
class RowIndex:
    """The way to get positions.

    The documented way is ``_metadata.row_index``, but ``_metadata`` is put together row by row. Its source is a column
    that Spark's Parquet reader fills whenever it is in the schema. Asked for directly it costs half, so that is done
    where Spark has it under the known name, and where it prunes ``_metadata``: it refuses to read both.

    Args:
        name: of the column.
        is_stored: whether it belongs into the schema that is read.
    """

    name: str
    is_stored: bool

    @classmethod
    def of(cls, spark: SparkSession) -> RowIndex:
        """The cheapest way of this session."""
        reader = spark._jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat
        try:
            own = reader.ROW_INDEX_TEMPORARY_COLUMN_NAME()
        except (Py4JError, TypeError):  # another version
            own = None
        stored = own == _NAME and spark.conf.get(_PRUNING, "true") == "true"
        return cls(_NAME if stored else "__row_index", stored)
