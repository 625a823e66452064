"""A database in memory with a clock that the test moves, and checks of what collection leaves."""

from __future__ import annotations

import random

import pyarrow as pa

from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context
from dolmen.errors import Error
from dolmen.format.manifest import EMPTY, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.gc.collection import Collected, collect
from dolmen.maintenance.gc.mark import needed_keys
from dolmen.store.base import ObjectStore
from dolmen.store.memory import MemoryBucket, MemoryStore

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
START_US = 1_760_000_000_000_000
DEFAULTS = DatabaseSettings.of(EMPTY)
EAGER = replace(DEFAULTS, keep_versions=2, retention_us=2 * DAY_US, reader_grace_us=HOUR_US)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def rows(*keys: int) -> pa.Table:
    """Makes rows with these keys."""
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([k / 2 for k in keys], pa.float64())})


class Place:
    """A bucket, its clock, and databases opened on it.

    Args:
        local_off_us: difference between the local clock and the server's, in microseconds.
    """

    def __init__(self, seed: int = 1, *, local_off_us: int = 0) -> None:
        self.now_us = START_US
        self.bucket = MemoryBucket(lambda: self.now_us, "place")
        self.seed, self.local_off_us, self._opened = seed, local_off_us, 0
        self.db = self.open()

    def copy(self) -> Place:
        """Copies this place."""
        other = Place(self.seed, local_off_us=self.local_off_us)
        other.now_us, other._opened = self.now_us, self._opened
        other.bucket.objects.update(self.bucket.objects)
        other.db = other.open()
        return other

    def runtime(self) -> Runtime:
        """Makes a runtime with this place's clock and randomness of its own."""
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
        """Opens the database as another process does that then looks for the newest version."""
        runtime = self.runtime()
        db = Database(store or MemoryStore(self.bucket, runtime), runtime)
        db.refresh()
        return db

    def context(self, store: ObjectStore | None = None) -> Context:
        """Makes a context with empty caches, for maintenance functions."""
        return self.open(store)._context

    def pass_hours(self, hours: float) -> None:
        """Advances the clock."""
        self.now_us += round(hours * HOUR_US)

    def collect(self, settings: DatabaseSettings = EAGER, **options: object) -> Collected:
        """Runs collection once, in a new process."""
        return collect(self.context(), settings=settings, **options)  # type: ignore[arg-type]

    def collect_all(self, settings: DatabaseSettings = EAGER, times: int = 4) -> None:
        """Runs collection repeatedly, two hours apart."""
        for _ in range(times):
            self.collect(settings)
            self.pass_hours(2)

    @property
    def manifest(self) -> Manifest:
        """The newest version's manifest."""
        return self.context().head.refresh().manifest

    def there(self, *prefixes: str) -> set[str]:
        """The objects under these prefixes; by default all but the pointer and manifests."""
        wanted = prefixes or ("data/", "tombstone/", "segment/", "intent/")
        return {key for key in self.bucket.objects if key.startswith(wanted)}

    def needed_keys(self) -> set[str]:
        """The objects that the newest version needs."""
        context = self.context()
        return set(needed_keys(context.head.refresh().manifest, context.segments))

    def orphan(self, key: str, body: bytes = b"orphan") -> str:
        """Puts an object that no commit references."""
        MemoryStore(self.bucket).put(key, body)
        return key

    def read_versions(self) -> dict[int, object]:
        """Reads every version: its rows, or the name of the error of an unreadable one."""
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
    """Makes a history with every kind of dropped reference: deletes by position, new vectors, dropped tables."""
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
