"""A database in memory whose server's clock the test moves, and what collection leaves of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa

from dolmen.context import Context
from dolmen.database import Database
from dolmen.errors import Error
from dolmen.format.manifest import EMPTY, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import needed
from dolmen.maintenance.gc.report import Collected
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryStore

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
START_US = 1_760_000_000_000_000
DEFAULTS = DatabaseSettings.of(EMPTY)
EAGER = replace(DEFAULTS, keep_versions=2, retention_us=2 * DAY_US, reader_grace_us=HOUR_US)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def rows(*keys: int) -> pa.Table:
    """Rows with these keys."""
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([k / 2 for k in keys], pa.float64())})


class Place:
    """A bucket, its clock, and databases opened on it.

    Args:
        local_off_us: how far this machine's clock is ahead of the server's.
    """

    def __init__(self, seed: int = 1, *, local_off_us: int = 0) -> None:
        self.now_us = START_US
        self.bucket = MemoryBucket(lambda: self.now_us, "place")
        self.seed, self.local_off_us, self._opened = seed, local_off_us, 0
        self.db = self.open()

    def copy(self) -> Place:
        """Another place that is as this one is now."""
        other = Place(self.seed, local_off_us=self.local_off_us)
        other.now_us, other._opened = self.now_us, self._opened
        other.bucket.objects.update(self.bucket.objects)
        other.db = other.open()
        return other

    def runtime(self) -> Runtime:
        """A runtime that goes by this place's clock; each has randomness of its own."""
        self._opened += 1

        def sleep(seconds: float) -> None:
            self.now_us += round(seconds * 1e6)

        return Runtime(
            clock_us=lambda: self.now_us + self.local_off_us,
            monotonic=lambda: self.now_us / 1e6,
            sleep=sleep,
            random=random.Random(f"{self.seed} {self._opened}"),
            threads=1,
        )

    def open(self, store: ObjectStore | None = None) -> Database:
        """Another process's view of the database."""
        runtime = self.runtime()
        return Database(store or MemoryStore(self.bucket, runtime), runtime)

    def context(self, store: ObjectStore | None = None) -> Context:
        """What maintenance functions take, with nothing cached."""
        return self.open(store)._context

    def pass_hours(self, hours: float) -> None:
        """Time goes by."""
        self.now_us += round(hours * HOUR_US)

    def collect(self, settings: DatabaseSettings = EAGER, **options: object) -> Collected:
        """One run of collection, by a process that has just begun."""
        return collect(self.context(), settings=settings, **options)  # type: ignore[arg-type]

    def collect_all(self, settings: DatabaseSettings = EAGER, times: int = 4) -> None:
        """Runs it again and again, two hours apart."""
        for _ in range(times):
            self.collect(settings)
            self.pass_hours(2)

    @property
    def manifest(self) -> Manifest:
        """The newest version's."""
        return self.context().head.refresh().manifest

    def there(self, *prefixes: str) -> set[str]:
        """Objects under any of these prefixes; all but pointer and manifests by default."""
        wanted = prefixes or ("data/", "tombstone/", "segment/", "intent/")
        return {key for key in self.bucket.objects if key.startswith(wanted)}

    def needed(self) -> set[str]:
        """What the newest version needs."""
        context = self.context()
        return set(needed(context.head.refresh().manifest, context.segments))

    def orphan(self, key: str, body: bytes = b"orphan") -> str:
        """An object that nobody commits."""
        MemoryStore(self.bucket).put(key, body)
        return key

    def read_versions(self) -> dict[int, object]:
        """Every version that can be read, with its rows; what cannot be read stands there as the name of its error."""
        found: dict[int, object] = {}
        db = self.open()
        for version in range(1, db.version + 1):
            try:
                at = db.at(version)
                found[version] = {name: sorted(at.table(name).to_arrow()["k"].to_pylist()) for name in at.tables()}
            except Error as error:
                found[version] = type(error).__name__
        return found


def busy(place: Place) -> None:
    """A life with everything that drops references: deletes by position, overwritten vectors, dropped tables."""
    db = place.db
    t = db.create_table("t", SCHEMA, primary_key=["k"])
    for start in range(0, 50, 10):
        t.append(rows(*range(start, start + 10)))
        place.pass_hours(1)
    t.delete("k < 3", mode="positions")
    t.delete("k < 5", mode="positions")
    place.pass_hours(1)
    other = db.create_table("other", SCHEMA)
    other.append(rows(1, 2, 3))
    other.delete("k = 2")
    db.drop_table("other")
    place.pass_hours(1)
    t.upsert(rows(11, 12))
    t.delete("k IN (20, 21)")
    t.delete("k = 6", mode="positions")
