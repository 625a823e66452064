"""Actors that write, as plain programs over the public API.

``turn`` makes one call with the given process. When the process dies, the actor gets another one, and continues with
what it remembers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dolmen.rows.write.row_digest import RowDigest, content_digest
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import SCHEMA, Effect, Matches, OperationRun, Row
from dolmen_simulator.world.process import Process
from dolmen_simulator.world.requests import QueuedRequest, SimulatedQueue

TABLES = ("left", "right", "counters", "ledger")
PLAIN = TABLES[:2]
SPARE = "attic"
"""The name of a table for a while, after a rename."""

NAMES = (*TABLES, SPARE)
KEYS = 12

_SMALL_ROOT, _LEAST_ENTRY_BYTES = 6_000, 280

T = TypeVar("T")


class World(Protocol):
    """The part of a history that actors share."""

    def shared(self, kind: Callable[[], T]) -> T:
        """The instance of this kind that all actors of a history share, made at first use."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the database in this history."""

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """The possible values of each setting."""

    def unique(self) -> int:
        """A number that was never returned before."""

    @property
    def now_us(self) -> int:
        """The time."""


class Actor:
    """Base of all actors.

    Args:
        world: the shared part of the history.
        rng: the actor's own random source.
    """

    label = ""
    """The kind's name in histories, from which its random numbers follow; empty: the class name in lower case."""

    restless = False
    """Whether it takes turns now and then while the others rest."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.random = world, rng

    def turn(self, process: Process) -> None:
        """Makes one call."""
        raise NotImplementedError

    def target(self, process: Process, names: tuple[str, ...] = PLAIN) -> str | None:
        """Draws a table to work on, seldom one that does not exist, because calls on it fail at once."""
        there = [name for name in names if name in process.ledger.states[-1]]
        if names is PLAIN and SPARE in process.ledger.states[-1]:
            there.append(SPARE)
        if self.random.random() < 0.04:
            return self.random.choice(names)
        return self.random.choice(there) if there else None

    def rows(self, most: int = 8) -> tuple[Row, ...]:
        """Makes some new rows."""
        return tuple(
            Row(
                self.random.randrange(KEYS),
                None if self.random.random() < 0.1 else self.random.randrange(100),
                self.world.unique(),
                None if self.random.random() < 0.1 else self.world.now_us - self.random.randint(0, 4 * 3_600_000_000),
            )
            for _ in range(self.random.randint(1, most))
        )

    def renumbered(self, rows: tuple[Row, ...], rests: Collection[int]) -> tuple[Row, ...]:
        """The rows with new numbers, from which structs of one kind follow: those with these rests modulo 8."""
        numbers = (number for number in iter(self.world.unique, None) if number % 8 in rests)
        return tuple(row._replace(u=number) for row, number in zip(rows, numbers, strict=False))

    def count_files(self, few: tuple[int, int]) -> int:
        """Draws how many files a commit adds: seldom so many that their entries alone are more than a small root."""
        root_bytes = int(self.world.settings["root_bytes"])
        if root_bytes <= _SMALL_ROOT and self.random.random() < 0.3:
            return root_bytes // _LEAST_ENTRY_BYTES
        return self.random.randint(*few)

    def predicate(self) -> tuple[str | dict[str, Any], Matches]:
        """Draws a predicate, as users write it and as a Python function."""
        k, a, b = self.random.randrange(KEYS), self.random.randrange(100), self.random.randrange(100)
        low, high, c = min(a, b), max(a, b), self.random.randrange(10)
        choices: list[tuple[str | dict[str, Any], Matches]] = [
            (f"v >= {low} AND v < {high}", lambda row: row.v is not None and low <= row.v < high),
            (f"k = {k} AND v > {a}", lambda row: row.k == k and row.v is not None and row.v > a),
            (f"k BETWEEN {k} AND {k + 2}", lambda row: k <= row.k <= k + 2),
            (f"k IN ({k}, {k + 3}, {k + 6})", lambda row: row.k in (k, k + 3, k + 6)),
            (f"v IS NULL OR NOT v < {high}", lambda row: row.v is None or row.v >= high),
            ({"k": k}, lambda row: row.k == k),
            ({"k": k, "v": a}, lambda row: row.k == k and row.v == a),
            (f"s.a = {c} OR s.b < {c}", lambda row: row.field("a") == c or _is_less(row.field("b"), c)),
            (
                f"NOT s.a >= {c} AND v >= {low}",
                lambda row: _is_less(row.field("a"), c) and row.v is not None and row.v >= low,
            ),
            (f"s.a IS NULL AND k > {k}", lambda row: row.field("a") is None and row.k > k),
            (f"s.b IS NOT NULL AND NOT k > {k}", lambda row: row.field("b") is not None and row.k <= k),
            ({"s.a": c, "k": k}, lambda row: row.field("a") == c and row.k == k),
            ("TRUE", lambda row: True),
        ]
        return self.random.choice(choices[:-1] if self.random.random() < 0.8 else choices)

    def condition(self) -> tuple[str, Matches]:
        """Draws a condition that no tombstone can have: DuckDB finds its rows."""
        bits, k = self.random.randrange(8), self.random.randrange(KEYS)
        return self.random.choice(
            [
                (f"v & 7 = {bits}", lambda row: row.v is not None and row.v & 7 == bits),
                (
                    f"k > {k} AND v & 1 = {bits & 1}",
                    lambda row: row.k > k and row.v is not None and row.v & 1 == bits & 1,
                ),
                (f"s IS NULL AND k = {k}", lambda row: row.s is None and row.k == k),
                (f"s.a & 7 = {bits}", lambda row: (row.field("a") or 0) & 7 == bits and row.field("a") is not None),
            ]
        )


def named_columns(where: str | dict[str, Any]) -> frozenset[str]:
    """The columns and fields that a predicate names."""
    words = where if isinstance(where, dict) else where.split()
    return frozenset(("k", "v", "s.a", "s.b")).intersection(words)


def _is_less(value: int | None, than: int) -> bool:
    return value is not None and value < than


def arrow(rows: tuple[Row, ...]) -> pa.Table:
    """Converts rows to an Arrow table, as production code takes them."""
    columns = list(zip(*((*row, row.s) for row in rows), strict=True))
    return pa.table(columns, schema=SCHEMA) if rows else SCHEMA.empty_table()


def digest_of_rows(rows: tuple[Row, ...]) -> str:
    """The digest that production code computes for rows, whatever their batches."""
    digest = RowDigest(SCHEMA)
    for row in rows:
        digest.update(arrow((row,)).to_batches()[0])
    return digest.hexdigest()


class Appender(Actor):
    """Appends to one table, seldom many files at once."""

    def turn(self, process: Process) -> None:
        """Makes one commit."""
        name, rows = self.target(process), self.rows()
        if name is None:
            return
        if (count := self.count_files((1, 1))) > 1:
            self._append_files(process, name, [self.rows(1) for _ in range(count)])
            return
        process.write("append", [model.AppendEffect(name, rows)], lambda: process.db.table(name).append(arrow(rows)))

    def _append_files(self, process: Process, name: str, files: list[tuple[Row, ...]]) -> None:
        def block() -> Commit:
            with process.db.transaction() as transaction:
                for rows in files:
                    transaction.table(name).append(arrow(rows))
                return transaction.commit()

        process.write(f"append {len(files)} files", [model.AppendEffect(name, rows) for rows in files], block)


class Upserter(Actor):
    """Upserts; a call may have several rows with one key."""

    def turn(self, process: Process) -> None:
        """Makes one upsert."""
        name, rows = self.target(process), self.rows()
        if name is None:
            return
        process.write("upsert", [model.UpsertEffect(name, rows)], lambda: process.db.table(name).upsert(arrow(rows)))


class Deleter(Actor):
    """Deletes by predicate and by keys."""

    def turn(self, process: Process) -> None:
        """Makes one delete."""
        name = self.target(process, TABLES[:3])
        if name is None:
            return
        if self.random.random() < 0.4:
            keys = [self.random.randrange(KEYS) for _ in range(self.random.randint(1, 4))]
            effect: Effect = model.DeleteEffect(name, lambda row: row.k in keys)
            process.write(f"delete keys {keys}", [effect], lambda: process.db.table(name).delete(keys=keys))
            return
        where, matches = self.predicate()
        effect = model.DeleteEffect(name, matches)
        process.write(f"delete {where}", [effect], lambda: process.db.table(name).delete(where))


class PositionDeleter(Actor):
    """Deletes rows by position, in files where others do the same, some of them by conditions that DuckDB evaluates."""

    def turn(self, process: Process) -> None:
        """Makes one delete."""
        if self.target(process, ("left",)) is None:
            return
        low = self.random.randrange(100)
        where, high = f"v BETWEEN {low} AND {low + 15}", low + 15
        effect = model.DeletePositionsEffect("left", lambda row: row.v is not None and low <= row.v <= high)
        is_evaluated_once = self.random.random() < 0.4
        if is_evaluated_once:
            where, matches = self.condition()
            effect = model.DeleteConditionEffect("left", matches)
            process.network.counts["deletes by conditions"] += 1

        def by_position(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(effect)
            transaction.table("left").delete(where, mode="auto" if is_evaluated_once else "positions")

        process.run_transaction(f"delete positions {where}", by_position)


class Blind(Actor):
    """Makes transactions that read nothing: several statements over two tables in one version."""

    def turn(self, process: Process) -> None:
        """Makes one transaction."""
        statements = [self.statement(self.target(process) or PLAIN[0]) for _ in range(self.random.randint(2, 4))]

        message = self.random.choice(("", "", "what was agreed", "Ä" * 128))

        def call() -> Commit:
            with process.db.transaction(message=message) as transaction:
                for effect, apply in statements:
                    apply(transaction.table(effect.table))
                return transaction.commit()

        process.write("transaction", [effect for effect, _ in statements], call, message=message)

    def statement(self, name: str) -> tuple[Effect, Callable[[TransactionTable], None]]:
        """Draws a statement for a table: its effect in the model, and production code for it."""
        kind = self.random.random()
        if kind < 0.4:
            rows = self.rows()
            return model.AppendEffect(name, rows), lambda table: table.append(arrow(rows))
        if kind < 0.6:
            rows = self.rows()
            return model.UpsertEffect(name, rows), lambda table: table.upsert(arrow(rows))
        where, matches = self.predicate()
        return model.DeleteEffect(name, matches), lambda table: table.delete(where)


class Counter(Actor):
    """Read-modify-write: adds to a row. The value that it read is in no statement, only in the new value."""

    def turn(self, process: Process) -> None:
        """Makes one increment."""
        if self.target(process, TABLES[2:3]) is None:
            return
        k, amount = self.random.randrange(3), self.random.randint(1, 9)
        if self.random.random() < 0.1:  # only a delete, after which concurrent additions start again
            effect = model.DeleteEffect("counters", lambda row: row.k == k)
            process.write(f"counter {k} ends", [effect], lambda: process.db.table("counters").delete({"k": k}))
            return

        def increment(transaction: Transaction, run: OperationRun) -> None:
            u = self.world.unique()
            run.effects.append(model.AddEffect("counters", k, amount, u))
            add(process, transaction, "counters", k, amount, u)

        if self.random.random() < 0.8:
            process.run_transaction(f"counter {k} += {amount}", increment)
            return

        def block() -> Commit:
            with process.db.transaction() as transaction:
                process.call_with_base(transaction, process.begin_run(), increment)
                return transaction.commit()

        process.write(f"counter {k} += {amount} once", [], block, reads=True)


class Transferrer(Actor):
    """Read-modify-write over two tables, half of which must never be visible."""

    def turn(self, process: Process) -> None:
        """Makes one transfer."""
        if self.target(process, TABLES[2:3]) is None or self.target(process, TABLES[3:]) is None:
            return
        k, amount = self.random.randrange(3), self.random.randint(1, 9)
        parts = [("counters", -amount), ("ledger", amount)]
        self.random.shuffle(parts)

        def transfer(transaction: Transaction, run: OperationRun) -> None:
            for name, change in parts:
                u = self.world.unique()
                run.effects.append(model.AddEffect(name, k, change, u))
                add(process, transaction, name, k, change, u)

        process.run_transaction(f"transfer {amount} of {k}", transfer)


class Inserter(Actor):
    """Read-modify-write that only appends: adds a row unless its key exists."""

    def turn(self, process: Process) -> None:
        """Makes one insert."""
        if self.target(process, ("right",)) is None:
            return
        row = Row(self.random.randrange(KEYS), self.random.randrange(100), self.world.unique(), None)

        def insert(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(model.AppendIfAbsentEffect("right", row))
            table = transaction.table("right")
            if not table.count({"k": row.k}):
                process.evidence.add_read("right", (), row.k)
                table.append(arrow((row,)))

        process.run_transaction(f"insert {row}", insert)


def add(
    process: Process, transaction: Transaction, name: str, k: int, amount: int, u: int, before: str | None = None
) -> None:
    """Reads a row and writes it back with ``amount`` more.

    Args:
        process: the process.
        transaction: the transaction.
        name: name of the table.
        k: key of the row.
        amount: the amount to add.
        u: unique number of the new row.
        before: the table's name in the transaction's base version, if that is another one.
    """
    table = transaction.table(name)
    old = table.scan(columns=["u", "v"], where={"k": k}).to_arrow()
    process.evidence.add_read(before or name, old["u"].to_pylist(), k)
    table.upsert(arrow((Row(k, sum(value or 0 for value in old["v"].to_pylist()) + amount, u),)))


class RequestQueue(SimulatedQueue[QueuedRequest]):
    """The queue from which workers take batches."""


class Worker(Actor):
    """Takes batches of requests from the queue, as functions do, and applies each in one commit."""

    def turn(self, process: Process) -> None:
        """Handles one batch."""
        queue = self.world.shared(RequestQueue)
        if queue.wants_more and self.random.random() < 0.8:
            for _ in range(self.random.randint(1, 3)):
                queue.send(self._request(self.target(process) or PLAIN[0]))
        requests = queue.receive(self.random)
        if not requests:
            return
        ids = {request.id: request.digest for request in requests}
        effects: list[Effect] = [request.effect for request in requests]

        def apply(transaction: Transaction, run: OperationRun) -> None:
            run.effects = effects
            for request in requests:
                if not request.finds_digest:
                    transaction.bind(request.id, request.digest)
                request.apply(transaction, transaction.table(request.effect.table))

        def block() -> Commit:
            with process.db.transaction() as transaction:
                process.call_with_base(transaction, process.begin_run(), apply)
                return transaction.commit()

        kind = f"batch {' '.join(ids)}"
        if (
            any(isinstance(effect, (model.DeletePositionsEffect, model.ChangesEffect)) for effect in effects)
            or self.random.random() < 0.3
        ):
            done = process.run_transaction(kind, apply, ids)
        else:
            done = process.write(kind, effects, block, digests=ids)
        queue.settle(requests, done)

    def _request(self, name: str) -> QueuedRequest:
        id_, kind = f"r{self.world.unique()}", self.random.random()
        if kind < 0.7:
            return self._rows_request(name, id_, upserts=kind >= 0.5)
        where, matches = self.predicate()
        if kind < 0.85:
            return QueuedRequest(
                model.DeleteEffect(name, matches, id_), lambda _, table: table.delete(where, request=id_), str(where)
            )
        return QueuedRequest(
            model.DeletePositionsEffect(name, matches, id_),
            lambda _, table: table.delete(where, mode="positions", request=id_),
            f"{where} by position",
        )

    def _rows_request(self, name: str, id_: str, *, upserts: bool) -> QueuedRequest:
        rows = self.rows()

        def other() -> QueuedRequest:
            """The same request with other rows."""
            return self._rows_request(name, id_, upserts=upserts)

        if upserts:
            digest = content_digest("upsert", name, ["k"], digest_of_rows(rows))
            effect: Effect = model.UpsertEffect(name, rows, id_)
            return QueuedRequest(effect, lambda _, table: table.upsert(arrow(rows), request=id_), digest, True, other)
        digest = content_digest("append", name, None, digest_of_rows(rows))
        effect = model.AppendEffect(name, rows, id_)
        return QueuedRequest(effect, lambda _, table: table.append(arrow(rows), request=id_), digest, True, other)
