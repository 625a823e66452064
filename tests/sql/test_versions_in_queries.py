"""Several versions of tables in one query, and tables that show a database's own parts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import Error, InputError, TableNotFoundError, TagNotFoundError, VersionNotFoundError


@pytest.fixture
def db(request: pytest.FixtureRequest) -> dolmen.Database:
    found = dolmen.open(f"memory://versions-{request.node.name}")
    found.sql("CREATE TABLE t (id INT, s VARCHAR)")
    found.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    found.tag("x")
    found.sql("DELETE FROM t WHERE id = 1")
    return found


def rows(db: Any, query: str, *parameters: Any) -> Any:
    return db.sql(query, *parameters).fetchall()


@pytest.mark.slow
def test_a_query_reads_several_versions(db: dolmen.Database) -> None:
    assert rows(db, "SELECT count(*) FROM t AT (VERSION => 2)") == [(2,)]
    query = "SELECT old.id, t.id FROM t AT (TAG => ?) AS old LEFT JOIN t ON old.id = t.id ORDER BY 1"
    assert rows(db, query, ["x"]) == [(1, None), (2, 2)]
    assert rows(db, "SELECT t.s FROM main.T at (version => 1 + 1) WHERE t.id = 1") == [("a",)]
    assert rows(
        db, "SELECT count(*) FROM t AT (TIMESTAMP => now() - INTERVAL 0 DAY), t AT (VERSION => $n) o", {"n": 2}
    ) == [(2,)]
    assert rows(db, "SELECT t.at, 'FROM t AT (VERSION => 1)' FROM (SELECT 1 AS at) t") == [
        (1, "FROM t AT (VERSION => 1)")
    ]
    assert rows(db.at(1), "SELECT count(*), (SELECT count(*) FROM t AT (VERSION => 2)) FROM t") == [(0, 2)]
    db.sql(
        "INSERT INTO t SELECT id + 10, s FROM t AT (VERSION => 2); "
        "DELETE FROM t WHERE id IN (SELECT id FROM t AT (TAG => 'x'))"
    )
    assert rows(db, "SELECT id FROM t ORDER BY id") == [(11,), (12,)]
    with db.transaction() as tx:
        tx.sql("DELETE FROM t")
        assert rows(tx, "SELECT (SELECT count(*) FROM t), count(*) FROM t AT (VERSION => 2)") == [(0, 2)]


@pytest.mark.slow
def test_a_database_shows_its_parts(db: dolmen.Database) -> None:
    assert rows(db, "SELECT sum(rows), sum(deleted_rows), count(path) FROM dolmen_files('T')") == [(2, 0, 1)]
    assert rows(db, "SELECT rows FROM dolmen_deletes('t')") == [("id = 1",)]
    assert rows(db, "SELECT version, operation, did FROM dolmen_versions() v WHERE v.version <> 3 ORDER BY ALL") == [
        (1, "create_table", "create t"), (2, "append", "append t"), (4, "delete", "delete t(id)"),
    ]  # fmt: skip
    assert rows(db, "SELECT name, version FROM dolmen_tags()") == [("x", 2)]
    assert rows(db, "SELECT id, _change FROM dolmen_changes('t', 2)") == [(1, "delete")]
    assert rows(db, "SELECT count(*) FROM dolmen_changes('t', ?, ?)", [0, 2]) == [(2,)]
    assert rows(db, "SELECT table_name FROM information_schema.tables") == [("t",)]
    assert rows(db, "SELECT column_name, data_type FROM information_schema.columns") == [
        ("id", "INTEGER"),
        ("s", "VARCHAR"),
    ]
    assert rows(db.at(2), "SELECT count(*) FROM dolmen_versions()") == [(2,)]
    assert rows(db.at(2), "SELECT count(*) FROM dolmen_deletes('t')") == [(0,)]
    with db.transaction() as tx:
        tx.sql("INSERT INTO t VALUES (7, 'c')")
        assert rows(tx, "SELECT count(*) FROM dolmen_files('t')") == [(2,)]
    assert db["t"].files().equals(db.sql("FROM dolmen_files('t')").to_arrow().cast(db["t"].files().schema))
    assert db["t"].history()["version"].to_pylist() == [5, 4, 2, 1]
    assert db.at(2).table("t").history()["operation"].to_pylist() == ["append", "create_table"]
    assert db["t"].history().schema.field("created_at").type == pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("FROM t AT (VERSION => 99)", VersionNotFoundError, "99"),
        ("FROM t AT (VERSION => 'x')", InputError, "not a version"),
        ("FROM t AT (TAG => 'nope')", TagNotFoundError, "nope"),
        ("FROM t AT (TIMESTAMP => 'x')", InputError, "x"),
        ("FROM t AT (TIMESTAMP => '2001-01-01')", VersionNotFoundError, "did not exist"),
        ("FROM nope AT (VERSION => 2)", TableNotFoundError, "nope"),
        ("FROM t AT (VERSION => (SELECT 1 FROM read_csv('x')))", InputError, "may not be called"),
        ("FROM dolmen_files('nope')", TableNotFoundError, "nope"),
        ("FROM dolmen_files()", InputError, "takes 1 arguments"),
        ("FROM dolmen_files(3)", InputError, "text"),
        ("DELETE FROM t AT (VERSION => 1)", InputError, "can't be changed"),
        ("INSERT INTO dolmen_tags() VALUES (1)", InputError, "can't be changed"),
    ],
)
def test_what_cannot_be_shown_is_refused(db: dolmen.Database, text: str, error: type[Error], reason: str) -> None:
    with pytest.raises(error, match=reason):
        db.sql(text).fetchall()
    assert db.refresh() == 4
