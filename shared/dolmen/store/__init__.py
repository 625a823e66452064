"""Object stores: one small Protocol, with S3, directories and memory behind it. It knows nothing of tables.

A conditional put has three outcomes: stored, refused, or unknown.
It imports only ``dolmen.errors``, ``dolmen.base.runtime`` and ``dolmen.base.units``. Only ``dolmen.store.s3`` may
import boto3.
Begin with ``dolmen.store.base``; ``dolmen.store.memory`` is the shortest implementation.
"""

from dolmen.store.base import (
    Buffer,
    Deleted,
    Object,
    ObjectInfo,
    ObjectOutput,
    ObjectStore,
    PreconditionFailed,
    PutOutcome,
    Stored,
    Unknown,
    create,
)
from dolmen.store.clock import ServerClock
from dolmen.store.local_store import LocalStore
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
