"""Columns may have any names: those that Spark has signs for, and those that dolmen gives its own beside them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dolmen
from dolmen import Database
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import SchemaError
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.write.from_frame import append, delete, overwrite, upsert
from dolmen.spark.write.merge_frame import merge
from support.spark_history import rows_of, sorted_rows
from support.spark_settings import settings

ODD = [
    "a", "a.b", "a.*", "*", "tick`", "`", "two ``ticks``", "sp ace", " ", 'quo"te', "apo'strophe", "(x)", "x,y",
    "[0-9]+", ".", "$", "back\\slash", "ä.日本", "select", "a.b.c", "id2.x", "struct<a:int>", "line\nend", "%", "1",
]  # fmt: skip
OWN = [
    "_metadata", "_tmp_metadata_row_index", "__row_index", "__file", "__ROW", "__size", "__nothing", "__key_0",
    "__key_ts", "__source", "__action", "__value_0",
]  # fmt: skip
LONG = bool(os.environ.get("DOLMEN_LONG"))
DRAW = random.Random(os.environ["DOLMEN_TEST_SEED"])
SOME = OWN if LONG else DRAW.sample(OWN, 2)
PATTERNS = ["true", "false"] if LONG else [DRAW.choice(["true", "false"])]
"""Whether Spark takes quoted names for patterns; each makes Spark compile all statements anew."""
KEY = "key.of `all`"


def schema(names: list[str]) -> pa.Schema:
    return pa.schema([pa.field(KEY, pa.int64(), nullable=False), *((name, pa.string()) for name in names)])


def rows(names: list[str], first: int, count: int) -> pa.Table:
    texts = [[f"{place} {row}" for row in range(first, first + count)] for place in range(len(names))]
    return pa.table([list(range(first, first + count)), *texts], schema=schema(names))


def history(db: Database, names: list[str]) -> Table:
    """A table with deletes of all kinds."""
    table = db.create_table("t", schema(names), primary_key=KEY, sort_key=names[0])
    table.append(rows(names, 0, 20))
    table.append(rows(names, 20, 20))
    quoted = names[1].replace('"', '""')
    table.delete(f"\"{quoted}\" = '1 5'", mode="positions")
    table.delete(f"\"{quoted}\" = '1 6'")
    table.delete(keys=[7, 27])
    table.upsert(rows(names, 8, 1))
    return table


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [ODD, *([name, "other"] for name in SOME), ["other", *OWN[1:]]], ids=lambda n: repr(n[0])
)
def test_columns_of_any_name_are_read(names: list[str], spark: SparkSession, db: Database) -> None:
    """dolmen's own names are read together, and each by itself too: two of them by default."""
    table = history(db, names)
    expected = table.scan(with_commit_ts=True).to_arrow()
    assert expected.num_rows == 36
    for native in (True, False):
        frame = to_spark(table, with_commit_ts=True, native=native)
        assert rows_of(frame, expected.schema) == sorted_rows(expected)


@pytest.mark.slow
@pytest.mark.parametrize("patterns", PATTERNS)
def test_columns_of_any_name_are_written_merged_and_deleted_by(
    patterns: str, spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    table = history(db, ODD)
    given = sorted_rows(table.to_arrow())
    copy = dolmen.open(str(tmp_path / "copy")).create_table("copy", schema(ODD), primary_key=KEY, sort_key="a.*")
    with settings(spark, {"spark.sql.parser.quotedRegexColumnNames": patterns}):
        frame = to_spark(table)
        append(copy, frame)
        assert sorted_rows(copy.to_arrow()) == given
        upsert(copy, frame)
        merge(copy, frame, KEY)
        merge(copy, frame, "a.b", {"a": "source.a"}, None)
        overwrite(copy, to_spark(copy))
        compact(spark, db, "t", recluster=True)
        frame.write.format("dolmen").mode("append").option("table", "copy").save(context_of(copy).store.url)
        assert copy.count() == 72
        delete(copy, frame.select("`tick```"), on="tick`")
        assert copy.count() == 0
        merge(copy, frame, "a.*", None, "insert")
        assert sorted_rows(copy.to_arrow()) == given == sorted_rows(table.to_arrow())
        merge(copy, frame.select(f"`{KEY.replace('`', '``')}`"), KEY, "delete", None)
        assert copy.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__source", "__KEY_0", "__value_0", "__row", "_metadata"])
def test_names_that_merges_use_are_refused_by_name(name: str, spark: SparkSession, db: Database) -> None:
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), primary_key="id")
    frame = spark.range(3).selectExpr("id", f"'x' AS `{name}`")
    with pytest.raises(SchemaError, match=f"'{name}'.*rename"):
        merge(table, frame, "id", {"s": f"source.{name}"}, None)
    other = db.create_table("other", pa.schema([("id", pa.int64()), (name, pa.string())]), primary_key="id")
    append(other, frame)
    upsert(other, frame.where("id = 1"))
    delete(other, frame.select("id").where("id = 2"))
    assert other.count() == 2
    with pytest.raises(SchemaError, match=f"'{name}'.*rename"):
        merge(other, frame, "id", {name: "'y'"}, None)
