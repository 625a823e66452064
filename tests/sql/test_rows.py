"""Statements that change rows do what the methods do, and what they cannot do they say."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import (
    AppliedIdError,
    DuplicateKeyError,
    Error,
    InputError,
    LimitError,
    RowError,
    SchemaError,
    TableNotFoundError,
)
from support.random_tables import random_table

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("d", pa.date32()),
        ("p", pa.decimal128(10, 2)),
    ]
)


@pytest.fixture
def db(request: pytest.FixtureRequest) -> dolmen.Database:
    found = dolmen.open(f"memory://sql-{request.node.name}")
    found.create_table("t", COLUMNS, primary_key="id")
    found.create_table("u", pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    found.sql(
        "INSERT INTO t VALUES (1, 'a', 0.5, '2026-01-05', 1.25), (2, 'b', 1e3, NULL, -7), (3, 'c', 3, NULL, NULL)"
    )
    found.sql("INSERT INTO u VALUES (1, 10), (2, 20), (2, 21), (NULL, 30)")
    return found


def rows(db: dolmen.Database, query: str) -> Any:
    return db.sql(query).fetchall()


def test_literals_have_the_types_of_their_columns(db: dolmen.Database) -> None:
    assert rows(db, "FROM t ORDER BY id") == [
        (1, "a", 0.5, date(2026, 1, 5), Decimal("1.25")),
        (2, "b", 1000.0, None, Decimal("-7.00")),
        (3, "c", 3.0, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "operation", "left"),
    [
        ("DELETE FROM t WHERE id = 1", "delete", [2, 3]),
        ("DELETE FROM t AS o WHERE o.id = 1 OR o.s = 'a;b -- c'", "delete", [2, 3]),
        ('delete from main.T where "id" in (1, 2) /* ; */ -- the end', "delete", [3]),
        ("DELETE FROM t WHERE id = (SELECT min(id) FROM u)", "delete", [2, 3]),
        ("DELETE FROM t USING u WHERE u.id = t.id AND n > 10", "delete", [1, 3]),
        ("WITH m AS (SELECT max(id) AS id FROM u) DELETE FROM t WHERE id IN (SELECT id FROM m)", "delete", [1, 3]),
        ("DELETE FROM t WHERE s LIKE 'a%' AND length(s) * 2 = 2", "delete", [2, 3]),
        ("DELETE FROM t WHERE s NOT IN (SELECT NULL)", "nothing", [1, 2, 3]),
        ("DELETE FROM t WHERE NULL", "nothing", [1, 2, 3]),
        ("DELETE FROM t", "delete", []),
        ("TRUNCATE TABLE t", "delete", []),
    ],
)
def test_deletes(db: dolmen.Database, text: str, operation: str, left: list[int]) -> None:
    commit = db.sql(text)
    assert isinstance(commit, dolmen.Commit)
    assert commit.operation in (operation, "delete")
    assert [row[0] for row in rows(db, "SELECT id FROM t ORDER BY id")] == left


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("UPDATE t SET x = x + 1, s = DEFAULT WHERE id = 1", [(1, None, 1.5)]),
        ("UPDATE t AS o SET s = o.s || upper(o.s) WHERE o.id = 1", [(1, "aA", 0.5)]),
        ("UPDATE t SET x = (SELECT max(n) FROM u), s = 'it''s' WHERE id = 1", [(1, "it's", 30.0)]),
        ("UPDATE t SET (x, s) = (n, 'u') FROM u WHERE u.id = t.id AND t.id = 1", [(1, "u", 10.0)]),
        ("UPDATE t SET x = 7, s = NULL FROM (SELECT 1 AS k) q WHERE q.k = id", [(1, None, 7.0)]),
    ],
)
def test_updates(db: dolmen.Database, text: str, found: list[tuple[Any, ...]]) -> None:
    others = rows(db, "FROM t WHERE id > 1 ORDER BY id")
    commit = db.sql(text)
    assert isinstance(commit, dolmen.Commit)
    assert (commit.operation, commit.counts.rows_added, commit.counts.rows_deleted) == ("update", 1, 1)
    assert rows(db, "SELECT id, s, x FROM t WHERE id = 1") == found
    assert rows(db, "FROM t WHERE id > 1 ORDER BY id") == others


@pytest.mark.slow
def test_inserts_name_columns_or_go_by_name_and_return_rows(db: dolmen.Database) -> None:
    db["t"].set_default("s", "none")
    assert rows(db, "INSERT INTO t (s, id) VALUES (DEFAULT, 4), ('e', 5) RETURNING id, s || '!' AS z") == [
        (4, "none!"),
        (5, "e!"),
    ]
    result = db.sql("INSERT INTO t BY NAME SELECT 'f' AS s, 6 AS id RETURNING *")
    assert result.fetchall() == [(6, "f", None, None, None)]
    assert result.commit.version == db.version
    db.sql("INSERT INTO t SELECT id + 100, s, x, d, p FROM t WHERE id < 3")
    assert db["t"].count() == 8
    assert rows(db, "UPDATE t SET x = id WHERE id = 6 RETURNING x, t.id") == [(6.0, 6)]
    assert rows(db, "DELETE FROM t WHERE id > 100 RETURNING id ") == [(101,), (102,)]


@pytest.mark.slow
def test_conflicts_of_keys(db: dolmen.Database) -> None:
    with pytest.raises(DuplicateKeyError):
        db.sql("INSERT INTO t (id) VALUES (1)")
    db.sql("INSERT INTO t (id, s) VALUES (1, 'new'), (4, 'd') ON CONFLICT DO NOTHING")
    db.sql("INSERT OR IGNORE INTO t (id, s) VALUES (1, 'new')")
    assert rows(db, "SELECT id, s FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    db.sql(
        "INSERT INTO t (id, s, x) VALUES (1, 'n', 1), (5, 'e', 2) ON CONFLICT (id) DO UPDATE SET s = t.s || excluded.s"
    )
    db.sql("INSERT INTO t (id, s) VALUES (2, 'z'), (3, 'z') ON CONFLICT DO UPDATE SET s = excluded.s WHERE t.id > 2")
    assert rows(db, "SELECT id, s, x FROM t ORDER BY id") == [
        (1, "an", 0.5), (2, "b", 1000.0), (3, "z", 3.0), (4, "d", None), (5, "e", 2.0),
    ]  # fmt: skip
    commit = db.sql("INSERT OR REPLACE INTO t (id, s) VALUES (1, 'whole')")
    assert commit.operation == "upsert"
    assert rows(db, "SELECT s, x FROM t WHERE id = 1") == [("whole", None)]
    for text in ("INSERT INTO t (id) VALUES (1) ON CONFLICT (s) DO NOTHING", "INSERT OR REPLACE INTO u VALUES (1, 2)"):
        with pytest.raises(InputError, match="primary key"):
            db.sql(text)


@pytest.mark.slow
def test_merges(db: dolmen.Database) -> None:
    db.sql(
        """MERGE INTO t USING (SELECT id AS k, max(n) AS n FROM u GROUP BY ALL) AS q ON (q.k = t.id)
        WHEN MATCHED AND q.n > 20 THEN DELETE
        WHEN MATCHED THEN UPDATE SET x = t.x + q.n, s = DEFAULT
        WHEN NOT MATCHED AND k IS NULL THEN DO NOTHING
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = 'alone'"""
    )
    assert rows(db, "SELECT id, s, x FROM t ORDER BY id") == [(1, None, 10.5), (3, "alone", 3.0)]
    db.sql(
        "MERGE INTO t USING (VALUES (3, 'm'), (9, 'n')) v(id, s) USING (id) "
        "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"
    )
    db.sql("MERGE INTO t USING u ON t.id = u.n WHEN NOT MATCHED AND n = 30 THEN INSERT (id, x) VALUES (u.n, ?)", [2.5])
    assert rows(db, "SELECT id, s, x FROM t ORDER BY id") == [
        (1, None, 10.5), (3, "m", 3.0), (9, "n", None), (30, None, 2.5),
    ]  # fmt: skip
    db.sql("MERGE INTO t USING u ON t.id = u.n WHEN MATCHED THEN UPDATE SET p = u.id, x = t.id")
    assert rows(db, "SELECT p, x FROM t WHERE id = 30") == [(None, 30.0)]
    with pytest.raises(InputError, match="merge"):
        db.sql("MERGE INTO t USING u ON t.id > u.id WHEN MATCHED THEN DELETE")


def test_a_merge_inserts_values_for_all_columns_in_order() -> None:
    db = dolmen.open("memory://merge-values")
    db.sql("CREATE TABLE t (id INT, n INT, s VARCHAR DEFAULT 'd'); INSERT INTO t VALUES (1, 1, 'x')")
    merge = "MERGE INTO t USING (VALUES (1, 5), (2, 6)) v(id, n) ON t.id = v.id"
    db.sql(f"{merge} WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n * ?, DEFAULT)", [2])
    assert rows(db, "FROM t") == [(2, 12, "d")]
    with pytest.raises(InputError, match="2 values for 3 columns"):
        db.sql(f"{merge} WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n)")


def test_a_text_is_one_commit_whose_statements_see_each_other(db: dolmen.Database) -> None:
    before = db.version
    text = "BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO u SELECT id, 1 FROM t; SELECT count(*) FROM u; COMMIT;"
    result = db.sql(text)
    assert result.fetchall() == [(6,)]
    assert db.version == before + 1
    assert db.history(1)[0].operation == "transaction"
    with pytest.raises(RowError):
        db.sql("DELETE FROM t; INSERT INTO u VALUES ('x', 1)")
    with pytest.raises(TableNotFoundError):
        db.sql("DELETE FROM t; DROP TABLE u; INSERT INTO u VALUES (1, 1)")
    assert (db.version, db["t"].count()) == (before + 1, 2)
    with db.transaction() as tx:
        with pytest.raises(RowError):
            tx.sql("DELETE FROM t; INSERT INTO u VALUES ('x', 1)")
        assert tx.sql("INSERT INTO u VALUES (?, ?)", [7, 8]) is None
        assert tx.sql("SELECT count(*), (SELECT count(*) FROM t) FROM u").fetchall() == [(7, 2)]
    for text in ("ROLLBACK", "DELETE FROM t; ROLLBACK", "DELETE FROM t; COMMIT", "BEGIN; COMMIT"):
        with pytest.raises(InputError, match=r"one commit|no statement"):
            db.sql(text)


def test_parameters_are_values_and_nothing_else(db: dolmen.Database) -> None:
    evil = "'); DROP TABLE t; --"
    db.sql("INSERT INTO t (id, s) VALUES ($id, $s); UPDATE t SET s = s || $s WHERE id = $id", {"id": 4, "s": evil})
    db.sql("DELETE FROM t WHERE id -? > 3 AND s IS NOT NULL AND id <> ?", [-1, 4])
    assert rows(db, "SELECT id, s FROM t WHERE id > 2") == [(4, evil + evil)]
    commit = db.sql("UPDATE t SET x = $1, d = $2, p = $3 WHERE id = $4", [0.1, date(2026, 2, 3), Decimal("0.10"), 4])
    assert commit.rows == 1
    assert rows(db, "SELECT x, d, p FROM t WHERE id = 4") == [(0.1, date(2026, 2, 3), Decimal("0.10"))]
    assert db.sql("DELETE FROM t WHERE id IN ?", [[7, 8]]).counts.tombstones_added == 1
    for values in ([1], [1, 2, 3], {"a": 1}, "ab"):
        with pytest.raises(InputError, match="parameter"):
            db.sql("DELETE FROM t WHERE id = ? AND s = ?", values)
    with pytest.raises(InputError, match="NUL"):
        db.sql("DELETE FROM t WHERE s = ?", ["a\0b"])
    with pytest.raises(InputError, match="no literal"):
        db.sql("DELETE FROM t WHERE s = ?", [object()])


def test_a_request_is_applied_once(db: dolmen.Database) -> None:
    text = "UPDATE u SET n = n + ? WHERE id = 1; INSERT INTO u VALUES (8, 8)"
    first = db.sql(text, [5], request="r")
    again = db.sql(text, [5], request="r")
    assert again.already == {"r": first.version}
    assert rows(db, "SELECT n FROM u WHERE id IN (1, 8) ORDER BY n") == [(8,), (15,)]
    with pytest.raises(AppliedIdError):
        db.sql(text, [6], request="r")
    with db.transaction() as tx:
        tx.sql(text, [5], request="r")
    assert db["u"].count() == 5
    with pytest.raises(InputError, match="a query changes nothing"):
        db.sql("FROM u", request="s")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("INSERT INTO t VALUES (4, 'a', 'x', NULL, NULL)", RowError, "x"),
        ("INSERT INTO t (id) VALUES (1.5)", Error, "id"),
        ("INSERT INTO t (id, d) SELECT 9, s FROM t", SchemaError, "d"),
        ("INSERT INTO t (id, p) VALUES (9, 0.125)", RowError, "p"),
        ("INSERT INTO t (id) VALUES (NULL)", RowError, "id"),
        ("INSERT INTO t (id, s) VALUES (9)", SchemaError, "1 value for 2 columns"),
        ("INSERT INTO t (id, nope) VALUES (9, 1)", SchemaError, "nope"),
        ("INSERT INTO nope VALUES (9)", TableNotFoundError, "nope"),
        ("INSERT INTO a.t VALUES (9)", InputError, "no schemas"),
        ("INSERT INTO t (id, s) SELECT error('stop'), 'a' FROM t", InputError, "stop"),
        ("INSERT INTO t (id, s) SELECT 9, TIMETZ '12:00:00+02'", InputError, "a zone"),
        ("UPDATE t SET id = 9", SchemaError, "append another"),
        ("UPDATE t SET id = n FROM u WHERE u.id = t.id", SchemaError, "append another"),
        ("UPDATE t SET x = n FROM u WHERE u.id = t.id", InputError, "several rows"),
        ("UPDATE t SET x = 1, X = 2", InputError, "twice"),
        ("UPDATE t SET nope = 1", SchemaError, "nope"),
        ("UPDATE t SET p = p / 3", Error, "p"),
        ("DELETE FROM t WHERE nope = 1", InputError, "nope"),
        ("DELETE FROM t WHERE id = 'x'", InputError, "x"),
        ("DELETE FROM t WHERE s = 'a", InputError, "left open"),
        ("DELETE FROM t WHERE (id = 1", InputError, "missing"),
        ("DELETE t", InputError, "syntax"),
        ("DELETE FROM t WHERE read_text('/etc/passwd') = s", InputError, "may not be called"),
        ("INSERT INTO t (id, s) SELECT 9, content FROM read_text('/etc/passwd')", InputError, "may not be called"),
        ("INSERT INTO t (id, s) SELECT * FROM '/etc/passwd'", InputError, "does not exist"),
        ("UPDATE t SET s = (SELECT getenv('HOME'))", InputError, "getenv"),
        ("EXPLAIN DELETE FROM t", InputError, "not DELETE"),
        ("DELETE FROM t; ATTACH 'x'", InputError, "not ATTACH"),
        ("DELETE FROM t; SET threads = 1", InputError, "not SET"),
        ("DELETE FROM t; COPY (SELECT 1) TO '/tmp/never.csv'", InputError, "COPY"),
        ("PRAGMA database_list", InputError, "not PRAGMA|only SELECT"),
        ("INSTALL httpfs", InputError, "not LOAD"),
        ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", InputError, "not DELETE|needs a SELECT"),
    ],
)
def test_what_cannot_be_said_is_refused(db: dolmen.Database, text: str, error: type[Error], reason: str) -> None:
    before = db.version
    with pytest.raises(error, match=f"(?i){reason}"):
        db.sql(text)
    assert db.refresh() == before


def test_columns_that_an_update_does_not_set_keep_their_values() -> None:
    rng = random.Random(1)
    db = dolmen.open("memory://kept")
    for number in range(4):
        data = random_table(rng, 40)
        data = data.append_column("k", pa.array(range(40)))
        table = db.create_table(f"r{number}", data.schema)
        table.append(data)
        before = table.to_arrow().sort_by("k").combine_chunks()
        db.sql(f"UPDATE r{number} SET k = k + (SELECT count(*) FROM r{number}) WHERE k IN (SELECT k FROM r{number})")
        after = table.to_arrow().sort_by("k").combine_chunks()
        for name in set(data.column_names) - {"k"}:
            assert after[name].to_string(window=50) == before[name].to_string(window=50), name
        assert after["k"].to_pylist() == list(range(40, 80))


def test_versions_are_read_only(db: dolmen.Database) -> None:
    with pytest.raises(InputError, match=r"db\.sql or tx\.sql"):
        db.at(db.version).sql("DELETE FROM t")


@pytest.mark.slow
def test_long_and_deep_texts_are_bounded(db: dolmen.Database) -> None:
    db.sql("INSERT INTO u VALUES " + ", ".join(f"({number}, 1)" for number in range(20_000)))
    assert db["u"].count() == 20_004
    with pytest.raises(LimitError, match=r"append\(\)"):
        db.sql("INSERT INTO u VALUES " + "(1, 1), " * 600_000 + "(1, 1)")
    nested = "(" * 5_000 + "-7" + ")" * 5_000
    negated = "NOT " * 9_001 + "TRUE"
    terms = "+".join(["1"] * 900)
    for text in (
        f"DELETE FROM u WHERE id = {nested}",
        f"DELETE FROM u WHERE {negated}",
        f"SELECT {nested}",
        f"UPDATE u SET n = {terms}",
        f"INSERT INTO u SELECT 1, {terms} WHERE FALSE",
    ):
        with suppress(Error):  # DuckDB and Python say how deep they go, and nothing else is raised
            db.sql(text)
    assert db["u"].count() == 20_004


def test_values_of_several_types_become_their_columns_types(db: dolmen.Database) -> None:
    db.sql(
        "INSERT INTO t (id, x, d, p) VALUES ('10', 'nan', DATE '2026-01-05', '1.5'), "
        "(11, 'NaN'::DOUBLE, '2026-01-06', 2), (abs(-12), sqrt(4), NULL, (SELECT max(n) FROM u)), "
        "(13, '2.5', current_date, 2.25)"
    )
    assert rows(db, "SELECT id, x::VARCHAR, p FROM t WHERE id >= 10 ORDER BY id") == [
        (10, "nan", Decimal("1.50")), (11, "nan", Decimal("2.00")), (12, "2.0", Decimal("30.00")),
        (13, "2.5", Decimal("2.25")),
    ]  # fmt: skip
    done = db.sql("WITH c AS (SELECT 21 AS n) INSERT INTO t (id) VALUES ('20'), ((SELECT n FROM c)) RETURNING id")
    assert done.fetchall() == [(20,), (21,)]
    db.sql("INSERT INTO u (id) SELECT 5 UNION ALL SELECT 6 UNION SELECT 7")
    assert rows(db, "SELECT count(*) FROM u WHERE id BETWEEN 5 AND 7") == [(3,)]
    with pytest.raises(RowError, match="row 2, column 'x': 'bar' is no double"):
        db.sql("INSERT INTO t (id, x) VALUES (30, sqrt(2)), (31, 'bar'), (32, 'baz')")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DELETE FROM t z WHERE z.nope = 1", "z.nope: z has no column 'nope'; there are: id, s, x, d, p"),
        ("DELETE FROM main.t WHERE main.t.nope = 1", "t.nope: t has no column"),
        ("DELETE FROM t y WHERE lower(y.nope) = 'a'", "y.nope: y has no column"),
        ("UPDATE t y SET s = y.nope", "y.nope: y has no column"),
        ("UPDATE t SET s = 'a' WHERE t.nope = 1", "t.nope: t has no column"),
        ("MERGE INTO t USING u AS y ON t.id = y.id WHEN MATCHED THEN UPDATE SET s = y.nope", "there are: id, n"),
        ("MERGE INTO t USING u AS y ON t.id = y.id WHEN MATCHED AND t.nope > 1 THEN DELETE", "t.nope: t has no column"),
        ("INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET s = excluded.nope", "excluded has no column"),
    ],
)
def test_a_column_that_a_table_does_not_have_is_named_with_its_table(db: dolmen.Database, text: str, name: str) -> None:
    with pytest.raises(InputError, match=name):
        db.sql(text)


def test_columns_may_be_named_with_their_schema(db: dolmen.Database) -> None:
    db.sql("UPDATE main.t SET x = main.t.x + 1 WHERE main.t.id = 1; DELETE FROM main.t WHERE main.t.id = 2")
    assert rows(db, "SELECT id, x FROM t ORDER BY id") == [(1, 1.5), (3, 3.0)]
