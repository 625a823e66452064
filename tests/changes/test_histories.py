"""The feed of random histories, replayed, is the table at every version; and the net change between any two of them."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.commit.versions import manifest_at_version
from dolmen.predicate.parse import parse
from dolmen.rows.changes.feed import ChangeFeed, PartReader, parts_of
from support.feed_history import History, Rows, counted

SEED = os.environ["DOLMEN_TEST_SEED"]
HISTORIES = 1500 if os.environ.get("DOLMEN_LONG") else 4
STEPS = 22


def apply(state: Rows, changes: list[dict[str, Any]]) -> None:
    """Applies changes in their order: what is taken away must be there."""
    for change in changes:
        (row,) = counted([change])
        if change["_change"] in ("insert", "update_after"):
            state[row] += 1
        else:
            assert state[row] > 0, change
            state[row] -= 1


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_feed_replayed_is_the_table_at_every_version(number: int, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} {number}")
    print(f"DOLMEN_TEST_SEED={SEED} history {number}")
    history = History(rng, str(tmp_path / "db"), restores=number % 2 == 1)
    for _ in range(STEPS):
        history.step()
    if history.restores:
        history.act("restore")
        history.note()
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
    check_parts(rng, history, newest)


def check_windows(rng: random.Random, history: History, newest: int, changes: list[dict[str, Any]]) -> None:
    """The feed of any window that ends at the same version is a part of the whole feed."""
    for _ in range(3):
        since = rng.randint(1, newest)
        found = history.table.changes(since).read_all().to_pylist()
        for version in range(since + 1, newest + 1):
            assert counted_changes(found, version) == counted_changes(changes, version)


def check_parts(rng: random.Random, history: History, newest: int) -> None:
    """The parts of a feed, read each by itself, are the feed; that of rows that fulfil a predicate is a part of all."""
    context, last = context_of(history.db), context_of(history.db).head.refresh().manifest
    entry = context.segments.whole(last.table("t"))
    for net in (False, True):
        since, name = rng.randint(2, newest), rng.choice([name for name in history.ids if name in ("n", "a", "b")])
        first, text = manifest_at_version(context.head, last, since), f"{name} IS NULL"
        where = parse(text, entry.schema, now_us=0)
        feed = ChangeFeed(context, last, first, last, "t", entry, where=where, net=net)
        reader = PartReader(context, last, "t", entry, tuple(entry.schema.arrow.names), where, net=net)
        found = [batch for part in parts_of(feed) for batch in reader.read(part)]
        rows = pa.Table.from_batches(found, reader.schema).to_pylist()
        told = history.table.changes(since, where=text, net=net).read_all().to_pylist()
        for version in range(since + 1, newest + 1):
            assert counted_changes(rows, version) == counted_changes(told, version)
        whole = history.table.changes(since, net=net).read_all().to_pylist()
        for what in (("insert", "update_after"), ("delete", "update_before")):
            some, wanted = ([row for row in each if row["_change"] in what] for each in (told, whole))
            assert counted(some) == counted(row for row in wanted if row[name] is None)


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
        same = history.known(since, until) == set(history.columns[until])
        if same and "t" in history.db.at(since).tables():
            was, now = history.shown(since, until), history.shown(until, until)
            assert (taken, added) == (was - now, now - was), (since, until)
        assert {row["_version"] for row in changes} <= {until}
        if history.has_key:
            pairs = [
                [row["id"] for row in changes if row["_change"] == what] for what in ("update_before", "update_after")
            ]
            assert sorted(pairs[0]) == sorted(pairs[1])


@pytest.mark.slow
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
