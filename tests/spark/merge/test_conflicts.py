"""What others commit while a merge runs: it starts again where that may matter, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Database, Delete, Update
from dolmen.api.database import Table
from dolmen.commit.head import context_of
from dolmen.errors import TableNotFoundError
from dolmen.spark.write.merge_frame import merge

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
PLUS = {"n": "target.n + source.n"}
SOME = [Delete(when="source.n > 1000"), Update(PLUS, when="source.n > 0")]
"""Leaves some of what matches, so that it goes by positions."""


@pytest.fixture
def table(db: Database) -> Table:
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append({"id": list(range(10)), "n": [0] * 10})
    return table


def meanwhile(spark: SparkSession, table: Table, act: Callable[[Database], Any], *ids: int) -> DataFrame:
    """A source of some ids with n = 1; while it is evaluated, which is after the merge has begun, something happens."""
    url = context_of(table).store.url

    def then(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        act(dolmen.open(url))
        yield from batches

    frame = spark.createDataFrame([(id_, 1) for id_ in ids], "id long, n long").coalesce(1)
    return frame.mapInArrow(then, frame.schema)


def attempts(tmp_path: Path) -> int:
    """Each time a merge is tried it has an intent of its own."""
    beats = (path.read_text() for path in (tmp_path / "db" / "intent").rglob("0.json"))
    return sum('"merge"' in beat for beat in beats)


def rows(table: Table) -> dict[int, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["n"] for row in found}


@pytest.mark.parametrize("clauses", [PLUS, SOME], ids=["keys", "positions"])
def test_a_row_that_is_added_and_matches_is_merged_too(
    spark: SparkSession, table: Table, tmp_path: Path, clauses: Any
) -> None:
    source = meanwhile(spark, table, lambda db: db.table("t").append({"id": [77], "n": [40]}), 3, 77, 90)
    merge(table, source, "id", clauses)
    assert rows(table) == {**dict.fromkeys(range(10), 0), 3: 1, 77: 41, 90: 1}
    assert attempts(tmp_path) == 2


def test_rows_that_are_added_and_cannot_match_do_not_matter(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source = meanwhile(spark, table, lambda db: db.table("t").append({"id": [78], "n": [40]}), 3, 77, 90)
    merge(table, source, "id", PLUS)
    assert rows(table) == {**dict.fromkeys(range(10), 0), 3: 1, 77: 1, 78: 40, 90: 1}
    assert attempts(tmp_path) == 1


def test_a_row_that_is_deleted_stays_deleted(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source = meanwhile(spark, table, lambda db: db.table("t").delete("id IN (3, 4)"), 3, 5)
    merge(table, source, "id", PLUS, None)
    assert rows(table) == {0: 0, 1: 0, 2: 0, 5: 1, 6: 0, 7: 0, 8: 0, 9: 0}
    assert attempts(tmp_path) == 2


@pytest.mark.parametrize(("clauses", "tries"), [(PLUS, 1), (SOME, 2)], ids=["keys", "positions"])
def test_files_that_are_compacted_keep_what_is_merged(
    spark: SparkSession, db: Database, table: Table, tmp_path: Path, clauses: Any, tries: int
) -> None:
    for id_ in range(20, 28):
        table.append({"id": [id_], "n": [0]})
    merge(table, meanwhile(spark, table, lambda db: db.compact(), 3, 20), "id", clauses, None)
    assert rows(table) == {**dict.fromkeys([*range(10), *range(20, 28)], 0), 3: 1, 20: 1}
    assert [commit.operation for commit in db.history()][:2] == ["merge", "compact"]
    assert attempts(tmp_path) == tries
    assert db.verify(deep=True).ok


def test_a_table_that_is_overwritten_is_merged_as_it_is_then(spark: SparkSession, table: Table) -> None:
    source = meanwhile(spark, table, lambda db: db.table("t").overwrite({"id": [3, 50], "n": [7, 7]}), 3, 5)
    merge(table, source, "id", PLUS)
    assert rows(table) == {3: 8, 5: 1, 50: 7}


def test_a_table_that_is_dropped_is_not_there(spark: SparkSession, db: Database, table: Table) -> None:
    source = meanwhile(spark, table, lambda db: db.drop_table("t"), 3)
    with pytest.raises(TableNotFoundError):
        merge(table, source, "id", PLUS)


def test_of_two_merges_of_one_request_one_is_applied(spark: SparkSession, table: Table) -> None:
    url = context_of(table).store.url

    def also(db: Database) -> None:
        with db.transaction() as transaction:
            transaction.bind("m", "")  # which says nothing of its content
            transaction.table("t").append({"id": [60], "n": [5]}, request="m")

    assert merge(table, meanwhile(spark, table, also, 3, 60), "id", PLUS, request="m").already
    assert rows(dolmen.open(url).table("t")) == {**dict.fromkeys(range(10), 0), 60: 5}
