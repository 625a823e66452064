"""Dates and times outside of Python's years 1 to 9999: every door that makes Python objects of rows says what helps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.errors import DuplicateKeyError, InputError
from dolmen.store import MemoryBucket, MemoryStore

DAY = pa.array([2_932_897], pa.int32()).cast(pa.date32())
MOMENT = pa.array([-62_135_596_800_000_001]).cast(pa.timestamp("us"))
FAR = {
    "date": DAY,
    "timestamp": MOMENT,
    "zoned": MOMENT.cast(pa.timestamp("us", "UTC")),
    "list": pa.ListArray.from_arrays([0, 1], DAY),
    "struct": pa.StructArray.from_arrays([MOMENT], ["at"]),
    "map": pa.MapArray.from_arrays([0, 1], ["a"], DAY),
}


@pytest.fixture
def db() -> Database:
    return Database(MemoryStore(MemoryBucket()), Runtime(threads=1))


@pytest.mark.parametrize("kind", FAR)
def test_get_names_the_column_and_what_returns_it(db: Database, kind: str) -> None:
    far: Any = FAR[kind]
    table = db.create_table("t", pa.schema([("id", pa.int64()), ("far", far.type)]), primary_key="id")
    table.append(pa.table({"id": [1], "far": far}))
    with pytest.raises(InputError, match=r"column 'far'.*get_many"):
        table.get(1)
    assert table.get(1, ["id"]) == {"id": 1}
    assert table.get_many([1])["far"].combine_chunks().equals(table.to_arrow()["far"].combine_chunks())


@pytest.mark.parametrize(("kind", "text"), [("date", "10000-01-01"), ("timestamp", "0000-12-31 23:59:59.999999")])
def test_keys_that_are_there_already_are_named_as_text(db: Database, kind: str, text: str) -> None:
    table = db.create_table("t", pa.schema([("far", FAR[kind].type)]), primary_key="far")
    table.insert(pa.table({"far": FAR[kind]}))
    with pytest.raises(DuplicateKeyError, match=text):
        table.insert(pa.table({"far": FAR[kind]}))
    table.upsert(pa.table({"far": FAR[kind]}))
    table.delete(keys=FAR[kind])
    assert table.count() == 0
