"""Writers that commit only metadata, on stores whose next requests fail as the test scripts them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.commit.change import Change, RowsDependency
from dolmen.commit.draft import Statement
from dolmen.commit.head import Head
from dolmen.commit.loop import Committed, commit, submit
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable
from dolmen.commit.statements.row_changes import DeletePositions, Write
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import AccessDeniedError, StoreUnavailableError
from dolmen.format.entries import Blob, DataFile, WhereTombstone
from dolmen.format.layout import POINTER, Pointer
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Schema
from dolmen.predicate.ast import FALSE
from dolmen.store.base import Object, PreconditionFailed, PutOutcome, Stored, Unknown
from dolmen.store.memory import MemoryBucket, MemoryStore

MINUTE_US = 60_000_000
START_US = 1_760_000_000_000_000
SCHEMA = Schema.from_arrow(pa.schema([("k", pa.int64())]))

Perform: TypeAlias = Callable[[], PutOutcome]
Behaviour: TypeAlias = Callable[["ScriptedStore", Perform], PutOutcome]


def lose_the_request(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Times out; the request never arrives."""
    return Unknown("timed out")


def lose_the_response(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Loses the answer to a request that takes effect."""
    perform()
    return Unknown("connection reset")


def land_late(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Times out; the request takes effect when the test calls ``land``."""
    store.under_way.append(perform)
    return Unknown("timed out")


def retry_below(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Sends the request twice, as a proxy may do, and returns the second answer."""
    perform()
    return perform()


def refuse_409(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Answers 409 ConditionalRequestConflict until the store gives up: nothing landed."""
    raise StoreUnavailableError("409 ConditionalRequestConflict")


def deny(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Refuses the request because of expired credentials."""
    raise AccessDeniedError("403")


def succeed(store: ScriptedStore, perform: Perform) -> PutOutcome:
    """Lets the request succeed."""
    return perform()


def meanwhile(action: Callable[[], object], then: Behaviour = succeed) -> Behaviour:
    """Runs ``action`` just before this put arrives."""

    def behaviour(store: ScriptedStore, perform: Perform) -> PutOutcome:
        action()
        return then(store, perform)

    return behaviour


class ScriptedStore(MemoryStore):
    """A MemoryStore whose next puts of the pointer (or of others) behave as scripted, then as they should."""

    def __init__(self, bucket: MemoryBucket, runtime: Runtime) -> None:
        super().__init__(bucket, runtime)
        self.script: deque[Behaviour] = deque()
        self.under_way: deque[Perform] = deque()
        self.unreadable: Callable[[str], bool] = lambda key: False
        self.is_scripted: Callable[[str], bool] = lambda key: key == POINTER
        self.pointer_puts: list[bytes] = []
        self.puts: list[str] = []
        self.gets: list[str] = []

    def put(self, key: str, body: bytes | bytearray | memoryview, *, if_match: str | None = None) -> PutOutcome:
        self.puts.append(key)

        def perform() -> PutOutcome:
            return MemoryStore.put(self, key, body, if_match=if_match)

        if key == POINTER:
            self.pointer_puts.append(bytes(body))
        if not self.is_scripted(key):
            return perform()
        return self.script.popleft()(self, perform) if self.script else perform()

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        self.gets.append(key)
        if self.unreadable(key):
            raise StoreUnavailableError(f"cannot read {key}")
        return super().get(key, byte_range, etag=etag, version=version)

    def land(self) -> PutOutcome:
        """Lets the oldest put in flight arrive."""
        return self.under_way.popleft()()


class World:
    """A bucket, its clock, and any number of writers."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.server_off_us = 0
        self.bucket = MemoryBucket(lambda: self.now_us + self.server_off_us, "world")
        self.writers = 0

    def writer(self, *, local_off_us: int = 0, trust_clock: bool = False) -> Writer:
        """Makes a process with a clock of its own."""
        self.writers += 1
        return Writer(self, self.writers, local_off_us, trust_clock)

    def pass_minutes(self, minutes: float) -> None:
        """Advances the clock."""
        self.now_us += round(minutes * MINUTE_US)

    @property
    def newest(self) -> Manifest:
        """The newest manifest."""
        return self.manifest(Pointer.decode(self.bucket.objects[POINTER].body, POINTER).manifest)

    def manifest(self, key: str) -> Manifest:
        """Reads a manifest."""
        return Manifest.decode(self.bucket.objects[key].body, key)

    def shrink_roots(self, root_bytes: int = 16 << 10) -> None:
        """Sets the size above which manifests spill."""
        writer = self.writer()
        submit(writer.head, "settings", [SetProperties(None, "", {"root_bytes": root_bytes})])

    def chain(self) -> list[Manifest]:
        """All committed versions, oldest first, along ``previous``."""
        manifests = [self.newest]
        while manifests[-1].previous:
            manifests.append(self.manifest(manifests[-1].previous))
        return manifests[::-1]

    def put_by_hand(self, **changes: object) -> Manifest:
        """Commits a version with fields that no statement can set."""
        base = self.newest
        version = base.version + 1
        manifest = msgspec.structs.replace(
            base,
            version=version,
            attempt=f"{version:08x}",
            previous=base.key,
            commit_id=f"by-hand-{version}",
            commit_ts=base.commit_ts + 1,
            created_at=max(base.created_at, self.now_us),
            history=(*base.history, base.as_history()),
            **changes,
        )
        store = MemoryStore(self.bucket)
        assert isinstance(store.put(manifest.key, manifest.encode()), Stored)
        pointer = Pointer(version, manifest.key, manifest.commit_id).encode()
        assert isinstance(store.put(POINTER, pointer, if_match=self.bucket.objects[POINTER].etag), Stored)
        return manifest


class Writer:
    """A process with its own view of the newest version."""

    def __init__(self, world: World, number: int, local_off_us: int, trust_clock: bool) -> None:
        self.world, self.number, self.changes = world, number, 0
        self.frozen_us = self.behind_us = 0

        def sleep(seconds: float) -> None:
            world.now_us += round(seconds * 1e6)

        self.runtime = Runtime(
            clock_us=lambda: world.now_us + local_off_us - self.behind_us,
            monotonic=lambda: (world.now_us - self.frozen_us) / 1e6,
            sleep=sleep,
            random=random.Random(number),
            threads=1,
        )
        self.store = ScriptedStore(world.bucket, self.runtime)
        self.head = Head(self.store, self.runtime, trust_clock=trust_clock)

    def freeze(self, minutes: float, *, clock_is_set: bool) -> None:
        """Lets time pass for others while this process's machine is frozen.

        Args:
            clock_is_set: whether the wall clock shows the right time when the machine goes on; else it stood still.
        """
        self.world.pass_minutes(minutes)
        self.frozen_us += round(minutes * MINUTE_US)
        if not clock_is_set:
            self.behind_us += round(minutes * MINUTE_US)

    def uploads(self) -> PendingUploads:
        """Makes the uploads of one commit."""
        return PendingUploads(self.store, self.runtime, self.head.segments)

    def change(self, *statements: Statement, **rest: object) -> Change:
        """Makes a change with an id that names its writer."""
        self.changes += 1
        fields = {"commit_id": f"writer-{self.number}-change-{self.changes}", "operation": "test"} | rest
        return Change(statements=statements, **fields)  # type: ignore[arg-type]

    def commit(self, *statements: Statement, uploads: PendingUploads | None = None, **rest: object) -> Committed:
        """Commits statements."""
        return commit(self.head, self.change(*statements, **rest), uploads or self.uploads())

    def commit_change(self, change: Change) -> Committed:
        """Commits a change."""
        return commit(self.head, change, self.uploads())

    def create(self, name: str = "t") -> TableEntry:
        """Creates a table; returns its entry."""
        self.commit(CreateTable(name, TableEntry(uuid=self.runtime.uuid(), epoch=0, schema=SCHEMA)))
        return self.world.newest.tables[name]


def table(world: World, name: str = "t") -> TableEntry:
    """The table in the newest version."""
    return world.newest.tables[name]


def file(name: str, rows: int = 10) -> DataFile:
    """Makes an entry of a data file that nobody reads."""
    return DataFile(path=f"data/t/{name}.parquet", size=100, rows=rows, footer=(90, 10, 0))


def append(entry: TableEntry, *names: str, name: str = "t", request: str | None = None) -> Write:
    """Makes a statement that adds data files."""
    return Write(name, entry.uuid, files=tuple(file(each) for each in names), request=request)


def tombstone(column: int = 1) -> WhereTombstone:
    """Makes a tombstone whose predicate nobody reads."""
    return WhereTombstone((column,), Blob("tombstone/t/x.del", 4, 2, 0))


def delete(entry: TableEntry, name: str = "t", request: str | None = None) -> Write:
    """Makes a statement that adds a tombstone."""
    return Write(name, entry.uuid, tombstones=(tombstone(),), request=request)


def delete_positions(entry: TableEntry, positions: dict[str, Sequence[int]]) -> DeletePositions:
    """Makes a statement that deletes positions of data files, by name."""
    return DeletePositions("t", entry.uuid, {file(name).path: BitMap(values) for name, values in positions.items()})


def dependency(entry: TableEntry, manifest: Manifest, may_match: bool = True) -> RowsDependency:
    """Makes a read of the whole table in the version ``manifest``."""
    where = None if may_match else FALSE
    return RowsDependency("t", entry.uuid, entry.epoch, manifest.commit_ts, where, schema=entry.schema)


def paths(entry: TableEntry) -> list[str]:
    """Names of the table's data files."""
    return [each.uuid for each in entry.files]


def is_refused(outcome: PutOutcome) -> bool:
    """Whether a put changed nothing."""
    return isinstance(outcome, PreconditionFailed)
