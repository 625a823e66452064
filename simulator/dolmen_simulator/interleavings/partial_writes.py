"""Pairs with writes that find rows first: overwrites of a part, rows that DuckDB finds, equal rows that are skipped."""

from __future__ import annotations

from collections.abc import Callable

from dolmen.base.records import replace as altered
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row, arrow
from dolmen_simulator.interleavings.columns import MOVED
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.pairs import (
    append,
    delete,
    expected_rows,
    no_result,
    one_table,
    replace,
    two_files,
    update,
    upsert,
)
from dolmen_simulator.interleavings.upkeep import compaction, resolution, table_with_tombstone


def overwrite_part(where: str, within: Callable[[Row], bool], *rows: Row) -> PairedCall:
    """Replaces the rows for which a predicate is TRUE by others for which it is TRUE, too."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = [*(row for row in expected_rows(model) if not within(row)), *rows]

    return PairedCall(
        f"overwrite {where} by {list(rows)}",
        lambda peer: peer.db.table("t").overwrite(arrow(rows), where=where),
        effect,
        no_result,
    )


def delete_found(condition: str, is_found: Callable[[Row], bool]) -> PairedCall:
    """Deletes the rows that DuckDB finds by a condition; returns their number."""

    def effect(model: ExpectedTables) -> int:
        rows = expected_rows(model)
        model.tables["t"] = [row for row in rows if not is_found(row)]
        return len(rows) - len(model.tables["t"])

    def task(peer: Peer) -> int:
        return peer.db.table("t").delete(condition).rows or 0

    return PairedCall(f"delete {condition}", task, effect)


def upsert_changed(*rows: Row) -> PairedCall:
    """Upserts rows, but for those that are there already."""

    def effect(model: ExpectedTables) -> None:
        replace(model, "t", rows)

    return PairedCall(
        f"upsert what differs of {list(rows)}",
        lambda peer: peer.db.table("t").upsert(arrow(rows), skip_equal=True),
        effect,
        no_result,
    )


def add_count() -> PairedCall:
    """Adds the number of rows to one of them, in SQL."""

    def effect(model: ExpectedTables) -> None:
        rows = expected_rows(model)
        model.tables["t"] = [(k, v + len(rows) if k == 1 else v, t) for k, v, t in rows]

    text = "UPDATE t SET v = v + (SELECT count(*) FROM t) WHERE k = 1"
    return PairedCall("update in SQL", lambda peer: peer.db.sql(text), effect, no_result)


def _is_high(row: Row) -> bool:
    return bool(row[1] >= 20)


def _is_twenty_or_forty(row: Row) -> bool:
    return row[1] in (20, 40)


_HIGH = overwrite_part("v >= 20", _is_high, (2, 21, None), (7, 70, None))
_LOW = overwrite_part("v <= 20", lambda row: bool(row[1] <= 20), (1, 11, None))
_HIGH_IF_UNCHANGED = altered(_HIGH, allowed_errors=MOVED)
"""It is refused if another call has added such rows."""
_FOUND = delete_found("greatest(v, 0) IN (20, 40)", _is_twenty_or_forty)
_FOUND_TEN = delete_found("greatest(v, 0) = 10", lambda row: bool(row[1] == 10))
_CHANGED = upsert_changed((1, 10, None), (2, 22, None))

PARTIAL_WRITES: tuple[Pair, ...] = (
    Pair("overwrite a part/append to it", one_table, (_HIGH_IF_UNCHANGED, append((4, 40, None))), quick=(0,)),
    Pair("overwrite a part/append elsewhere", one_table, (_HIGH, append((4, 5, None))), quick=(0,)),
    Pair("overwrite a part/update out of it", one_table, (_HIGH_IF_UNCHANGED, update(30, 3)), quick=(0,)),
    Pair("overwrite a part/compact", table_with_tombstone, (_HIGH, compaction()), quick=(0,)),
    Pair(
        "overwrite a part/overwrite a part",
        one_table,
        (_HIGH_IF_UNCHANGED, altered(_LOW, allowed_errors=MOVED)),
        quick=(0,),
    ),
    Pair("delete found rows/append", one_table, (_FOUND, append((4, 40, None))), quick=(0,)),
    Pair("delete found rows/update to one", one_table, (_FOUND, update(30, 40)), quick=(0,)),
    Pair("delete found rows/delete found rows", one_table, (_FOUND, _FOUND), quick=(0,)),
    Pair("delete found rows/delete other found rows", one_table, (_FOUND, _FOUND_TEN), quick=(0,)),
    Pair("delete found rows/compact", two_files, (_FOUND, compaction()), quick=(0,)),
    Pair("delete found rows/resolve", table_with_tombstone, (_FOUND, resolution()), quick=(0,)),
    Pair("update in SQL/append", one_table, (add_count(), append((4, 40, None))), quick=(0,)),
    Pair("upsert what differs/upsert", one_table, (_CHANGED, upsert((1, 11, None))), quick=(0,)),
    Pair("upsert what differs/delete", one_table, (_CHANGED, delete("k = 1", lambda row: row[0] == 1)), quick=(0,)),
    Pair("upsert what differs/upsert what differs", one_table, (_CHANGED, upsert_changed((1, 11, None))), quick=(0,)),
    Pair("upsert what differs/compact", table_with_tombstone, (_CHANGED, compaction()), quick=(0,)),
)
