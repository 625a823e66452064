"""Pairs in which the columns of a table change beside writers and background work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.records import replace as altered
from dolmen.errors import ConflictError, Error, PredicateError, SchemaError
from dolmen_simulator.interleavings.checks import ExpectedTables, Pair, PairedCall, Row
from dolmen_simulator.interleavings.execution import Execution, Peer
from dolmen_simulator.interleavings.pairs import delete, one_table, replace, two_files
from dolmen_simulator.interleavings.past import restore
from dolmen_simulator.interleavings.steps import TaskOutcome
from dolmen_simulator.interleavings.upkeep import OLD, compaction, pointer_commits, resolution, table_with_tombstone

_DEFAULT, _OTHER_DEFAULT = 7, 8
_DAY_US = 86_400_000_000
_NARROW = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("t", pa.date32())])
_WIDE = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us"))])
_STRUCTS = pa.schema([("k", pa.int64()), ("s", pa.struct([("a", pa.int32()), ("b", pa.int32())]))])
_OF_DAYS: tuple[Row, ...] = tuple((k, 10 * k, k * _DAY_US) for k in range(1, 5))


def _other_was_first(execution: Execution, outcome: TaskOutcome) -> bool:
    number = next(at for at, other in enumerate(execution.outcomes) if other is outcome)
    return bool(pointer_commits(execution, by=1 - number))


MOVED: dict[type[Error], Callable[[Execution, TaskOutcome], bool]] = {ConflictError: _other_was_first}
"""A call is refused if it has seen other columns than those of the version that it lands on."""


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


def set_subject() -> PairedCall:
    """Makes the column ``v`` the subject, so that it cannot be dropped."""

    def effect(model: ExpectedTables) -> None:
        if "v" in model.taken:
            raise SchemaError("v")
        model.taken.add("v")

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as tx:
            tx.table("t").set(subject="v")

    return PairedCall("set subject=v", task, effect, _no_result, MOVED)


def partitioned_table(db: Database) -> None:
    """Makes a table with files of one partition, and one with rows of several."""
    two_files(db)
    db.table("t").set(partition_by="bucket[2](k)", partition_files=1)
    db.table("t").append({"k": [7, 8], "v": [70, 80]})


def set_partitions() -> PairedCall:
    """Gives the table other partitions."""

    def task(peer: Peer) -> Any:
        return peer.db.table("t").set(partition_by="truncate[20](v)")

    return PairedCall("set partition_by", task, lambda model: None, _no_result, MOVED)


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


def table_with_default(db: Database) -> None:
    """Makes a table with the column ``added``, which has a default."""
    one_table(db)
    db.table("t").add_column("added", pa.int64(), _DEFAULT)


def replace_column() -> PairedCall:
    """Drops the column ``added``, and adds another one of its name with another default, in one commit."""

    def effect(model: ExpectedTables) -> None:
        model.added = (_OTHER_DEFAULT,)
        model.tables["t"] = [(*row[:-1], _OTHER_DEFAULT) for row in model.tables["t"]]

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as tx:
            tx.table("t").drop_column("added")
            tx.table("t").add_column("added", pa.int64(), _OTHER_DEFAULT)

    return PairedCall("replace a column", task, effect, _no_result, MOVED)


def write_buffered() -> PairedCall:
    """Hands a row without the column ``added`` to a buffered writer."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].append((4, 40, None, *(model.added or (_DEFAULT,))))

    def task(peer: Peer) -> Any:
        with peer.db.table("t").writer() as writer:
            writer.append([{"k": 4, "v": 40}])

    return PairedCall("write (4, 40)", task, effect, _no_result, MOVED)


def delete_by_value(*, in_transaction: bool = False) -> PairedCall:
    """Deletes rows by the column ``v``, which may have another name by then.

    Args:
        in_transaction: in a transaction, which is not repeated when the columns have changed.
    """

    def effect(model: ExpectedTables) -> None:
        if "v" in model.taken:
            raise PredicateError("v")
        model.tables["t"] = [row for row in model.tables["t"] if row[1] < 20]

    task = _on_table(lambda table: table.delete("v >= 20"), in_transaction)
    return PairedCall("delete v >= 20", task, effect, _no_result, MOVED)


