"""Statements that run beside each other lose nothing, and each reads what still holds when it is committed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dolmen
from dolmen.errors import ConflictError


@pytest.mark.slow
def test_concurrent_statements_are_serializable(tmp_path: Path) -> None:
    url = str(tmp_path / "db")
    dolmen.open(url).sql("CREATE TABLE t (id INT, n INT); INSERT INTO t VALUES (1, 0), (2, 0)")

    def work(worker: int) -> None:
        db = dolmen.open(url)
        for _ in range(4):
            db.sql("UPDATE t SET n = n + (SELECT count(*) FROM t WHERE id = 1)::INT WHERE id = 1")
            db.sql("UPDATE t SET n = t.n + s.one FROM (SELECT 1 AS one) s WHERE t.id = 2")
            db.sql("INSERT INTO t SELECT max(id) + 1, 0 FROM t")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert dolmen.open(url).sql("SELECT id, n FROM t ORDER BY id").fetchall() == [
        (1, 16), (2, 16), *((id_, 0) for id_ in range(3, 19)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t WHERE n = (SELECT max(n) FROM t)",
        "UPDATE t SET n = 7 WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
        "INSERT INTO u SELECT id FROM t",
        "CREATE TABLE v AS SELECT count(*) AS n FROM t",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE",
    ],
)
def test_a_transaction_whose_reads_no_longer_hold_conflicts(text: str) -> None:
    db = dolmen.open(f"memory://conflict-{hash(text)}")
    db.sql("CREATE TABLE t (id INT, n INT); CREATE TABLE u (id INT)")
    db.sql("INSERT INTO t VALUES (1, 1), (2, 2); INSERT INTO u VALUES (1)")
    tx = db.transaction()
    tx.sql(text)
    db.sql("INSERT INTO t VALUES (3, 3); INSERT INTO u VALUES (3)")
    with pytest.raises(ConflictError):
        tx.commit()


def test_statements_that_read_nothing_do_not_conflict() -> None:
    db = dolmen.open("memory://no-conflict")
    db.sql("CREATE TABLE t (id INT, n INT)")
    tx = db.transaction()
    tx.sql("INSERT INTO t VALUES (1, 1); DELETE FROM t WHERE n > 5")
    db.sql("INSERT INTO t VALUES (3, 3)")
    tx.commit()
    assert db["t"].count() == 2
