"""A table of another database that lives, and what Debezium's connectors and AWS DMS write about it.

SQLite is the source: each statement is made there, and told in the forms that these document: Debezium's "Data change
events" and "Schema change topic" of the MySQL and PostgreSQL connectors, and "Using Amazon S3 as a target for AWS DMS".
"""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ADDED = {"INTEGER": "int32", "BIGINT": "int64", "DOUBLE": "double", "VARCHAR": "string"}
"""Types of columns that the source gets, as SQL and Kafka Connect call them."""

Row = dict[str, Any]


@dataclass
class LiveSource:
    """A table ``customers`` that gets, loses and renames columns while its rows change.

    Args:
        position: in the source's log.
        types: SQL types of its columns, by name.
        telling: told changes: operation, row before, row after, and columns of then.
    """

    rng: random.Random
    position: int = 1_000
    types: dict[str, str] = field(default_factory=lambda: {"id": "BIGINT", "name": "VARCHAR"})
    db: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))
    told: list[Change] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.db.row_factory = sqlite3.Row
        self.db.execute("CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR)")

    def rows(self) -> list[Row]:
        """The rows of now, by key."""
        return [dict(row) for row in self.db.execute("SELECT * FROM customers ORDER BY id")]

    def live(self, changes: int) -> None:
        """Makes some changes."""
        for _ in range(changes):
            chance = self.rng.random()
            if chance < 0.1:
                self.change_columns()
            elif chance < 0.5 or not self.rows():
                self.insert()
            elif chance < 0.8:
                self.update()
            elif chance < 0.88:
                self.move()
            else:
                self.delete()

    def change_columns(self) -> None:
        """Adds, drops or renames a column."""
        own = [name for name in self.types if name not in ("id", "name")]
        chance = self.rng.random()
        if not own or (chance < 0.5 and len(own) < 4):
            self.names += 1
            name, kind = f"c{self.names}", self.rng.choice(sorted(ADDED))
            self._alter(f"ADD COLUMN {name} {kind}")
            self.types[name] = kind
        elif chance < 0.75:
            name = self.rng.choice(own)
            self._alter(f"DROP COLUMN {name}")
            del self.types[name]
        else:
            self.names += 1
            old, new = self.rng.choice(own), f"c{self.names}"
            self._alter(f"RENAME COLUMN {old} TO {new}")
            self.types = {new if name == old else name: kind for name, kind in self.types.items()}
            for row in self.rows():  # as people do, so that rows of before have the new column at consumers, too
                self._tell("u", row, row)

    def _alter(self, change: str) -> None:
        self.db.execute(f"ALTER TABLE customers {change}")
        self.position += 1
        self.told.append(Change("ddl", None, None, self.position, dict(self.types), f"ALTER TABLE customers {change}"))

    def insert(self) -> None:
        """Inserts a row under a new key, or one that was deleted."""
        taken = {row["id"] for row in self.rows()}
        row = self._values(self.rng.choice([key for key in range(40) if key not in taken]))
        self._put(row)
        self._tell("c", None, row)

    def update(self) -> None:
        """Updates a row."""
        before = self.rng.choice(self.rows())
        after = self._values(before["id"])
        self._put(after)
        self._tell("u", before, after)

    def move(self) -> None:
        """Changes a key, which connectors tell as a delete and an insert."""
        taken = self.rows()
        before = self.rng.choice(taken)
        after = before | {"id": self.rng.choice(sorted({*range(40)} - {row["id"] for row in taken}))}
        self.db.execute("DELETE FROM customers WHERE id = ?", [before["id"]])
        self._put(after)
        self._tell("d", before, None)
        self._tell("c", None, after)

    def delete(self) -> None:
        """Deletes a row."""
        before = self.rng.choice(self.rows())
        self.db.execute("DELETE FROM customers WHERE id = ?", [before["id"]])
        self._tell("d", before, None)

    def _values(self, key: int) -> Row:
        row: Row = {"id": key}
        for name, kind in list(self.types.items())[1:]:
            number = self.rng.randrange(1, 1000)
            values = {"INTEGER": number, "BIGINT": number * 2**33, "DOUBLE": number / 8, "VARCHAR": f"text {number}"}
            row[name] = None if self.rng.random() < 0.1 else values[kind]
        return row

    def _put(self, row: Row) -> None:
        marks = ", ".join("?" * len(row))
        self.db.execute(f"INSERT OR REPLACE INTO customers ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def _tell(self, op: str, before: Row | None, after: Row | None) -> None:
        self.position += self.rng.randint(1, 300)
        self.told.append(Change(op, before, after, self.position, dict(self.types)))


@dataclass(frozen=True)
class Change:
    """One change of the source: of a row, or of its columns (``ddl``)."""

    op: str
    before: Row | None
    after: Row | None
    position: int
    types: dict[str, str]
    ddl: str | None = None


def debezium_lines(changes: list[Change], connector: str, *, schemas: bool) -> Iterator[str]:
    """The events of a connector as JSON lines, as Kafka Connect's JsonConverter writes them.

    Args:
        connector: ``mysql`` or ``postgresql``.
        schemas: whether each event has its schema (``schemas.enable``).
    """
    for change in changes:
        payload: dict[str, Any] = {"source": _debezium_source(change, connector), "ts_ms": 1_767_607_200_000}
        if change.op == "ddl":
            if connector == "mysql":
                about = {"type": "ALTER", "id": '"inventory"."customers"', "table": {"columns": []}}
                told = {"databaseName": "inventory", "schemaName": None, "ddl": change.ddl, "tableChanges": [about]}
                yield json.dumps(payload | told)
            continue
        payload |= {"before": change.before, "after": change.after, "op": change.op, "transaction": None}
        if schemas:
            event = {"schema": _debezium_schema(change), "payload": payload}
            yield json.dumps(event, separators=(",", ":"))
        else:
            yield json.dumps(payload)
        if change.op == "d":
            yield "null"  # the tombstone behind a delete


def _debezium_source(change: Change, connector: str) -> dict[str, Any]:
    common = {"version": "3.3.1.Final", "connector": connector, "name": "server1", "ts_ms": 1_767_607_200_000}
    if connector == "mysql":
        about = {"db": "inventory", "server_id": 223344, "gtid": None, "file": "mysql-bin.000003"}
        own = {"pos": change.position, "row": 0, "thread": 7, "query": None}
    else:
        about = {"db": "postgres", "schema": "public", "sequence": f'["{change.position}","{change.position}"]'}
        own = {"txId": 555, "lsn": change.position, "xmin": None}
    return common | {"snapshot": "true" if change.op == "r" else "false", "table": "customers"} | about | own


def _debezium_schema(change: Change) -> dict[str, Any]:
    columns = [{"type": ADDED[kind], "optional": name != "id", "field": name} for name, kind in change.types.items()]
    image = {"type": "struct", "fields": columns, "optional": True, "name": "server1.inventory.customers.Value"}
    fields = [image | {"field": "before"}, image | {"field": "after"}]
    fields.append({"type": "string", "optional": False, "field": "op"})
    return {"type": "struct", "fields": fields, "optional": False, "name": "server1.inventory.customers.Envelope"}


def dms_files(changes: list[Change]) -> Iterator[str]:
    """The CSV files of a task: a new one whenever the columns change, as each has one header."""
    text, header = io.StringIO(), list[str]()
    for change in changes:
        names = ["Op", *change.types, "change_seq"]
        if change.op == "ddl":
            continue
        if names != header:
            if text.getvalue():
                yield text.getvalue()
            text, header = io.StringIO(), names
            csv.writer(text).writerow(names)
        row = change.after or change.before
        assert row is not None
        op = {"c": "I", "r": "I", "u": "U", "d": "D"}[change.op]
        csv.writer(text).writerow([op, *(row.get(name) for name in change.types), change.position])
    if text.getvalue():
        yield text.getvalue()