def widen_columns() -> PairedCall:
    """Widens all columns, in one commit."""

    def effect(model: ExpectedTables) -> None:
        if "narrow" in model.taken:
            raise SchemaError("the type already")
        model.taken.add("narrow")

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as tx:
            for field in _WIDE:
                tx.table("t").widen_column(field.name, field.type)

    return PairedCall("widen columns", task, effect, _no_result, MOVED)


def write_days(verb: str, *rows: Row) -> PairedCall:
    """Appends or upserts rows whose times are midnights."""

    def effect(model: ExpectedTables) -> None:
        if verb == "upsert":
            replace(model, "t", rows)
        else:
            model.tables["t"].extend(rows)

    def task(peer: Peer) -> Any:
        return getattr(peer.db.table("t"), verb)(_narrow(rows))

    return PairedCall(f"{verb} {list(rows)}", task, effect, _no_result)


def narrow_table(db: Database) -> None:
    """Makes a table of narrow types in two files, with a tombstone and an older version."""
    table = db.create_table("t", _NARROW, primary_key="k")
    table.append(_narrow(_OF_DAYS[:2]))
    table.append(_narrow(_OF_DAYS[2:]))
    table.delete("v = 20")


def widened_table(db: Database) -> None:
    """Makes a table of narrow types, and widens them."""
    narrow_table(db)
    with db.transaction() as tx:
        for field in _WIDE:
            tx.table("t").widen_column(field.name, field.type)


def append_wide() -> PairedCall:
    """Appends a row whose value fits the wide type only."""
    row = (5, 2**40, 5 * _DAY_US)

    def effect(model: ExpectedTables) -> None:
        if "wide" in model.taken:
            raise SchemaError("never stored as date32")
        model.tables["t"].append(row)

    def task(peer: Peer) -> Any:
        return peer.db.table("t").append(pa.table([pa.array([v]) for v in row], names=_WIDE.names).cast(_WIDE))

    return PairedCall("append a wide row", task, effect, _no_result, MOVED)


def restored_to_narrow() -> PairedCall:
    """Restores the table to a version with the narrow types."""
    call = restore(_OF_DAYS, 3)

    def effect(model: ExpectedTables) -> None:
        call.effect(model)
        model.taken.add("wide")

    return altered(call, effect=effect)


def table_of_structs(db: Database) -> None:
    """Makes a table with a struct in two files, and a tombstone."""
    table = db.create_table("t", _STRUCTS, primary_key="k")
    table.append(_structs(*((k, (("a", 10 * k), ("b", k))) for k in (1, 2))))
    table.append(_structs(*((k, (("a", 10 * k), ("b", k))) for k in (3, 4))))
    table.delete("k = 2")


def change_fields() -> PairedCall:
    """Drops a field of a struct, and adds another one of its name, in one commit."""

    def effect(model: ExpectedTables) -> None:
        model.tables["t"] = [(k, (s[0], ("b", None))) for k, s in model.tables["t"]]

    def task(peer: Peer) -> Any:
        with peer.db.transaction() as tx:
            tx.table("t").drop_column("s.b")
            tx.table("t").add_column("s.b", pa.int32())

    return PairedCall("drop a field and add it again", task, effect, _no_result, MOVED)


def append_struct(*, in_transaction: bool = False) -> PairedCall:
    """Appends a row with a struct.

    Args:
        in_transaction: in a transaction, which is not repeated when the columns have changed.
    """
    row = (5, (("a", 50), ("b", 5)))

    def effect(model: ExpectedTables) -> None:
        model.tables["t"].append(row)

    task = _on_table(lambda table: table.append(_structs(row)), in_transaction)
    return PairedCall("append a struct", task, effect, _no_result, MOVED)


