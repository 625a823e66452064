"""The measured deletes, and the bytes that each uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import dolmen
from bench.measure import seconds
from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore


@dataclass(frozen=True)
class Delete:
    """One kind of delete: ``run`` performs it on the table."""

    name: str
    run: Callable[[dolmen.Table], object]


@dataclass(frozen=True)
class Cost:
    """The cost of a delete after ``open``."""

    name: str
    seconds: float
    puts: int
    gets: int
    bytes_up: int


def deletes(table: pa.Table, seed: int = 2) -> list[Delete]:
    """Deletes of one row, a range of 100,000, 100,000 random ids, 14,000 users, and 1 % by position."""
    rng = np.random.default_rng(seed)
    rows = table.num_rows
    first, many = rows // 3, min(100_000, rows // 10)
    ids = rng.choice(rows, many, replace=False)
    users = np.unique(table["user_id"].to_numpy())
    users = rng.choice(users, min(14_000, len(users)), replace=False)
    percent = rng.choice(rows, rows // 100, replace=False)
    listed = percent.tolist()
    return [
        Delete("1 row by key", lambda t: t.delete(keys=[first])),
        Delete(f"{many:,} rows by range", lambda t: t.delete(f"id BETWEEN {first} AND {first + many - 1}")),
        Delete(f"{many:,} random ids by key", lambda t: t.delete(keys=pa.table({"id": ids}))),
        Delete("14,000 users by key", lambda t: t.delete(keys=pa.table({"user_id": users}), on=["user_id"])),
        Delete("1 % random ids by position", lambda t: t.delete({"id": listed}, mode="positions")),
    ]


def cost(url: str, delete: Delete) -> Cost:
    """Performs a delete and counts its requests."""
    runtime = Runtime()
    store = CountingStore(open_store(url, runtime))
    table = Database(store, runtime).table("events")
    assert table.schema.names  # which reads the newest version: opening alone sends nothing
    store.gets = 0
    took = seconds(lambda: delete.run(table))
    return Cost(delete.name, took, store.puts, store.gets, store.bytes_up)
