"""Random histories of tables whose columns and rows change in all ways, with DuckDB as the oracle of every version.

``python -m support.altered_history --histories 20000 --seed 7`` runs many; ``--spark-every 200`` reads each 200th by
Spark too. A difference is raised with the number of its history, which alone repeats it (``--first NUMBER``).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.rows.scan import access_path
from dolmen.rows.scan.access_path import FilterUse
from dolmen.store.memory import MemoryStore
from support.oracle import connect_oracle

STEPS = 12
KEYS = 14
NAMES = ("a", "b", "c", "d", "e", "My col", "ü.x")
VALUES: dict[str, tuple[pa.DataType, str, tuple[Any, ...]]] = {
    "int64": (pa.int64(), "BIGINT", (0, 1, 2, -(2**40))),
    "int32": (pa.int32(), "INTEGER", (0, 1, 2, -1)),
    "string": (pa.string(), "VARCHAR", ("", "x", "it's", "Grüße")),
    "float64": (pa.float64(), "DOUBLE", (0.0, -0.0, 1.5, float("nan"))),
    "bool": (pa.bool_(), "BOOLEAN", (True, False)),
    "decimal": (pa.decimal128(9, 2), "DECIMAL(9, 2)", (Decimal("0.00"), Decimal("-1.25"), Decimal("7.00"))),
    "date": (pa.date32(), "DATE", (date(1969, 12, 31), date(2026, 2, 28))),
}
"""By name: the Arrow type, DuckDB's type, and values."""


@dataclass(frozen=True)
class Column:
    """A column of the model: ``id`` is its name in DuckDB, whatever it is called in the table."""

    name: str
    id: str
    kind: str
    nullable: bool = True
    default: Any = None

    @property
    def shown(self) -> pa.Field:
        """The column as a scan shows it."""
        return pa.field(self.name, VALUES[self.kind][0], self.nullable)


@dataclass(frozen=True)
class Shown:
    """A table as a version shows it: its columns, and the copy of its rows in DuckDB."""

    columns: tuple[Column, ...]
    rows: str

    def select(self, where: str = "TRUE") -> str:
        """The query of DuckDB for the rows, with a condition over the ids of columns."""
        return f"SELECT {', '.join(column.id for column in self.columns)} FROM {self.rows} WHERE {where}"


