"""Pairs in which the columns of a table change beside writers and background work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as altered
from typing import Any

import pyarrow as pa

from dolmen.errors import ConflictError, Error, PredicateError, SchemaError
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.pairs import one_table, two_files
from dolmen_simulator.interleavings.past import restore
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.interleavings.upkeep import OLD, compaction, pointer_commits, resolution, table_with_tombstone

_DEFAULT = 7


def _other_was_first(execution: Execution, outcome: TaskOutcome) -> bool:
    number = next(at for at, other in enumerate(execution.outcomes) if other is outcome)
    return bool(pointer_commits(execution, by=1 - number))


MOVED: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = {ConflictError: _other_was_first}
"""A call is refused that has seen other columns than the version that it lands on."""


def add_column(type_: pa.DataType = pa.int64()) -> PairedCall:  # noqa: B008 - immutable
    """Adds the column ``added`` with a default."""

    def effect(model: ExpectedTables) -> None:
        if model.added:
            raise SchemaError("added")
        model.added = (_DEFAULT,)
        model.tables["t"] = [(*row, _DEFAULT) for row in model.tables["t"]]

    def task(peer: Peer) -> Any:
        return peer.db.table("t").add_column("added", type_, _DEFAULT)

    return PairedCall("add a column", task, effect, _no_result, MOVED)


def drop_column(place: int, name: str) -> PairedCall:
    """Drops a column, which is at this place of each row."""

    def effect(model: ExpectedTables) -> None:
        if name in model.taken:
            raise SchemaError(name)
        model.taken.add(name)
        model.tables["t"] = [(*row[:place], *row[place + 1 :]) for row in model.tables["t"]]

    return PairedCall(
        f"drop column {name}", lambda peer: peer.db.table("t").drop_column(name), effect, _no_result, MOVED
    )


def rename_column() -> PairedCall:
    """Renames the column ``v``."""

    def effect(model: ExpectedTables) -> None:
        if "v" in model.taken:
            raise SchemaError("v")
        model.taken.add("v")

    def task(peer: Peer) -> Any:
        return peer.db.table("t").rename_column("v", "value")

    return PairedCall("rename column v", task, effect, _no_result, MOVED)


def write(verb: str, *rows: tuple[int, int]) -> PairedCall:
    """Appends or upserts rows that have ``k`` and ``v`` alone."""

    def effect(model: ExpectedTables) -> None:
        gone = {row[0] for row in rows} if verb == "upsert" else set()
        width = len(model.tables["t"][0]) - 2 - len(model.added)
        new: list[Row] = [(*row, *[None] * width, *model.added) for row in rows]
        model.tables["t"] = [*(row for row in model.tables["t"] if row[0] not in gone), *new]

    def task(peer: Peer) -> Any:
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        return getattr(peer.db.table("t"), verb)(pa.table(columns, names=["k", "v"]))

    return PairedCall(f"{verb} {list(rows)}", task, effect, _no_result, MOVED)


def delete_by_value() -> PairedCall:
    """Deletes rows by the column ``v``, which may have another name by then."""

    def effect(model: ExpectedTables) -> None:
        if "v" in model.taken:
            raise PredicateError("v")
        model.tables["t"] = [row for row in model.tables["t"] if row[1] < 20]

    return PairedCall("delete v >= 20", lambda peer: peer.db.table("t").delete("v >= 20"), effect, _no_result, MOVED)


def _no_result(value: Any) -> None:
    """Ignores the result."""


def restored_to_old() -> PairedCall:
    """Restores the table to a version with the columns of before."""
    call = restore(OLD, 3)

    def effect(model: ExpectedTables) -> None:
        call.effect(model)
        model.added = ()

    return altered(call, effect=effect)


COLUMNS: tuple[Pair, ...] = (
    Pair("add column/append", one_table, (add_column(), write("append", (4, 40)))),
    Pair("add column/upsert", one_table, (add_column(), write("upsert", (2, 21), (4, 40)))),
    Pair("add column/compact", two_files, (add_column(), compaction())),
    Pair("add column/restore", table_with_tombstone, (add_column(), restored_to_old())),
    Pair("add column/add column", one_table, (add_column(), add_column(pa.int32())), quick=(0,)),
    Pair("drop column/append", one_table, (drop_column(2, "t"), write("append", (4, 40)))),
    Pair("drop column/resolve", table_with_tombstone, (drop_column(1, "v"), resolution())),
    Pair("drop column/delete", one_table, (drop_column(1, "v"), delete_by_value())),
    Pair("rename column/delete", one_table, (rename_column(), delete_by_value())),
    Pair("rename column/compact", table_with_tombstone, (rename_column(), compaction())),
)
