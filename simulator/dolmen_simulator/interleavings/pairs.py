"""Pairs of calls that write, each as production code and as plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.errors import ConflictError, Error, TableExistsError, TableNotFoundError
from dolmen.ingest.batch import BatchRequest, Decision, apply_together
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen_simulator.interleavings.checks import SCHEMA, ExpectedTables, Pair, PairedCall, Row, arrow, rows_of
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.steps import TaskOutcome

FIRST: tuple[Row, ...] = ((1, 10, None), (2, 20, None), (3, 30, None))


def _names_the_new_name(execution: Execution, outcome: TaskOutcome) -> bool:
    return "was renamed to" in str(outcome.error)


RENAMED: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = {ConflictError: _names_the_new_name}
"""A call that is refused because its table was renamed gets an error with the new name."""


def one_table(db: Database) -> None:
    """Makes a table with three rows in one file."""
    db.create_table("t", SCHEMA, primary_key="k").append(arrow(FIRST))


def two_tables(db: Database) -> None:
    """Makes two tables with three rows each."""
    one_table(db)
    db.create_table("u", SCHEMA, primary_key="k").append(arrow(FIRST))


def two_files(db: Database) -> None:
    """Makes a table with six rows in two files."""
    one_table(db)
    db.table("t").append(arrow([(4, 40, None), (5, 50, None), (6, 60, None)]))


def append(*rows: Row) -> PairedCall:
    """Appends rows."""

    def effect(model: ExpectedTables) -> None:
        expected_rows(model).extend(rows)

    return PairedCall(f"append {list(rows)}", lambda peer: peer.db.table("t").append(arrow(rows)), effect, no_result)


def upsert(*rows: Row) -> PairedCall:
    """Replaces rows by their keys."""

    def effect(model: ExpectedTables) -> None:
        replace(model, "t", rows)

    return PairedCall(f"upsert {list(rows)}", lambda peer: peer.db.table("t").upsert(arrow(rows)), effect, no_result)


def delete(where: str, gone: Callable[[Row], bool]) -> PairedCall:
    """Deletes the rows that match at the commit."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = [row for row in expected_rows(model) if not gone(row)]

    def task(peer: Peer) -> Any:
        return peer.db.table("t").delete(where)

    return PairedCall(f"delete {where}", task, effect, no_result)


def positions(where: str, gone: Callable[[Row], bool]) -> PairedCall:
    """Deletes rows by position, and returns their number."""

    def effect(model: ExpectedTables) -> int:
        rows = expected_rows(model)
        model.tables["t"] = [row for row in rows if not gone(row)]
        return len(rows) - len(model.tables["t"])

    def task(peer: Peer) -> Any:
        return peer.db.table("t").delete(where, mode="positions")

    return PairedCall(f"delete positions of {where}", task, effect, lambda commit: commit.rows or 0)


def create() -> PairedCall:
    """Creates the table ``new``."""

    def effect(model: ExpectedTables) -> None:
        if "new" in model.tables:
            raise TableExistsError("new")
        model.tables["new"] = []

    return PairedCall("create", lambda peer: peer.db.create_table("new", SCHEMA, primary_key="k"), effect, no_result)


def drop() -> PairedCall:
    """Drops the table ``new``."""

    def effect(model: ExpectedTables) -> None:
        if "new" not in model.tables:
            raise TableNotFoundError("new")
        del model.tables["new"]

    return PairedCall("drop", lambda peer: peer.db.drop_table("new"), effect, no_result)


def rename(to: str) -> PairedCall:
    """Renames the table."""

    def effect(model: ExpectedTables) -> None:
        rows = expected_rows(model)
        if to in model.tables:
            raise TableExistsError(to)
        model.tables[to] = rows
        del model.tables["t"]

    return PairedCall(f"rename t to {to}", lambda peer: peer.db.rename_table("t", to), effect, no_result, RENAMED)


def increment(amount: int) -> PairedCall:
    """Adds to the value of a row by a read and an upsert; returns the old value."""

    def effect(model: ExpectedTables) -> Any:
        old = next(v for k, v, _ in expected_rows(model) if k == 1)
        replace(model, "t", [(1, old + amount, None)])
        return old

    def task(peer: Peer) -> Any:
        def run(transaction: Transaction) -> Any:
            table = transaction.table("t")
            [old] = table.scan(columns=["v"], where={"k": 1}).to_arrow()["v"].to_pylist()
            table.upsert(arrow([(1, old + amount, None)]))
            return old

        return peer.db.run(run)

    return PairedCall(f"add {amount} to the row with key 1", task, effect)


def update(old: int, new: int) -> PairedCall:
    """Updates the rows that have a value; returns their number."""

    def effect(model: ExpectedTables) -> int:
        rows = expected_rows(model)
        model.tables["t"] = [(k, new if v == old else v, t) for k, v, t in rows]
        return sum(v == old for _, v, _ in rows)

    def task(peer: Peer) -> Any:
        return peer.db.table("t").update({"v": new}, {"v": old})

    return PairedCall(f"update {old} to {new}", task, effect, lambda commit: commit.rows or 0)


