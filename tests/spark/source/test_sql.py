"""SQL over tables: temporary views, INSERT, and what Spark's catalog makes of a Python data source."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.api.database import Table
from dolmen.errors import ConflictError, InputError
from dolmen.spark.tasks import raising_dolmen_errors
from pyspark_dolmen import register

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id")
    made.append(pa.table({"id": range(100), "s": [f"s{i % 3}" for i in range(100)]}))
    return made


@pytest.fixture
def view(spark: SparkSession, db: Database, table: Table) -> Iterator[str]:
    register(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING dolmen OPTIONS (path '{db.url}', table 't')")
    yield "v"
    spark.catalog.dropTempView("v")


def one(spark: SparkSession, query: str) -> object:
    return spark.sql(query).collect()[0][0]


@pytest.mark.slow
def test_a_view_shows_one_version_in_every_query(spark: SparkSession, table: Table, view: str) -> None:
    table.delete("id < 50")
    assert one(spark, "SELECT count(*) FROM v WHERE s = 's1'") == 33
    assert one(spark, "SELECT count(*) FROM v") == 100
    assert one(spark, "SELECT count(*) FROM v a JOIN v b ON a.id = b.id + 1 WHERE a.s = 's0' AND b.id > 50") == 16


@pytest.mark.slow
def test_rows_are_inserted_and_replaced_by_sql(spark: SparkSession, db: Database, table: Table, view: str) -> None:
    spark.sql("INSERT INTO v SELECT id + 100, s FROM v WHERE id < 10")
    spark.sql("INSERT INTO v VALUES (1000, 'last')")
    assert (table.count(), table.count("id >= 100")) == (111, 11)
    assert [commit.operation for commit in db.history(2)] == ["append", "append"]
    with pytest.raises(ConflictError, match="rows"), raising_dolmen_errors():  # v shows what there was before
        spark.sql("INSERT OVERWRITE v VALUES (1, 'only')")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING dolmen OPTIONS (path '{db.url}', table 't')")
    spark.sql("INSERT OVERWRITE v VALUES (1, 'only')")
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": "only"}]
    assert table.at(version=db.refresh() - 1).count() == 111


def test_a_frame_that_is_read_natively_is_a_view_too(spark: SparkSession, table: Table) -> None:
    table.delete("id < 50")
    table.to_spark(spark=spark).createOrReplaceTempView("native")
    try:
        assert one(spark, "SELECT count(*) FROM native WHERE s = 's1'") == 16
        assert one(spark, "SELECT count(*) FROM native") == 50
    finally:
        spark.catalog.dropTempView("native")


def test_a_name_in_the_catalog_is_refused_as_spark_forgets_its_options(
    spark: SparkSession, db: Database, table: Table
) -> None:
    spark.sql(f"CREATE TABLE of_catalog USING dolmen OPTIONS (path '{db.url}', table 't')")
    try:
        with pytest.raises(InputError, match="CREATE TEMPORARY VIEW"), raising_dolmen_errors():
            spark.sql("SELECT * FROM of_catalog").collect()
    finally:
        spark.sql("DROP TABLE of_catalog")
    assert table.count() == 100  # dropping its name in the catalog drops nothing


@pytest.mark.slow
def test_names_of_other_formats_for_a_version_are_understood(spark: SparkSession, db: Database, table: Table) -> None:
    version, then = db.refresh(), db.history(1)[0].created_at.isoformat()
    table.delete("id < 50")

    def count(**options: object) -> int:
        register(spark)
        with raising_dolmen_errors():
            return spark.read.format("dolmen").option("table", "t").options(**options).load(db.url).count()

    assert count() == 50
    assert (count(versionAsOf=version), count(timestampAsOf=then)) == (100, 100)
    for options, reason in [
        ({"versionAsOf": version, "version": version}, "version"),
        ({"versionAsOf": version, "timestampAsOf": then}, "version|time travel"),
        ({"timestampAsOf": "2026-11-21"}, "zone"),
        ({"timestampAsOf": "soon"}, "soon"),
        ({"versionAsOf": "audit"}, "audit|whole number"),
    ]:
        with pytest.raises((InputError, AnalysisException), match=reason):
            count(**options)


def test_a_table_is_not_made_by_saving_it_under_a_name(spark: SparkSession, db: Database, table: Table) -> None:
    register(spark)
    writer = spark.range(3).write.format("dolmen").option("table", "t").mode("append")
    with pytest.raises((InputError, AnalysisException)) as raised, raising_dolmen_errors():
        writer.saveAsTable("saved")
    print(raised.value)
    assert not spark.catalog.tableExists("saved")
    assert table.count() == 100
