"""Updates and merges in the change feed, and beside a table that goes back to an older version."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from dolmen import Database, Expression
from dolmen.api.database import Table
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket
from support.commit_world import ScriptedStore, meanwhile

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


@pytest.fixture
def store(bucket: MemoryBucket) -> ScriptedStore:  # type: ignore[override]
    return ScriptedStore(bucket, Runtime())


@pytest.fixture
def table(db: Database) -> Table:
    """Ids 0 to 4."""
    table = db.create_table("t", SCHEMA, primary_key="id")
    table.append({"id": range(5), "n": [0] * 5})
    return table


def test_the_change_feed_tells_what_rows_were_and_are(db: Database, table: Table) -> None:
    before = db.version
    table.update({"n": Expression("n + 1")}, "id < 2")
    table.merge([{"id": 1, "n": 5}, {"id": 9, "n": 7}], "id", {"n": "target.n + source.n"})
    found = table.changes(before).read_all().to_pylist()
    told = Counter((row["_version"] - before, row["_change"], row["id"], row["n"]) for row in found)
    assert told == Counter(
        [
            (1, "update_before", 0, 0),
            (1, "update_before", 1, 0),
            (1, "update_after", 0, 1),
            (1, "update_after", 1, 1),
            (2, "update_before", 1, 1),
            (2, "update_after", 1, 6),
            (2, "insert", 9, 7),
        ]
    )


def test_a_table_that_is_restored_meanwhile_is_updated_as_it_is_then(
    db: Database, other: Database, table: Table, store: ScriptedStore
) -> None:
    version = db.version
    table.update({"n": 10}, "id < 3")
    store.script.append(meanwhile(lambda: other.table("t").restore(version)))
    table.update({"n": Expression("n + 1")}, "id > 0")
    rows = other.table("t").scan(order_by="id").to_arrow().to_pydict()
    assert rows == {"id": [0, 1, 2, 3, 4], "n": [0, 1, 1, 1, 1]}
    assert other.verify(deep=True).ok
