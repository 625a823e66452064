"""Pairs in which one process commits several changes together, as its threads do when they wait for the pointer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.commit.head import context_of
from dolmen.commit.loop import Committed, Leader, Member
from dolmen.errors import AppliedIdError, ConflictError, DuplicateKeyError, Error, UnknownOutcomeError
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.doubt import FOR_GOOD, MOMENT
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import (
    RENAMED,
    append,
    batch,
    expected_rows,
    no_result,
    one_table,
    rename,
    replace,
    request_row,
    update,
)

Statements: TypeAlias = Callable[[Transaction], object]


def commit_together(db: Database, *all_statements: Statements) -> list[Commit | Error]:
    """Commits transactions that wait for the pointer at the same time. All are made on the version that is known.

    The threads that would wait are those of the actor, one after the other, as only one thread may run.
    """
    waiting = list[tuple[Transaction, Member | None]]()
    for statements in all_statements:
        transaction = db.transaction()
        unit = unit_of(transaction)
        statements(transaction)
        change = unit.end()
        waiting.append((transaction, Member(change, unit.uploads, threading.Event()) if change else None))
    members, queue = [member for _, member in waiting if member is not None], context_of(db).head.queue
    for member in members:
        queue.join(member)
    try:
        for member in members:
            if member.outcome is None:
                Leader(context_of(db).head, member).lead()
            queue.leave(member)
    finally:
        for member in members:
            queue.leave(member)
    return [_outcome(*each) for each in waiting]


def _outcome(transaction: Transaction, member: Member | None) -> Commit | Error:
    unit = unit_of(transaction)
    if member is None:
        return Commit.nothing(unit.base.as_history())
    if isinstance(member.outcome, Committed):
        return unit.result(member.change, member.outcome)
    assert member.outcome is not None, "it was led"
    return member.outcome


def _raise_first(outcomes: Sequence[Commit | Error]) -> None:
    """Raises the error of the first change that has one. An unknown outcome is that of all."""
    unknown = [isinstance(outcome, UnknownOutcomeError) for outcome in outcomes]
    assert all(unknown) or not any(unknown), f"of one version the changes were told {outcomes}"
    for outcome in outcomes:
        if isinstance(outcome, Error):
            raise outcome


def writes(*rows: Row) -> PairedCall:
    """Deletes rows by position and by predicate, and appends rows before and after, in four changes of one version."""
    first, last = rows

    def effect(model: ExpectedTables) -> None:
        left = [row for row in expected_rows(model) if row[1] != 10]
        model.tables["t"] = [*(row for row in [*left, first] if row[1] < 30), last]

    def task(peer: Peer) -> Any:
        outcomes = commit_together(
            peer.db,
            lambda tx: tx.table("t").delete("v = 10", mode="positions"),
            lambda tx: tx.table("t").append(arrow([first])),
            lambda tx: tx.table("t").delete("v >= 30"),
            lambda tx: tx.table("t").append(arrow([last])),
        )
        _raise_first(outcomes)
        versions = {each.version for each in outcomes if isinstance(each, Commit) and each.commit_id}
        assert len(versions) == 1, f"changes that wait together became versions {versions}"

    return PairedCall(f"four writes with {list(rows)}", task, effect, no_result)


def positions_twice() -> PairedCall:
    """Deletes two rows of one file by position, in two changes; returns how many rows each has deleted."""

    def effect(model: ExpectedTables) -> list[int]:
        rows = expected_rows(model)
        model.tables["t"] = [row for row in rows if row[1] not in (10, 30)]
        return [sum(row[1] == value for row in rows) for value in (10, 30)]

    def task(peer: Peer) -> Any:
        outcomes = commit_together(
            peer.db,
            lambda tx: tx.table("t").delete("v = 10", mode="positions"),
            lambda tx: tx.table("t").delete("v = 30", mode="positions"),
        )
        _raise_first(outcomes)
        return [each.rows for each in outcomes if isinstance(each, Commit)]

    return PairedCall("delete two positions", task, effect)


def read_and_write_twice() -> PairedCall:
    """Adds to the value of a row in two changes that have read the same: the second must be refused."""

    def effect(model: ExpectedTables) -> list[str]:
        old = next(v for k, v, _ in expected_rows(model) if k == 1)
        replace(model, "t", [(1, old + 1, None)])
        return ["Commit", "ConflictError"]

    def add(amount: int) -> Statements:
        def statements(transaction: Transaction) -> None:
            table = transaction.table("t")
            [old] = table.scan(columns=["v"], where={"k": 1}).to_arrow()["v"].to_pylist()
            table.upsert(arrow([(1, old + amount, None)]))

        return statements

    def task(peer: Peer) -> Any:
        outcomes = commit_together(peer.db, add(1), add(2))
        _raise_first(outcomes[:1] if isinstance(outcomes[1], ConflictError) else outcomes)
        return [type(each).__name__ for each in outcomes]

    return PairedCall("add to one row in two changes", task, effect)


def requests(*ids: str) -> PairedCall:
    """Applies requests, each by a change of its own; returns which were applied before."""

    def effect(model: ExpectedTables) -> list[str]:
        statuses = []
        for id_ in ids:
            statuses.append("duplicate" if id_ in model.applied else "applied")
            if id_ not in model.applied:
                model.applied.add(id_)
                expected_rows(model).append(request_row(id_))
        return statuses

    def apply(id_: str) -> Statements:
        def statements(transaction: Transaction) -> None:
            transaction.bind(id_, f"digest of {id_}")
            if not transaction.has_applied(id_):
                transaction.table("t").append(arrow([request_row(id_)]), request=id_)

        return statements

    def task(peer: Peer) -> Any:
        outcomes = commit_together(peer.db, *map(apply, ids))
        assert not any(isinstance(each, AppliedIdError) for each in outcomes)
        _raise_first(outcomes)
        return ["duplicate" if each.already else "applied" for each in outcomes if isinstance(each, Commit)]

    return PairedCall(f"apply {' '.join(ids)} in changes of their own", task, effect)


def insert_twice(row: Row) -> PairedCall:
    """Inserts one key in two changes: the second must be refused, and the first too if the key is there already."""

    def effect(model: ExpectedTables) -> list[str]:
        if row[0] in {there[0] for there in expected_rows(model)}:
            return ["DuplicateKeyError", "DuplicateKeyError"]
        expected_rows(model).append(row)
        return ["Commit", "DuplicateKeyError"]

    def insert(transaction: Transaction) -> None:
        transaction.table("t").insert(arrow([row]))

    def task(peer: Peer) -> Any:
        try:
            outcomes = commit_together(peer.db, insert, insert)
        except DuplicateKeyError:  # the rows are compared once before anything waits
            return ["DuplicateKeyError", "DuplicateKeyError"]
        if not all(isinstance(each, Commit | DuplicateKeyError) for each in outcomes):
            _raise_first([each for each in outcomes if not isinstance(each, DuplicateKeyError)])
        return [type(each).__name__ for each in outcomes]

    return PairedCall(f"insert {row} in two changes", task, effect)


FIRST_ROWS: tuple[Row, ...] = ((4, 40, None), (5, 50, None))
OTHER_ROWS: tuple[Row, ...] = ((6, 60, None), (7, 70, None))

GROUPS: tuple[Pair, ...] = (
    Pair("group/append", one_table, (writes(*FIRST_ROWS), append((8, 80, None)))),
    Pair("group/group", one_table, (writes(*FIRST_ROWS), writes(*OTHER_ROWS)), quick=(0,)),
    Pair(
        "group in an outage/append",
        one_table,
        (requests("a", "b"), append((8, 80, None))),
        quick=(0,),
        events=True,
        outages=(MOMENT, FOR_GOOD),
    ),
    Pair("group/update", one_table, (writes(*FIRST_ROWS), update(20, 21))),
    Pair("group/rename", one_table, (altered(writes(*FIRST_ROWS), allowed_errors=RENAMED), rename("u"))),
    Pair("group of positions/update", one_table, (positions_twice(), update(20, 21))),
    Pair("group of reads/append", one_table, (read_and_write_twice(), append((4, 40, None)))),
    Pair("group of inserts/append", one_table, (insert_twice((4, 40, None)), append((4, 41, None)))),
    Pair("group of inserts/group of inserts", one_table, (insert_twice((4, 40, None)), insert_twice((4, 41, None)))),
    Pair("group of requests/redelivery", one_table, (requests("a", "b", "a"), batch("a", "b")), events=True),
    Pair("group of requests/group of requests", one_table, (requests("a", "b", "a"), requests("b", "c")), events=True),
)
