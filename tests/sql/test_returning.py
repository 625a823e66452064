"""RETURNING gives the rows that a statement has written or removed, as DuckDB's does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import InputError
from dolmen.rows.scan.engines import sql

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
STATEMENTS = 2_000 if os.environ.get("DOLMEN_LONG") else 60
_NUMBERS = count()


@pytest.fixture
def db() -> Iterator[dolmen.Database]:
    with dolmen.open(f"memory://returning-{next(_NUMBERS)}") as opened:
        opened.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, s VARCHAR, n INTEGER DEFAULT 7)")
        opened.sql("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)")
        yield opened


def rows(db: dolmen.Database, text: str) -> list[Any]:
    return sorted(db.sql(text).fetchall())


@pytest.mark.slow
def test_an_insert_returns_the_rows_that_it_inserts_and_updates(db: dolmen.Database) -> None:
    values = "INSERT INTO t (id, s) VALUES (1, 'x'), (4, 'd')"
    assert rows(db, f"{values} ON CONFLICT DO NOTHING RETURNING *") == [(4, "d", 7)]
    assert rows(
        db, f"{values} ON CONFLICT (id) DO UPDATE SET s = t.s || excluded.s RETURNING id, s, n * 2 AS twice"
    ) == [
        (1, "ax", 20),
        (4, "dd", 14),
    ]
    assert rows(db, "INSERT OR IGNORE INTO t (id) VALUES (1), (5) RETURNING id") == [(5,)]
    assert rows(db, "INSERT OR REPLACE INTO t VALUES (1, 'n', NULL) RETURNING *") == [(1, "n", None)]
    assert rows(db, f"{values} ON CONFLICT DO NOTHING RETURNING *") == []
    assert db.sql("SELECT count(*), sum(n) FROM t").fetchall() == [(5, 64)]


@pytest.mark.slow
def test_a_merge_returns_rows_with_what_it_did_to_them(db: dolmen.Database) -> None:
    text = """
        MERGE INTO t USING (VALUES (1, 'x'), (2, NULL), (5, 'e')) s(id, s) USING (id)
        WHEN MATCHED AND s.s IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET s = s.s
        WHEN NOT MATCHED THEN INSERT (id, s) VALUES (s.id, s.s)
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = t.n + 1
        RETURNING {}
    """
    with db.transaction() as tx:
        result = tx.sql(text.format("merge_action, *, t.id + 1 AS next"))
        assert result is not None
        assert result.columns == ["merge_action", "id", "s", "n", "next"]
        assert sorted(result.fetchall()) == [
            ("DELETE", 2, "b", 20, 3),
            ("INSERT", 5, "e", 7, 6),
            ("UPDATE", 1, "x", 10, 2),
            ("UPDATE", 3, "c", 31, 4),
        ]
    assert rows(db, "FROM t") == [(1, "x", 10), (3, "c", 31), (5, "e", 7)]
    assert rows(db, "MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE RETURNING *") == [
        (1, "x", 10)
    ]
    everything = "MERGE INTO t USING (SELECT 3 AS id, 'z' AS s, 1 AS n) s USING (id) WHEN MATCHED THEN UPDATE"
    assert rows(db, f"{everything} WHEN NOT MATCHED THEN INSERT RETURNING merge_action, s") == [("UPDATE", "z")]
    nothing = "MERGE INTO t USING (SELECT 3 AS id) s USING (id) WHEN MATCHED THEN DO NOTHING RETURNING merge_action, *"
    assert rows(db, nothing) == []


def test_a_column_of_the_table_may_have_the_name_of_the_action(db: dolmen.Database) -> None:
    db.sql("CREATE TABLE m (id INTEGER, merge_action VARCHAR)")
    text = "MERGE INTO m USING (SELECT 1 AS id, 'own' AS merge_action) s USING (id) WHEN NOT MATCHED THEN INSERT"
    assert rows(db, f"{text} RETURNING *, merge_action") == [(1, "own", "own")]


def test_a_repeated_request_returns_its_commit(db: dolmen.Database) -> None:
    text = "UPDATE t SET n = n + 1 WHERE id = 1 RETURNING n"
    first = db.sql(text, request="r")
    assert (first.fetchall(), first.commit.already) == ([(11,)], {})
    again = db.sql(text, request="r")
    assert isinstance(again, dolmen.Commit)
    assert again.already == {"r": first.commit.version}
    with db.transaction() as tx:
        assert tx.sql(text, request="r") is None
    assert rows(db, "SELECT n FROM t WHERE id = 1") == [(11,)]


def test_an_error_in_returning_changes_nothing(db: dolmen.Database) -> None:
    before = db.refresh()
    for text in (
        "DELETE FROM t RETURNING error(s)",
        "INSERT INTO t (id) VALUES (1) ON CONFLICT DO UPDATE SET n = 1 RETURNING nope",
        "MERGE INTO t USING (SELECT 1 AS id) s USING (id) WHEN MATCHED THEN DELETE RETURNING merge_action + 1",
        "INSERT INTO t (id) VALUES (9) RETURNING merge_action",
    ):
        with pytest.raises(InputError):
            db.sql(text)
    assert db.refresh() == before


@pytest.mark.slow
def test_rows_that_are_returned_wait_in_a_file_and_not_in_memory(
    db: dolmen.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MOST_KEPT_BYTES", 100_000)
    db.sql("INSERT INTO t SELECT i, 'text ' || i, i FROM range(10, 200000) r(i)")
    at_rest = pa.total_allocated_bytes()
    result = db.sql("UPDATE t SET n = n + (SELECT 1) RETURNING *")
    assert pa.total_allocated_bytes() - at_rest < 2_000_000
    assert sum(batch.num_rows for batch in result.to_reader()) == 199_993
    assert result.to_arrow().num_rows == 199_993, "rows are read more than once"
    changes = db.sql("SELECT count(*), sum(n) FROM dolmen_changes('t', 1, 3)").fetchall()
    assert changes == [(199_993, sum(range(10, 200_000)) + 60)]
    merged = db.sql(
        "MERGE INTO t USING (SELECT id FROM t) s USING (id) WHEN MATCHED THEN DELETE RETURNING merge_action"
    )
    assert db.sql("SELECT count(*) FROM t").fetchall() == [(0,)]
    assert merged.to_arrow().group_by("merge_action").aggregate([([], "count_all")]).to_pylist() == [
        {"merge_action": "DELETE", "count_all": 199_993}
    ]


def random_statement(rng: random.Random) -> str:
    keys = rng.sample(range(30), rng.randint(1, 6))
    values = ", ".join(f"({key}, '{rng.choice('abc')}', {rng.choice(['NULL', rng.randint(0, 9)])})" for key in keys)
    if rng.random() < 0.3:
        then = rng.choice(
            [
                "NOTHING",
                "UPDATE SET s = excluded.s",
                "UPDATE SET n = t.n + excluded.n, s = t.s || excluded.s",
                "UPDATE SET s = 'z' WHERE t.n > 4",
            ]
        )
        return f"INSERT INTO t VALUES {values} ON CONFLICT (id) DO {then} RETURNING *"
    if rng.random() < 0.15:
        return f"DELETE FROM t USING (VALUES {values}) v(id, s, n) WHERE t.id = v.id RETURNING t.id, t.s"
    conditions = ["", " AND s.n > 4", " AND t.n IS NULL", " AND s.s = 'a'"]
    matched = ["DELETE", "UPDATE SET s = s.s", "UPDATE SET n = t.n + s.n", "DO NOTHING"]
    clauses = []
    if rng.random() < 0.8:
        if rng.random() < 0.5:
            clauses.append(f"WHEN MATCHED{rng.choice(conditions[1:])} THEN {rng.choice(matched[:3])}")
        clauses.append(f"WHEN MATCHED{rng.choice(conditions)} THEN {rng.choice(matched)}")
    if rng.random() < 0.7:
        clauses.append(
            f"WHEN NOT MATCHED{rng.choice(['', ' AND s.n > 4'])} THEN INSERT (id, s, n) VALUES (s.id, s.s, s.n)"
        )
    if rng.random() < 0.3 or not clauses:
        then = rng.choice(["DELETE", "UPDATE SET n = 1"])
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND t.id % {rng.randint(2, 5)} = 0 THEN {then}")
    returning = rng.choice(["*", "merge_action, *", "merge_action, t.id, n + 1", "lower(merge_action) AS a, t.*"])
    return f"MERGE INTO t USING (VALUES {values}) s(id, s, n) ON t.id = s.id {' '.join(clauses)} RETURNING {returning}"


@pytest.mark.slow
def test_random_statements_return_what_duckdb_returns(db: dolmen.Database) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng, oracle = random.Random(SEED), duckdb.connect()
    oracle.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s VARCHAR, n INTEGER DEFAULT 7)")
    oracle.execute("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)")
    returned = 0
    for _ in range(STATEMENTS):
        text = random_statement(rng)
        expected = sorted(map(repr, oracle.execute(text).fetchall()))
        result = db.sql(text)
        assert sorted(map(repr, result.fetchall())) == expected, text
        returned += len(expected)
        assert rows_of(db.sql("FROM t").fetchall()) == rows_of(oracle.execute("FROM t").fetchall()), text
    assert returned > STATEMENTS


def rows_of(found: list[Any]) -> list[str]:
    return sorted(map(repr, found))
