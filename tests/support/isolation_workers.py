"""Processes that use one database and write down what each call read, wrote and was answered: evidence for porcupine.

Each written value names its call, so that no two are equal. A journal has three kinds of lines: a call begins, a call
is about to commit these steps, and a call has ended. Who dies leaves a call without an end.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import pyarrow as pa

import dolmen
from dolmen import Database, Transaction
from dolmen.commit.change import RowsDependency
from dolmen.errors import ConflictError, RetryableError, UnknownOutcomeError, VersionExpiredError
from dolmen.format.schema import COMMIT_TS
from dolmen.rows.scan.engines.sql import SqlResult
from dolmen.transactions.readable_table import ReadableTable
from support.porcupine import RecordedTransaction, Step

PAIR = pa.schema([pa.field("key", pa.int64(), nullable=False), ("balance", pa.int64()), ("call", pa.string())])
ACCOUNTS, REGISTERS, LISTS = 4, 3, 2
OPENING = 100


def create_tables(db: Database) -> None:
    """Accounts, each with its opening balance; registers; and lists, whose rows are in the order of their commits."""
    for name, key in (("accounts", "key"), ("registers", "key"), ("lists", None)):
        db.create_table(name, PAIR, primary_key=key)
    db.table("accounts").append([{"key": key, "balance": OPENING, "call": "opening"} for key in range(ACCOUNTS)])


def opening(called_ns: int) -> RecordedTransaction:
    """The writes of ``create_tables``, as a recorded transaction."""
    steps: list[Step] = [("w", f"accounts/{key}", [OPENING, "opening"]) for key in range(ACCOUNTS)]
    return RecordedTransaction("opening", called_ns, time.monotonic_ns(), steps)


class Journal:
    """The journal of one process: a line for each step of a call, flushed at once."""

    def __init__(self, file: TextIO, process: str) -> None:
        self._file, self._process, self._calls = file, process, 0

    def begin(self, *, pinned: str | None = None) -> str:
        """Begins a call and returns its id.

        Args:
            pinned: whose pinned reads it may not go behind, for a call that may read an old version.
        """
        self._calls += 1
        call = f"{self._process}-{self._calls}"
        self._write(call=call, process=pinned or self._process, pinned=pinned is not None, at=time.monotonic_ns())
        return call

    def steps(self, call: str, steps: list[Step]) -> None:
        """Notes what a call has read, and is about to commit. The last such line of a call counts."""
        self._write(call=call, steps=steps)

    def end(self, call: str, outcome: str) -> None:
        """Ends a call: "done", "refused" or "unknown"."""
        self._write(call=call, outcome=outcome, at=time.monotonic_ns())

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def run(url: str, process: str, calls: int, seed: int, journal: str, unchecked: bool) -> None:
    """Makes calls at random and writes them down.

    Args:
        unchecked: break the engine on purpose: what transactions have read is not looked at when they commit.
    """
    if unchecked:
        RowsDependency.check = lambda self, draft: None  # type: ignore[method-assign]
    with Path(journal).open("a") as file:
        worker = Worker(
            dolmen.open(url), Journal(file, process), random.Random(seed), process, is_checked=not unchecked
        )
        for _ in range(calls):
            worker.call()


class Worker:
    """One process at work."""

    def __init__(
        self, db: Database, journal: Journal, rng: random.Random, process: str, *, is_checked: bool = True
    ) -> None:
        self._db, self._journal, self._rng, self._process = db, journal, rng, process
        self._is_checked = is_checked  # whether the engine looks at what a transaction has read
        self._actions: list[Callable[[], None]] = [
            *[self.transfer] * 4,
            *[self.skew] * 2,
            *[self.append_unless_long] * 2,
            *[self.transfer_by_sql] * 2,
            self.merge_by_sql,
            self.delete_by_sql,
            self.insert_by_sql,
            self.append,
            self.write,
            self.delete,
            self.look_at_register,
            self.look_at_list,
            self.audit,
            self.audit_by_transaction,
            self.look_back,
        ]

    def call(self) -> None:
        """Makes one call."""
        self._rng.choice(self._actions)()

    # ---- transactions that read and write ----------------------------------------------------------------------------

    def transfer(self) -> None:
        """Moves money between two accounts."""
        source, target = self._rng.sample(range(ACCOUNTS), 2)
        amount = self._rng.randint(1, 9)

        def move(tx: Transaction, call: str) -> list[Step]:
            accounts = tx.table("accounts")
            steps, new = [], []
            for key, change in ((source, -amount), (target, amount)):
                row = accounts.get(key)
                assert row is not None
                steps.append(("r", f"accounts/{key}", [row["balance"], row["call"]]))
                new.append({"key": key, "balance": row["balance"] + change, "call": call})
            accounts.upsert(new)
            return [*steps, *(("w", f"accounts/{row['key']}", [row["balance"], call]) for row in new)]

        self._transact(move)

    def skew(self) -> None:
        """Reads two registers by SQL, and writes one of them."""
        one, other = self._rng.sample(range(REGISTERS), 2)

        def decide(tx: Transaction, call: str) -> list[Step]:
            query = f"SELECT key, balance, call FROM registers WHERE key IN ({one}, {other})"
            found = {key: [balance, by] for key, balance, by in tx.sql(query).fetchall()}
            tx.table("registers").upsert([{"key": one, "balance": 0, "call": call}])
            reads: list[Step] = [("r", f"registers/{key}", found.get(key)) for key in (one, other)]
            return [*reads, ("w", f"registers/{one}", [0, call])]

        self._transact(decide)

    def append_unless_long(self) -> None:
        """Reads a list, and appends to another one and to it."""
        one, other = self._rng.sample(range(LISTS), 2)

        def append(tx: Transaction, call: str) -> list[Step]:
            lists = tx.table("lists")
            seen = _elements(lists, one)
            lists.append([{"key": key, "balance": 0, "call": call} for key in (one, other)])
            return [("r", f"lists/{one}", seen or None), *(("append", f"lists/{key}", call) for key in (one, other))]

        self._transact(append)

    # ---- the same by statements of SQL, which read more than they return -----------------------------------------

    def transfer_by_sql(self) -> None:
        """Moves money between two accounts by one UPDATE."""
        source, target = self._rng.sample(range(ACCOUNTS), 2)
        amount = self._rng.randint(1, 9)

        def move(tx: Transaction, call: str) -> list[Step]:
            chosen = f"WHERE key IN ({source}, {target})"
            found = _found(tx, f"SELECT key, balance, call FROM accounts {chosen}")
            new = _found(
                tx,
                f"UPDATE accounts SET balance = balance + CASE key WHEN {source} THEN -{amount} ELSE {amount} END, "
                f"call = '{call}' {chosen} RETURNING key, balance, call",
            )
            assert {key: balance - found[key][0] for key, (balance, _) in new.items()} == {
                source: -amount,
                target: amount,
            }
            return [*_steps("r", "accounts", found), *_steps("w", "accounts", new)]

        self._transact(move)

    def merge_by_sql(self) -> None:
        """Sets registers to the least balance of two accounts by MERGE: there are rows with these keys, or not."""
        one, other = self._rng.sample(range(REGISTERS), 2)
        accounts = self._rng.sample(range(ACCOUNTS), 2)

        def merge(tx: Transaction, call: str) -> list[Step]:
            chosen = f"FROM accounts WHERE key IN ({accounts[0]}, {accounts[1]})"
            found = _found(tx, f"SELECT key, balance, call {chosen}")
            new = _found(
                tx,
                f"MERGE INTO registers r USING (SELECT unnest([{one}, {other}])::BIGINT AS key, "
                f"(SELECT min(balance) {chosen}) AS least) s ON r.key = s.key "
                f"WHEN MATCHED THEN UPDATE SET balance = least, call = '{call}' "
                f"WHEN NOT MATCHED THEN INSERT VALUES (s.key, least, '{call}') RETURNING r.key, r.balance, r.call",
            )
            assert set(new) == {one, other}
            if self._is_checked:
                assert {balance for balance, _ in new.values()} == {min(balance for balance, _ in found.values())}
            return [*_steps("r", "accounts", found), *_steps("w", "registers", new)]

        self._transact(merge)

    def delete_by_sql(self) -> None:
        """Deletes a register if another one has a certain value."""
        one, other = self._rng.sample(range(REGISTERS), 2)

        def delete(tx: Transaction, call: str) -> list[Step]:
            found = _found(tx, f"SELECT key, balance, call FROM registers WHERE key IN ({one}, {other})")
            condition = f"EXISTS (SELECT 1 FROM registers o WHERE o.key = {other} AND o.balance > 0)"
            gone = _found(tx, f"DELETE FROM registers WHERE key = {one} AND {condition} RETURNING key, balance, call")
            assert bool(gone) == (one in found and other in found and found[other][0] > 0)
            reads: list[Step] = [("r", f"registers/{key}", found.get(key)) for key in (one, other)]
            return [*reads, *(("w", f"registers/{key}", None) for key in gone)]

        self._transact(delete)

    def insert_by_sql(self) -> None:
        """Appends to a list by INSERT, unless another one is longer."""
        one, other = self._rng.sample(range(LISTS), 2)

        def insert(tx: Transaction, call: str) -> list[Step]:
            lists = tx.table("lists")
            seen = {key: _elements(lists, key) for key in (one, other)}
            length = "(SELECT count(*) FROM lists WHERE key = {})"
            new = _found(
                tx,
                f"INSERT INTO lists SELECT {one}, 0, '{call}' WHERE {length.format(one)} <= {length.format(other)} "
                "RETURNING key, balance, call",
            )
            assert bool(new) == (len(seen[one]) <= len(seen[other]))
            reads: list[Step] = [("r", f"lists/{key}", elements or None) for key, elements in seen.items()]
            return [*reads, *(("append", f"lists/{key}", call) for key in new)]

        self._transact(insert)

    def _transact(self, function: Callable[[Transaction, str], list[Step]]) -> None:
        call = self._journal.begin()

        def run(tx: Transaction) -> None:
            self._journal.steps(call, function(tx, call))

        self._settle(call, lambda: self._db.run(run, message=call))

    # ---- single statements -------------------------------------------------------------------------------------------

    def append(self) -> None:
        """Appends to a list without a look."""
        key = self._rng.randrange(LISTS)
        call = self._journal.begin()
        self._journal.steps(call, [("append", f"lists/{key}", call)])
        row = {"key": key, "balance": 0, "call": call}
        self._settle(call, lambda: self._db.table("lists").append([row], message=call))

    def write(self) -> None:
        """Writes a register without a look."""
        key = self._rng.randrange(REGISTERS)
        call = self._journal.begin()
        self._journal.steps(call, [("w", f"registers/{key}", [1, call])])
        row = {"key": key, "balance": 1, "call": call}
        self._settle(call, lambda: self._db.table("registers").upsert([row], message=call))

    def delete(self) -> None:
        """Deletes a register."""
        key = self._rng.randrange(REGISTERS)
        call = self._journal.begin()
        self._journal.steps(call, [("w", f"registers/{key}", None)])
        self._settle(call, lambda: self._db.table("registers").delete(f"key = {key}", message=call))

    # ---- reads -------------------------------------------------------------------------------------------------------

    def look_at_register(self) -> None:
        """Gets the newest value of a register."""
        key = self._rng.randrange(REGISTERS)

        def look() -> list[Step]:
            row = self._db.table("registers").get(key)
            return [("r", f"registers/{key}", row and [row["balance"], row["call"]])]

        self._read(look)

    def look_at_list(self) -> None:
        """Reads the newest rows of a list."""
        key = self._rng.randrange(LISTS)
        self._read(lambda: [("r", f"lists/{key}", _elements(self._db.table("lists"), key) or None)])

    def audit(self) -> None:
        """Reads all accounts and registers by one query."""

        def look() -> list[Step]:
            query = "SELECT 'accounts/', * FROM accounts UNION ALL SELECT 'registers/', * FROM registers"
            found: dict[str, dict[str, Any]] = {"accounts/": {}, "registers/": {}}
            for table, key, balance, by in self._db.sql(query).fetchall():
                found[table][str(key)] = [balance, by]
            return [("all", table, values) for table, values in found.items()]

        self._read(look)

    def audit_by_transaction(self) -> None:
        """Reads everything in a transaction that only reads, table by table."""

        def look() -> list[Step]:
            with self._db.transaction() as tx:
                steps = [_whole(tx.table(name)) for name in ("accounts", "registers")]
                time.sleep(self._rng.random() / 100)
                return [*steps, *_lists(tx.table("lists"))]

        self._read(look)

    def look_back(self) -> None:
        """Reads everything in an old version; or in the newest that this process knows, which never goes back."""
        version, whose = self._db.version, self._process
        if self._rng.random() < 0.5:
            version, whose = self._rng.randint(4, version), f"{self._process}, {self._rng.random()}"

        def look() -> list[Step]:
            then = self._db.at(version)
            return [*(_whole(then.table(name)) for name in ("accounts", "registers")), *_lists(then.table("lists"))]

        self._read(look, pinned=whose)

    def _read(self, look: Callable[[], list[Step]], pinned: str | None = None) -> None:
        call = self._journal.begin(pinned=pinned)
        self._settle(call, lambda: self._journal.steps(call, look()))

    def _settle(self, call: str, make: Callable[[], object]) -> None:
        try:
            make()
        except UnknownOutcomeError:
            self._journal.end(call, "unknown")
        except (ConflictError, RetryableError, VersionExpiredError):
            self._journal.end(call, "refused")
        else:
            self._journal.end(call, "done")


def _found(tx: Transaction, statement: str) -> dict[int, list[Any]]:
    """The rows that a statement returns, by their keys."""
    result = tx.sql(statement)
    assert isinstance(result, SqlResult)
    return {key: values for key, *values in result.fetchall()}


def _steps(kind: Literal["r", "w"], table: str, rows: dict[int, list[Any]]) -> list[Step]:
    return [(kind, f"{table}/{key}", values) for key, values in rows.items()]


def _elements(lists: ReadableTable, key: int) -> list[str]:
    rows = lists.scan(["call"], f"key = {key}", with_commit_ts=True).to_arrow().sort_by(COMMIT_TS)
    elements: list[str] = rows["call"].to_pylist()
    return elements


def _lists(lists: ReadableTable) -> Iterator[Step]:
    for key in range(LISTS):
        yield "r", f"lists/{key}", _elements(lists, key) or None


def _whole(table: ReadableTable) -> Step:
    rows = table.to_arrow().to_pylist()
    return "all", f"{table.name}/", {str(row["key"]): [row["balance"], row["call"]] for row in rows}


def recorded(journals: list[Path], landed: set[str]) -> list[RecordedTransaction]:
    """The history that journals tell.

    Args:
        landed: calls whose commit is in the history of the database, which decides about those without an answer.
    """
    history: list[RecordedTransaction] = []
    for path in journals:
        calls: dict[str, dict[str, Any]] = {}
        for line in map(json.loads, path.read_text().rpartition("\n")[0].splitlines()):  # one may be cut off
            known = calls.setdefault(line["call"], {"outcome": "unknown"})
            known.update({"ended" if "outcome" in line and key == "at" else key: line[key] for key in line})
        for call, told in calls.items():
            steps = [tuple(step) for step in told.get("steps", ())]
            writes = any(kind in ("w", "append") for kind, _, _ in steps)
            if told["outcome"] == "refused" or (told["outcome"] == "unknown" and not (writes and call in landed)):
                continue
            ended = told["ended"] if told["outcome"] == "done" else None
            history.append(RecordedTransaction(told["process"], told["at"], ended, steps, told["pinned"]))
    return sorted(history, key=lambda each: each.call_ns)
