"""The feed of random histories, replayed, is the table at every version; and the net change between any two of them."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dolmen
from support.random_tables import TYPES, random_column

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 1500 if os.environ.get("DOLMEN_LONG") else 24
STEPS = 22
KINDS = [kind for kind in TYPES if kind not in ("date", "naive", "zoned")]  # whose values Python cannot all show
FED = {"_change", "_version", "_commit_ts"}

Rows = Counter[tuple[Any, ...]]


def said(value: Any) -> Any:
    """A value that equals only the same bits."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        return ("list", *map(said, value))
    if isinstance(value, dict):
        return ("dict", *((name, said(each)) for name, each in value.items()))
    return value


def counted(rows: Iterable[dict[str, Any]]) -> Rows:
    return Counter(tuple((name, said(value)) for name, value in row.items() if name not in FED) for row in rows)


class History:
    """A table that anything may happen to, and how its columns were called in each version."""

    def __init__(self, rng: random.Random, url: str) -> None:
        self.rng, self.db = rng, dolmen.open(url)
        if rng.random() < 0.6:
            self.db.set(root_bytes="4KB")  # entries leave the manifest early
        self.has_key = rng.random() < 0.6
        self.kinds = rng.sample(KINDS, rng.randint(1, 3))
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())]
        fields += [pa.field(f"c{place}", TYPES[kind][0]) for place, kind in enumerate(self.kinds)]
        self.db.create_table("other", pa.schema([("x", pa.int64())]))
        self.table = self.db.create_table("t", pa.schema(fields), primary_key="id" if self.has_key else None)
        self.ids: dict[str, int] = {field.name: place for place, field in enumerate(fields)}
        self.columns: dict[int, dict[str, int]] = {}
        self.note()

    def note(self) -> None:
        """Remembers the columns of the versions that were made since."""
        for version in range(max(self.columns, default=0) + 1, self.db.refresh() + 1):
            self.columns[version] = dict(self.ids)

    def rows(self) -> pa.Table:
        count = self.rng.randint(1, 12)
        keys = [self.rng.randrange(15) for _ in range(count)]
        columns: dict[str, Any] = {
            "id": pa.array(keys, pa.int64()),
            "n": pa.array([self.rng.choice([None, 0, 1, 2]) for _ in range(count)], pa.int64()),
        }
        columns |= {f"c{place}": random_column(self.rng, kind, count) for place, kind in enumerate(self.kinds)}
        return pa.table({name: column for name, column in columns.items() if name in self.ids})

    def step(self) -> None:
        self.act(self.rng.choice([*CHANGES, *CHANGES, *UPKEEP, "transaction", "elsewhere", "column"]))
        self.note()

    def act(self, what: str) -> None:
        rng = self.rng
        if what in CHANGES:
            self.change(self.table, what)
        elif what == "transaction":
            with self.db.transaction() as tx:
                for _ in range(rng.randint(2, 5)):
                    self.change(tx.table("t"), rng.choice(CHANGES))
                if rng.random() < 0.3:
                    tx.table("other").append([{"x": 1}])
        elif what == "elsewhere":
            for _ in range(rng.randint(1, 3)):
                self.db.table("other").append([{"x": 1}])
        elif what == "column":
            self.alter()
        else:
            getattr(self.db, what)()

    def change(self, table: Any, what: str) -> None:
        rng = self.rng
        if what == "append":
            table.append(self.rows())
        elif what == "upsert":
            table.upsert(self.rows(), on=None if self.has_key else ["id"])
        elif what == "delete":
            table.delete(rng.choice([f"id < {rng.randrange(6)}", f"n = {rng.randrange(3)}", "n IS NULL AND id > 7"]))
        elif what == "delete_keys":
            table.delete(keys=rng.sample(range(15), rng.randint(1, 6)), on=["id"])
        elif what == "positions":
            table.delete(f"id = {rng.randrange(15)} OR n = {rng.randrange(3)}", mode="positions")
        else:
            kept = table.to_arrow().slice(0, rng.randint(0, 8))
            table.overwrite(pa.concat_tables([kept, self.rows()], promote_options="default"))

    def alter(self) -> None:
        free = [name for name in ("a", "b") if name not in self.ids]
        if free and self.rng.random() < 0.6:
            self.table.add_column(free[0], pa.int64(), self.rng.choice([None, 7]))
            self.ids[free[0]] = 100 + len(self.columns)
        elif len(free) < 2:
            name = "b" if "b" in self.ids else "a"
            self.table.drop_column(name)
            del self.ids[name]
        else:
            self.table.set_default("n", self.rng.choice([None, 1]))

    def shown(self, version: int, until: int) -> Rows:
        """The rows of a version in the columns that it shares with another."""
        same = {name for name, id_ in self.columns[version].items() if self.columns[until].get(name) == id_}
        order = [name for name in self.columns[until] if name in same]
        if "t" not in self.db.at(version).tables():
            return Counter()
        return counted(self.db.at(version).table("t").scan(order).to_arrow().to_pylist())

    def shared(self, rows: Iterable[dict[str, Any]], version: int, until: int) -> Iterator[dict[str, Any]]:
        same = {name for name, id_ in self.columns[until].items() if self.columns[version].get(name) == id_}
        return ({name: value for name, value in row.items() if name in same} for row in rows)


