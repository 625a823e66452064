"""Pairs with inserts, beside whatever may bring or take a key; and with the building of indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.errors import DuplicateKeyError
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.indexing import index_table
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.erasures import erase, restore
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import FIRST, append, delete, one_table, positions, two_files, upsert
from dolmen_simulator.interleavings.upkeep import (
    COMPACTION_OPTIONS,
    EXPIRING_SOON,
    OLD,
    compaction,
    one_collection,
    resolution,
    table_with_tombstone,
    upkeep,
)
from dolmen_simulator.world.fates import Fate


def insert(*rows: Row, first: str | None = None, gone: Callable[[Row], bool] = lambda row: False) -> PairedCall:
    """Inserts rows whose keys must not exist.

    Args:
        first: a predicate of rows that the same transaction deletes before.
        gone: tells which these are.
    """

    def effect(model: ExpectedTables) -> None:
        there = [row for row in model.tables["t"] if not gone(row)]
        if taken := {row[0] for row in there} & {row[0] for row in rows}:
            raise DuplicateKeyError("t", ["k"], [(key,) for key in taken], len(taken))
        model.tables["t"] = [*there, *rows]

    def task(peer: Peer) -> Any:
        if first is None:
            return peer.db.table("t").insert(arrow(rows))
        with peer.db.transaction() as transaction:
            transaction.table("t").delete(first)
            transaction.table("t").insert(arrow(rows))
            return transaction.commit()

    told = f"delete {first}, insert" if first else "insert"
    return PairedCall(f"{told} {list(rows)}", task, effect, lambda value: None)


def build_index() -> PairedCall:
    """Builds and merges the index of a table."""
    return upkeep("build the index", lambda peer: index_table(peer.context, "t"))


def indexed_table(db: Database) -> None:
    """Makes a table of two files with an index of the first, and a tombstone."""
    one_table(db)
    db.table("t").set(index=True)
    index_table(context_of(db), "t")
    db.table("t").append(arrow(OLD[3:]))
    db.table("t").delete("v IN (20, 50)")


def table_with_old_index(db: Database) -> None:
    """Makes an index of files that a compaction has replaced, in versions that will expire."""
    two_files(db)
    db.table("t").set(index=True)
    index_table(context_of(db), "t")
    compact(context_of(db), "t", options=COMPACTION_OPTIONS)
    db.set(**EXPIRING_SOON)


def _is_second(row: Row) -> bool:
    return bool(row[0] == 2)


_FOUR: Row = (4, 44, None)
_TWO: Row = (2, 22, None)

INSERTS: tuple[Pair, ...] = (
    Pair("insert/insert", one_table, (insert(_FOUR, (5, 50, None)), insert((4, 45, None), (6, 60, None))), quick=(0,)),
    Pair("insert/append", one_table, (insert(_FOUR), append((4, 40, None))), quick=(0,)),
    Pair("insert/append of others", one_table, (insert(_FOUR), append((5, 50, None))), quick=(0,)),
    Pair("insert/upsert", one_table, (insert(_FOUR), upsert((4, 40, None), (1, 11, None))), quick=(0,)),
    Pair("insert/delete", one_table, (insert(_TWO), delete("k = 2", _is_second)), quick=(0,)),
    Pair("insert/positions", one_table, (insert(_TWO), positions("k = 2", _is_second)), quick=(0,)),
    Pair(
        "delete and insert/insert",
        one_table,
        (insert(_TWO, first="k = 2", gone=_is_second), insert((2, 29, None), (7, 70, None))),
        quick=(0,),
    ),
    Pair("insert/compact", table_with_tombstone, (insert(_TWO, (7, 70, None)), compaction()), quick=(0,)),
    Pair("insert/resolve", table_with_tombstone, (insert(_TWO, (7, 70, None)), resolution()), quick=(0,)),
    Pair("insert/restore", table_with_tombstone, (insert(_TWO), restore(FIRST, 2)), quick=(0,)),
    Pair(
        "insert/insert, beside an index",
        indexed_table,
        (insert((7, 70, None), (8, 80, None)), insert((7, 71, None), (9, 90, None))),
        quick=(0,),
    ),
    Pair("insert/build index", indexed_table, (insert(_TWO, (7, 70, None)), build_index()), quick=(0,)),
    Pair("build index/compact", indexed_table, (build_index(), compaction()), quick=(0,)),
    Pair("build index/build index", indexed_table, (build_index(), build_index()), quick=(0,)),
    Pair("build index/erase", indexed_table, (build_index(), erase()), quick=(0,)),
    Pair(
        "build index/GC",
        table_with_old_index,
        (build_index(), one_collection()),
        hours=5,
        quick=(0,),
        quick_fates=(Fate.LATE,),
    ),
)
