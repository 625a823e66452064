"""Transactions, values, many rows and threads of ``dolmen.dbapi``."""

from __future__ import annotations

import itertools
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest

import dolmen
from dolmen import dbapi
from dolmen.dbapi.placeholders import with_dollars

_numbers = itertools.count()
VALUES = {
    "b": ("BOOLEAN", True),
    "i": ("SMALLINT", -7),
    "n": ("BIGINT", -(2**63)),
    "f": ("DOUBLE", 0.1),
    "d": ("DECIMAL(20, 4)", Decimal("-1234567890123456.7890")),
    "t": ("VARCHAR", "it's ? :t $t é\n'"),
    "y": ("BLOB", b"\x00'\\\xff"),
    "da": ("DATE", date(1969, 12, 31)),
    "ti": ("TIME", time(23, 59, 59, 999_999)),
    "ts": ("TIMESTAMP", datetime(2026, 3, 29, 2, 30, 0, 1)),
    "tz": ("TIMESTAMPTZ", datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    "l": ("VARCHAR[]", ["a", None, "'"]),
    "s": ("STRUCT(x INTEGER, y VARCHAR[])", {"x": None, "y": ["z"]}),
    "u": ("VARCHAR", UUID(int=17)),
}


@pytest.fixture
def url() -> str:
    return f"memory://connections-{next(_numbers)}"


@pytest.fixture
def connection(url: str) -> dbapi.SqlConnection:
    connection = dbapi.connect(url)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    connection.cursor().execute(f"CREATE TABLE kinds (id BIGINT, {columns})")
    connection.cursor().execute("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR, born DATE)")
    connection.commit()
    return connection


ROW = tuple(value for _, value in VALUES.values())
READ = (*ROW[:-1], str(UUID(int=17)))


@pytest.mark.slow
def test_values_come_back_as_they_were_given(connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    marks = ", ".join("?" * len(ROW))
    names = ", ".join(f":{name}" for name in VALUES)
    cursor.execute(f"INSERT INTO kinds VALUES (1, {marks})", ROW)
    cursor.execute(f"INSERT INTO kinds VALUES (2, {names})", dict(zip(VALUES, ROW, strict=True)))
    cursor.executemany(f"INSERT INTO kinds VALUES (?, {marks})", [(3, *ROW), (4, *([None] * len(ROW)))])
    cursor.executemany(f"INSERT INTO kinds VALUES (5, {names})", [dict(zip(VALUES, ROW, strict=True))])
    connection.commit()
    rows = cursor.execute("SELECT * FROM kinds ORDER BY id").fetchall()
    assert rows == [(1, *READ), (2, *READ), (3, *READ), (4, *[None] * len(ROW)), (5, *READ)]
    assert cursor.execute("SELECT tz FROM kinds").fetchone()[0].tzinfo is not None  # type: ignore[index]
    for name, value in zip(VALUES, READ, strict=True):
        if not isinstance(value, (list, dict)):
            found = cursor.execute(f"SELECT id, ? IS NULL FROM kinds WHERE {name} = ? ORDER BY id", [None, value])
            assert found.fetchall() == [(1, True), (2, True), (3, True), (5, True)], name
    assert cursor.execute("SELECT ? AS u", [UUID(int=17)]).fetchall() == [(UUID(int=17),)]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("SELECT :a, (:b), l[:a], l[1:b], x::a, ':a', {'k': :a, 'a':b} -- :a", 3),
        ("SELECT :A, :c", 0),
        ("VALUES (:a,:b,$a)", 2),
    ],
)
def test_a_colon_before_a_parameters_name_is_a_parameter(text: str, result: int) -> None:
    written = with_dollars(text, {"a": 1, "b": 2})
    assert written.count("$") - text.count("$") == {3: 4, 0: 0, 2: 2}[result]
    assert written.replace("$", ":") == text.replace("$", ":")
    assert all(kept in written for kept in ("l[1:b]", "x::a", "':a'", "'a':b") if kept in text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO people VALUES (?, upper(?), ?)",
        "INSERT INTO People (ID, name, born) VALUES (? + 0, ?, ?)",
        "insert or replace into main.people as p values (?, ?, ?);",
        "INSERT INTO people VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        "INSERT INTO people BY NAME SELECT ? AS id, ? AS name, ? AS born",
        "INSERT INTO people VALUES ($1, $2, $3)",
        "/* VALUES */ WITH x AS (SELECT 1) INSERT INTO people VALUES (?, ?, ?)",
    ],
)
def test_executemany_does_what_single_calls_do(url: str, statement: str, connection: dbapi.SqlConnection) -> None:
    rows = [(1, "Ada", "1815-12-10"), (2, "Grace", None), (3, None, "1906-12-09"), (2**40, "Linus", None)]
    cursor = connection.cursor()
    for row in rows:
        cursor.execute(statement, row)
    single = cursor.execute("SELECT * FROM people ORDER BY id").fetchall()
    connection.rollback()
    assert cursor.executemany(statement, iter(rows)).rowcount in (4, -1)
    assert cursor.execute("SELECT * FROM people ORDER BY id").fetchall() == single
    assert len(single) == 4


