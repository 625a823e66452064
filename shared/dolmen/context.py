"""What the objects of one open database share."""

from __future__ import annotations

from dataclasses import dataclass, field

from dolmen.commit.head import Head
from dolmen.runtime import Runtime
from dolmen.scan.cache import ObjectCache
from dolmen.store.base import ObjectStore


@dataclass(frozen=True)
class Context:
    """The store of a database, the newest version known of it, and what was read of its immutable objects."""

    store: ObjectStore
    runtime: Runtime
    head: Head
    cache: ObjectCache = field(default_factory=ObjectCache)
