"""A database in memory, and the same one opened by somebody else."""

from __future__ import annotations

import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryStore


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def db(bucket: MemoryBucket) -> Database:
    return Database(MemoryStore(bucket, Runtime()), Runtime())


@pytest.fixture
def other(bucket: MemoryBucket) -> Database:
    return Database(MemoryStore(bucket, Runtime()), Runtime())
