"""A table that anything may happen to, and its rows in each version, for tests of the change feed."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

import dolmen
from support.random_tables import TYPES, random_column

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
    """A table that anything may happen to, and how its columns were called in each version.

    Args:
        kinds: of the columns that the table may have.
        restores: whether the table is restored to earlier versions, too.
    """

    def __init__(self, rng: random.Random, url: str, kinds: Sequence[str] = KINDS, *, restores: bool = False) -> None:
        self.rng, self.db, self.restores = rng, dolmen.open(url), restores
        if rng.random() < 0.6:
            self.db.set(root_bytes="4KB")  # entries leave the manifest early
        self.has_key = rng.random() < 0.6
        self.kinds = rng.sample(kinds, rng.randint(1, 3))
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
        restores = ["column", "column", "column", "restore", "restore"] if self.restores else []
        self.act(self.rng.choice([*CHANGES, *CHANGES, *UPKEEP, "transaction", "elsewhere", "column", *restores]))
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
        elif what == "restore":
            there = [version for version in self.columns if "t" in self.db.at(version).tables()]
            with_others = [version for version in there if set(self.columns[version].values()) - set(self.ids.values())]
            version = rng.choice(with_others or there)
            self.table.restore(version)
            self.ids = dict(self.columns[version])
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
        """The rows of a version as the feed up to another shows them, without columns that were added in between."""
        same = {name for name, id_ in self.columns[version].items() if self.columns[until].get(name) == id_}
        order = [name for name in self.columns[until] if name in same]
        if "t" not in self.db.at(version).tables():
            return Counter()
        hidden = dict.fromkeys(self.known(version, until) - same)
        rows = self.db.at(version).table("t").scan(order).to_arrow().to_pylist()
        return counted(self.shared([{**row, **hidden} for row in rows], version, until))

    def known(self, version: int, until: int) -> set[str]:
        """The columns of ``until`` that had been added by a version; where it does not show one, that is NULL."""
        ids = {id_ for before in range(2, version + 1) for id_ in self.columns[before].values()}
        return {name for name, id_ in self.columns[until].items() if id_ in ids}

    def shared(self, rows: Iterable[dict[str, Any]], version: int, until: int) -> Iterator[dict[str, Any]]:
        known = self.known(version, until)
        return ({name: row[name] for name in self.columns[until] if name in known} for row in rows)


CHANGES = ["append", "append", "upsert", "delete", "delete_keys", "positions", "overwrite"]
UPKEEP = ["resolve", "compact", "merge", "maintain"]