def merge(*pairs: tuple[int, int]) -> PairedCall:
    """Merges keys with values: into the rows that have the key, or as new rows."""

    def effect(model: ExpectedTables) -> None:
        rows, values = expected_rows(model), dict(pairs)
        new = [(k, v, None) for k, v in pairs if k not in {row[0] for row in rows}]
        model.tables["t"] = [*((k, values.get(k, v), t) for k, v, t in rows), *new]

    def task(peer: Peer) -> Any:
        return peer.db.table("t").merge([{"k": k, "v": v} for k, v in pairs], "k")

    return PairedCall(f"merge {list(pairs)}", task, effect, no_result)


def batch(*ids: str) -> PairedCall:
    """Applies requests, each of which appends a row; returns which were applied before."""

    def effect(model: ExpectedTables) -> dict[str, str]:
        statuses = {id_: "duplicate" if id_ in model.applied else "applied" for id_ in ids}
        new = [id_ for id_ in ids if id_ not in model.applied]
        model.applied.update(new)
        expected_rows(model).extend(request_row(id_) for id_ in new)
        return statuses

    def request(id_: str) -> BatchRequest:
        def add_to(transaction: Transaction) -> Decision:
            transaction.table("t").append(arrow([request_row(id_)]), request=id_)
            return "apply"

        return BatchRequest(id_, f"digest of {id_}", add_to)

    return PairedCall(
        f"apply {' '.join(ids)}", lambda peer: apply_requests(peer, [request(id_) for id_ in ids]), effect
    )


def deliver(*, creates: bool) -> PairedCall:
    """Delivers a file's event for the table ``new``; returns what became of it.

    Args:
        creates: whether the file creates a missing table. If not, it is rejected for want of one.
    """
    file, rejection = "f", "f rejected"

    def effect(model: ExpectedTables) -> dict[str, str]:
        if file in model.applied:
            return {file: "duplicate"}
        if rejection in model.applied:
            return {file: "rejected"}
        if not creates and "new" not in model.tables:
            model.applied.add(rejection)
            return {file: "rejected"}
        model.applied.add(file)
        model.tables.setdefault("new", []).append(request_row(file))
        return {file: "applied"}

    def add_to(transaction: Transaction) -> Decision:
        if "new" not in unit_of(transaction).manifest.tables:
            if not creates:
                return "reject"
            transaction.create_table("new", SCHEMA, primary_key="k")
        transaction.table("new").append(arrow([request_row(file)]), request=file)
        return "apply"

    def task(peer: Peer) -> Any:
        return apply_requests(peer, [BatchRequest(file, "digest of f", add_to, rejection)])

    return PairedCall(f"deliver a file that {'creates' if creates else 'needs'} its table", task, effect)


def apply_requests(peer: Peer, requests: Sequence[BatchRequest]) -> dict[str, str]:
    """Applies requests as functions do, and returns their statuses by id. Raises the first request's error, if any."""
    outcomes = apply_together(peer.db, "events", requests).outcomes
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return {request.id: outcome.status for request, outcome in zip(requests, outcomes, strict=True)}


def transfer() -> PairedCall:
    """Moves a row from one table to the other."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = [row for row in expected_rows(model) if row[0] != 1]
        expected_rows(model, "u").append((7, 10, None))

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            transaction.table("t").delete("k = 1")
            transaction.table("u").append(arrow([(7, 10, None)]))
            return transaction.commit()

    return PairedCall("move a row from t to u", task, effect, no_result)


def read_both() -> PairedCall:
    """Reads both tables in one transaction."""

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as transaction:
            return {name: rows_of(transaction.table(name).to_arrow()) for name in ("t", "u")}

    return PairedCall("read t and u", task, lambda model: model.rows)


def replace(model: ExpectedTables, table: str, rows: Sequence[Row]) -> None:
    """Replaces the rows that have the keys of these rows."""
    keys = {row[0] for row in rows}
    model.tables[table] = [*(row for row in expected_rows(model, table) if row[0] not in keys), *rows]


def request_row(id_: str) -> Row:
    """The row that a request appends."""
    return (100 + ord(id_), 0, None)


def expected_rows(model: ExpectedTables, name: str = "t") -> list[Row]:
    """The rows of a table that must be there. Raises TableNotFoundError."""
    if name not in model.tables:
        raise TableNotFoundError(name)
    return model.tables[name]


def no_result(value: Any) -> None:
    """Ignores the result."""


def _table_and_new(db: Database) -> None:
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
    Pair("create/drop", _table_and_new, (create(), drop())),
    Pair("append/rename", one_table, (altered(append((4, 40, None)), allowed_errors=RENAMED), rename("u"))),
    Pair("rename/rename", one_table, (rename("u"), rename("w")), quick=(0,)),
    Pair("first create/first create", lambda db: None, (create(), create()), quick=(0,)),
    Pair("read-modify-write/read-modify-write", one_table, (increment(1), increment(2)), quick=(0,)),
    Pair("update/update", one_table, (update(20, 30), update(30, 40)), quick=(0,)),
    Pair("update/append", one_table, (update(20, 21), append((4, 20, None)))),
    Pair("merge/merge", one_table, (merge((1, 11), (4, 41)), merge((4, 42), (3, 33))), quick=(0,)),
    Pair("redelivery/redelivery", one_table, (batch("a", "b"), batch("a", "b")), quick=(0,), events=True),
    Pair("redelivery/other batch", one_table, (batch("a", "b"), batch("b", "c")), quick=(0,), events=True),
    Pair("reject/create and ingest", one_table, (deliver(creates=False), deliver(creates=True)), events=True),
    Pair("transaction/reader", two_tables, (transfer(), read_both())),
)