class AlteredHistory:
    """A database with tables that anything may happen to, and what each of its versions should show."""

    def __init__(self, rng: random.Random, db: Database) -> None:
        self.rng, self.db, self.oracle = rng, db, connect_oracle()
        self.numbers = iter(range(10**9))
        self.states: dict[int, dict[str, Shown]] = {}
        self.tags: dict[str, int] = {}
        self.log: list[str] = []
        if rng.random() < 0.5:
            db.set(root_bytes="4KB")  # entries leave the manifest early
        key = pa.field("id", pa.int64(), nullable=False)
        db.create_table("t", pa.schema([key, ("a", pa.string())]), primary_key="id")
        columns = (Column("id", self.new("c"), "int64", nullable=False), Column("a", self.new("c"), "string"))
        typed = ", ".join(f"{column.id} {VALUES[column.kind][1]}" for column in columns)
        rows = self.new("r")
        self.oracle.execute(f"CREATE TABLE {rows} ({typed})")
        self.tables = {"t": Shown(columns, rows)}
        self.note()

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"

    def note(self) -> None:
        """Remembers what the versions that were made since show."""
        for version in range(max(self.states, default=self.db.version - 1) + 1, self.db.refresh() + 1):
            self.states[version] = dict(self.tables)

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.step()
            self.note()

    def step(self) -> None:
        rng, db = self.rng, self.db
        name = rng.choice(sorted(self.tables))
        what = rng.choice([*ROWS * 2, *COLUMNS, *WHOLE])
        if what in ROWS or what in COLUMNS:
            self.act(db.table(name), name, what)
        elif what == "transaction":
            with db.transaction() as tx:
                for _ in range(rng.randint(2, 4)):
                    self.act(tx.table(name), name, rng.choice([*ROWS, *COLUMNS]))
        elif what == "update":
            self.update(name)
        elif what == "tag":
            tag, version = self.new("tag"), rng.choice(list(self.states))
            db.tag(tag, version)
            self.tags[tag] = version
        elif what == "restore":
            self.restore(name)
        elif what == "clone" and len(self.tables) < 3:
            version = rng.choice([version for version, shown in self.states.items() if name in shown])
            copy = self.new("clone")
            db.clone(name, copy, version)
            self.tables[copy] = self.copied(self.states[version][name])
        elif what in UPKEEP:
            getattr(db, what)()
        self.log.append(f"{what} {name} -> {db.version}")

    def restore(self, name: str) -> None:
        version = self.rng.choice([version for version, shown in self.states.items() if name in shown])
        if self.rng.random() < 0.5:
            self.db.table(name).restore(version)
            self.tables[name] = self.copied(self.states[version][name])
        else:
            self.db.restore(version)
            self.tables = {each: self.copied(shown) for each, shown in self.states[version].items()}

    def act(self, table: Any, name: str, what: str) -> None:
        """Changes rows or columns of a table, or of a transaction's table, and the model."""
        if what in ROWS:
            self.tables[name] = self.copied(self.tables[name])
        getattr(self, what)(table, name)

    def copied(self, shown: Shown) -> Shown:
        """The same rows in another table of DuckDB, as older versions go on showing theirs."""
        rows = self.new("r")
        self.oracle.execute(f"CREATE TABLE {rows} AS FROM {shown.rows}")
        return replace(shown, rows=rows)

    def value(self, column: Column) -> Any:
        if column.name == "id":
            return self.rng.randrange(KEYS)
        values: tuple[Any, ...] = VALUES[column.kind][2]
        return self.rng.choice([None, *values] if column.nullable else values)

    # ---- rows

    def append(self, table: Any, name: str) -> None:
        table.append(self.insert(name, self.rng.choices(range(KEYS), k=self.rng.randint(1, 5))))

    def upsert(self, table: Any, name: str) -> None:
        keys = self.rng.sample(range(KEYS), self.rng.randint(1, 4))
        shown = self.tables[name]
        key = next(column for column in shown.columns if column.name == "id")
        self.oracle.execute(f"DELETE FROM {shown.rows} WHERE {key.id} IN ({', '.join(map(str, keys))})")
        table.upsert(self.insert(name, keys))

    def overwrite(self, table: Any, name: str) -> None:
        self.oracle.execute(f"TRUNCATE {self.tables[name].rows}")
        table.overwrite(self.insert(name, self.rng.choices(range(KEYS), k=self.rng.randint(0, 4))))

    def delete(self, table: Any, name: str) -> None:
        where = self.predicate(self.tables[name].columns)
        self.oracle.execute(f"DELETE FROM {self.tables[name].rows} WHERE {where[1]}")
        table.delete(where[0], mode=self.rng.choice(["tombstone", "tombstone", "positions"]))

    def delete_keys(self, table: Any, name: str) -> None:
        keys = self.rng.sample(range(KEYS), 2)
        shown = self.tables[name]
        key = next(column for column in shown.columns if column.name == "id")
        self.oracle.execute(f"DELETE FROM {shown.rows} WHERE {key.id} IN ({', '.join(map(str, keys))})")
        table.delete(keys=keys)

    def insert(self, name: str, keys: Sequence[int]) -> pa.Table:
        """Puts random rows into the model, and returns them; some columns are left out, and get their defaults."""
        shown = self.tables[name]
        given = [c for c in shown.columns if c.name == "id" or self.rng.random() < 0.7 or not c.nullable]
        values = {c.name: list(keys) if c.name == "id" else [self.value(c) for _ in keys] for c in given}
        columns = {c.name: pa.array(values[c.name], VALUES[c.kind][0]) for c in given}
        if keys:
            given_by_name = {c.name: iter(values[c.name]) for c in given}
            rows = [
                tuple(next(given_by_name[c.name]) if c in given else c.default for c in shown.columns) for _ in keys
            ]
            names = ", ".join(c.id for c in shown.columns)
            self.oracle.executemany(
                f"INSERT INTO {shown.rows} ({names}) VALUES ({', '.join('?' * len(shown.columns))})", rows
            )
        return pa.table(columns)

    def update(self, name: str) -> None:
        shown = self.tables[name]
        column = self.rng.choice(shown.columns)
        if column.name == "id":
            return
        value, where = self.value(column), self.predicate(shown.columns)
        rows, kind = self.new("r"), VALUES[column.kind][1]
        # DuckDB's UPDATE would leave -0.0 as it is where it is to become 0.0, which equals it.
        changed = f"CASE WHEN {where[1]} THEN CAST(? AS {kind}) ELSE {column.id} END AS {column.id}"
        self.oracle.execute(f"CREATE TABLE {rows} AS SELECT * REPLACE ({changed}) FROM {shown.rows}", [value])
        self.tables[name] = Shown(shown.columns, rows)
        self.db.table(name).update({column.name: value}, where[0])

    # ---- columns

    def add_column(self, table: Any, name: str) -> None:
        shown = self.tables[name]
        free = [each for each in NAMES if each not in {column.name for column in shown.columns}]
        if not free:
            return
        kind = self.rng.choice(list(VALUES))
        default = self.rng.choice([None, *VALUES[kind][2]])
        added = Column(self.rng.choice(free), self.new("c"), kind, default is None or self.rng.random() < 0.6, default)
        table.add_column(
            f'"{added.name}"' if "." in added.name else added.name, VALUES[kind][0], default, nullable=added.nullable
        )
        rows = self.new("r")
        self.oracle.execute(
            f"CREATE TABLE {rows} AS SELECT *, CAST(? AS {VALUES[kind][1]}) AS {added.id} FROM {shown.rows}", [default]
        )
        self.tables[name] = Shown((*shown.columns, added), rows)

    def drop_column(self, table: Any, name: str) -> None:
        if others := self.others(name):
            dropped = self.rng.choice(others)
            table.drop_column(dropped.name)
            self.replace(name, {dropped.id: None})

    def rename_column(self, table: Any, name: str) -> None:
        free = [each for each in NAMES if each not in {column.name for column in self.tables[name].columns}]
        if (others := self.others(name)) and free:
            column, to = self.rng.choice(others), self.rng.choice(free)
            table.rename_column(column.name, to)
            self.replace(name, {column.id: replace(column, name=to)})

    def set_default(self, table: Any, name: str) -> None:
        if others := self.others(name):
            column = self.rng.choice(others)
            value = self.value(column)
            table.set_default(column.name, value)
            self.replace(name, {column.id: replace(column, default=value)})

    def make_nullable(self, table: Any, name: str) -> None:
        strict = [column for column in self.others(name) if not column.nullable]
        if strict:
            table.make_nullable(strict[0].name)
            self.replace(name, {strict[0].id: replace(strict[0], nullable=True)})

    def reorder(self, table: Any, name: str) -> None:
        columns = self.rng.sample(self.tables[name].columns, len(self.tables[name].columns))
        table.reorder([column.name for column in columns])
        self.tables[name] = replace(self.tables[name], columns=tuple(columns))

    def others(self, name: str) -> list[Column]:
        return [column for column in self.tables[name].columns if column.name != "id"]

    def replace(self, name: str, changed: dict[str, Column | None]) -> None:
        columns = (changed.get(column.id, column) for column in self.tables[name].columns)
        self.tables[name] = replace(self.tables[name], columns=tuple(c for c in columns if c is not None))

    def predicate(self, columns: Sequence[Column]) -> tuple[str, str]:
        """A random condition: over the names of columns, and over their ids."""
        rng = self.rng
        parts = []
        for _ in range(rng.choice([1, 1, 2])):
            column = rng.choice(columns)
            text = "{} IS NULL" if rng.random() < 0.2 else f"{{}} {rng.choice(['=', '<', '>=', '<>'])} "
            if text.endswith(" "):
                values = range(KEYS) if column.name == "id" else [v for v in VALUES[column.kind][2] if v == v]
                text += literal(rng.choice(values))
            parts.append((column, text))
        word = rng.choice([" AND ", " OR "])
        quoted = word.join(text.replace("{}", f'"{column.name}"', 1) for column, text in parts)
        return quoted, word.join(text.replace("{}", column.id, 1) for column, text in parts)

    # ---- what versions show

    def expected(self, shown: Shown, where: str = "TRUE") -> list[str]:
        return said(self.oracle.execute(shown.select(where)).fetchall())

    def check(self, sql_share: float = 1.0) -> None:
        """Compares scans, counts and SQL with the oracle in every version.

        Args:
            sql_share: the share of versions that SQL reads: each time it begins a DuckDB of its own.
        """
        for version, name, shown in self.all():
            place, snapshot = (version, name, self.log), self.db.at(version)
            assert snapshot.tables() == sorted(self.states[version]), place
            table = snapshot.table(name)
            assert table.schema.equals(pa.schema([c.shown for c in shown.columns])), (place, table.schema)
            assert said_of(table.to_arrow()) == self.expected(shown), place
            where, by_id = self.predicate(shown.columns)
            expected = self.expected(shown, by_id)
            assert said_of(table.scan(where=where).to_arrow()) == expected, (place, where)
            assert table.count(where) == len(expected), (place, where)
            if self.rng.random() < sql_share:
                found = snapshot.sql(f'SELECT * FROM "{name}" WHERE {where}').fetchall()
                assert said(found) == expected, (place, where)
        for tag, version in self.tags.items():
            for name, shown in self.states[version].items():
                assert said_of(self.db.at(tag=tag).table(name).to_arrow()) == self.expected(shown), (tag, name)
        assert self.db.verify(deep=True).ok, self.log

    def all(self) -> Iterator[tuple[int, str, Shown]]:
        for version, tables in self.states.items():
            yield from ((version, name, shown) for name, shown in tables.items())

    def check_spark(self, spark: Any) -> None:
        """Compares Spark's native reader and its data source with the oracle in every version."""
        from dolmen.spark import to_spark

        source = spark.read.format("dolmen").option("path", self.db.url)
        for version, name, shown in self.all():
            place = version, name, self.log
            where, by_id = self.predicate(shown.columns)
            native = to_spark(self.db.at(version).table(name), spark=spark)
            assert native.columns == [column.name for column in shown.columns], place
            assert said_of(native.toArrow()) == self.expected(shown), place
            frame = source.option("table", name).option("version", version).option("where", where).load()
            assert said_of(frame.toArrow()) == self.expected(shown, by_id), (place, where)


