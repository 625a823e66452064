"""Databases in memory that are damaged on purpose: lost, cut and swapped objects, and wrong entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context, Head
from dolmen.format.entries import DataFile
from dolmen.format.layout import POINTER, Pointer
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance.verify.findings import VerifyReport
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.counting import CountingStore

Change = Callable[[Any], Any]


class Damaged:
    """A copy of a database, to damage and verify.

    Args:
        objects: objects of the healthy database.
        now_us: the server's time.
    """

    def __init__(self, objects: Mapping[str, MemoryObject], now_us: int) -> None:
        self.bucket = MemoryBucket(lambda: now_us)
        self.bucket.objects.update(objects)
        self.store = CountingStore(MemoryStore(self.bucket))

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return self.manifest_at(Pointer.decode(self.body(POINTER), POINTER).manifest)

    def manifest_at(self, key: str) -> Manifest:
        """The version under this key."""
        return Manifest.decode(self.body(key), key)

    def table(self, name: str = "t") -> TableEntry:
        """A table of the newest version."""
        return self.manifest.tables[name]

    def body(self, key: str) -> bytes:
        """An object's bytes."""
        return self.bucket.objects[key].body

    def put(self, key: str, body: bytes) -> str:
        """Replaces or adds an object without a commit; returns its key."""
        there = self.bucket.objects.get(key)
        modified = there.last_modified_us if there else self.bucket.clock_us()
        self.bucket.objects[key] = MemoryObject(body, f'"{hash(body)}"', modified)
        return key

    def lose(self, key: str) -> str:
        """Removes an object."""
        del self.bucket.objects[key]
        return key

    def cut(self, key: str, by: int = 1) -> str:
        """Cuts off an object's end."""
        return self.put(key, self.body(key)[:-by])

    def flip(self, key: str, place: int) -> str:
        """Flips one bit of an object."""
        body = bytearray(self.body(key))
        body[place] ^= 1
        return self.put(key, bytes(body))

    def swap(self, one: str, other: str) -> None:
        """Exchanges the content of two objects."""
        first, second = self.body(one), self.body(other)
        self.put(one, second)
        self.put(other, first)

    def edit(self, key: str | None = None, **changes: Any) -> str:
        """Changes a manifest (the newest by default), under a right checksum; returns its key."""
        manifest = self.manifest if key is None else self.manifest_at(key)
        return self.put(manifest.key, msgspec.structs.replace(manifest, **changes).encode())

    def edit_table(self, name: str = "t", **changes: Any) -> str:
        """Changes a table's entry in the newest manifest."""
        manifest = self.manifest
        entry = msgspec.structs.replace(manifest.tables[name], **changes)
        return self.edit(tables={**manifest.tables, name: entry})

    def edit_file(self, place: int = 0, name: str = "t", **changes: Any) -> str:
        """Changes a data file's entry; returns the file's key."""
        files = list(self.table(name).files)
        files[place] = msgspec.structs.replace(files[place], **changes)
        self.edit_table(name, files=tuple(files))
        return files[place].path

    def file(self, place: int = 0, name: str = "t") -> DataFile:
        """A data file's entry."""
        return self.table(name).files[place]

    def context(self) -> Context:
        """A context with empty caches."""
        runtime = Runtime()
        return Context(self.store, runtime, Head(self.store, runtime))

    def verify(self, **options: Any) -> VerifyReport:
        """Verifies the database."""
        return verify(self.context(), **options)

    def found(self, **options: Any) -> set[tuple[str, str]]:
        """The findings of verification: kinds and objects."""
        return {(finding.kind, finding.object) for finding in self.verify(**options).findings}


def copy_of(bucket: MemoryBucket) -> Damaged:
    """Copies the database in a bucket, at the time of that bucket's clock."""
    return Damaged(dict(bucket.objects), bucket.clock_us())
