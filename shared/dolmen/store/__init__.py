"""Object stores: one small Protocol, and S3, directories and memory behind it. No word of tables."""

from dolmen.store.base import (
    Buffer,
    Deleted,
    Object,
    ObjectInfo,
    ObjectOutput,
    ObjectStore,
    PreconditionFailed,
    PutOutcome,
    ServerClock,
    Stored,
    Unknown,
)
from dolmen.store.create import create
from dolmen.store.local.store import LocalStore
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.store.url import open_store

__all__ = [
    "Buffer",
    "Deleted",
    "LocalStore",
    "MemoryBucket",
    "MemoryStore",
    "Object",
    "ObjectInfo",
    "ObjectOutput",
    "ObjectStore",
    "PreconditionFailed",
    "PutOutcome",
    "ServerClock",
    "Stored",
    "Unknown",
    "create",
    "open_store",
]
