"""A pointer that is gone: no new database is begun over the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError
from dolmen.store.base import ObjectInfo
from dolmen.store.memory import MemoryBucket, MemoryStore

SCHEMA = pa.schema([("k", pa.int64())])
RUNTIME = Runtime()


def opened(bucket: MemoryBucket) -> Database:
    return Database(MemoryStore(bucket, RUNTIME), RUNTIME)


def test_a_database_whose_pointer_is_gone_is_not_begun_anew() -> None:
    bucket = MemoryBucket()
    db = opened(bucket)
    db.create_table("t", SCHEMA).append(pa.table({"k": [1]}))
    pointer = bucket.objects.pop("_latest_manifest")
    there = set(bucket.objects)
    with pytest.raises(CorruptionError, match=r"_latest_manifest.*it is gone.*docs/operations\.md"):
        opened(bucket).create_table("u", SCHEMA)
    assert set(bucket.objects) == there
    bucket.objects["_latest_manifest"] = pointer
    assert opened(bucket).table("t").count() == 1


def test_attempts_at_the_first_commit_that_were_broken_off_are_no_lost_database() -> None:
    bucket = MemoryBucket()
    opened(bucket).create_table("t", SCHEMA)
    del bucket.objects["_latest_manifest"]
    assert opened(bucket).create_table("u", SCHEMA).count() == 0
    assert opened(bucket).tables() == ["u"]


class Listed(MemoryStore):
    """Something happens just before it lists."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.meanwhile()
        return super().list(prefix, start_after)


def test_a_database_that_others_begin_at_the_same_time_is_joined() -> None:
    bucket = MemoryBucket()

    def begin() -> None:
        other = opened(bucket)
        if not other.tables():
            other.create_table("t", SCHEMA).append(pa.table({"k": [1]}))

    store = Listed(bucket, RUNTIME)
    store.meanwhile = begin
    db = Database(store, RUNTIME)
    db.create_table("u", SCHEMA)
    assert db.tables() == ["t", "u"]
    assert db.version == 3
