"""A database as a catalog of a session, for plain ``spark.sql`` and DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as s

import dolmen
from dolmen import Database
from dolmen.errors import AppliedIdError, DuplicateKeyError, InputError, RowError
from dolmen.spark import attach, overwrite, raising_dolmen_errors, sql
from dolmen.spark.sql.attachment import Attachment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("x", pa.float64())])


@pytest.fixture
def attached(spark: SparkSession, db: Database) -> Iterator[Attachment]:
    """A session in which a database with a table of ten rows is the catalog ``lake``."""
    table = db.create_table("events", SCHEMA, primary_key="id")
    table.append(pa.table({"id": range(10), "s": [f"s{i % 3}" for i in range(10)], "x": [float(i) for i in range(10)]}))
    made = attach(spark, db, catalog="lake")
    try:
        yield made
    finally:
        made.detach()


@pytest.fixture
def ask(spark: SparkSession) -> Callable[[str], list[tuple[Any, ...]]]:
    """Runs a statement by plain ``spark.sql``."""

    def run(query: str) -> list[tuple[Any, ...]]:
        with raising_dolmen_errors():
            return [tuple(row) for row in spark.sql(query).collect()]

    return run


pytestmark = pytest.mark.usefixtures("attached")
Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.mark.slow
def test_queries_show_the_newest_version_or_the_one_they_name(ask: Ask, db: Database, spark: SparkSession) -> None:
    version = db.refresh()
    db.tag("audit", version=version)
    dolmen.open(db.url).table("events").delete("id < 4")
    assert ask("SELECT count(*), min(id) FROM lake.events") == [(6, 4)]
    assert ask(f"SELECT count(*) FROM lake.events VERSION AS OF {version}") == [(10,)]
    assert ask("SELECT count(*) FROM lake.events VERSION AS OF 'audit' a JOIN lake.events b USING (id)") == [(6,)]
    assert ask("SELECT count(*) FROM lake.events TIMESTAMP AS OF current_timestamp()") == [(6,)]
    assert spark.table("lake.EVENTS").where("s = 's0' AND length(s) = 2").count() == 2
    assert ask("SHOW TABLES IN lake") == [("", "events", False)]
    assert [row[0] for row in ask("SHOW COLUMNS IN lake.events")] == ["id", "s", "x"]
    assert ask("SHOW TBLPROPERTIES lake.events ('primary_key')") == [("primary_key", "id")]


@pytest.mark.slow
def test_a_delete_is_a_tombstone(ask: Ask, db: Database) -> None:
    for where, left in [
        ("id = 3 AND s = 's0'", 9), ("s IN ('s1', 'x') OR x <=> 8.0D", 5), ("s LIKE 's2%' AND NOT id < 5", 4),
    ]:  # fmt: skip
        ask(f"DELETE FROM lake.events WHERE {where}")
        assert (db.history(1)[0].operation, db.table("events").count()) == ("delete", left), where
        assert db.history(1)[0].counts.tombstones_added == 1
    version = db.refresh()
    ask("EXPLAIN DELETE FROM lake.events WHERE id = 6")
    assert db.refresh() == version
    ask("DELETE FROM lake.events")
    assert (db.refresh(), db.table("events").count()) == (version + 1, 0)
    db.table("events").restore(version)
    ask("TRUNCATE TABLE lake.events")
    assert (db.refresh(), db.table("events").count()) == (version + 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [True, False])
def test_updates_and_merges_are_one_commit(ask: Ask, db: Database, is_plain: bool) -> None:
    run, version = ask if is_plain else sql, db.refresh()
    update = "UPDATE lake.events SET s = upper(s) WHERE lake.events.id < 2"
    ask(f"EXPLAIN {update}")
    assert db.refresh() == version
    run(update)
    run("DELETE FROM lake.events WHERE upper(s) = 'S0' AND id > 5")
    run("DELETE FROM lake.events WHERE id IN (SELECT max(id) FROM lake.events)")
    run(
        "WITH n AS (SELECT 50L AS id, 'new' AS s) MERGE INTO lake.events t USING (SELECT id, 'seen' AS s FROM "
        "lake.events WHERE id = 5 UNION ALL SELECT * FROM n) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET s = n.s "
        "WHEN NOT MATCHED THEN INSERT (id, s) VALUES (n.id, n.s)"
    )
    run("INSERT INTO lake.events (id, s, x) VALUES (60, NULL, NULL)")
    rows = {row["id"]: row["s"] for row in db.table("events").to_arrow().to_pylist()}
    assert (rows[0], rows[1], rows[5], rows[50], rows[60], sorted(rows)) == (
        *("S0", "S1", "seen", "new", None), [0, 1, 2, 3, 4, 5, 7, 50, 60],
    )  # fmt: skip
    assert db.refresh() == version + 5
    twice = "MERGE INTO lake.events t USING (SELECT 70L AS id UNION ALL SELECT 70L) n ON t.id = n.id"
    with pytest.raises(DuplicateKeyError):
        run(f"{twice} WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)")
    assert db.refresh() == version + 5


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [True, False])
def test_the_catalog_in_use_needs_no_name(ask: Ask, db: Database, spark: SparkSession, is_plain: bool) -> None:
    run, before = ask if is_plain else sql, str(spark.catalog.currentCatalog())
    db.create_table("news", SCHEMA).append(pa.table({"id": [1, 20], "s": ["new", "new"], "x": [1.0, 2.0]}))
    spark.sql("SELECT 7L AS id").createOrReplaceTempView("sevens")
    db.create_table("sevens", SCHEMA)  # Spark finds the view
    ask("USE lake")
    try:
        run("UPDATE events SET s = concat(events.s, lake.events.s) WHERE events.id = 2")
        run("DELETE FROM events e WHERE e.id IN (SELECT id FROM sevens) OR s IS DISTINCT FROM s")
        run(
            "WITH more AS (SELECT id FROM news) MERGE INTO events USING (SELECT n.* FROM news n JOIN more USING (id)) "
            "s ON events.id = s.id WHEN MATCHED THEN UPDATE SET s = s.s WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        spark.catalog.setCurrentCatalog(before)
        spark.catalog.dropTempView("sevens")
    rows = {row["id"]: row["s"] for row in db.table("events").to_arrow().to_pylist()}
    assert (rows[1], rows[2], rows[20], sorted(rows)) == ("new", "s2s2", "new", [0, 1, 2, 3, 4, 5, 6, 8, 9, 20])


@pytest.mark.slow
def test_rows_are_added_and_replaced_in_one_commit(ask: Ask, db: Database, spark: SparkSession) -> None:
    events, version = db.table("events"), db.refresh()
    ask("INSERT INTO lake.events VALUES (100, 'a', 1.0D)")
    ask("INSERT INTO lake.events BY NAME SELECT 'b' AS s, 0D AS x, 101L AS id")
    rows = spark.range(102, 104).select("id", F.lit("c").alias("s"), F.lit(0.5).alias("x"))
    rows.writeTo("lake.events").append()
    rows.writeTo("lake.events").overwrite(F.col("id") >= 102)
    assert (db.refresh(), events.count(), events.count("s = 'c'")) == (version + 4, 14, 2)
    ask("INSERT OVERWRITE lake.events SELECT * FROM lake.events WHERE id >= 100")
    assert (db.refresh(), events.count()) == (version + 5, 4)
    rows.write.option("request", "once").insertInto("lake.events")
    with pytest.raises(PySparkException, match="once") as refused:
        rows.select("id", "s", F.lit(0.25)).write.option("request", "once").insertInto("lake.events")
    with pytest.raises(AppliedIdError), raising_dolmen_errors():
        raise refused.value
    assert (db.refresh(), events.count()) == (version + 6, 6)


@pytest.mark.slow
def test_changes_are_a_table_function(ask: Ask, db: Database) -> None:
    version = db.refresh()
    ask("DELETE FROM lake.events WHERE id = 3")
    db.table("events").append(pa.table({"id": [100], "s": ["a"], "x": [0.0]}))
    query = "SELECT _change, id FROM table_changes('lake.events', {}) ORDER BY _version, id"
    assert ask(query.format(version + 1)) == [("delete", 3), ("insert", 100)]
    assert ask(query.format(f"{version + 2}, {version + 2}")) == [("insert", 100)]
    assert sql(query.format(version + 1)).count() == 2  # type: ignore[union-attr]


@pytest.mark.slow
def test_procedures_do_the_upkeep(ask: Ask, db: Database) -> None:
    events, version = db.table("events"), db.refresh()
    for n in range(8):
        events.append(pa.table({"id": [100 + n], "s": ["a"], "x": [0.0]}))
    assert dict(ask("CALL lake.system.compact('events')"))["files_in"] == 9
    assert ask("CALL lake.system.tag(name => 'audit', version => 2)") == [("version", db.refresh())]
    ask("DELETE FROM lake.events WHERE x = 0")
    assert dict(ask("CALL lake.system.resolve('events')")) == {"tombstones": 1, "rows": 9}
    ask(f"CALL lake.system.restore('events', {version})")
    assert events.count() == 10
    assert [name for name, _ in ask("CALL lake.system.gc()")] == ["versions_expired", "objects_deleted"]
    sql("CALL lake.system.drop_tag('audit')")
    assert db.tags() == {}


def test_a_table_has_the_columns_of_spark(db: Database) -> None:
    schema = s.StructType.fromDDL("id BIGINT NOT NULL, at TIMESTAMP, s STRUCT<a: ARRAY<INT>>")
    table = db.create_table("made", schema, primary_key="id", partition_by="day(at)")
    assert [str(field.type) for field in table.schema][:2] == ["int64", "timestamp[us, tz=UTC]"]
    assert (table.columns, table.schema.field("id").nullable) == (["id", "at", "s"], False)


@pytest.mark.slow
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.0 fills in no columns")
def test_columns_that_an_insert_leaves_out_get_their_defaults(ask: Ask, db: Database) -> None:
    table = db.create_table("d", "id BIGINT, s VARCHAR, day DATE, n DECIMAL(10, 2), u VARCHAR")
    for name, value in [("s", "it's \\ it"), ("day", date(2026, 11, 29)), ("n", Decimal("1.50"))]:
        table.set_default(name, value)
    ask("INSERT INTO lake.d (id) VALUES (1)")
    ask("INSERT INTO lake.d (id, s) VALUES (2, NULL)")
    assert [tuple(map(str, row.values())) for row in table.to_arrow().sort_by("id").to_pylist()] == [
        ("1", "it's \\ it", "2026-11-29", "1.50", "None"), ("2", "None", "2026-11-29", "1.50", "None"),
    ]  # fmt: skip
    table.set_default("u", dolmen.Expression("uuid()"))
    with pytest.raises(AnalysisException, match="`u`"):
        ask("INSERT INTO lake.d (id) VALUES (3)")


@pytest.mark.slow
def test_tables_are_created_altered_and_dropped(ask: Ask, db: Database, spark: SparkSession) -> None:
    version = db.refresh()
    ask("CREATE TABLE lake.copy TBLPROPERTIES ('sort_key' = 'id') AS SELECT id, s FROM lake.events WHERE id < 5")
    assert (db.refresh(), db.table("copy").count(), db.table("copy").sort_key) == (version + 1, 5, ("id",))
    ask("CREATE OR REPLACE TABLE lake.copy AS SELECT * FROM lake.copy WHERE id < 3")
    assert (db.refresh(), db.table("copy").count()) == (version + 2, 3)
    spark.table("lake.copy").writeTo("lake.copy").createOrReplace()
    assert (db.refresh(), db.table("copy").count()) == (version + 3, 3)
    ask("CREATE TABLE lake.clustered (a INT DEFAULT 3, at TIMESTAMP DEFAULT current_timestamp()) CLUSTER BY (a, at)")
    db.table("clustered").append([{"a": 1}, {"a": 2}])
    assert (db.table("clustered").count("at > '2026-01-01'"), db.table("clustered").settings()["cluster_by"]) == (
        2,
        "a, at",
    )
    ask("DROP TABLE lake.clustered")
    ask("CREATE TABLE lake.t (a INT COMMENT 'one', b STRING) TBLPROPERTIES ('primary_key' = 'a')")
    ask("CREATE TABLE IF NOT EXISTS lake.t (c INT)")
    ask("ALTER TABLE lake.t ADD COLUMNS (c INT, d DATE)")
    ask("ALTER TABLE lake.t RENAME COLUMN d TO day")
    ask("ALTER TABLE lake.t ALTER COLUMN c TYPE BIGINT")
    ask("ALTER TABLE lake.t DROP COLUMN b")
    ask("ALTER TABLE lake.t SET TBLPROPERTIES ('target_file_bytes' = '64MB', 'comment' = 'all')")
    ask("ALTER TABLE lake.t ADD COLUMN n INT DEFAULT 1 + 1 FIRST")
    ask("ALTER TABLE lake.t ALTER COLUMN day AFTER n")
    ask("ALTER TABLE lake.t ALTER COLUMN c SET DEFAULT 7")
    ask("ALTER TABLE lake.t CLUSTER BY (day)")
    assert (db.table("t").columns, db.table("t").settings()["cluster_by"]) == (["n", "day", "a", "c"], "day")
    db.table("t").append([{"a": 1}])
    assert db.table("t").get(1) == {"n": 2, "day": None, "a": 1, "c": 7}
    ask("ALTER TABLE lake.t DROP COLUMN n")
    ask("ALTER TABLE lake.t ALTER COLUMN c DROP DEFAULT")
    ask("ALTER TABLE lake.t RENAME TO renamed")
    table = db.table("renamed")
    columns = [(field.name, str(field.type), field.nullable) for field in table.schema]
    assert columns == [("day", "date32[day]", True), ("a", "int32", False), ("c", "int64", True)]
    assert (table.primary_key, table.settings()["target_file_bytes"]) == (("a",), "64MB")
    assert ("a", "int", "one") in ask("DESCRIBE lake.renamed")
    ask("DROP TABLE lake.renamed")
    ask("DROP TABLE IF EXISTS lake.renamed")
    assert db.tables() == ["copy", "events"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE lake.p (a INT) PARTITIONED BY (day(a))", "day"),
        ("CREATE TABLE lake.s.p (a INT)", "no schemas"),
        ("CREATE TABLE lake.events (a INT)", "exists"),
        ("ALTER TABLE lake.events ADD COLUMN n INT AFTER none", "FIELD_NOT_FOUND"),
        ("CREATE TABLE lake.p (a INT) LOCATION '/tmp/p'", "LOCATION"),
        ("INSERT INTO lake.none VALUES (1)", "cannot be found"),
        ("ALTER TABLE lake.events SET TBLPROPERTIES ('none' = '1')", "none"),
        ("INSERT INTO lake.events SELECT 'a', 'a', 1D", "CAST"),
        ("UPDATE lake.events SET id = 1", "primary key"),
        ("UPDATE lake.events SET none = 1", "none"),
        ("CALL lake.system.rewrite_data_files('events')", "compact"),
        ("SELECT * FROM table_changes('lake.none', 1)", "none"),
        ("SELECT * FROM table_changes('lake.events')", "table_changes"),
        ("SELECT * FROM lake.events VERSION AS OF 'none'", "none"),
    ],
)
def test_what_is_refused_says_why(ask: Ask, db: Database, statement: str, words: str) -> None:
    version = db.refresh()
    with pytest.raises(Exception, match=f"(?i){words}"):
        ask(statement)
    assert db.refresh() == version


@pytest.mark.slow
def test_a_value_that_does_not_fit_is_named(ask: Ask, db: Database) -> None:
    version = db.refresh()
    with pytest.raises((RowError, PySparkException), match=r"(?i)null"):
        ask("INSERT INTO lake.events SELECT nullif(id, 3), s, x FROM lake.events")
    assert db.refresh() == version


def test_a_catalog_has_its_name_alone(spark: SparkSession, db: Database, attached: Attachment) -> None:
    for name in ("lake", "spark_catalog", "a.b", ""):
        with pytest.raises(InputError, match="catalog="):
            attach(spark, db, catalog=name)
    with pytest.raises(InputError, match="prefix"):
        attach(spark, db, "x_", catalog="other")
    attached.detach()
    with pytest.raises(AnalysisException):
        spark.sql("SELECT * FROM lake.events")
    again = attach(spark, db, catalog="lake")
    assert spark.table("lake.events").count() == 10
    again.detach()


@pytest.mark.slow
def test_an_overwrite_of_rows_that_a_predicate_names(spark: SparkSession, db: Database) -> None:
    events = db.table("events")
    rows = spark.createDataFrame([(3, "new", 0.0), (4, None, 1.0)], "id long, s string, x double")
    commit = overwrite(events, rows, where="id BETWEEN 3 AND 5")
    assert (commit.operation, events.count(), events.get(3)) == ("overwrite", 9, {"id": 3, "s": "new", "x": 0.0})
    with pytest.raises(RowError, match="where"):
        overwrite(events, rows, where="id = 3")
    overwrite(events, rows, where="id = 3", check=False, request="r")
    assert overwrite(events, rows, where="id = 3", check=False, request="r").operation == "nothing"
    with pytest.raises(AppliedIdError):
        overwrite(events, rows, where="id = 4", check=False, request="r")
