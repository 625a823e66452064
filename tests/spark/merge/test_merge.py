"""MERGE from Spark: what happens to which row, and what of it is read, written and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen import Database, Delete, Insert, Update
from dolmen.api.database import Table
from dolmen.errors import DuplicateKeyError, InputError, RowError, SchemaError
from dolmen.spark.write.merge_frame import merge

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("u", pa.uint64())])


@pytest.fixture
def table(db: Database) -> Table:
    """Ids 0 to 9, whose n is ten times as large, in two files."""
    table = db.create_table("t", SCHEMA, primary_key="id")
    for some in (range(5), range(5, 10)):
        u = pa.array([2**63 + i for i in some], pa.uint64())
        table.append({"id": list(some), "name": ["old"] * 5, "n": [10 * i for i in some], "u": u})
    return table


def source(spark: SparkSession, *rows: tuple[Any, ...], schema: str = "id long, name string, n int") -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def rows(table: Table) -> dict[int, tuple[Any, ...]]:
    found = table.scan(["id", "name", "n"]).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["name"], row["n"]) for row in found}


def before(*but: int) -> dict[int, tuple[Any, ...]]:
    return {i: ("old", 10 * i) for i in range(10) if i not in but}


@pytest.mark.slow
def test_matched_rows_are_updated_and_others_inserted(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    done = merge(table, source(spark, (3, "new", 1), (12, "new", 2)), "id")
    assert (done.version, done.operation) == (version + 1, "merge")
    assert (done.counts.rows_added, done.counts.tombstones_added, done.counts.files_removed) == (2, 1, 0)
    assert rows(table) == {**before(3), 3: ("new", 1), 12: ("new", 2)}
    # What the source does not have stays as it was, or is NULL.
    assert table.scan(["u"], "id IN (3, 12)").to_arrow()["u"].to_pylist() in ([2**63 + 3, None], [None, 2**63 + 3])
    assert db.verify(deep=True).ok


@pytest.mark.slow
@pytest.mark.parametrize("deleted", ["id = 3", "id IN (3, 7)"], ids=["in one file", "in two files"])
def test_new_rows_are_inserted_beside_rows_that_are_deleted_by_position(
    spark: SparkSession, db: Database, table: Table, deleted: str
) -> None:
    """DOLMEN_TEST_SEED=2565307735: Spark refused to read the file, as no position was needed after all."""
    table.delete(deleted, mode="positions")
    gone = {3, 7} if "7" in deleted else {3}
    merge(table, source(spark, (3, "new", 1), (4, "new", 2), (12, "new", 3)), "id", [], [Insert()])
    assert rows(table) == {**before(*gone), 3: ("new", 1), 12: ("new", 3)}
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_several_rows_of_one_primary_key_are_the_one_that_was_committed_last(
    spark: SparkSession, db: Database, table: Table
) -> None:
    """As for ``Table.merge``: the source may have all columns or lack one."""
    for name in ("later", "last"):
        table.append([{"id": 3, "name": name, "n": 1}, {"id": 4, "name": name, "n": 1}])
    merge(table, source(spark, (3, "new", 5), (12, "new", 6)), "id", when_matched={"n": "target.n + source.n"})
    found = table.scan(["name", "n"], "id = 3").to_arrow().to_pylist()
    assert found == [{"name": "last", "n": 6}]
    assert table.count("id = 4") == 3
    # Conditions tell source rows apart; a row that they leave keeps its like.
    twice = source(spark, (4, "a", 1), (4, "b", 2), (5, "c", 3))
    merge(table, twice, "id", [Update({"name": "source.name"}, when="source.n = 2")], None)
    assert table.scan(["name", "n"], "id = 4").to_arrow().to_pylist() == [{"name": "b", "n": 1}]
    table.append([{"id": 5, "name": "later", "n": 1}])
    merge(table, source(spark, (5, "x", 3)), "id", [Delete(when="target.n = 2")], None)
    assert table.count("id = 5") == 2
    merge(table, source(spark, (5, "x", 3)), "id", [Delete(when="target.n = 1")], None)
    assert table.count("id = 5") == 0
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_expressions_say_what_columns_become(spark: SparkSession, table: Table) -> None:
    merge(
        table,
        source(spark, (3, "x", 1), (12, "y", 2)),
        ["id"],
        when_matched={"n": "target.n + source.n"},
        when_not_matched={"id": "source.id", "name": "upper(source.name)"},
    )
    assert rows(table) == {**before(3), 3: ("old", 31), 12: ("Y", None)}


@pytest.mark.slow
def test_the_first_clause_whose_condition_holds_is_what_happens(
    spark: SparkSession, db: Database, table: Table
) -> None:
    changes = source(
        spark, (1, "D", 0), (2, "U", 7), (3, "?", 0), (20, "D", 0), (21, "U", 5), schema="id long, op string, n int"
    )
    done = merge(
        table,
        changes,
        "id",
        when_matched=[Delete(when="source.op = 'D'"), Update({"n": "source.n"}, when="source.op = 'U'")],
        when_not_matched=Insert(when="source.op <> 'D'"),
    )
    # Some of the matched rows stay, so it goes by positions, and is counted.
    assert (done.counts.rows_deleted, done.counts.rows_added, done.counts.tombstones_added) == (2, 2, 0)
    assert rows(table) == {**before(1, 2), 2: ("old", 7), 21: (None, 5)}
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_rows_that_no_source_row_matches_are_deleted_or_changed(spark: SparkSession, table: Table) -> None:
    merge(
        table,
        source(spark, (3, "new", 1), (12, "new", 2)),
        "id",
        when_matched=None,
        when_not_matched_by_source=[Delete(when="target.id > 3"), Update({"name": "concat(target.name, 'er')"})],
    )
    assert rows(table) == {0: ("older", 0), 1: ("older", 10), 2: ("older", 20), 3: ("old", 30), 12: ("new", 2)}


@pytest.mark.slow
def test_whole_rows_by_their_primary_key_are_an_upsert_which_reads_nothing(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for path in (tmp_path / "db" / "data").rglob("*.parquet"):
        path.unlink()
    whole = source(spark, (3, "new", 1)).withColumn("u", F.lit(None).cast("long"))
    assert merge(table, whole, "id").operation == "upsert"
    assert merge(table, whole.select("n"), "n", "delete", None).operation == "delete"


def test_what_is_matched_may_be_deleted_and_that_is_all(spark: SparkSession, table: Table) -> None:
    merge(table, source(spark, (3, "x", 1), (3, "y", 1), (None, "z", 1), (12, "x", 1)), "id", "delete", None)
    assert rows(table) == before(3)


@pytest.mark.slow
def test_several_source_rows_for_one_row_are_an_error(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    twice = source(spark, (0, "a", 1), (0, "b", 2))
    for when in (None, "source.n > 0"):  # hidden by keys, and by positions
        with pytest.raises(InputError, match="several source rows"):
            merge(table, twice, "id", Update(when=when), None)
    with pytest.raises(InputError, match=r"same key \(columns 'id'\)"):
        merge(table, twice, "id")
    assert (db.version, rows(table)) == (version, before())
    merge(table, twice, "id", Update(when="source.n > 1"), None)  # one of them counts
    assert rows(table) == {**before(0), 0: ("b", 2)}


@pytest.mark.slow
def test_no_merge_gives_a_row_a_primary_key_that_another_has(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.refresh()
    with pytest.raises(DuplicateKeyError):
        merge(table, source(spark, (3, "new", 1)), "name", None)
    with pytest.raises(DuplicateKeyError):
        merge(table, source(spark, (50, "new", 1)), "id", None, {"id": "source.id - 47"})
    assert db.refresh() == version


@pytest.mark.slow
def test_literals_have_the_types_of_their_columns(spark: SparkSession, db: Database) -> None:
    kinds = [("id", pa.int64()), ("x", pa.float64()), ("xs", pa.list_(pa.float64())), ("s", pa.string())]
    table = db.create_table("literals", pa.schema(kinds), primary_key="id")
    table.append([{"id": 1, "s": "a"}])
    given = spark.createDataFrame([(1,), (2,)], "id long")
    merge(table, given, "id", {"x": "0.3", "xs": "array(42.0, NULL)", "s": None}, {"id": "source.id", "x": "NULL"})
    assert [table.get(key) for key in (1, 2)] == [
        {"id": 1, "x": 0.3, "xs": [42.0, None], "s": None},
        {"id": 2, "x": None, "xs": None, "s": None},
    ]
    with pytest.raises(SchemaError, match="column 'x'"):  # of a column it is no literal
        merge(table, given.selectExpr("id", "0.3BD AS x"), "id", None)


@pytest.mark.slow
def test_null_matches_nothing(spark: SparkSession, table: Table) -> None:
    table.append({"id": [100], "name": [None], "n": [1]})
    merge(table, source(spark, (101, None, 5), (102, "no such", 6)), "name", {"n": "source.n"})
    assert rows(table) == {**before(), 100: (None, 1), 101: (None, 5), 102: ("no such", 6)}
    with pytest.raises(RowError, match=r"NULL.*key"):
        merge(table, source(spark, (None, "x", 5)), "id")


@pytest.mark.slow
def test_rows_without_a_primary_key_are_not_rows_of_one_key(spark: SparkSession, db: Database) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32())])
    clauses: tuple[None, None, list[Update | Delete]]
    clauses = None, None, [Update({"n": "target.n + 1"}, when="target.n > 50"), Delete(when="target.n = 3")]
    for number, numbers in enumerate([[82, 1, 3], [1, 3, 82], [3, 82, 1]]):
        keyless = db.create_table(f"keyless_{number}", columns, primary_key="id")
        for n in numbers:
            keyless.append([{"id": None, "name": "a", "n": n}])
        merge(keyless, source(spark, (7, "b", 1)), "id", *clauses)
        assert sorted(keyless.scan(["n"]).to_arrow()["n"].to_pylist()) == [1, 83]


@pytest.mark.slow
def test_many_target_rows_of_one_key_are_all_rewritten(spark: SparkSession, table: Table) -> None:
    merge(table, source(spark, ("old", 1), schema="name string, n int"), "name", {"n": "target.n + source.n"}, None)
    assert rows(table) == {i: ("old", 10 * i + 1) for i in range(10)}


@pytest.mark.slow
def test_a_merge_of_more_keys_than_are_listed_goes_by_their_range(
    spark: SparkSession, db: Database, table: Table
) -> None:
    many = spark.range(5, 3000).select("id", F.lit("new").alias("name"))
    done = merge(table, many, "id")
    assert done.counts.rows_added == 2995
    assert table.count("name = 'new'") == 2995
    assert table.scan(["n"], "id = 7").to_arrow()["n"].to_pylist() == [70]
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_an_empty_source_and_one_that_matches_nothing_are_no_commit(
    spark: SparkSession, db: Database, table: Table
) -> None:
    version = db.version
    assert merge(table, source(spark), "id").operation == "nothing"
    assert merge(table, source(spark, (77, "x", 1)), "id", "update", None).operation == "nothing"
    assert db.version == version


@pytest.mark.slow
def test_under_one_id_a_merge_is_applied_once(spark: SparkSession, table: Table) -> None:
    changes = source(spark, (3, "x", 1))
    first = merge(table, changes, "id", {"n": "target.n + source.n"}, None, request="m")
    assert merge(table, changes, "id", {"n": "target.n + source.n"}, None, request="m").already == {"m": first.version}
    assert rows(table)[3] == ("old", 31)


@pytest.mark.slow
def test_a_value_that_does_not_fit_fails_the_merge(spark: SparkSession, db: Database, table: Table) -> None:
    version = db.version
    with pytest.raises(RowError, match="column 'n'"):
        merge(table, source(spark, (3, "x", 1)), "id", {"n": "3000000000L * source.n"}, None)
    assert db.version == version


@pytest.mark.slow
def test_what_makes_no_sense_is_refused_before_a_task_begins(spark: SparkSession, db: Database, table: Table) -> None:
    version, changes = db.version, source(spark, (3, "x", 1))
    for wrong, clauses in (
        (r"source\.nn", {"when_matched": {"n": "source.nn"}}),
        (r"target\.n", {"when_not_matched": {"n": "target.n"}}),
        (r"source\.n", {"when_not_matched_by_source": {"n": "source.n"}}),
        ("type int", {"when_matched": Update(when="source.n")}),
        ("when_matched='insert'", {"when_matched": "insert"}),
        ("'m'", {"when_matched": {"m": "source.n"}}),
        ("column 'n'", {"when_matched": {"n": "source.name"}}),
    ):
        with pytest.raises(InputError, match=wrong):
            merge(table, changes, "id", **clauses)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="column 'extra'"):
        merge(table, changes.withColumn("extra", F.lit(1)), "id")
    with pytest.raises(SchemaError, match="column 'id'"):
        merge(table, changes.drop("id"), "id")
    assert db.version == version
