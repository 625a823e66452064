"""The rules of PEP 249, one by one: https://peps.python.org/pep-0249/."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

import dolmen
from dolmen import dbapi, errors
from dolmen.dbapi import SqlConnection, SqlCursor

_numbers = itertools.count()
CREATE = "CREATE TABLE drinks (id BIGINT, name VARCHAR, price DECIMAL(8, 2))"
NAMES = ["ale", "cider", "mead", "porter", "stout"]


@pytest.fixture
def url() -> str:
    return f"memory://dbapi-{next(_numbers)}"


@pytest.fixture
def connection(url: str) -> Iterator[SqlConnection]:
    connection = dbapi.connect(url)
    yield connection
    connection.close()


@pytest.fixture
def cursor(connection: SqlConnection) -> SqlCursor:
    cursor = connection.cursor()
    cursor.execute(CREATE)
    cursor.executemany("INSERT INTO drinks (id, name) VALUES (?, ?)", list(enumerate(NAMES)))
    connection.commit()
    return cursor


def count(url: str) -> int:
    return dolmen.open(url).table("drinks").count()


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "qmark")
    assert callable(dbapi.connect)
    assert dolmen.dbapi is dbapi


def test_the_exceptions_are_the_tree_of_the_standard() -> None:
    assert issubclass(dbapi.Warning, Exception)
    assert not issubclass(dbapi.Warning, dbapi.Error)
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    assert issubclass(dbapi.DatabaseError, dbapi.Error)
    names = ["Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"]
    for name in [f"{name}Error" for name in names]:
        assert issubclass(getattr(dbapi, name), dbapi.DatabaseError)
        assert getattr(SqlConnection, name) is getattr(dbapi, name)
    for name in ("Warning", "Error", "InterfaceError", "DatabaseError"):
        assert getattr(SqlConnection, name) is getattr(dbapi, name)


def test_constructors_make_values() -> None:
    ticks = time.mktime((2002, 12, 25, 13, 45, 30, 0, 0, 0)) - time.timezone
    assert dbapi.DateFromTicks(ticks) == dbapi.Date(2002, 12, 25)
    assert dbapi.TimeFromTicks(45.0) == dbapi.Time(0, 0, 45)
    assert dbapi.TimestampFromTicks(86_400.0) == dbapi.Timestamp(1970, 1, 2, 0, 0, 0)
    assert dbapi.Binary(b"a\0b") == b"a\0b"


def test_a_closed_connection_refuses_calls_and_drops_changes(
    url: str, connection: SqlConnection, cursor: SqlCursor
) -> None:
    cursor.execute("INSERT INTO drinks (id) VALUES (9)")
    connection.close()
    connection.close()
    for call in (connection.commit, connection.rollback, connection.cursor, cursor.fetchall):
        with pytest.raises(dbapi.ProgrammingError, match="closed"):
            call()
    with pytest.raises(dbapi.ProgrammingError, match="closed"):
        cursor.execute("SELECT 1")
    assert count(url) == len(NAMES)


def test_a_closed_cursor_refuses_calls_and_others_go_on(connection: SqlConnection, cursor: SqlCursor) -> None:
    other = connection.cursor()
    with cursor:
        cursor.execute("SELECT 1")
    for call in (cursor.fetchone, cursor.fetchmany, cursor.fetchall, cursor.fetch_arrow_table):
        with pytest.raises(dbapi.ProgrammingError, match="cursor is closed"):
            call()
    with pytest.raises(dbapi.ProgrammingError, match="cursor is closed"):
        cursor.execute("SELECT 1")
    assert other.execute("SELECT 1").fetchall() == [(1,)]


def test_cursors_of_a_connection_see_changes_of_each_other(
    url: str, connection: SqlConnection, cursor: SqlCursor
) -> None:
    cursor.execute("INSERT INTO drinks (id) VALUES (9)")
    assert connection.cursor().execute("SELECT count(*) FROM drinks").fetchone() == (6,)
    assert count(url) == 5
    connection.rollback()
    assert cursor.execute("SELECT count(*) FROM drinks").fetchone() == (5,)
    cursor.execute("INSERT INTO drinks (id) VALUES (9)")
    connection.commit()
    assert count(url) == 6
    connection.commit()
    assert dolmen.open(url).refresh() == 2


def test_description_has_seven_items_for_each_column(cursor: SqlCursor) -> None:
    assert cursor.description is None
    cursor.execute("SELECT id, name, price, DATE '2026-01-05' AS day, 'x'::BLOB AS body FROM drinks")
    assert cursor.description is not None
    assert [len(column) for column in cursor.description] == [7] * 5
    assert [column[0] for column in cursor.description] == ["id", "name", "price", "day", "body"]
    codes: list[Any] = [column[1] for column in cursor.description]
    assert codes == [dbapi.NUMBER, dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY]
    assert [code == dbapi.STRING for code in codes] == [False, True, False, False, False]
    assert cursor.description[2][4:6] == (8, 2)
    cursor.execute("DELETE FROM drinks WHERE id = 1")
    assert cursor.description is None


@pytest.mark.parametrize("autocommit", [False, True])
def test_rowcount_is_the_number_of_changed_rows_where_it_is_known(
    connection: SqlConnection, cursor: SqlCursor, autocommit: bool
) -> None:
    connection.autocommit = autocommit
    counts = {
        "CREATE TABLE more (id BIGINT)": -1,
        "SELECT * FROM drinks": -1,
        "INSERT INTO drinks (id) VALUES (7), (8)": 2,
        "UPDATE drinks SET price = 2 WHERE id < 3": 3,
        "UPDATE drinks SET price = 2 WHERE id = 100": 0,
        "DELETE FROM drinks WHERE length(reverse(name)) = 4": 1,
        "INSERT INTO drinks (id) VALUES (10) RETURNING id": 1,
        "DELETE FROM drinks WHERE id = 7": -1,
        "DROP TABLE more": -1,
    }
    assert {text: cursor.execute(text).rowcount for text in counts} == counts
    assert cursor.executemany("INSERT INTO drinks (id) VALUES (?)", [[20], [21], [22]]).rowcount == 3
    assert cursor.executemany("UPDATE drinks SET name = ? WHERE id = ?", [["a", 20], ["b", 21]]).rowcount == 2


def test_rows_are_fetched_in_turn(cursor: SqlCursor) -> None:
    cursor.execute("SELECT name FROM drinks ORDER BY name")
    assert cursor.fetchone() == ("ale",)
    assert cursor.fetchmany() == [("cider",)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [("mead",), ("porter",)]
    assert cursor.fetchmany(10) == [("stout",)]
    assert (cursor.fetchmany(10), cursor.fetchall(), cursor.fetchone()) == ([], [], None)
    assert cursor.execute("SELECT name FROM drinks WHERE id < 0").fetchone() is None
    assert [name for (name,) in cursor.execute("SELECT name FROM drinks ORDER BY name")] == NAMES
    with pytest.raises(dbapi.ProgrammingError, match="size"):
        cursor.fetchmany(-1)


@pytest.mark.parametrize("fetch", ["fetchone", "fetchmany", "fetchall", "fetch_arrow_table", "fetch_df"])
def test_a_statement_without_rows_has_none_to_fetch(cursor: SqlCursor, fetch: str) -> None:
    for prepare in (lambda: None, lambda: cursor.execute("DELETE FROM drinks")):
        prepare()
        with pytest.raises(dbapi.ProgrammingError, match="no rows to fetch"):
            getattr(cursor, fetch)()


def test_sizes_are_accepted_and_rows_have_no_ids(cursor: SqlCursor) -> None:
    cursor.setinputsizes([dbapi.NUMBER, 25])
    cursor.setoutputsize(1_000)
    cursor.setoutputsize(2_000, 0)
    assert cursor.lastrowid is None


@pytest.mark.parametrize(
    ("statement", "parameters", "raised", "cause"),
    [
        ("SELECT * FROM beers", None, dbapi.ProgrammingError, errors.TableNotFoundError),
        ("SELEC 1", None, dbapi.ProgrammingError, errors.InputError),
        ("SELECT ?, ?", [1], dbapi.ProgrammingError, errors.InputError),
        ("INSERT INTO keyed (id) VALUES (?)", [1], dbapi.IntegrityError, errors.DuplicateKeyError),
        ("INSERT INTO keyed (id) VALUES (NULL)", None, dbapi.IntegrityError, errors.ConstraintError),
        ("INSERT INTO keyed (id) VALUES (?)", [None], dbapi.IntegrityError, errors.ConstraintError),
        ("INSERT INTO keyed (id) SELECT NULL::BIGINT", None, dbapi.IntegrityError, errors.ConstraintError),
        ("INSERT INTO keyed (id) VALUES (-5)", None, dbapi.IntegrityError, errors.ConstraintError),
        ("UPDATE keyed SET n = NULL", None, dbapi.IntegrityError, errors.ConstraintError),
        ("UPDATE keyed SET n = NULLIF(n, n)", None, dbapi.IntegrityError, errors.ConstraintError),
        ("UPDATE keyed SET n = -n", None, dbapi.IntegrityError, errors.ConstraintError),
        (
            "MERGE INTO keyed t USING (SELECT 2 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (-2, 1)",
            None,
            dbapi.IntegrityError,
            errors.ConstraintError,
        ),
        ("INSERT INTO drinks (id) VALUES (?)", [1.5], dbapi.DataError, errors.Error),
        ("INSERT INTO drinks (nothing) VALUES (?)", [1.5], dbapi.DataError, errors.SchemaError),
        ("SELECT * FROM drinks AT (VERSION => 99)", None, dbapi.ProgrammingError, errors.VersionNotFoundError),
    ],
)
def test_errors_are_those_of_the_standard_with_dolmens_as_their_cause(
    cursor: SqlCursor, statement: str, parameters: Any, raised: type[Exception], cause: type[Exception]
) -> None:
    cursor.execute("CREATE TABLE keyed (id BIGINT PRIMARY KEY CHECK (id > 0), n INT NOT NULL DEFAULT 1 CHECK (n > 0))")
    cursor.execute("INSERT INTO keyed (id) VALUES (1)")
    with pytest.raises(dbapi.DatabaseError) as found:
        cursor.execute(statement, parameters)
    assert type(found.value) is raised
    assert isinstance(found.value.__cause__, cause)
    assert not found.value.retryable
    assert cursor.execute("SELECT count(*) FROM keyed").fetchone() == (1,)  # the transaction goes on without it


def test_an_error_while_rows_are_read_is_one_of_the_standard(cursor: SqlCursor) -> None:
    cursor.execute("SELECT CAST(name AS INTEGER) FROM drinks")
    with pytest.raises(dbapi.ProgrammingError, match="ale"):
        cursor.fetchall()


def test_each_error_of_dolmen_has_a_class() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Error)]
    raised = {}
    for kind in kinds:
        error = kind.__new__(kind)
        with pytest.raises(dbapi.DatabaseError) as found, dbapi.standard.raising_database_errors():
            raise error
        raised[kind] = found.value
    retryable = {kind for kind, error in raised.items() if error.retryable}
    assert retryable == {kind for kind in kinds if issubclass(kind, errors.RetryableError)} | {
        errors.VersionExpiredError
    }
    assert all(isinstance(raised[kind], dbapi.OperationalError) for kind in retryable)


def test_a_wrong_url_or_option_is_an_error_of_the_standard() -> None:
    with pytest.raises(dbapi.ProgrammingError, match="autocommit"):
        dbapi.connect("memory://x", autocommit="yes")  # type: ignore[arg-type]
    with pytest.raises(dbapi.Error):
        dbapi.connect("s3://")


def test_a_connection_runs_statements_as_those_of_sqlite3_do(connection: SqlConnection, cursor: SqlCursor) -> None:
    found = connection.execute("SELECT name FROM drinks WHERE id < :most ORDER BY id", {"most": 2})
    assert (found.connection, [row for (row,) in found]) == (connection, NAMES[:2])
