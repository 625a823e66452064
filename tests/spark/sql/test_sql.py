"""Statements over the tables of a database: what they answer, what they leave, and what they cost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dolmen
from dolmen import Commit, Database
from dolmen.base.runtime import Runtime
from dolmen.errors import (
    AppliedIdError,
    DuplicateKeyError,
    InputError,
    RowError,
    SchemaError,
    TagNotFoundError,
    VersionNotFoundError,
)
from dolmen.spark import attach, sql
from dolmen.spark.sql import dml
from dolmen.spark.sql.attachment import Attachment
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore
from support.changes import COLUMNS, Change, Feed, File

pytestmark = pytest.mark.usefixtures("attached")


def ask(query: str, args: Any = None) -> list[tuple[Any, ...]]:
    frame = sql(query, args)
    assert isinstance(frame, DataFrame)
    return [tuple(row) for row in frame.collect()]


def do(statement: str, args: Any = None, **more: Any) -> Commit:
    commit = sql(statement, args, **more)
    assert isinstance(commit, Commit)
    return commit


def ids(db: Database, table: str = "t") -> list[int]:
    return sorted(db.table(table).to_arrow()["id"].to_pylist())


@pytest.mark.slow
def test_views_follow_their_tables(spark: SparkSession, db: Database, attached: Attachment) -> None:
    other = dolmen.open(db.url)
    assert attached.tables() == ["t", "u"]
    other.table("t").delete("id < 5")
    assert spark.sql("SELECT count(*) FROM t").first()[0] == 10  # type: ignore[index]
    attached.refresh()
    assert spark.sql("SELECT count(*) FROM T").first()[0] == 5  # type: ignore[index]
    other.create_table("w", pa.schema([("a", pa.int64())]))
    other.drop_table("u")
    assert ask("SELECT count(*) FROM w") == [(0,)]
    assert not spark.catalog.tableExists("u")
    attached.detach()
    assert not spark.catalog.tableExists("t")
    with pytest.raises(InputError, match=r"attach\(spark, db\)"):
        sql("SELECT 1")


@pytest.mark.slow
def test_no_view_of_others_is_replaced(spark: SparkSession, db: Database, attached: Attachment) -> None:
    with pytest.raises(InputError, match="attached"):
        attach(spark, db)
    spark.range(3).createOrReplaceTempView("x_u")
    try:
        with pytest.raises(InputError, match="another prefix"):
            attach(spark, db, "x_")
        assert not spark.catalog.tableExists("x_t")
        with_prefix = attach(spark, db, "y_", tables=["t"])
        assert ask("SELECT count(*) FROM y_t JOIN t USING (id)") == [(10,)]
        with_prefix.detach()
        spark.range(3).createOrReplaceTempView("u")
        db.table("u").append([{"id": 1, "v": "a"}])
        with pytest.raises(InputError, match="table 'u'"):
            sql("SELECT * FROM u")
        attached.detach()
        assert spark.table("u").count() == 3
    finally:
        spark.catalog.dropTempView("x_u")
        spark.catalog.dropTempView("u")


def test_a_table_with_a_type_that_spark_lacks_has_no_view(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    db.create_table("clock", pa.schema([("id", pa.int64()), ("time", pa.time64("us"))])).append([{"id": 1}, {"id": 2}])
    with caplog.at_level(logging.WARNING, "dolmen"):
        assert ask("SELECT 1") == [(1,)]
        assert ask("SELECT 1") == [(1,)]
    assert [record.getMessage()[:27] for record in caplog.records] == ["table clock has no view: co"]


@pytest.mark.slow
def test_older_versions_stand_anywhere_in_a_query(db: Database) -> None:
    version = db.refresh()
    db.tag("audit", version=version)
    before = db.history(1)[0].created_at
    db.table("t").delete("id >= 3")
    assert ask(f"SELECT count(*) FROM t VERSION AS OF {version}") == [(10,)]
    assert ask(f"SELECT count(t.id) FROM t FOR VERSION AS OF '{version}' WHERE t.id > 5 -- t VERSION AS OF 0") == [(4,)]
    assert ask(
        f"WITH old AS (SELECT * FROM t VERSION AS OF 'audit' o WHERE o.id NOT IN (SELECT id FROM t)) "
        f"SELECT count(*), (SELECT count(*) FROM (t SYSTEM_VERSION AS OF {version})) FROM old JOIN "
        f"t VERSION AS OF {version} AS n ON old.id = n.id, t"
    ) == [(21, 10)]
    assert ask("SELECT count(*) FROM t TIMESTAMP AS OF :then", {"then": before}) == [(10,)]
    assert ask("SELECT count(*) FROM t TIMESTAMP AS OF current_timestamp() + INTERVAL 0 HOURS x") == [(3,)]
    assert ask("SELECT timestamp AS of, version AS of FROM VALUES (1, 2) AS x (timestamp, version)") == [(1, 2)]
    for text, error in [
        ("VERSION AS OF 'none'", TagNotFoundError),
        ("VERSION AS OF 99999", VersionNotFoundError),
        ("TIMESTAMP AS OF '1999-01-01'", VersionNotFoundError),
        ("TIMESTAMP AS OF NULL", InputError),
        ("TIMESTAMP AS OF 'soon'", Exception),
        ("TIMESTAMP AS OF now() - 1", InputError),
        ("VERSION AS OF :v", InputError),
        ("VERSION AS OF 1.5", InputError),
    ]:
        with pytest.raises(error):
            sql(f"SELECT * FROM t {text}", {"v": 1})
    with pytest.raises(InputError, match="WITH"):
        sql(f"WITH t AS (SELECT 1) SELECT * FROM t VERSION AS OF {version}")
    with pytest.raises(InputError, match="version"):
        sql(f"DELETE FROM t VERSION AS OF {version}")


@pytest.mark.slow
def test_a_delete_that_means_the_same_to_both_reads_nothing(db: Database, attached: Attachment) -> None:
    for where, args, left in [
        ("id = 1 -- one", None, 9),
        ("id IN (2, 3.0) AND length(s) > 0", None, 7),
        ("T.id BETWEEN :low AND :low + 1", {"low": 4}, 5),
        ("`s` = ? AND NOT (id < ?)", ["s1", 5], 4),
    ]:
        commit = do(f"DELETE FROM t WHERE {where}", args)
        assert len(ids(db)) == left, where
        assert (commit.counts.tombstones_added == 1) is ("length" not in where)
    assert do("DELETE FROM t").counts.tombstones_added == 1
    assert ids(db) == []


@pytest.mark.slow
def test_a_delete_that_spark_must_evaluate_hides_positions(db: Database) -> None:
    commit = do("DELETE FROM t AS x WHERE x.s LIKE 's1%' OR id % 4 = 3 OR id IN (SELECT max(id) FROM t)")
    assert (commit.operation, commit.counts.rows_deleted, ids(db)) == ("delete", 4, [0, 2, 4, 5, 6, 8])
    assert do("DELETE FROM t WHERE id % 4 = 3").operation == "nothing"


@pytest.mark.slow
def test_an_update_writes_what_spark_evaluates(db: Database) -> None:
    do("UPDATE t AS r SET X = r.id / 4, s = concat(s, '\\'', :end), d = 1.005 WHERE id < 3", {"end": "--"})
    rows = db.table("t").scan(where="x IS NOT NULL").to_arrow().sort_by("id").to_pylist()
    assert [(row["x"], row["s"], str(row["d"])) for row in rows] == [
        (0.0, None, "1.01"), (0.25, "s1'--", "1.01"), (0.5, "s2'--", "1.01"),
    ]  # fmt: skip
    do("UPDATE t SET x = x + ?, d = NULL WHERE id = ? AND s IS NULL", [100, 0])
    assert db.table("t").get(0) == {"id": 0, "s": None, "x": 100.0, "d": None, "at": None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET id = id + 1",
        "UPDATE t SET x = 1, ID = x WHERE id = 1",
        "UPDATE t SET id = (SELECT max(id) FROM u)",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET id = u.id + 1",
        "MERGE INTO t USING u ON t.s = u.v WHEN MATCHED THEN UPDATE SET id = u.id",
        "MERGE INTO t USING u ON t.id = u.id OR t.s = u.v WHEN MATCHED THEN UPDATE SET id = u.id",
        "MERGE INTO t USING (SELECT id, v AS s, 1D AS x, 1.0 AS d, now() AS at FROM u) n ON t.s = n.s "
        "WHEN MATCHED THEN UPDATE SET *",
        "MERGE INTO t USING (SELECT CAST(id AS DOUBLE) AS id FROM u) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET id = n.id",
        "MERGE INTO t USING u ON CAST(t.id AS TINYINT) = u.id WHEN MATCHED THEN UPDATE SET id = u.id",
        "MERGE INTO t USING (SELECT '01' AS id) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET id = CAST(n.id AS LONG)",
        "MERGE INTO t USING (SELECT 1.6BD AS id) n ON t.id = CAST(n.id AS LONG) WHEN MATCHED THEN UPDATE SET id = n.id",
        "MERGE INTO t USING (SELECT 257L AS id) n ON t.id = CAST(n.id AS BYTE) - 0Y "
        "WHEN MATCHED THEN UPDATE SET id = n.id",
        "MERGE INTO t USING (SELECT timestamp_seconds(1.5) AS id) n ON t.id = CAST(n.id AS LONG) "
        "WHEN MATCHED THEN UPDATE SET id = n.id",
        "MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET id = -t.id",
        "WITH w AS (SELECT id FROM u) MERGE INTO t USING w ON t.id < w.id WHEN MATCHED THEN UPDATE SET id = w.id",
    ],
)
def test_no_statement_changes_a_primary_key(db: Database, statement: str) -> None:
    do("INSERT INTO u VALUES (1, 's1')")
    version = db.refresh()
    with pytest.raises(SchemaError, match="'id'"):
        sql(statement)
    assert db.refresh() == version


@pytest.mark.slow
@pytest.mark.parametrize(
    "clause",
    [
        "t.id = n.id WHEN MATCHED THEN UPDATE SET *",
        "n.id <=> t.id WHEN MATCHED THEN UPDATE SET s = n.s, id = n.id",
        "t.id = n.number WHEN MATCHED THEN UPDATE SET id = (n.number), s = n.s",
        "t.id = n.whole WHEN MATCHED THEN UPDATE SET id = n.whole, s = n.s",
        "t.id = n.text AND t.x IS NULL WHEN MATCHED THEN UPDATE SET s = n.s, id = t.id",
        "t.id = n.id WHEN MATCHED THEN UPDATE SET s = n.s WHEN NOT MATCHED BY SOURCE THEN UPDATE SET id = t.id",
    ],
)
def test_a_key_may_be_set_to_what_it_is(db: Database, clause: str) -> None:
    source = "SELECT 4L AS id, 4S AS number, 4.0BD AS whole, '4' AS text, 'new' AS s, 1D AS x, 1.0BD AS d, now() AS at"
    do(f"MERGE INTO t USING ({source}) n ON {clause}")
    do("UPDATE t SET id = id, s = concat(s, '!') WHERE s = 'new'")
    assert (ids(db), db.table("t").get(4)["s"]) == (list(range(10)), "new!")


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE c SET seq = seq + 1",
        "MERGE INTO c USING u ON c.id = u.id WHEN MATCHED THEN UPDATE SET seq = u.id",
    ],
)
def test_no_statement_changes_the_order_of_changes(db: Database, statement: str) -> None:
    settings = {"ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_sequence": "seq"}
    table = db.create_table("c", COLUMNS, primary_key="id", properties=settings)
    Feed(table="c").deliver(File("a", (Change(1, 5, "five"),)), database=db)
    do("INSERT INTO u VALUES (1, 'one')")
    with pytest.raises(SchemaError, match="'seq'"):
        sql(statement)
    do("MERGE INTO c USING u ON c.id = u.id WHEN MATCHED THEN UPDATE SET v = u.v, seq = c.seq")
    assert table.get(1) == {"id": 1, "v": "one", "seq": 5}


@pytest.mark.slow
def test_a_value_that_does_not_fit_changes_nothing(db: Database) -> None:
    version = db.refresh()
    for statement, error in [
        ("UPDATE t SET d = 1e12", RowError),
        ("UPDATE t SET id = NULL WHERE id = 1", SchemaError),
        ("UPDATE t SET x = 'a'", SchemaError),
        ("UPDATE t SET x = 1, X = 2", InputError),
        ("UPDATE t SET y = 1", SchemaError),
        ("UPDATE t SET x = row_number() OVER (ORDER BY id)", InputError),
        ("UPDATE t SET x = explode(array(1, 2))", InputError),
        ("UPDATE t SET x = sum(id)", InputError),
        ("UPDATE t SET x = nothing(id)", InputError),
        ("DELETE FROM t WHERE id", InputError),
        ("DELETE FROM t WHERE no = 1", InputError),
        ("DELETE FROM t WHERE id = :missing", InputError),
        ("INSERT INTO t SELECT 1", SchemaError),
        ("INSERT INTO t (id, ID) SELECT 1, 2", SchemaError),
        ("INSERT INTO t (id, s) VALUES (1, DEFAULT)", InputError),
        ("INSERT INTO none SELECT 1", InputError),
        (
            "MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (t.id)",
            InputError,
        ),
        ("MERGE INTO t USING VALUES (1) s ON t.id = s.id WHEN MATCHED THEN DELETE", InputError),
        *(
            (f"MERGE INTO t USING u ON t.id = u.id WHEN {kind} THEN UPDATE SET x = {value}", InputError)
            for kind in ("MATCHED", "NOT MATCHED BY SOURCE")
            for value in ("sum(t.id)", "row_number() OVER (ORDER BY t.id)", "explode(array(1))", "t.no", "no(1)")
        ),
    ]:
        with pytest.raises(error):
            sql(statement)
        assert db.refresh() == version, statement


@pytest.mark.slow
def test_no_merge_gives_a_row_a_primary_key_that_another_has(db: Database) -> None:
    def merge(source: str, on: str, clauses: str) -> str:
        return f"MERGE INTO t USING ({source}) n ON {on} WHEN NOT MATCHED {clauses}"

    twice = "SELECT 50L AS id, 'a' AS s UNION ALL SELECT 50L, 'b'"
    insert = "THEN INSERT (id, s) VALUES (n.id, n.s)"
    version = db.refresh()
    for statement, error in [
        (merge(twice, "t.id = n.id", insert), DuplicateKeyError),
        (merge(twice, "t.id = n.id", f"{insert} WHEN NOT MATCHED BY SOURCE THEN DELETE"), DuplicateKeyError),
        (merge("SELECT 3L AS id, 'new' AS s", "t.s = n.s", insert), DuplicateKeyError),
        (merge("SELECT 3L AS id, 'new' AS s", "t.id = n.id AND n.s = 'old'", insert), DuplicateKeyError),
        (merge("SELECT 50L AS id", "t.id = n.id", "THEN INSERT (id) VALUES (n.id - 47)"), DuplicateKeyError),
        (merge("SELECT 50L AS id, 3L AS `n.id`", "t.id = n.id", "THEN INSERT (id) VALUES (`n.id`)"), DuplicateKeyError),
        (merge("SELECT CAST(NULL AS LONG) AS id", "t.id = n.id", "THEN INSERT (id) VALUES (n.id)"), RowError),
    ]:
        with pytest.raises(error):
            sql(statement)
        assert db.refresh() == version, statement
    do(merge(twice, "t.id = n.id", f"AND n.s = 'a' {insert}"))
    moved = "SELECT 1L AS id, 's1' AS s UNION ALL SELECT 1L, 'moved'"
    do(merge(moved, "t.id = n.id AND t.s = n.s WHEN MATCHED THEN DELETE", insert))
    assert ids(db) == [*range(10), 50]
    assert [db.table("t").get(key)["s"] for key in (1, 50)] == ["moved", "a"]  # type: ignore[index]


@pytest.mark.slow
def test_literals_have_the_types_of_their_columns(db: Database) -> None:
    columns = [("xs", pa.list_(pa.float64())), ("one", pa.struct([("a", pa.string()), ("x", pa.float64())]))]
    db.create_table("w", pa.schema([("id", pa.int64()), ("x", pa.float64()), *columns]), primary_key="id")
    db.table("w").append([{"id": 1}])
    values = "x = 0.5, xs = array(42.0, NULL), one = named_struct('a', NULL, 'x', 0.3)"
    do(f"UPDATE w SET {values}")
    do(f"MERGE INTO w USING (SELECT 1L AS id) n ON w.id = n.id WHEN MATCHED THEN UPDATE SET {values}")
    assert db.table("w").get(1) == {"id": 1, "x": 0.5, "xs": [42.0, None], "one": {"a": None, "x": 0.3}}
    do("UPDATE w SET x = NULL, xs = array(), one = NULL")
    assert db.table("w").get(1) == {"id": 1, "x": None, "xs": [], "one": None}


@pytest.mark.slow
def test_rows_are_inserted_and_replaced(db: Database) -> None:
    do("INSERT INTO t (at, id) VALUES (TIMESTAMP '2026-11-21 10:00:00', 100), (NULL, :next)", {"next": 101})
    do("WITH n AS (SELECT * FROM t WHERE id > 100) INSERT INTO u SELECT id, s FROM n")
    do("INSERT INTO u BY NAME SELECT 'b' AS V, 7 AS id")
    assert ids(db, "u") == [7, 101]
    at = db.table("t").scan(["at"], "id = 100").to_arrow()["at"][0].as_py()
    assert at.isoformat() == "2026-11-21T15:00:00+00:00"  # the session is in New York
    do("INSERT OVERWRITE t SELECT * FROM t WHERE id > 8")
    assert ids(db) == [9, 100, 101]


@pytest.mark.slow
def test_a_merge_by_any_condition(db: Database) -> None:
    do("INSERT INTO u VALUES (1, 'one'), (2, 'two'), (20, 'new'), (NULL, 'null')")
    do(
        "MERGE INTO t USING u AS s ON t.id = s.id WHEN MATCHED AND s.v = 'one' THEN DELETE WHEN MATCHED THEN UPDATE "
        "SET s = s.v, x = t.id + 0.5 WHEN NOT MATCHED AND s.id IS NOT NULL THEN INSERT (s, id) VALUES (v, s.id)"
    )
    assert ids(db) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 20]
    assert db.table("t").scan(["s", "x"], "id IN (2, 20)").to_arrow().sort_by("s").to_pylist() == [
        {"s": "new", "x": None},
        {"s": "two", "x": 2.5},
    ]
    do("MERGE INTO t USING u ON t.id > u.id + 5 AND u.id = 2 WHEN MATCHED THEN UPDATE SET s = 'far' "
       "WHEN NOT MATCHED BY SOURCE AND t.id < 5 THEN DELETE")  # fmt: skip
    assert (ids(db), db.table("t").count("s = 'far'")) == ([5, 6, 7, 8, 9, 20], 3)
    do("MERGE INTO u USING (SELECT id, s AS v FROM t) s ON u.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert db.table("u").count() == 9


@pytest.mark.slow
def test_a_row_that_matches_twice_is_refused(db: Database) -> None:
    version = db.refresh()
    source = "(SELECT 1 AS id, 'a' AS s UNION ALL SELECT 1, 'b')"
    for clause in ("WHEN MATCHED THEN UPDATE SET s = n.s", "WHEN MATCHED AND n.s = 'a' THEN UPDATE SET s = n.s"):
        with pytest.raises(InputError, match="several source rows"):
            sql(f"MERGE INTO t USING {source} n ON t.id = n.id {clause}")
    assert db.refresh() == version
    do(f"MERGE INTO t USING {source} n ON t.id = n.id WHEN MATCHED THEN DELETE")
    assert ids(db) == [0, *range(2, 10)]


@pytest.mark.slow
def test_a_statement_is_applied_once_under_its_id(db: Database) -> None:
    for statement in ("UPDATE t SET x = coalesce(x, 0) + :by", "DELETE FROM t WHERE id = :by"):
        made = do(statement, {"by": 1}, request=statement[:6])
        again = do(statement, {"by": 1}, request=statement[:6])
        assert (again.operation, again.already) == ("nothing", {statement[:6]: made.version})
        with pytest.raises(AppliedIdError):
            sql(statement, {"by": 2}, request=statement[:6])
    assert db.table("t").count("x = 1") == 9


def test_case_counts_where_the_session_says_so(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for statement in ("DELETE FROM T", "UPDATE t SET X = 1", "DELETE FROM t WHERE ID = 1"):
            with pytest.raises(InputError):
                sql(statement)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.slow
def test_statements_cost_the_requests_that_their_changes_need(spark: SparkSession, db: Database) -> None:
    store = CountingStore(open_store(db.url, Runtime()))
    counted = attach(spark, Database(store, Runtime()), "c_")
    try:
        store.reset()
        do("DELETE FROM c_t WHERE id = 1")
        assert (store.puts, store.lists, store.heads) == (3, 0, 0)
        assert store.gets <= 3  # pointers: of each database that is attached, and of the transaction
        ask("SELECT count(*) FROM c_t")
        store.reset()
        frame = sql("SELECT * FROM c_t")
        assert (store.gets, store.puts) == (1, 0)  # nothing has changed: the views stay
        assert isinstance(frame, DataFrame)
    finally:
        counted.detach()


@pytest.mark.slow
def test_a_statement_starts_again_when_others_change_what_it_reads(
    db: Database, attached: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.table("u").append([{"id": 1, "v": "first"}])
    apply_actions, others = dml.apply_actions, iter(["second"])

    def apply_after_others(*args: Any, **more: Any) -> None:
        for v in others:
            dolmen.open(db.url).table("u").append([{"id": 2, "v": v}])
        apply_actions(*args, **more)

    monkeypatch.setattr(dml, "apply_actions", apply_after_others)
    do("UPDATE t SET s = 'seen' WHERE id IN (SELECT id FROM u)")
    assert db.table("t").count("s = 'seen'") == 2


@pytest.mark.slow
def test_several_databases_are_attached_to_a_session(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a variable"):
        sql("DELETE FROM t WHERE id = ${x}")
    other = dolmen.open(str(tmp_path / "other"))
    other.create_table("t", db.table("t").schema).append(db.table("t").to_arrow().slice(0, 3))
    second = attach(spark, other, "o_")
    try:
        do("DELETE FROM t WHERE id IN (SELECT id FROM o_t)")
        do("INSERT INTO o_t SELECT * FROM t WHERE id > 8")
    finally:
        second.detach()
    assert (ids(db), ids(other)) == ([3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 9])


@pytest.mark.slow
def test_statements_find_columns_in_any_case_as_spark_does(db: Database, attached: Attachment) -> None:
    """And not where the session asks for case to count."""
    sql("INSERT INTO u (ID, V) VALUES (1, 'a')")
    sql("UPDATE u SET V = 'b' WHERE ID = 1")
    sql("MERGE INTO u X USING (SELECT 1 AS ID, 'c' AS V) Y ON X.ID = Y.ID WHEN MATCHED THEN UPDATE SET *")
    assert db.table("u").to_arrow().to_pylist() == [{"id": 1, "v": "c"}]
