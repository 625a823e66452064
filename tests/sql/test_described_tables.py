"""What SQL says about tables: keys, NOT NULL, checks, defaults and comments."""

from __future__ import annotations

import duckdb
import pytest

import dolmen
from dolmen.errors import InputError

MADE = """
CREATE TABLE t (
    id BIGINT, "b c" VARCHAR NOT NULL DEFAULT 'x''y', d DECIMAL(10, 2) DEFAULT 1.50 CHECK (d > 0),
    at TIMESTAMPTZ DEFAULT now(), s STRUCT(a INTEGER, "q r" STRUCT(z VARCHAR)), day DATE DEFAULT current_date,
    f DOUBLE DEFAULT 2.5, o BOOLEAN DEFAULT true, u VARCHAR DEFAULT uuid(), n SMALLINT DEFAULT -5,
    PRIMARY KEY (id, "b c"),
    CHECK (s.a IS NULL OR s."q r".z <> 's.a' AND "b c" LIKE 'it''s.b%')
)"""  # fmt: skip


@pytest.fixture
def db(request: pytest.FixtureRequest) -> dolmen.Database:
    found = dolmen.open(f"memory://described-{request.node.name}")
    found.sql(MADE)
    found.sql("COMMENT ON TABLE t IS 'it''s t'; COMMENT ON COLUMN t.d IS 'a price'")
    found.sql("CREATE TABLE plain (a INT)")
    return found


def ask(db: dolmen.Database, query: str) -> list[tuple[object, ...]]:
    return db.sql(query).fetchall()  # type: ignore[no-any-return]


def test_columns_show_null_keys_and_defaults(db: dolmen.Database) -> None:
    shown = [
        ("id", "NO", "PRI", None), ("b c", "NO", "PRI", "'x''y'"), ("d", "YES", None, "1.50"),
        ("at", "YES", None, "now()"), ("s", "YES", None, None), ("day", "YES", None, "now()"),
        ("f", "YES", None, "2.5"), ("o", "YES", None, "true"), ("u", "YES", None, "uuid()"),
        ("n", "YES", None, "-5"),
    ]  # fmt: skip
    for query in ("DESCRIBE t", "DESC t", "SHOW t", "FROM (DESCRIBE t)", "DESCRIBE FROM t"):
        assert [(row[0], *row[2:5]) for row in ask(db, query)] == shown
    columns = "SELECT column_name, is_nullable, column_default FROM information_schema.columns WHERE table_name = 't'"
    assert ask(db, columns) == [(name, null, default) for name, null, _, default in shown]
    for query in ("FROM pragma_table_info('t')", "PRAGMA table_info('t')", " pragma Table_Info (t);"):
        assert [(row[1], row[3], row[4], row[5]) for row in ask(db, query)] == [
            (name, null == "NO", default, key == "PRI") for name, null, key, default in shown
        ]
    assert [row[2:] for row in ask(db, "DESCRIBE plain")] == [("YES", None, None, None)]


def test_constraints_and_comments_are_listed(db: dolmen.Database) -> None:
    found = ask(
        db, "SELECT constraint_type, constraint_column_names, expression FROM duckdb_constraints() ORDER BY ALL"
    )
    assert [row[:2] for row in found] == [
        ("CHECK", ["d"]), ("CHECK", ["s", "s", "b c"]), ("NOT NULL", ["b c"]), ("NOT NULL", ["id"]),
        ("PRIMARY KEY", ["id", "b c"]),
    ]  # fmt: skip
    assert found[0][2] == "(d > 0.00)"
    kinds = ask(db, "SELECT DISTINCT constraint_type FROM information_schema.table_constraints")
    assert {("CHECK",), ("PRIMARY KEY",)} <= set(kinds)
    keys = "SELECT column_name FROM information_schema.key_column_usage WHERE constraint_name LIKE '%pkey' ORDER BY 1"
    assert ask(db, keys) == [("b c",), ("id",)]
    assert ask(db, "SELECT table_name, table_type, TABLE_COMMENT FROM information_schema.tables ORDER BY 1") == [
        ("plain", "BASE TABLE", None), ("t", "BASE TABLE", "it's t")
    ]  # fmt: skip
    assert ask(db, "SELECT comment FROM duckdb_columns() WHERE table_name = 't' AND column_name = 'd'") == [
        ("a price",)
    ]


def test_the_statement_that_is_shown_makes_the_same_table(db: dolmen.Database) -> None:
    [(statement,)] = ask(db, "SELECT sql FROM duckdb_tables() WHERE table_name = 't'")
    with duckdb.connect() as other:
        other.execute(str(statement))
        assert other.execute("DESCRIBE t").fetchall() == ask(db, "DESCRIBE t")


def test_each_version_and_transaction_is_described(db: dolmen.Database) -> None:
    before = db.version
    db.sql("ALTER TABLE t ALTER d SET NOT NULL; ALTER TABLE t ALTER d DROP DEFAULT")
    assert ask(db, "DESCRIBE t")[2][2:5] == ("NO", None, None)
    assert ask(db, f"DESCRIBE t AT (VERSION => {before})")[2][2:5] == ("YES", None, "1.50")
    assert db.at(before).sql("DESCRIBE t").fetchall()[2][2:5] == ("YES", None, "1.50")
    with db.transaction() as tx:
        tx.sql("CREATE TABLE mine (i INT PRIMARY KEY)")
        assert tx.sql("DESCRIBE mine").fetchall() == [("i", "INTEGER", "NO", "PRI", None, None)]


def test_a_query_does_not_ask_about_tables_and_read_their_rows(db: dolmen.Database) -> None:
    db.sql("INSERT INTO plain VALUES (1)")
    for query in ("SELECT a FROM plain, information_schema.columns", "FROM query_table('plain'), duckdb_tables()"):
        with pytest.raises(InputError, match="can't read their rows as well"):
            db.sql(query)
    assert ask(db, "SELECT pg_typeof(a), 'information_schema', show_ FROM (SELECT a, 2 AS show_ FROM plain)") == [
        ("integer", "information_schema", 2)
    ]
    assert ask(db, "SELECT min, max FROM (SUMMARIZE plain)") == [("1", "1")]