ROWS = ("append", "upsert", "overwrite", "delete", "delete", "delete_keys", "append")
COLUMNS = ("add_column", "add_column", "drop_column", "rename_column", "set_default", "make_nullable", "reorder")
UPKEEP = ("compact", "resolve", "merge", "maintain")
WHOLE = ("transaction", "transaction", "update", "tag", "restore", "clone", *UPKEEP)


def said(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows as text, sorted: NaN equals itself so, and -0.0 is not 0.0."""
    return sorted(map(repr, rows))


def said_of(table: pa.Table) -> list[str]:
    return said(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def literal(value: Any) -> str:
    """A value in the SQL of both."""
    if isinstance(value, str):
        doubled = value.replace("'", "''")
        return f"'{doubled}'"
    if isinstance(value, bool):
        return str(value).upper()
    return f"DATE '{value}'" if isinstance(value, date) else str(value)


def ask_all_filters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets scans ask every Bloom filter that can be asked, and lists how many files each answer excludes."""
    monkeypatch.setattr(access_path, "REQUEST_BYTES", -(1 << 40))
    monkeypatch.setattr(access_path, "_LEAST_EXCLUDED_SHARE", -1.0)
    excluded: list[int] = []
    plain = FilterUse.judge

    def judge(self: FilterUse, *args: Any, **options: Any) -> None:
        before = self.excluded
        plain(self, *args, **options)
        excluded.append(self.excluded - before)

    monkeypatch.setattr(FilterUse, "judge", judge)
    return excluded


def in_memory(seed: str) -> AlteredHistory:
    """A history on a store in memory."""
    runtime = Runtime()
    return AlteredHistory(random.Random(seed), Database(MemoryStore(runtime=runtime), runtime))


def on_disk(seed: str, url: str) -> AlteredHistory:
    """A history in a directory, where Spark finds it."""
    return AlteredHistory(random.Random(seed), dolmen.open(url))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--sql-share", type=float, default=1.0)
    parser.add_argument("--spark-every", type=int, default=0)
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    with ExitStack() as stack:
        spark = None
        if given.spark_every:
            from support.spark import start_session

            spark = start_session(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            stack.callback(spark.stop)
        done = by_spark = 0
        for number in range(given.first, given.first + given.histories):
            if time.monotonic() > until:
                break
            seed = f"{given.seed} {number}"
            try:
                if spark is not None and number % given.spark_every == 0:
                    with tempfile.TemporaryDirectory() as directory:
                        history = on_disk(seed, directory)
                        history.run()
                        history.check(given.sql_share)
                        history.check_spark(spark)
                    by_spark += 1
                else:
                    history = in_memory(seed)
                    history.run()
                    history.check(given.sql_share)
            except BaseException:
                print(f"history {number} of seed {given.seed}", flush=True)
                raise
            done += 1
            if done % 100 == 0:
                print(f"{done} histories, {by_spark} of them by Spark too", flush=True)
        print(f"{done} histories, {by_spark} of them by Spark too: no difference", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
