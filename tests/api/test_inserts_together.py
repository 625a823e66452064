"""Inserts of several threads that become one version: each key is inserted once, and the losers are told."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.commit.loop import Committed, Leader, Member
from dolmen.errors import DuplicateKeyError, Error
from dolmen.transactions.transaction import unit_of
from dolmen.transactions.unit_of_work import UnitOfWork

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string())])


@pytest.fixture
def keyed(db: Database) -> Database:
    db.create_table("t", SCHEMA, primary_key="id").append([{"id": 0, "who": "before"}])
    return db


def wait(transaction: Transaction) -> Member:
    """The change of a transaction, before it joins others."""
    change = unit_of(transaction).end()
    assert change is not None
    return Member(change, unit_of(transaction).uploads, threading.Event())


def insert(db: Database, *ids: int, who: str) -> Member:
    transaction = Transaction(UnitOfWork(db._context, "insert"))
    transaction.table("t").insert([{"id": id_, "who": who} for id_ in ids])
    return wait(transaction)


def commit_together(db: Database, *members: Member) -> list[Committed | Error | None]:
    """Commits changes that have all joined before the first one leads. Returns their outcomes."""
    queue = db._context.head.queue
    for member in members:
        queue.join(member)
    for member in members:
        if member.outcome is None:
            Leader(db._context.head, member).lead()
        queue.leave(member)
    return [member.outcome for member in members]


def rows(db: Database) -> list[dict[str, Any]]:
    return db.table("t").scan().to_arrow().sort_by("id").to_pylist()


def test_of_inserts_that_wait_together_one_has_each_key(keyed: Database) -> None:
    first = [insert(keyed, 1, who="a"), insert(keyed, 1, 2, who="b"), insert(keyed, 2, who="c")]
    won, lost, free = commit_together(keyed, *first)
    assert isinstance(won, Committed)
    assert isinstance(lost, DuplicateKeyError)
    assert isinstance(free, Committed)
    assert rows(keyed) == [{"id": 0, "who": "before"}, {"id": 1, "who": "a"}, {"id": 2, "who": "c"}]


def test_an_insert_sees_what_is_deleted_and_appended_beside_it(keyed: Database) -> None:
    deletes = Transaction(UnitOfWork(keyed._context, "delete"))
    deletes.table("t").delete({"id": 0})
    appends = Transaction(UnitOfWork(keyed._context, "append"))
    appends.table("t").append([{"id": 1, "who": "appended"}])
    members = [wait(deletes), wait(appends)]
    outcomes = commit_together(keyed, *members, insert(keyed, 1, who="late"))
    assert [type(each) for each in outcomes] == [Committed, Committed, DuplicateKeyError]
    assert rows(keyed) == [{"id": 1, "who": "appended"}]
    keyed.table("t").insert([{"id": 0, "who": "again"}])
    assert rows(keyed) == [{"id": 0, "who": "again"}, {"id": 1, "who": "appended"}]


def test_threads_that_insert_the_same_keys_insert_each_once(keyed: Database) -> None:
    won, lost = list[int](), list[int]()

    def work(who: str) -> None:
        for id_ in range(1, 11):
            try:
                keyed.table("t").insert([{"id": id_, "who": who}])
                won.append(id_)
            except DuplicateKeyError:
                lost.append(id_)

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, 11))
    assert len(lost) == 50
    assert [row["id"] for row in rows(keyed)] == list(range(11))