CHANGES = ["append", "append", "upsert", "delete", "delete_keys", "positions", "overwrite"]
UPKEEP = ["resolve", "compact", "merge", "maintain"]


def apply(state: Rows, changes: list[dict[str, Any]]) -> None:
    """Applies changes in their order: what is taken away must be there."""
    for change in changes:
        (row,) = counted([change])
        if change["_change"] in ("insert", "update_after"):
            state[row] += 1
        else:
            assert state[row] > 0, change
            state[row] -= 1


@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_feed_replayed_is_the_table_at_every_version(number: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    history = History(rng, str(tmp_path / "db"))
    for _ in range(STEPS):
        history.step()
    newest = history.db.version
    changes = history.table.changes(0).read_all().to_pylist()
    assert [change["_version"] for change in changes] == sorted(change["_version"] for change in changes)
    by_version: dict[int, list[dict[str, Any]]] = {version: [] for version in range(newest + 1)}
    for change in changes:
        by_version[change["_version"]].append(change)
    state: Rows = Counter()
    for version in range(2, newest + 1):
        apply(state, by_version[version])
        shared = Counter[tuple[Any, ...]]()
        for row, count in state.items():
            (short,) = counted(history.shared([dict(row)], version, newest))
            shared[short] += count
        assert +shared == history.shown(version, newest), version
        if version < newest:
            upkeep = history.db.history()[newest - version].operation in ("resolve", "compact", "merge")
            assert not (upkeep and by_version[version])
    check_pairs(rng, history, newest)
    check_windows(rng, history, newest, changes)


def check_windows(rng: random.Random, history: History, newest: int, changes: list[dict[str, Any]]) -> None:
    """The feed of any window that ends at the same version is a part of the whole feed."""
    for _ in range(3):
        since = rng.randint(1, newest)
        found = history.table.changes(since).read_all().to_pylist()
        for version in range(since + 1, newest + 1):
            assert counted_changes(found, version) == counted_changes(changes, version)


def counted_changes(changes: list[dict[str, Any]], version: int) -> Rows:
    rows = ({**change, "what": change["_change"]} for change in changes if change["_version"] == version)
    return counted(rows)


def check_pairs(rng: random.Random, history: History, newest: int) -> None:
    """The net change makes one version of another, and says nothing of rows that came and went."""
    for _ in range(8):
        since, until = sorted((rng.randint(2, newest), rng.randint(2, newest)))
        if "t" not in history.db.at(until).tables():
            continue
        changes = history.table.changes(since, until, net=True).read_all().to_pylist()
        taken = counted(row for row in changes if row["_change"] in ("delete", "update_before"))
        added = counted(row for row in changes if row["_change"] in ("insert", "update_after"))
        assert not taken & added
        same = history.columns[since] == history.columns[until]
        if same and "t" in history.db.at(since).tables():
            was, now = history.shown(since, until), history.shown(until, until)
            assert (taken, added) == (was - now, now - was), (since, until)
        assert {row["_version"] for row in changes} <= {until}
        if history.has_key:
            pairs = [
                [row["id"] for row in changes if row["_change"] == what] for what in ("update_before", "update_after")
            ]
            assert sorted(pairs[0]) == sorted(pairs[1])


def test_the_feed_replayed_in_duckdb_is_the_table(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} duckdb")
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    replica = duckdb.connect()
    replica.execute("CREATE TABLE t (id BIGINT, name VARCHAR)")
    seen = db.version
    for step in range(60):
        rows = [{"id": rng.randrange(9), "name": rng.choice([None, "a", "b"])} for _ in range(rng.randint(1, 9))]
        rng.choice(
            [
                lambda rows=rows: table.append(rows),
                lambda rows=rows: table.upsert(rows, on=["id"]),
                lambda: table.delete(f"id = {rng.randrange(9)}"),
                lambda: table.delete("name IS NULL", mode="positions"),
                db.maintain,
            ]
        )()
        if step % 3:
            continue
        replica.register("fed", table.changes(seen, net=rng.random() < 0.5).read_all())
        seen = db.refresh()
        for (version,) in replica.sql("SELECT DISTINCT _version FROM fed ORDER BY 1").fetchall():
            replica.execute(DELETE, [version])
            replica.execute(INSERT, [version])
        expected = sorted(table.to_arrow().to_pylist(), key=str)
        found = replica.sql("SELECT id, name FROM t").to_arrow_table().to_pylist()
        assert sorted(found, key=str) == expected


DELETE = """
DELETE FROM t WHERE rowid IN (
    SELECT there.row FROM
        (SELECT rowid AS row, id, name, row_number() OVER (PARTITION BY id, name) AS nth FROM t) AS there
    JOIN
        (SELECT id, name, row_number() OVER (PARTITION BY id, name) AS nth FROM fed
         WHERE _version = $1 AND _change IN ('delete', 'update_before')) AS gone
    ON there.id IS NOT DISTINCT FROM gone.id AND there.name IS NOT DISTINCT FROM gone.name AND there.nth = gone.nth)
"""
INSERT = "INSERT INTO t SELECT id, name FROM fed WHERE _version = $1 AND _change IN ('insert', 'update_after')"