def _on_table(statement: Callable[[Any], object], in_transaction: bool) -> Callable[[Peer], None]:
    """A task that makes one statement, by itself or in a transaction."""

    def task(peer: Peer) -> None:
        if in_transaction:
            with peer.db.transaction() as tx:
                statement(tx.table("t"))
        else:
            statement(peer.db.table("t"))

    return task


def _structs(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "s": dict(s)} for k, s in rows], _STRUCTS)


def _narrow(rows: Sequence[Row]) -> pa.Table:
    days = [(k, v, t // _DAY_US) for k, v, t in rows]
    return pa.table([pa.array(column, pa.int32()) for column in zip(*days, strict=True)], names=_NARROW.names).cast(
        _NARROW
    )


def _no_result(value: Any) -> None:
    """Ignores the result."""


def restored_to_old() -> PairedCall:
    """Restores the table to a version with the former columns."""
    call = restore(OLD, 3)

    def effect(model: ExpectedTables) -> None:
        call.effect(model)
        model.added = ()

    return altered(call, effect=effect)


def _is_late(row: Row) -> bool:
    return bool(row[2] >= 3 * _DAY_US)


COLUMNS: tuple[Pair, ...] = (
    Pair("add column/append", one_table, (add_column(), write("append", (4, 40)))),
    Pair("add column/upsert", one_table, (add_column(), write("upsert", (2, 21), (4, 40)))),
    Pair("add column/compact", two_files, (add_column(), compaction())),
    Pair("add column/restore", table_with_tombstone, (add_column(), restored_to_old())),
    Pair("add column/add column", one_table, (add_column(), add_column(pa.int32())), quick=(0,)),
    Pair("drop column/append", one_table, (drop_column(2, "t"), write("append", (4, 40)))),
    Pair("replace column/buffered write", table_with_default, (replace_column(), write_buffered())),
    Pair("drop column/resolve", table_with_tombstone, (drop_column(1, "v"), resolution())),
    Pair("drop column/delete", one_table, (drop_column(1, "v"), delete_by_value())),
    Pair(
        "drop column/delete in a transaction",
        one_table,
        (drop_column(1, "v"), delete_by_value(in_transaction=True)),
        quick=(0,),
    ),
    Pair("drop column/set", one_table, (drop_column(1, "v"), set_subject())),
    Pair("other partitions/append", partitioned_table, (set_partitions(), write("append", (4, 40), (9, 90)))),
    Pair("other partitions/compact", partitioned_table, (set_partitions(), compaction())),
    Pair("partitions, upsert/compact", partitioned_table, (write("upsert", (7, 71), (9, 90)), compaction())),
    Pair("rename column/delete", one_table, (rename_column(), delete_by_value())),
    Pair("rename column/compact", table_with_tombstone, (rename_column(), compaction())),
    Pair("widen columns/append", narrow_table, (widen_columns(), write_days("append", (5, 50, 5 * _DAY_US)))),
    Pair("widen columns/upsert", narrow_table, (widen_columns(), write_days("upsert", (1, 11, 9 * _DAY_US)))),
    Pair("widen columns/delete", narrow_table, (widen_columns(), delete("t >= DATE '1970-01-04'", _is_late))),
    Pair("widen columns/compact", narrow_table, (widen_columns(), compaction())),
    Pair("widen columns/resolve", narrow_table, (widen_columns(), resolution())),
    Pair("widen columns/restore", narrow_table, (widen_columns(), restore(_OF_DAYS, 3))),
    Pair("change fields/append", table_of_structs, (change_fields(), append_struct())),
    Pair(
        "change fields/append in a transaction",
        table_of_structs,
        (change_fields(), append_struct(in_transaction=True)),
        quick=(0,),
    ),
    Pair("change fields/compact", table_of_structs, (change_fields(), compaction())),
    Pair("wide append/restore", widened_table, (append_wide(), restored_to_narrow())),
    Pair("widen columns/widen columns", narrow_table, (widen_columns(), widen_columns()), quick=(0,)),
)
