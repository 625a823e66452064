"""Random statements leave the rows that DuckDB's own tables have after the same statements."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import duckdb
import pytest

import dolmen
from dolmen.errors import Error

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
STATEMENTS = 3_000 if os.environ.get("DOLMEN_LONG") else 60
TABLES = ("CREATE TABLE t (id BIGINT, s VARCHAR, n INTEGER, d DATE)", "CREATE TABLE u (id BIGINT, m INTEGER)")


def statement(rng: random.Random) -> str:
    """A statement whose result does not depend on the order of rows."""

    def number() -> int:
        return rng.randrange(9)

    condition = rng.choice(
        [
            f"id = {number()}",
            f"t.id IN (SELECT id FROM u WHERE m > {number()})",
            f"NOT EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND m <= {number()})",
            f"id NOT IN (SELECT id FROM u WHERE m = {number()})",
            "n IS NULL OR s IS DISTINCT FROM 'a'",
            f"n > (SELECT avg(m) FROM u) AND length(s) <= {number()}",
            "id % 2 = 1 AND s ILIKE '%A%'",
            f"(id, n) IN (({number()}, {number()}), (1, NULL))",
            f"coalesce(n, 0) BETWEEN {number()} AND 7",
            "CASE WHEN d IS NULL THEN id > 3 ELSE d < '2026-01-06' END",
            f"id = ANY(SELECT max(id) FROM t GROUP BY s) OR n = {number()}",
            "NULL",
        ]
    )
    value = rng.choice(
        [
            f"n = n + {number()}, s = s || 'z'",
            "n = (SELECT max(m) FROM u WHERE u.id = t.id)",
            "s = CASE WHEN id > 4 THEN NULL ELSE upper(s) END, d = DATE '2026-01-05' + 1",
            "n = id::INTEGER, d = NULL",
            "d = '2026-02-03', s = 'it''s; --'",
            "s = (SELECT string_agg(s, ',' ORDER BY s) FROM t)",
        ]
    )
    rows = ", ".join(f"({number()}, {rng.choice(['NULL', str(number())])})" for _ in range(rng.randrange(1, 5)))
    one = "(SELECT id, max(m) AS m FROM u GROUP BY id)"
    return rng.choice(
        [
            f"INSERT INTO t (n, id, s) SELECT m, id + {number()}, 'a' FROM u WHERE m > {number()}",
            f"INSERT INTO t SELECT id + 1, s, n, d FROM t WHERE {condition} AND id < 6 "
            "AND (SELECT count(*) FROM t) < 200",
            f"INSERT INTO t BY NAME SELECT id, '{number()}' AS s, '2026-01-0{number() + 1}' AS d FROM u WHERE m = 1",
            f"INSERT INTO u VALUES {rows}",
            f"DELETE FROM t WHERE {condition}",
            f"DELETE FROM u WHERE m = {number()} OR id IS NULL",
            f"DELETE FROM t USING u AS o WHERE o.id = t.id AND o.m = {number()}",
            f"UPDATE t SET {value} WHERE {condition}",
            f"UPDATE t AS x SET n = q.m FROM {one} q WHERE q.id = x.id AND q.m <> {number()}",
            f"WITH c AS (SELECT {number()} AS k) UPDATE t SET s = 'c' WHERE id IN (SELECT k FROM c)",
            f"WITH c AS (SELECT id FROM u) DELETE FROM t WHERE n = {number()} AND id IN (FROM c)",
            f"MERGE INTO t USING {one} q ON t.id = q.id WHEN MATCHED AND q.m > {number()} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET n = q.m, s = 'm' WHEN NOT MATCHED THEN INSERT (id, n) VALUES (q.id, q.m)",
            f"MERGE INTO t USING {one} q ON (q.id = t.id) WHEN NOT MATCHED BY SOURCE AND t.id > {number()} THEN DELETE",
            f"DELETE FROM t WHERE id = {number()}; INSERT INTO t (id) VALUES ({number()}); "
            "UPDATE u SET m = m + 1 WHERE m < 8",
            "UPDATE t SET n = n * 1000000000 WHERE id = 3",
            f"INSERT INTO u SELECT {number()}, CAST('x' AS INTEGER)",
        ]
    )


def rows(source: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(source.sql(f"FROM {table}").fetchall(), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(2))
def test_statements_leave_the_rows_that_duckdb_has(shard: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}, shard {shard}")
    rng = random.Random(1 if shard == 0 else SEED)
    db, oracle = dolmen.open(f"memory://as-duckdb-{SEED}-{shard}"), duckdb.connect()
    for text in TABLES:
        db.sql(text)
        oracle.execute(text)
    seen = Counter[str]()
    for index in range(STATEMENTS // 2):
        text = statement(rng)
        failures = []
        oracle.execute("BEGIN")
        try:
            oracle.execute(text)
            oracle.execute("COMMIT")
        except duckdb.Error as error:
            oracle.execute("ROLLBACK")
            failures.append(str(error))
        try:
            db.sql(text)
        except Error as error:
            failures.append(str(error))
        assert len(failures) != 1, (SEED, index, text, failures)
        for table in ("t", "u"):
            assert rows(db, table) == rows(oracle, table), (SEED, index, text)
        seen["refused" if failures else text.split()[0]] += 1
    print(dict(seen))
    assert shard or min(seen[kind] for kind in ("DELETE", "UPDATE", "INSERT", "MERGE")) > 0
