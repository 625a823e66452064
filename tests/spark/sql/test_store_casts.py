"""What Spark's ANSI policy stores is known without a JVM, for Spark Connect: it is compared with Spark's own word."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as s

from dolmen.spark.sql.dml import can_store

OTHERS = ("interval year to month", "interval day to second", "char(3)", "varchar(4)", "interval")
COLUMNS = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(20,0)", "string",
    "binary", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("wanted", COLUMNS)
def test_it_says_what_spark_says(spark: SparkSession, wanted: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    into = _type_of(spark, wanted)
    for name in (*COLUMNS, *OTHERS):
        own = _type_of(spark, name)
        kinds = [jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json()) for kind in (own, into)]
        said = bool(jvm.org.apache.spark.sql.catalyst.expressions.Cast.canANSIStoreAssign(*kinds))
        assert can_store(own, into) == said or own == into, name


def _type_of(spark: SparkSession, name: str) -> s.DataType:
    """A type by its name in SQL, as a query returns it."""
    if name == "interval":
        return s.CalendarIntervalType()
    return spark.sql(f"SELECT CAST(NULL AS {name}) AS x").schema["x"].dataType
