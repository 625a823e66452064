"""Random histories, published incrementally: real readers of Iceberg see the rows that dolmen sees."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.iceberg.publication import IcebergPublication
from support.iceberg_readers import READERS, Condition, IcebergReaders, sql
from support.random_tables import TYPES, random_column

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 2000 if os.environ.get("DOLMEN_LONG") else 12
STEPS = 12
PREDICATES = 20 if os.environ.get("DOLMEN_LONG") else 2
CHANGES = ("append", "append", "upsert", "delete", "delete_keys", "positions", "overwrite")
UPKEEP = ("resolve", "compact", "merge", "restore", "alter")
EXACT = ("int8", "int16", "int32", "int64", "string", "float32", "float64")
"""Types whose literals all readers take in the same way."""


class History:
    """A table that anything may happen to, except what makes its columns unpublishable."""

    def __init__(self, rng: random.Random, url: str) -> None:
        self.rng, self.db = rng, dolmen.open(url)
        if rng.random() < 0.6:
            self.db.set(root_bytes="4KB")  # entries leave the manifest early
        self.kinds = {f"c{place}": kind for place, kind in enumerate(rng.sample(list(TYPES), rng.randint(2, 6)))}
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())]
        fields += [pa.field(name, TYPES[kind][0]) for name, kind in self.kinds.items()]
        self.kinds |= {"id": "int64", "n": "int64"}
        self.table = self.db.create_table("t", pa.schema(fields), primary_key="id")
        self.table.set(iceberg=rng.choice(["v2", "v3"]), iceberg_snapshots=rng.choice(["newest", "kept"]))
        self.created = self.db.refresh()

    def rows(self) -> pa.Table:
        count = self.rng.randint(1, 12)
        columns = {name: random_column(self.rng, kind, count) for name, kind in self.kinds.items()}
        columns["id"] = pa.array([self.rng.randrange(15) for _ in range(count)], pa.int64())
        columns["n"] = pa.array([self.rng.choice([None, 0, 1, 2]) for _ in range(count)], pa.int64())
        return pa.table(columns)

    def step(self) -> None:
        rng, table = self.rng, self.table
        match rng.choice([*CHANGES, *CHANGES, *UPKEEP]):
            case "append":
                table.append(self.rows())
            case "upsert":
                table.upsert(self.rows())
            case "delete":
                table.delete(
                    rng.choice([f"id < {rng.randrange(6)}", f"n = {rng.randrange(3)}", "n IS NULL AND id > 7"])
                )
            case "delete_keys":
                table.delete(keys=rng.sample(range(15), rng.randint(1, 6)))
            case "positions":
                table.delete(f"id = {rng.randrange(15)} OR n = {rng.randrange(3)}", mode="positions")
            case "overwrite":
                table.overwrite(self.rows())
            case "restore":
                self.restore()
            case "alter":
                self.alter()
            case upkeep:
                getattr(self.db, upkeep)()

    def restore(self) -> None:
        version = self.rng.randint(self.created, self.db.refresh())
        self.table.restore(version)
        names = set(self.table.schema.names)
        self.kinds = {name: kind for name, kind in self.known.items() if name in names}

    @property
    def known(self) -> dict[str, str]:
        return {**self.kinds, "added": "int64", "renamed": "int64", "defaulted": "int32"}

    def alter(self) -> None:
        names = set(self.table.schema.names)
        if "added" not in names and "renamed" not in names:
            self.table.add_column("added", pa.int64())
        elif "added" in names and "renamed" not in names and self.rng.random() < 0.6:
            self.table.rename_column("added", "renamed")
        elif "defaulted" not in names:
            self.table.add_column("defaulted", pa.int32(), 7)
        else:
            self.table.drop_column("defaulted")
        names = set(self.table.schema.names)
        self.kinds = {name: kind for name, kind in self.known.items() if name in names}

    def condition(self, columns: list[str], depth: int = 1) -> Condition:
        rng = self.rng
        if depth and rng.random() < 0.4:
            return [rng.choice(["and", "or"]), self.condition(columns, depth - 1), self.condition(columns, depth - 1)]
        column = rng.choice(columns)
        kind = self.kinds[column]
        if kind not in EXACT or rng.random() < 0.15:
            return [column, rng.choice(["null", "present"])]
        literal: Any = rng.choice(["", "a", "ab", "b", "z"])
        if kind.startswith("int"):
            literal = rng.randint(-3, 12)
        elif kind.startswith("float"):
            literal = rng.choice([-1.5, 0.0, 0.25, 1.0, 2.0])
        return [column, rng.choice(["=", "<>", "<", "<=", ">", ">="]), literal]


def pyiceberg_differs(history: History, condition: Condition) -> bool:
    """pyiceberg takes NaN for neither less nor greater than a number, and NULL, where a file lacks the column, for
    unequal to each."""
    if condition[0] in ("and", "or"):
        return any(pyiceberg_differs(history, part) for part in condition[1:])
    column, op, *_ = condition
    if op in ("null", "present"):
        return False
    return history.kinds[column].startswith("float") or column in ("added", "renamed", "defaulted")


def canonical(column: pa.ChunkedArray) -> list[Any]:
    """Values that are equal only if they have the same bits, whatever the reader's types are."""
    arrow_type = column.type
    if pa.types.is_timestamp(arrow_type):
        return column.cast(pa.timestamp("us", arrow_type.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_date32(arrow_type):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_floating(arrow_type):
        return [None if value is None else struct.pack("<d", value) for value in column.cast(pa.float64()).to_pylist()]
    if pa.types.is_nested(arrow_type):
        return [repr(value) for value in column.to_pylist()]
    return column.to_pylist()


def counted(table: pa.Table, names: list[str]) -> Counter[Any]:
    columns = [canonical(table[name]) for name in names]
    return Counter(zip(*columns, strict=True)) if columns else Counter()


def check(
    history: History, readers: IcebergReaders, reader: str, found: IcebergPublication, where: Condition | None
) -> None:
    pinned = history.db.at(found.version).table("t")
    names = [name for name in pinned.schema.names if name not in (found.left_out or {})]
    expected = counted(pinned.scan(names, where=None if where is None else sql(where)).to_arrow(), names)
    seen = readers.read(reader, found.metadata_location, where)
    assert seen.column_names == names, reader
    assert counted(seen, names) == expected, f"{reader} at version {found.version}, where {where}"


@pytest.mark.parametrize("number", range(HISTORIES))
def test_readers_see_every_published_version_as_it_is(number: int, readers: IcebergReaders, tmp_path: Path) -> None:
    rng = random.Random(f"iceberg {SEED} {number}")
    history = History(rng, str(tmp_path / "db"))
    seen: dict[int, Counter[Any]] = {}
    for _ in range(STEPS):
        history.step()
        if rng.random() < 0.5:
            continue
        found = history.table.publish_iceberg()
        assert history.table.count() == history.db.at(found.version).table("t").count()
        columns = [name for name, kind in history.kinds.items() if kind not in ("list", "struct")]
        columns = [name for name in columns if name not in (found.left_out or {})]
        for reader in READERS:
            check(history, readers, reader, found, None)
            for _ in range(PREDICATES):
                where = history.condition(columns)
                if reader != "pyiceberg" or not pyiceberg_differs(history, where):
                    check(history, readers, reader, found, where)
        names = [name for name in history.table.schema.names if name not in (found.left_out or {})]
        seen[found.version] = counted(history.db.at(found.version).table("t").scan(names).to_arrow(), names)
        assert found.snapshots == 1 or history.table.settings()["iceberg_snapshots"] == "kept"
