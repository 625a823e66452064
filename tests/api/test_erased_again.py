"""Rows that match an erasure in force, and are written again: each call says how many, and leaves them out if asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Commit, Database, Table, Transaction
from dolmen.base.runtime import Runtime
from dolmen.errors import ConflictError, InputError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string())])
RAW = pa.table({"id": [1, 2, 3], "who": ["ada", "bob", "ada"]}, SCHEMA)
CALLS = {
    "append": lambda table, **given: table.append(RAW, **given),
    "insert": lambda table, **given: table.insert(RAW, **given),
    "upsert": lambda table, **given: table.upsert(RAW, **given),
    "overwrite": lambda table, **given: table.overwrite(RAW, **given),
    "cast": lambda table, **given: table.append(RAW.to_pylist(), cast=True, **given),
}


def table_with(**settings: Any) -> tuple[Database, Table, CountingStore]:
    store = CountingStore(MemoryStore(MemoryBucket(lambda: time.time_ns() // 1000, "again")))
    db = Database(store, Runtime())
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "who", **settings})
    db.create_table("other", SCHEMA, primary_key="id")
    return db, table, store


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def figures(commit: Commit) -> tuple[int, int]:
    return commit.erased_rows_written, commit.erased_rows_left_out


@pytest.mark.parametrize("call", CALLS)
def test_erased_rows_are_counted_or_left_out(call: str) -> None:
    db, table, _ = table_with()
    db.forget("ada")
    db.table("other").erase(keys=[2])
    assert figures(CALLS[call](table)) == (2, 0)
    assert ids(table) == [1, 2, 3]
    table.delete("TRUE")
    assert figures(CALLS[call](table, leave_out_erased=True)) == (0, 2)
    assert ids(table) == [2]
    table.delete("TRUE")
    table.set(leave_out_erased=True)
    assert figures(CALLS[call](table)) == (0, 2)
    table.delete("TRUE")
    assert figures(CALLS[call](table, leave_out_erased=False)) == (2, 0)


def test_writers_transactions_and_merges_count_too() -> None:
    db, table, _ = table_with()
    db.forget("ada")
    assert table.merge(RAW, "id", when_matched={"who": "source.who"}).erased_rows_written == 2
    assert table.update({"who": "ada"}, "id = 2").erased_rows_written == 1
    with table.writer() as writer:
        counted = writer.append(RAW)
    assert figures(counted.result()) == (2, 0)
    with db.transaction() as transaction:
        transaction.table("t").append(RAW)
        with pytest.raises(ZeroDivisionError):
            _append_and_fail(transaction)
        assert figures(transaction.commit()) == (2, 0)
    table.set(leave_out_erased=True)
    with table.writer() as writer:
        left = writer.append(RAW)
    assert figures(left.result()) == (0, 2)


def _append_and_fail(transaction: Transaction) -> None:
    with transaction.savepoint():
        transaction.table("t").append(RAW)
        raise ZeroDivisionError


@pytest.mark.parametrize("data", [RAW, RAW.slice(0, 1)], ids=["some", "all erased"])
def test_a_request_that_is_repeated_after_an_erasure_is_the_same_one(data: pa.Table) -> None:
    db, table, _ = table_with()
    first = table.append(data, request="day 1")
    db.forget("ada")
    again = table.append(data, request="day 1", leave_out_erased=True)
    assert again.already == {"day 1": first.version}
    assert table.append(data, request="day 2", leave_out_erased=True).erased_rows_left_out
    assert table.append(data, request="day 2", leave_out_erased=True).already


@pytest.mark.parametrize("once", [False, True], ids=["repeatable", "once"])
def test_an_erasure_that_lands_meanwhile_counts_if_rows_are_left_out(once: bool) -> None:
    db, table, store = table_with()
    table.append(RAW)
    other = Database(store, Runtime()).table("t")
    other.append(pa.table({"id": [9], "who": ["eve"]}, SCHEMA))  # so that it knows a version
    db.forget("ada")
    data = RAW.to_reader() if once else RAW
    if once:
        with pytest.raises(ConflictError, match="erased"):
            other.append(data, leave_out_erased=True)
        return
    assert figures(other.append(data, leave_out_erased=True)) == (0, 2)
    assert ids(table) == [2, 2, 9]


def test_without_an_erasure_that_reaches_the_table_it_costs_no_request() -> None:
    costs = []
    for erasing in (False, True):
        db, table, store = table_with(leave_out_erased=True)
        table.append(RAW)
        if erasing:
            db.table("other").erase(keys=[1])
        store.reset()
        table.append(pa.table({"id": [4], "who": ["eve"]}, SCHEMA))
        db.table("t").upsert(pa.table({"id": [4], "who": ["eve"]}, SCHEMA))
        costs.append((store.puts, store.gets, store.heads, store.lists))
    assert costs[0] == costs[1]


def test_a_wrong_argument_is_refused() -> None:
    _, table, _ = table_with()
    with pytest.raises(InputError, match="leave_out_erased"):
        table.append(RAW, leave_out_erased="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_dropped_files_follow_the_setting(tmp_path: Path, mode: str) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "who", "ingest_mode": mode})
    db.forget("ada")
    landing = Landing("", "landing/", str(tmp_path / "bucket"), str(tmp_path / "rejected"), Runtime())
    store = landing.store(Drop("landing", "landing/t/x", 0, "-"))

    def ingest(name: str) -> tuple[int, int, int]:
        store.put(f"landing/t/{name}", b"id,who\n1,ada\n2,bob\n")
        [info] = list(store.list(f"landing/t/{name}"))
        after_us = time.time_ns() // 1000 + 60_000_000
        drop = Drop("landing", info.key, info.size, info.etag, created_us=after_us)
        done = ingest_drops(db, landing, [drop])
        assert done.commit is not None
        counts = done.outcomes[0].counts
        return counts.ingested, counts.erased, done.commit.erased_rows_written

    assert ingest("a.csv") == (2, 0, 1)
    table.set(leave_out_erased=True)
    table.delete("TRUE")
    assert ingest("b.csv") == (1, 1, 0)
    assert ids(table) == [2]
