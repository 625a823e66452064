"""Statements that change tables do what the methods do."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import Error, InputError, SchemaError, TableExistsError, TableNotFoundError


@pytest.fixture
def db(request: pytest.FixtureRequest) -> dolmen.Database:
    return dolmen.open(f"memory://tables-{request.node.name}")


def test_a_table_has_types_defaults_keys_and_settings(db: dolmen.Database) -> None:
    commit = db.sql(
        """CREATE TABLE People (id BIGINT PRIMARY KEY, "a b" VARCHAR DEFAULT 'it''s',
        price DECIMAL(10, 2) NOT NULL DEFAULT -0.5,
        tags VARCHAR[], address STRUCT(zip VARCHAR), b BLOB DEFAULT '\\xFF', note VARCHAR DEFAULT NULL,
        born DATE DEFAULT DATE '2026-01-05')
        WITH (sort_key = 'born, id', target_file_bytes = '64MB')"""
    )
    people = db["people"]
    assert commit.operation == "create_table"
    assert (people.primary_key, people.sort_key) == (("id",), ("born", "id"))
    assert people.settings()["target_file_bytes"] == "64MB"
    assert people.schema.field("tags").type == pa.list_(pa.string())
    assert not people.schema.field("id").nullable
    assert not people.schema.field("price").nullable
    db.sql("INSERT INTO people (id) VALUES (1)")
    [row] = people.to_arrow().to_pylist()
    assert (row["a b"], str(row["price"]), row["b"], str(row["born"])) == ("it's", "-0.50", b"\xff", "2026-01-05")
    db.sql("CREATE TABLE pairs (a INT, b INT, v DOUBLE, PRIMARY KEY (b, A))")
    assert db["pairs"].primary_key == ("b", "a")


def test_a_table_is_made_once_or_replaced(db: dolmen.Database) -> None:
    db.sql("CREATE TABLE t AS SELECT range AS id, 'x' || range AS s FROM range(3)")
    with pytest.raises(TableExistsError):
        db.sql("CREATE TABLE t (id INT)")
    assert db.sql("CREATE TABLE IF NOT EXISTS t (id INT)").operation == "nothing"
    assert db.sql("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS id").operation == "nothing"
    commit = db.sql("CREATE OR REPLACE TABLE t (n, text) AS SELECT id * 2, s FROM t WHERE id > 0")
    assert commit.version == 2
    assert db["t"].to_arrow().to_pylist() == [{"n": 2, "text": "x1"}, {"n": 4, "text": "x2"}]
    db.sql("CREATE OR REPLACE TABLE u AS FROM t; DROP TABLE t; CREATE TABLE t AS SELECT * FROM u")
    assert (db.version, db.tables()) == (3, ["t", "u"])
    db.sql("ALTER TABLE t RENAME TO v; ALTER TABLE u RENAME TO t; ALTER TABLE v RENAME TO u")
    assert db["u"].count() == 2
    db.sql("DROP TABLE IF EXISTS nope; DROP TABLE u CASCADE")
    assert db.tables() == ["t"]
    with pytest.raises(InputError, match="names alone"):
        db.sql("CREATE TABLE typed (a BIGINT) AS SELECT 1")


def test_columns_change(db: dolmen.Database) -> None:
    db.sql(
        "CREATE TABLE t (id INT, s VARCHAR NOT NULL, address STRUCT(zip VARCHAR)); "
        "INSERT INTO t VALUES (1, 'a', {'zip': '1'})"
    )
    for text in (
        "ALTER TABLE t ADD COLUMN n SMALLINT NOT NULL DEFAULT 5",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS n DOUBLE",
        "ALTER TABLE t ADD address.country VARCHAR",
        "ALTER TABLE t RENAME COLUMN address.zip TO code",
        "ALTER TABLE t RENAME s TO text",
        'ALTER TABLE t ADD COLUMN "p.q" INT; ALTER TABLE t DROP COLUMN "p.q"',
        "ALTER TABLE t ALTER n SET DATA TYPE BIGINT",
        "ALTER TABLE t ALTER COLUMN n SET DEFAULT 7",
        "ALTER TABLE t ALTER text DROP NOT NULL",
        "ALTER TABLE t SET SORTED BY (n)",
        "ALTER TABLE t SET (ttl = NULL, target_file_bytes = '64MB')",
        "COMMENT ON COLUMN t.n IS 'a number'",
        "COMMENT ON TABLE t IS 'a table'",
        "ALTER TABLE IF EXISTS nope DROP COLUMN x",
        "ALTER TABLE t DROP COLUMN IF EXISTS nope",
    ):
        db.sql(text)
    db.sql("INSERT INTO t (id) VALUES (2)")
    assert db["t"].to_arrow().to_pylist() == [
        {"id": 1, "text": "a", "address": {"code": "1", "country": None}, "n": 5},
        {"id": 2, "text": None, "address": None, "n": 7},
    ]
    description = db["t"].describe()
    assert (description["comments"], description["sort_key"]) == ({"n": "a number"}, ["n"])
    assert (description["properties"]["comment"], db["t"].settings()["comment"]) == ("a table", "a table")
    db.sql("COMMENT ON TABLE t IS NULL")
    assert db["t"].settings()["comment"] is None
    db.sql("ALTER TABLE t ALTER n DROP DEFAULT; ALTER TABLE t RESET SORTED BY; ALTER TABLE t RESET (target_file_bytes)")
    db.sql("ALTER TABLE t DROP address.code; ALTER TABLE t DROP COLUMN text")
    assert db["t"].schema.names == ["id", "address", "n"]


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("CREATE VIEW v AS SELECT 1", InputError, "no view"),
        ("CREATE INDEX i ON t (n)", InputError, r"set\(index=True\)"),
        ("CREATE SCHEMA s", InputError, "a URL of its own"),
        ("CREATE SEQUENCE s", InputError, r"uuid\(\)"),
        ("CREATE OR REPLACE MACRO m() AS 1", InputError, "no functions of users"),
        ("VACUUM", InputError, r"db\.gc\(\)"),
        ("ANALYZE t", InputError, "statistics come with each write"),
        ("CHECKPOINT", InputError, r"db\.maintain\(\)"),
        ("ATTACH 'f.db'", InputError, r"dolmen\.open\(url\)"),
        ("REPLACE INTO t VALUES (1)", InputError, "INSERT OR REPLACE"),
        ("GRANT SELECT ON t TO u", InputError, "policies of the bucket"),
        ("CREATE TABLE v LIKE t", InputError, "LIMIT 0"),
        ("CREATE TEMP TABLE t AS SELECT 1", InputError, "TABLE is expected"),
        ("CREATE TABLE t (a INT UNIQUE)", InputError, r"UNIQUE \(a\).*primary_key="),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT, UNIQUE (b))", InputError, r"UNIQUE \(b\)"),
        ("CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b), UNIQUE (a))", InputError, r"UNIQUE \(a\)"),
        ("ALTER TABLE u ADD CONSTRAINT one UNIQUE (a)", InputError, r"UNIQUE \(a\)"),
        ("CREATE TABLE t (a)", SchemaError, "'a' has no type"),
        ("CREATE TABLE t (a INT AUTOINCREMENT)", SchemaError, "increment.* from the program"),
        ("CREATE TABLE t (a JSON)", SchemaError, "store it as VARCHAR"),
        ("CREATE TABLE t (a INT REFERENCES u)", InputError, "NOT NULL, DEFAULT"),
        ("CREATE TABLE t (a UUID)", SchemaError, "cannot be stored; store it as VARCHAR"),
        ("CREATE TABLE t (a INTERVAL)", SchemaError, "cannot be stored; there are"),
        ("CREATE TABLE t (a DECIMAL(39, 2))", SchemaError, "38 digits"),
        ("CREATE TABLE t (a DECIMAL(b))", SchemaError, "38 digits"),
        ("CREATE TABLE t (a DECIMAL(9, 2, 1))", SchemaError, "38 digits"),
        ("CREATE TABLE t (a DATE DEFAULT current_date + 1)", InputError, "a value, now"),
        ("CREATE TABLE t (a DATE DEFAULT 'x')", Error, "x"),
        ("CREATE TABLE t (a INT) WITH (nope = 1)", InputError, "nope"),
        ("CREATE TABLE t AS SELECT INTERVAL 1 DAY AS a", SchemaError, "a"),
        ("CREATE TABLE t AS SELECT * FROM read_csv('x.csv')", InputError, "may not be called"),
        ("CREATE TABLE t AS SELECT 1 AS a, 2 AS a", Error, "a"),
        ("CREATE TABLE t (a, b) AS SELECT 1", InputError, "2 names for 1 column"),
        ("ALTER TABLE nope ADD a INT", TableNotFoundError, "nope"),
        ("ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (a)", InputError, "no foreign keys"),
        ("ALTER TABLE u ALTER a SET UNIQUE", InputError, "SET NOT NULL"),
        ("ALTER TABLE u ALTER a TYPE VARCHAR", SchemaError, "a"),
        ("ALTER TABLE u ADD a INT", SchemaError, "twice"),
        ("DROP TABLE nope", TableNotFoundError, "nope"),
        ("DROP VIEW v", InputError, "no view"),
        ("COMMENT ON VIEW u IS 'x'", InputError, "on a table or a column"),
        ("COMMENT ON TABLE u IS '" + 1001 * "x" + "'", InputError, "1,001 characters"),
    ],
)
def test_what_cannot_be_said_is_refused(db: dolmen.Database, text: str, error: type[Error], reason: str) -> None:
    db.sql("CREATE TABLE u (a INT)")
    with pytest.raises(error, match=f"(?i){reason}"):
        db.sql(text)
    assert db.refresh() == 1


def test_what_the_primary_key_makes_unique_may_be_declared_so(db: dolmen.Database) -> None:
    db.sql(
        "CREATE TABLE t (A INT UNIQUE PRIMARY KEY, b INT, CONSTRAINT both UNIQUE (b, a)); ALTER TABLE t ADD UNIQUE (a)"
    )
    assert (db["t"].primary_key, db["t"].checks) == (("A",), {})
    with pytest.raises(Error, match="A"):
        db.sql("INSERT INTO t VALUES (1, 2), (1, 3)")
