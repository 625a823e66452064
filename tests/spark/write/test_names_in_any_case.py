"""DataFrames may spell names of columns, and of fields in structs, in any case; results have the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import SchemaError
from dolmen.spark import append, delete, merge, overwrite, upsert

SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("Name", pa.string()),
        ("Place", pa.struct([("City", pa.string()), ("Zip", pa.int64())])),
        ("Items", pa.list_(pa.int64())),
    ]
)


@pytest.fixture(params=["false", "true"], ids=["any case", "caseSensitive"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with and without its own sensitivity to case."""
    spark.conf.set("spark.sql.caseSensitive", request.param)
    yield spark
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="Id")
    table.append([{"Id": 1, "Name": "a", "Place": {"City": "x", "Zip": 1}}])
    return table


def frame(spark: SparkSession, key: int = 1, name: str = "new") -> DataFrame:
    schema = "ID bigint, nAME string, place struct<CITY: string, zip: bigint>"
    return spark.createDataFrame([(key, name, (name, key))], schema)


def stored(key: int = 1, name: str = "new") -> dict[str, Any]:
    return {"Id": key, "Name": name, "Place": {"City": name, "Zip": key}, "Items": None}


WRITES: dict[str, Callable[[Table, DataFrame], Any]] = {
    "append": append,
    "overwrite": overwrite,
    "merge_schema": lambda table, rows: append(table, rows, merge_schema=True),
    "upsert": upsert,
    "upsert on": lambda table, rows: upsert(table, rows, on="iD"),
    "merge": lambda table, rows: merge(table, rows, "iD"),
    "source": lambda table, rows: (
        rows.write.format("dolmen").mode("append").options(path=context_of(table).store.url, table="t").save()
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_rows_are_written_under_names_of_any_case(spark: SparkSession, db: Database, table: Table, write: str) -> None:
    key = 2 if write in ("append", "merge_schema", "source") else 1
    WRITES[write](table, frame(spark, key))
    assert db.table("t").get(key) == stored(key)
    assert db.table("t").schema.names == SCHEMA.names


@pytest.mark.slow
def test_keys_and_clauses_may_have_any_case(session: SparkSession, table: Table) -> None:
    expression = "concat(target.Name, source.Name)" if session.conf.get("spark.sql.caseSensitive") == "true" else (
        "concat(TARGET.name, Source.NAME)"
    )  # fmt: skip
    merge(table, frame(session).drop("place"), "ID", when_matched={"NAME": expression, "ITEMS": "array()"})
    assert table.get(1, ["name", "items"]) == {"Name": "anew", "Items": []}
    delete(table, session.createDataFrame([(1,)], "ID bigint"))
    assert table.count() == 0


def test_two_names_that_differ_in_case_only_are_refused(spark: SparkSession, table: Table) -> None:
    twice = spark.createDataFrame([(1, 2)], "id bigint, other bigint").toDF("id", "ID")
    for write in (append, upsert, overwrite, delete, lambda table, rows: merge(table, rows, "id")):
        with pytest.raises(SchemaError, match="case"):
            write(table, twice)
    assert table.count() == 1
