"""Fields of structs and functions in predicates, as Spark reads rows and deletes them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dolmen import Database
from dolmen.spark import attach, sql
from dolmen.spark.read.to_frame import to_spark
from support.particular_values import ROWS, cases

STRUCT = pa.struct([("zip", pa.string()), ("geo", pa.struct([("n", pa.int32()), ("f", pa.float32())]))])
VALUES = [
    {"zip": "1", "geo": {"n": 1, "f": 0.5}},
    {"zip": "2", "geo": None},
    None,
    {"zip": None, "geo": {"n": 4, "f": float("nan")}},
    {"zip": "5", "geo": {"n": None, "f": -0.0}},
]


@pytest.mark.slow
def test_functions_give_particular_values_as_the_page_says(spark: SparkSession, db: Database) -> None:
    known = cases()
    parts = [ROWS.append_column("number", pa.array([number] * 3)) for number in range(len(known))]
    table = db.create_table("t", parts[0].schema)
    table.append(pa.concat_tables(parts))
    for negate in ("", "NOT "):
        where = " OR ".join(f"(number = {number} AND {negate}({each.text}))" for number, each in enumerate(known))
        found = {(row["number"], row["row"]) for row in to_spark(table, ["number", "row"], where).collect()}
        for number, each in enumerate(known):
            assert ((number, each.row) in found) is (each.expected is (not negate)), (negate, each)


@pytest.mark.slow
def test_deletes_by_fields_of_structs_are_evaluated_by_spark_itself(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", STRUCT)]))
    table.append(pa.table({"id": [1, 2, 3, 4, 5], "s": pa.array(VALUES, STRUCT)}))
    table.delete("s.zip = '1' OR s.geo.f = 'nan'")
    frame = to_spark(table, where="s.geo.n IS NULL")
    assert sorted(row["id"] for row in frame.collect()) == [2, 3, 5]
    assert "MapInArrow" not in frame._jdf.queryExecution().toString()
    assert sorted(row["id"] for row in to_spark(table, native=False).collect()) == [2, 3, 5]
    table.rename_column("s.zip", "post")
    table.append(pa.table({"id": [6], "s": [{"post": "1", "geo": {"n": 6, "f": 1.0}}]}, pa.schema(table.schema)))
    assert sorted(row["id"] for row in to_spark(table).collect()) == [2, 3, 5, 6]


@pytest.mark.slow
def test_statements_of_spark_name_fields_of_structs(spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", STRUCT)]))
    table.append(pa.table({"id": [1, 2, 3, 4, 5], "s": pa.array(VALUES, STRUCT)}))
    attach(spark, db)
    commit = sql("DELETE FROM t WHERE s.zip = '2' OR s.geo.n > 3", spark=spark)
    assert commit.counts.tombstones_added == 1, "dolmen itself evaluates the condition"
    assert sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == [1, 3, 5]
    sql("UPDATE t SET id = 30 WHERE s.zip IS NULL", spark=spark)
    assert sorted(
        row["id"] for row in sql("SELECT id FROM t WHERE s.geo.f IS NULL OR s.zip = '5'", spark=spark).collect()
    ) == [5, 30]


@pytest.mark.slow
def test_list_contains_is_duckdbs_and_array_contains_is_sparks(spark: SparkSession, db: Database) -> None:
    table = db.create_table("lists", pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int32()))]))
    table.append(pa.table({"id": [1, 2, 3, 4], "l": [[1, None], [2, None], None, []]}, table.schema))
    assert sorted(row["id"] for row in to_spark(table, where="NOT list_contains(l, 1)").collect()) == [2, 4]
    table.append(pa.table({"id": [5], "l": [[7]]}, table.schema))
    table.delete("list_contains(l, 7)")
    assert sorted(row["id"] for row in to_spark(table).collect()) == [1, 2, 3, 4]
    attach(spark, db)
    sql("DELETE FROM lists WHERE NOT array_contains(l, 1)", spark=spark)
    assert sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == [1, 2, 3], "of row 2 it is NULL in Spark"
