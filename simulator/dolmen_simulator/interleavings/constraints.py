"""Pairs in which a check, NOT NULL or a primary key is added to a table beside writers and background work."""

from __future__ import annotations

from typing import Any

from dolmen.api.database import Database
from dolmen.errors import ConstraintError, SchemaError
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.columns import MOVED
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import append, delete, no_result, one_table, replace
from dolmen_simulator.interleavings.past import restore
from dolmen_simulator.interleavings.upkeep import OLD, compaction, resolution, table_with_tombstone

_BY_STATISTICS, _BY_ROWS = "v < 45", "v % 7 <> 0"
"""Conditions of checks that statistics can prove, and that only rows can."""
_GOOD: Row = (4, 40, None)
_BAD: Row = (5, 49, None)
_WITHOUT_VALUE: Row = (6, None, None)


def _breaks(row: Row) -> bool:
    return bool(row[1] == _BAD[1])


def add_check(condition: str = _BY_STATISTICS) -> PairedCall:
    """Adds a check that ``_BAD`` breaks."""

    def effect(model: ExpectedTables) -> None:
        if "checked" in model.taken or any(map(_breaks, model.tables["t"])):
            raise SchemaError("there already, or FALSE")
        model.taken.add("checked")

    return PairedCall(
        f"add check {condition}", lambda peer: peer.db.table("t").add_check("c", condition), effect, no_result
    )


def write(verb: str, *rows: Row, in_transaction: bool = False) -> PairedCall:
    """Appends, upserts or buffers rows, which a constraint may refuse.

    Args:
        in_transaction: in a transaction, which is not repeated when the columns have changed.
    """

    def effect(model: ExpectedTables) -> None:
        if "checked" in model.taken and any(map(_breaks, rows)):
            raise ConstraintError("FALSE")
        if "required" in model.taken and any(row[1] is None for row in rows):
            raise ConstraintError("NULL")
        if verb == "upsert":
            replace(model, "t", rows)
        else:
            model.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        if in_transaction:
            with peer.db.transaction() as tx:
                getattr(tx.table("t"), verb)(arrow(rows))
                return tx.commit()
        if verb == "write":
            with peer.db.table("t").writer() as writer:
                return writer.append(arrow(rows))
        return getattr(peer.db.table("t"), verb)(arrow(rows))

    return PairedCall(f"{verb} {list(rows)}", task, effect, no_result, MOVED)


def set_not_null() -> PairedCall:
    """Forbids NULL in the column ``v``."""

    def effect(model: ExpectedTables) -> None:
        if any(row[1] is None for row in model.tables["t"]):
            raise SchemaError("NULL")
        model.taken.add("required")

    return PairedCall("set not null", lambda peer: peer.db.table("t").set_not_null("v"), effect, no_result)


def add_key() -> PairedCall:
    """Makes ``k`` the primary key of a table without one."""

    def effect(model: ExpectedTables) -> None:
        keys = [row[0] for row in model.tables["t"]]
        if len(set(keys)) < len(keys):
            raise SchemaError("several rows")

    return PairedCall("add primary key", lambda peer: peer.db.table("t").add_primary_key("k"), effect, no_result)


def without_key(db: Database) -> None:
    """Makes a table without a primary key."""
    db.create_table("t", arrow([(1, 10, None), (2, 20, None)]))


def with_bad_row(db: Database) -> None:
    """Makes a table with a row that the check forbids."""
    one_table(db)
    db.table("t").append(arrow([_BAD]))


CONSTRAINTS: tuple[Pair, ...] = (
    Pair("add check/append", one_table, (add_check(), write("append", _GOOD)), quick=(0,)),
    Pair("add check/append of a bad row", one_table, (add_check(), write("append", _BAD))),
    Pair("add check by rows/append", one_table, (add_check(_BY_ROWS), write("append", _GOOD))),
    Pair("add check by rows/append of a bad row", one_table, (add_check(_BY_ROWS), write("append", _GOOD, _BAD))),
    Pair("add check/upsert of a bad row", one_table, (add_check(), write("upsert", (1, 49, None))), quick=(0,)),
    Pair("add check/insert of a bad row", one_table, (add_check(), write("insert", _BAD)), quick=(0,)),
    Pair("add check by rows/buffered write", one_table, (add_check(_BY_ROWS), write("write", _GOOD)), quick=(0,)),
    Pair(
        "add check/append in a transaction",
        one_table,
        (add_check(), write("append", _BAD, in_transaction=True)),
        quick=(0,),
    ),
    Pair("add check/delete of the bad row", with_bad_row, (add_check(), delete("v = 49", _breaks)), quick=(0,)),
    Pair("add check/compact", table_with_tombstone, (add_check("v < 99"), compaction()), quick=(0,)),
    Pair("add check/resolve", table_with_tombstone, (add_check("v < 99"), resolution()), quick=(0,)),
    Pair("add check/restore", table_with_tombstone, (add_check("v < 99"), restore(OLD, 3)), quick=(0,)),
    Pair("add check/add check", one_table, (add_check(), add_check(_BY_ROWS)), quick=(0,)),
    Pair("set not null/append", one_table, (set_not_null(), write("append", _GOOD)), quick=(0,)),
    Pair("set not null/append of NULL", one_table, (set_not_null(), write("append", _WITHOUT_VALUE))),
    Pair("add primary key/append", without_key, (add_key(), append((4, 40, None))), quick=(0,)),
    Pair("add primary key/append of its key", without_key, (add_key(), append((2, 21, None)))),
)