def test_executemany_is_all_or_nothing_and_names_the_row(connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    insert = "INSERT INTO people VALUES (?, ?, ?)"
    cursor.execute(insert, (7, "Ada", None))
    for rows, kind, message in [
        ([(1, "a", None), (2, "b")], dbapi.DataError, "row 2"),
        ([(1, "a", None), 2], dbapi.DataError, "row 2"),
        ([(1, "a", "1815-12-10"), (2, "b", "soon")], dbapi.DataError, "born"),
        ([(1, "a", None), (7, "b", None)], dbapi.IntegrityError, "7"),
        ([(1.5, "a", None)], dbapi.DataError, "id"),
        ([(1, "a", datetime(2026, 1, 1, 5))], dbapi.DataError, "born"),
    ]:
        with pytest.raises(kind, match=message):
            cursor.executemany(insert, rows)  # type: ignore[arg-type]
        assert cursor.execute("SELECT id FROM people").fetchall() == [(7,)]
    with pytest.raises(dbapi.DatabaseError):
        cursor.executemany("UPDATE people SET name = ? WHERE id = ?", [("x", 7), ("y",)])
    assert cursor.execute("SELECT name FROM people").fetchall() == [("Ada",)]
    assert cursor.executemany(insert, []).rowcount == 0


def test_a_conflict_is_operational_and_can_be_repeated(url: str, connection: dbapi.SqlConnection) -> None:
    connection.cursor().execute("INSERT INTO people VALUES (1, 'Ada', NULL)")
    connection.commit()
    first, second = dbapi.connect(url), dbapi.connect(url)
    for each in (first, second):
        [(name,)] = each.cursor().execute("SELECT name FROM people WHERE id = 1").fetchall()
        each.cursor().execute("UPDATE people SET name = ? WHERE id = 1", [name + "!"])
    first.commit()
    with pytest.raises(dbapi.OperationalError) as found:
        second.commit()
    assert found.value.retryable
    assert isinstance(found.value.__cause__, dolmen.errors.ConflictError)
    assert second.cursor().execute("SELECT name FROM people").fetchall() == [("Ada!",)]


def test_with_blocks_commit_or_roll_back(url: str, connection: dbapi.SqlConnection) -> None:
    with connection as same:
        same.cursor().execute("INSERT INTO people (id) VALUES (1)")
    with pytest.raises(dbapi.DataError), connection:
        connection.cursor().execute("INSERT INTO people (id) VALUES (2)").execute("INSERT INTO people VALUES (NULL)")
    assert connection.cursor().execute("SELECT id FROM people").fetchall() == [(1,)]


def test_autocommit_commits_each_statement(url: str, connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    cursor.execute("INSERT INTO people (id) VALUES (1)")
    with pytest.raises(dbapi.ProgrammingError, match="wait for a commit"):
        connection.autocommit = True
    connection.rollback()
    connection.autocommit = True
    before = dolmen.open(url).refresh()
    cursor.execute("INSERT INTO people (id) VALUES (1)")
    cursor.executemany("INSERT INTO people (id) VALUES (?)", [[2], [3]])
    cursor.execute("INSERT INTO people (id) VALUES (4); DELETE FROM people WHERE id = 1")
    connection.rollback()
    assert dolmen.open(url).refresh() == before + 3
    dolmen.open(url).table("people").delete("id = 2")
    assert cursor.execute("SELECT id FROM people ORDER BY id").fetchall() == [(3,), (4,)]


def test_a_transaction_reads_one_version(url: str, connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    assert cursor.execute("SELECT count(*) FROM people").fetchone() == (0,)
    dolmen.open(url).table("people").append([{"id": 1, "name": "Ada", "born": None}])
    assert cursor.execute("SELECT count(*) FROM people").fetchone() == (0,)
    connection.rollback()
    assert cursor.execute("SELECT count(*) FROM people").fetchone() == (1,)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_cursor_goes_on_with_the_rows_that_its_query_saw(connection: dbapi.SqlConnection, end: str) -> None:
    cursor, other = connection.cursor(), connection.cursor()
    rows = 30_000
    cursor.executemany("INSERT INTO people (id) VALUES (?)", ([number] for number in range(rows)))
    cursor.execute("SELECT id FROM people UNION ALL SELECT -id FROM people WHERE id > 0")
    found = cursor.fetchmany(10)
    other.execute("DELETE FROM people WHERE id % 2 = 0; INSERT INTO people (id) VALUES (-1)")
    found += cursor.fetchmany(10)
    other.execute("ALTER TABLE people RENAME TO folk")
    getattr(connection, end)()
    found += cursor.fetchall()
    numbers = [number for (number,) in found]
    assert (len(numbers), len(set(numbers)), min(numbers), max(numbers)) == (2 * rows - 1,) * 2 + (1 - rows, rows - 1)


@pytest.mark.slow
def test_rows_are_fetched_in_bounded_memory(connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    connection.begin().table("people").append(pa.table({"id": range(300_000)}))
    connection.commit()
    cursor.execute("SELECT id, 'name ' || id FROM people")
    cursor.fetchone()
    tracemalloc.start()
    try:
        assert sum(1 for _ in cursor) == 299_999
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_results_come_as_arrow_and_as_frames(connection: dbapi.SqlConnection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO people (id, name) VALUES (?, ?)", [(1, "Ada"), (2, "Grace")])
    query = "SELECT id, name FROM people ORDER BY id"
    assert cursor.execute(query).fetch_arrow_table().to_pydict() == {"id": [1, 2], "name": ["Ada", "Grace"]}
    assert cursor.fetchall() == []
    assert cursor.execute(query).fetch_df()["name"].tolist() == ["Ada", "Grace"]
    cursor.execute(query).fetchone()
    with pytest.raises(dbapi.InterfaceError, match="fetched already"):
        cursor.fetch_arrow_table()
    assert cursor.execute("INSERT INTO people (id) VALUES (3) RETURNING id").fetch_arrow_table().num_rows == 1
    assert "dolmen_scan" in str(cursor.execute("EXPLAIN " + query).fetchall())


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy")
def test_pandas_reads_through_a_connection(connection: dbapi.SqlConnection) -> None:
    rows: list[Any] = [(1, "Ada", date(1815, 12, 10)), (2, "Grace", None)]
    connection.cursor().executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
    frame = pd.read_sql("SELECT * FROM people WHERE id > ? ORDER BY id", connection, params=[0])
    assert frame["name"].tolist() == ["Ada", "Grace"]
    chunks = list(pd.read_sql("SELECT * FROM people ORDER BY id", connection, chunksize=1, index_col="id"))
    assert [chunk.index.tolist() for chunk in chunks] == [[1], [2]]


@pytest.mark.slow
def test_threads_use_connections_of_their_own(url: str, connection: dbapi.SqlConnection) -> None:
    def add(number: int) -> int:
        own = dbapi.connect(url)
        for step in range(5):
            own.cursor().execute("INSERT INTO people VALUES (?, ?, ?)", (10 * number + step, f"n{number}", None))
            own.commit()
        return len(own.cursor().execute("SELECT id FROM people WHERE name = ?", [f"n{number}"]).fetchall())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(add, range(8))) == [5] * 8
    assert connection.cursor().execute("SELECT count(DISTINCT id) FROM people").fetchone() == (40,)


def test_times_of_day_and_zones_are_utc(connection: dbapi.SqlConnection) -> None:
    row = connection.cursor().execute("SELECT TIMESTAMPTZ '2026-07-01 12:00:00+02:00'").fetchone()
    assert row is not None
    assert row[0] == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert row[0].utcoffset() == timedelta(0)
