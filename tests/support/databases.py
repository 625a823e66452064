"""Fixtures: a database in memory, whose requests are counted."""

from __future__ import annotations

import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore
from support.people import SCHEMA


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def store(bucket: MemoryBucket) -> CountingStore:
    return CountingStore(MemoryStore(bucket, Runtime()))


@pytest.fixture
def db(store: CountingStore) -> Database:
    return Database(store, Runtime())


@pytest.fixture
def other(bucket: MemoryBucket) -> Database:
    """The same database, in another process."""
    return Database(MemoryStore(bucket, Runtime()), Runtime())


@pytest.fixture
def table(db: Database) -> dolmen.Table:
    return db.create_table("people", SCHEMA, primary_key="id", sort_key="user_id")
