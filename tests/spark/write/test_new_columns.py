"""``mergeSchema``: columns that only the DataFrame has are added, once, whoever repeats the write or makes it too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import ConflictError, Error, InputError, RowError, SchemaError
from dolmen.spark import append, batches_into, overwrite, raising_dolmen_errors, upsert
from dolmen.spark.frame_types import spark_type
from dolmen.spark.source.table_writers import writer
from dolmen.spark.write.frame_columns import add_new_columns
from support.spark import streams_arrow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
pytestmark = pytest.mark.usefixtures("spark")  # which reads schemas in words
MORE = "id long, name string, n int, at timestamp"


@pytest.fixture
def table(db: Database) -> Table:
    made = db.create_table("t", SCHEMA, primary_key="id")
    made.append([{"id": 0, "name": "a"}])
    return made


def schema(text: str) -> s.StructType:
    return s.StructType.fromDDL(text)


def add(table: Table, text: str, request: str | None = None) -> None:
    add_new_columns(context_of(table), table.name, schema(text), request)


def frame(spark: SparkSession, first: int = 1, text: str = "id long, name string, n int") -> DataFrame:
    return spark.createDataFrame([(first, "b", 7), (first + 1, "c", None)], text)


def rows(table: Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_arrow().sort_by("id").to_pylist()]


def test_columns_are_added_with_spark_s_types(table: Table) -> None:
    nested = s.StructType([s.StructField("a", s.ArrayType(s.LongType())), s.StructField("b", s.StringType())])
    given = schema(f"{MORE}, d decimal(9,2), b binary, f float, day date, naive timestamp_ntz, ok boolean").add(
        "s", nested
    )
    add_new_columns(context_of(table), "t", given, None)
    assert table.schema.names == given.names
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    for field in given.fields[2:]:
        own = table.schema.field(field.name)
        assert own.nullable
        assert spark_type(own.type) == field.dataType


def test_one_commit_adds_them_and_none_where_they_are_there(db: Database, table: Table) -> None:
    version = db.version
    add(table, MORE)
    assert db.refresh() == version + 1
    assert [str(deed) for deed in db.history(limit=1)[0].did] == ["alter t(n, at)"]
    add(table, MORE)
    add(table, "id long, n int")
    assert db.refresh() == version + 1


def test_a_request_that_was_applied_adds_nothing(db: Database, table: Table) -> None:
    table.append([{"id": 1, "name": "b"}], request="r")
    add(table, MORE, "r")
    assert table.schema.names == ["id", "name"]


def test_many_writers_at_once_add_each_column_once(db: Database, table: Table) -> None:
    texts = ["id long, n int, m int", "id long, m int, k int", "id long, k int, n int"] * 2
    tables = [dolmen.open(db.url).table("t") for _ in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(add, tables, texts))
    db.refresh()
    assert sorted(table.schema.names) == ["id", "k", "m", "n", "name"]


REFUSED = [
    ("id long, name string, NAME string", "columns 'name' and 'NAME' differ in case only"),
    ("id long, n int, _commit_ts long", "reserved"),
    ("id string, n int", "column 'id': "),
    ("name string, n int", "column 'id' is missing and not nullable"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_can_not_be_added_or_would_not_fit_changes_nothing(
    text: str, message: str, db: Database, table: Table
) -> None:
    version = db.version
    with pytest.raises(SchemaError, match=message):
        add(table, text)
    assert db.refresh() == version


def test_columns_that_are_wider_in_the_frame_become_as_wide(db: Database) -> None:
    narrow = pa.schema(
        [("b", pa.int8()), ("f", pa.float32()), ("d", pa.decimal128(5, 2)), ("u", pa.uint8()), ("s", pa.string())]
    )
    table = db.create_table("w", narrow)
    add_new_columns(context_of(table), "w", schema("b long, f double, d decimal(20,2), u int, s string, n int"), None)
    wide = [pa.int64(), pa.float64(), pa.decimal128(20, 2), pa.uint8(), pa.string(), pa.int32()]
    assert table.schema.types == wide
    version = db.refresh()
    add_new_columns(context_of(table), "w", schema("b int, f float, d decimal(9,2), n short"), None)
    assert db.refresh() == version, "nothing becomes narrower"


def test_two_new_columns_that_differ_in_case_only_are_refused(db: Database, table: Table) -> None:
    with pytest.raises(SchemaError, match=r"columns? 'n' and 'N'"):
        add(table, "id long, n int, N int")


@pytest.mark.slow
def test_spark_s_writes_add_columns_where_they_are_told_to(spark: SparkSession, db: Database, table: Table) -> None:
    for write in (append, upsert, overwrite):
        with pytest.raises(SchemaError, match=r"column 'n'.*id, name\b.*merge_schema=True"):
            write(table, frame(spark))
    with pytest.raises(InputError, match="merge_schema"):
        append(table, frame(spark), merge_schema="yes")  # type: ignore[arg-type]
    append(table, frame(spark), merge_schema=True, request="one")
    assert rows(table) == [(0, "a", None), (1, "b", 7), (2, "c", None)]
    table.drop_column("n")
    with pytest.raises(SchemaError, match="column 'n'"):  # a driver that tries again brings nothing back
        append(table, frame(spark), merge_schema=True, request="one")
    assert table.schema.names == ["id", "name"]
    upsert(table, frame(spark, 2), merge_schema=True)
    assert rows(table) == [(0, "a", None), (1, "b", None), (2, "b", 7), (3, "c", None)]
    wide = spark.createDataFrame([(9, 2**40)], "id long, n long")
    with pytest.raises(RowError, match="column 'n'"):  # a wider type is taken where its values fit
        append(table, wide)
    append(table, wide, merge_schema=True)
    assert (table.schema.field("n").type, rows(table)[-1]) == (pa.int64(), (9, None, 2**40))
    table.delete("id = 9")
    own = table.to_spark(spark=spark).selectExpr("id", "name", "n", "id * 2 AS twice")
    overwrite(table, own, merge_schema=True)
    assert rows(table)[-1] == (3, "c", None, 6)
    table.append([{"id": 8}])
    with pytest.raises(ConflictError):  # rows that were added after the frame was made
        overwrite(table, own.selectExpr("*", "1 AS one"), merge_schema=True)
    assert rows(table)[-1][0] == 8


def test_an_overwrite_is_held_to_what_its_table_has_seen_also_if_columns_are_added(
    spark: SparkSession, db: Database, table: Table
) -> None:
    dolmen.open(db.url).table("t").append([{"id": 5, "name": "of another"}])
    with pytest.raises(ConflictError):
        overwrite(table, frame(spark), merge_schema=True)
    assert [row[0] for row in rows(table)] == [0, 5]


@pytest.mark.slow
def test_the_data_source_adds_columns(spark: SparkSession, db: Database, table: Table) -> None:
    def save(frame: DataFrame, **options: object) -> None:
        with raising_dolmen_errors():
            frame.write.format("dolmen").mode("append").options(table="t", **options).save(db.url)

    with pytest.raises(SchemaError, match=r'option\("mergeSchema", True\)'):
        save(frame(spark))
    save(frame(spark), mergeSchema=True)
    assert rows(table) == [(0, "a", None), (1, "b", 7), (2, "c", None)]
    version = db.refresh()
    save(frame(spark, 3), merge_schema="true")
    assert db.refresh() == version + 1
    with pytest.raises(Error, match="option 'mergeschemas'"):
        writer({"path": db.url, "table": "t", "mergeschemas": "true"}, schema(MORE), False)


@pytest.mark.slow
@streams_arrow
def test_streams_add_columns_once_over_restarts(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path
) -> None:
    other = db.create_table("by_batches", SCHEMA, primary_key="id")
    source = db.create_table("source", pa.schema([*SCHEMA, ("n", pa.int32())]))
    source.append([{"id": 1, "name": "b", "n": 7}])

    def run() -> None:
        read = spark.readStream.format("dolmen").option("table", "source").load(db.url)
        into = read.writeStream.format("dolmen").options(table="t", path=db.url, mergeSchema=True)
        batches = read.writeStream.foreachBatch(batches_into(other, "upsert", merge_schema=True))
        for name, each in (("one", into), ("two", batches)):
            query = each.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(300)
            finally:
                query.stop()

    run()
    source.append([{"id": 2, "name": "c", "n": 8}])
    run()
    assert rows(table) == [(0, "a", None), (1, "b", 7), (2, "c", 8)]
    assert rows(other) == rows(table)[1:]
    alterations = [commit for commit in db.history() if commit.operation == "alter"]
    assert len(alterations) == 2
