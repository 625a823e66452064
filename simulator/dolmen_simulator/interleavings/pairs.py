"""Pairs of calls that write: what each does in production code, and in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as altered
from typing import Any

from dolmen.database import Database
from dolmen.errors import ConflictError, Error, TableExistsError, TableNotFoundError
from dolmen.ingest.batch import BatchRequest, apply_together
from dolmen.transaction import Transaction
from dolmen_simulator.interleavings.checks import SCHEMA, Pair, Part, Row, Truth, arrow, rows_of
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.steps import Outcome

FIRST: tuple[Row, ...] = ((1, 10, None), (2, 20, None), (3, 30, None))


def _says_the_new_name(execution: Execution, outcome: Outcome) -> bool:
    return "is called" in str(outcome.error)


RENAMED: dict[type[Error], Callable[[Execution, Outcome], bool]] = {ConflictError: _says_the_new_name}
"""Who is refused because the table has another name by now is told that."""


def one_table(db: Database) -> None:
    """A table with three rows in one file."""
    db.create_table("t", SCHEMA, primary_key="k").append(arrow(FIRST))


def two_tables(db: Database) -> None:
    """Two of them."""
    one_table(db)
    db.create_table("u", SCHEMA, primary_key="k").append(arrow(FIRST))


def two_files(db: Database) -> None:
    """The same rows and as many more, in two files."""
    one_table(db)
    db.table("t").append(arrow([(4, 40, None), (5, 50, None), (6, 60, None)]))


def append(*rows: Row) -> Part:
    """Adds rows."""

    def effect(truth: Truth) -> None:
        _table(truth).extend(rows)

    return Part(f"append {list(rows)}", lambda peer: peer.db.table("t").append(arrow(rows)), effect, _nothing)


def upsert(*rows: Row) -> Part:
    """Replaces rows by their keys."""

    def effect(truth: Truth) -> None:
        replace(truth, "t", rows)

    return Part(f"upsert {list(rows)}", lambda peer: peer.db.table("t").upsert(arrow(rows)), effect, _nothing)


def delete(where: str, gone: Callable[[Row], bool]) -> Part:
    """Deletes rows, those that are there by then."""

    def effect(truth: Truth) -> None:
        truth.tables["t"] = [row for row in _table(truth) if not gone(row)]

    def task(peer: Peer) -> Any:
        return peer.db.table("t").delete(where)

    return Part(f"delete {where}", task, effect, _nothing)


def positions(where: str, gone: Callable[[Row], bool]) -> Part:
    """Deletes rows by position, and says how many."""

    def effect(truth: Truth) -> int:
        rows = _table(truth)
        truth.tables["t"] = [row for row in rows if not gone(row)]
        return len(rows) - len(truth.tables["t"])

    def task(peer: Peer) -> Any:
        return peer.db.table("t").delete(where, mode="positions")

    return Part(f"delete positions of {where}", task, effect, lambda commit: commit.rows or 0)


def create() -> Part:
    """Creates a table."""

    def effect(truth: Truth) -> None:
        if "new" in truth.tables:
            raise TableExistsError("new")
        truth.tables["new"] = []

    return Part("create", lambda peer: peer.db.create_table("new", SCHEMA, primary_key="k"), effect, _nothing)


def drop() -> Part:
    """Drops the same table."""

    def effect(truth: Truth) -> None:
        if "new" not in truth.tables:
            raise TableNotFoundError("new")
        del truth.tables["new"]

    return Part("drop", lambda peer: peer.db.drop_table("new"), effect, _nothing)


def rename(to: str) -> Part:
    """Gives the table another name."""

    def effect(truth: Truth) -> None:
        rows = _table(truth)
        if to in truth.tables:
            raise TableExistsError(to)
        truth.tables[to] = rows
        del truth.tables["t"]

    return Part(f"rename t to {to}", lambda peer: peer.db.rename_table("t", to), effect, _nothing, RENAMED)


def increment(amount: int) -> Part:
    """Reads a row and writes it back with more; says what it was."""

    def effect(truth: Truth) -> Any:
        old = next(v for k, v, _ in _table(truth) if k == 1)
        replace(truth, "t", [(1, old + amount, None)])
        return old

    def task(peer: Peer) -> Any:
        def run(transaction: Transaction) -> Any:
            table = transaction.table("t")
            [old] = table.scan(columns=["v"], where={"k": 1}).to_arrow()["v"].to_pylist()
            table.upsert(arrow([(1, old + amount, None)]))
            return old

        return peer.db.run(run)

    return Part(f"add {amount} to the row with key 1", task, effect)


def batch(*ids: str) -> Part:
    """Applies requests, each of which appends a row; says which had been applied before."""

    def effect(truth: Truth) -> dict[str, str]:
        told = {id_: "duplicate" if id_ in truth.applied else "applied" for id_ in ids}
        new = [id_ for id_ in ids if id_ not in truth.applied]
        truth.applied.update(new)
        _table(truth).extend(_request_row(id_) for id_ in new)
        return told

    def request(id_: str) -> BatchRequest:
        def state(transaction: Transaction) -> bool:
            transaction.table("t").append(arrow([_request_row(id_)]), request=id_)
            return True

        return BatchRequest(id_, f"digest of {id_}", state)

    return Part(f"apply {' '.join(ids)}", lambda peer: applied(peer, [request(id_) for id_ in ids]), effect)


def applied(peer: Peer, requests: Sequence[BatchRequest]) -> dict[str, str]:
    """Applies requests as functions do; by id what became of them. Raises what the first that failed failed by."""
    outcomes = apply_together(peer.db, "events", requests).outcomes
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return {request.id: outcome.status for request, outcome in zip(requests, outcomes, strict=True)}


def transfer() -> Part:
    """Moves what a row of one table holds into another table."""

    def effect(truth: Truth) -> None:
        truth.tables["t"] = [row for row in _table(truth) if row[0] != 1]
        _table(truth, "u").append((7, 10, None))

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            transaction.table("t").delete("k = 1")
            transaction.table("u").append(arrow([(7, 10, None)]))
            return transaction.commit()

    return Part("move a row from t to u", task, effect, _nothing)


def read_both() -> Part:
    """Reads both tables in one transaction."""

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            return {name: rows_of(transaction.table(name).to_arrow()) for name in ("t", "u")}

    return Part("read t and u", task, lambda truth: truth.rows)


def replace(truth: Truth, table: str, rows: Sequence[Row]) -> None:
    """Rows take the place of those with their keys."""
    keys = {row[0] for row in rows}
    truth.tables[table] = [*(row for row in _table(truth, table) if row[0] not in keys), *rows]


def _request_row(id_: str) -> Row:
    return (100 + ord(id_), 0, None)


def _table(truth: Truth, name: str = "t") -> list[Row]:
    if name not in truth.tables:
        raise TableNotFoundError(name)
    return truth.tables[name]


def _nothing(value: Any) -> None:
    """Of its answer nothing is compared."""


def _with_new(db: Database) -> None:
    one_table(db)
    db.create_table("new", SCHEMA, primary_key="k")


WRITERS: tuple[Pair, ...] = (
    Pair("append/append", one_table, (append((4, 40, None)), append((5, 50, None))), quick=(0,)),
    Pair("append/delete", one_table, (append((4, 40, None)), delete("v >= 20", lambda row: row[1] >= 20))),
    Pair(
        "upsert/upsert",
        one_table,
        (upsert((1, 11, None), (4, 41, None)), upsert((1, 12, None), (4, 42, None))),
        quick=(0,),
    ),
    Pair(
        "positions/positions",
        one_table,
        (positions("v >= 20", lambda row: row[1] >= 20), positions("v <= 20", lambda row: row[1] <= 20)),
        quick=(0,),
    ),
    Pair("create/create", one_table, (create(), create()), quick=(0,)),
    Pair("create/drop", _with_new, (create(), drop())),
    Pair("append/rename", one_table, (altered(append((4, 40, None)), may=RENAMED), rename("u"))),
    Pair("rename/rename", one_table, (rename("u"), rename("w")), quick=(0,)),
    Pair("first create/first create", lambda db: None, (create(), create()), quick=(0,)),
    Pair("read-modify-write/read-modify-write", one_table, (increment(1), increment(2)), quick=(0,)),
    Pair("redelivery/redelivery", one_table, (batch("a", "b"), batch("a", "b")), quick=(0,), events=True),
    Pair("redelivery/other batch", one_table, (batch("a", "b"), batch("b", "c")), quick=(0,), events=True),
    Pair("transaction/reader", two_tables, (transfer(), read_both())),
)
