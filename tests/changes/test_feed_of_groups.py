"""The feed of changes that were committed together: it leads from the version before theirs to theirs."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from dolmen import Commit, Database
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.interleavings.groups import commit_together

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"id": [k for k, _ in pairs], "v": [v for _, v in pairs]}, schema=SCHEMA)


def test_the_feed_of_a_group_is_that_of_its_version() -> None:
    runtime = Runtime()
    db = Database(MemoryStore(MemoryBucket(runtime.clock_us, "feed"), runtime), runtime)
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append(rows((1, 10), (2, 20), (3, 30)))
    outcomes = commit_together(
        db,
        lambda tx: tx.table("t").append(rows((4, 40), (5, 50))),
        lambda tx: tx.table("t").upsert(rows((1, 11), (4, 41))),
        lambda tx: tx.table("t").delete("v >= 50"),
        lambda tx: tx.table("t").delete("v = 20", mode="positions"),
        lambda tx: tx.table("t").append(rows((6, 60))),
    )
    assert {each.version for each in outcomes if isinstance(each, Commit)} == {3}
    assert [each.rows for each in outcomes if isinstance(each, Commit)] == [2, 2, None, 1, 1]
    shown = Counter((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist())
    assert shown == Counter([(1, 11), (3, 30), (4, 41), (6, 60)])
    replayed = Counter((row["id"], row["v"]) for row in table.at(2).scan().to_arrow().to_pylist())
    for change in table.changes(2).read_all().to_pylist():
        gone = change["_change"] in ("delete", "update_before")
        replayed[change["id"], change["v"]] += -1 if gone else 1
    assert +replayed == shown
    assert db.verify(deep=True, all_versions=True).ok
