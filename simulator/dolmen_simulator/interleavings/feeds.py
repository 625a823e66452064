"""Pairs with a reader of the change feed: it gets the changes of whole commits, or VersionExpiredError."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.maintenance.compact.compaction import compact
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow, rows_of
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import FIRST, one_table, positions, two_files, upsert
from dolmen_simulator.interleavings.upkeep import (
    COMPACTION_OPTIONS,
    EXPIRING_SOON,
    VERSION_EXPIRED,
    compaction,
    table_with_tombstone,
    two_collections,
)

_SINCE = 2
"""The version whose rows are FIRST."""


def _replayed(peer: Peer, until: int | None = None, *, net: bool = False) -> list[Row]:
    """The rows of FIRST with the changes after their version."""
    rows = Counter[Row](FIRST)
    changes = peer.db.table("t").changes(_SINCE, until, net=net).read_all()
    rows.subtract(rows_of(_only(changes, ("delete", "update_before"))))
    rows.update(rows_of(_only(changes, ("insert", "update_after"))))
    assert min(rows.values()) >= 0, rows
    return sorted(rows.elements(), key=repr)


def _only(changes: pa.Table, wanted: tuple[str, str]) -> pa.Table:
    return changes.filter(pa.array([change in wanted for change in changes["_change"].to_pylist()], pa.bool_()))


def read_changes(*, net: bool = False) -> PairedCall:
    """Replays the changes up to the newest version."""
    return PairedCall(
        f"read {'the net change' if net else 'changes'} since version {_SINCE}",
        lambda peer: _replayed(peer, net=net),
        lambda model: sorted(model.tables["t"], key=repr),
    )


def read_old_changes(until: int, rows: list[Row]) -> PairedCall:
    """Replays the changes between two old versions."""
    return PairedCall(
        f"read changes of versions {_SINCE + 1} to {until}",
        lambda peer: _replayed(peer, until),
        lambda model: sorted(rows, key=repr),
        allowed_errors=VERSION_EXPIRED,
    )


def overwrite(*rows: Row) -> PairedCall:
    """Replaces all rows."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = list(rows)

    def task(peer: Peer) -> Any:
        return peer.db.table("t").overwrite(arrow(rows))

    return PairedCall(f"overwrite with {list(rows)}", task, effect, lambda commit: None)


def table_with_old_changes(db: Database) -> None:
    """Makes versions that will expire, with rows and files that no later version has."""
    two_files(db)
    db.table("t").delete("v = 20")
    db.table("t").delete("v = 50", mode="positions")
    compact(context_of(db), "t", options=COMPACTION_OPTIONS)
    db.set(**EXPIRING_SOON)


OLD_CHANGES: list[Row] = [(1, 10, None), (3, 30, None), (4, 40, None), (6, 60, None)]
"""Rows of version 5 in ``table_with_old_changes``."""

FEEDS: tuple[Pair, ...] = (
    Pair("changes read/upsert", one_table, (read_changes(), upsert((2, 21, None), (4, 41, None)))),
    Pair(
        "changes read/positions",
        two_files,
        (read_changes(), positions("v BETWEEN 20 AND 50", lambda row: 20 <= row[1] <= 50)),
    ),
    Pair("changes read/overwrite", one_table, (read_changes(), overwrite((2, 20, None), (3, 31, None)))),
    Pair("net change read/compact", two_files, (read_changes(net=True), compaction())),
    Pair("net change with deletes read/compact", table_with_tombstone, (read_changes(net=True), compaction())),
    Pair(
        "changes read/GC",
        table_with_old_changes,
        (read_old_changes(5, OLD_CHANGES), two_collections()),
        hours=5,
        stalls=(0,),
    ),
)
