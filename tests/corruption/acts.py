"""What is done with a database after it was damaged: all that reads, and all that writes on the ground of what it read.

Each act is done once with the healthy database, which tells what is right and which bytes the act reads: with the
runtime's randomness and clock fixed, an act that reads none of the damaged bytes can't notice them, and need not be
repeated.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from corruption.worlds import World, few_rows, rows_of_many_types
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.maintenance.verify.verification import verify
from dolmen.store.base import Object, ObjectInfo
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen.transactions.readable_table import ReadableTable

_ALL = CompactionOptions(growth=1, deleted_share=0.0)
"""Whatever there is to be rewritten is rewritten."""

Act = Callable[[Database, World], object]
"""Returns something that can be compared."""


class TouchStore(MemoryStore):
    """Notes what is read."""

    def __init__(self, bucket: MemoryBucket, runtime: Runtime) -> None:
        super().__init__(bucket, runtime)
        self.read: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.asked: set[str] = set()
        """Keys and prefixes of objects whose size or presence was asked for."""

    def get(
        self,
        key: str,
        byte_range: tuple[int, int] | None = None,
        *,
        etag: str | None = None,
        version: str | None = None,
    ) -> Object:
        self.read[key].append(byte_range or (0, float("inf")))
        return super().get(key, byte_range, etag=etag, version=version)

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        self.asked.add(key)
        return super().head(key, version=version)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.asked.add(prefix)
        return super().list(prefix, start_after)


@dataclass(frozen=True)
class Healthy:
    """What an act does with the healthy database.

    Args:
        outcome: what it returned.
        after: rows of all tables afterwards, if it writes.
        read: ranges of bytes that it read, by object.
        asked: keys and prefixes that it asked or listed.
    """

    outcome: object
    after: object
    read: dict[str, list[tuple[int, float]]] = field(repr=False)
    asked: frozenset[str] = field(repr=False)

    def reads(self, key: str) -> bool:
        """Whether it reads an object, or would if that were there."""
        return key in self.read

    def touches(self, key: str, first: int, end: int, *, resized: bool) -> bool:
        """Whether the act reads any of an object's bytes ``first`` <= i < ``end``, or may see its size."""
        if resized and any(key.startswith(asked) for asked in self.asked):
            return True
        return any(start < end and first < stop for start, stop in self.read.get(key, ()))


def opened(bucket: MemoryBucket, world: World, store: MemoryStore | None = None) -> Database:
    """The database, opened by somebody who has seen nothing yet, and whose choices are always the same."""
    runtime = Runtime(
        clock_us=lambda: world.now_us,
        monotonic=lambda: world.now_us / 1e6,
        sleep=lambda seconds: None,
        random=random.Random(world.name),
        threads=1,
    )
    return Database(store or MemoryStore(bucket, runtime), runtime)


def digest(table: pa.Table) -> object:
    """Something small that is equal for equal rows alone."""
    rows = sorted(map(repr, table.to_pylist()))
    return len(rows), hashlib.blake2b("\n".join(rows).encode(), digest_size=16).hexdigest()


def _rows(table: ReadableTable, where: str | None = None) -> object:
    return digest(table.scan(where=where).to_arrow())


def all_rows(db: Database) -> object:
    """Rows of all tables of the newest version."""
    return {name: _rows(db.table(name)) for name in db.tables()}


def rows_after(name: str, db: Database) -> object:
    """What is compared after an act that writes: of all kept versions, where it deletes objects."""
    if name != "gc":
        return all_rows(db)
    manifest = context_of(db).head.refresh().manifest
    versions = {}
    for version in range(max(manifest.horizon, 1), manifest.version + 1):
        snapshot = db.at(version)
        versions[version] = {table: _rows(snapshot.table(table)) for table in snapshot.tables()}
    return versions


def _at(version: int) -> Act:
    def act(db: Database, world: World) -> object:
        snapshot = db.at(version)
        return {name: _rows(snapshot.table(name)) for name in snapshot.tables()}

    return act


def _verify(version: int | None, deep: bool) -> Act:
    def act(db: Database, world: World) -> object:
        report = verify(context_of(db), version=version, deep=deep, all_versions=deep)
        return frozenset((finding.object, str(finding)) for finding in report.findings)

    return act


def _append(db: Database, world: World) -> object:
    name = world.tables[-1]
    return db.table(name).append(_more(db.table(name))).version


def _upsert(db: Database, world: World) -> object:
    name = world.tables[-1]
    return db.table(name).upsert(_more(db.table(name))).version


def _more(table: ReadableTable) -> pa.Table:
    rng = random.Random(3)
    if "id" in table.schema.names:
        return rows_of_many_types(rng, range(95, 110))
    rows = few_rows(rng, range(95, 110))
    for name in table.schema.names[3:]:
        rows = rows.append_column(name, pa.array(["e"] * rows.num_rows))
    return rows


def _key(table: ReadableTable) -> str:
    return "id" if "id" in table.schema.names else "k"


def _delete_where(name: str) -> Act:
    def act(db: Database, world: World) -> object:
        table = db.table(name)
        return table.delete(f"{_key(table)} IN (1, 25, 104, 230)").version

    return act


def _delete_positions(name: str) -> Act:
    def act(db: Database, world: World) -> object:
        table = db.table(name)
        return table.delete(f"{_key(table)} BETWEEN 20 AND 130", mode="positions").rows

    return act


def _overwrite(db: Database, world: World) -> object:
    table = db.table(world.tables[0])
    return table.overwrite(_more(table)).version


def _transaction(db: Database, world: World) -> object:
    """A read-modify-write over one table."""
    name = world.tables[-1]

    def copy_some(tx: object) -> int:
        table = tx.table(name)  # type: ignore[attr-defined]
        found = table.scan(where=f"{_key(table)} < 30").to_arrow()
        table.delete(f"{_key(table)} < 30")
        table.append(found)
        return int(found.num_rows)

    return db.run(copy_some)


def _repeat(place: int) -> Act:
    def act(db: Database, world: World) -> object:
        id_, name, rows = world.requests[place]
        return db.table(name).append(rows, request=id_).version

    return act


def _history(db: Database, world: World) -> object:
    return repr([(commit.version, commit.commit_id, commit.operation) for commit in db.history()])


def _changes(name: str, *, net: bool) -> Act:
    def act(db: Database, world: World) -> object:
        return digest(db.table(name).changes(max(world.horizon, 1), net=net).read_all())

    return act


def _merge(db: Database, world: World) -> object:
    return db.merge().commits


def _gc(db: Database, world: World) -> object:
    """What it deleted is judged by what can be read afterwards: it may have been something that was lost already."""
    done = db.gc(full=True)
    return done.horizon, done.versions_expired, repr(done.errors)


def _stats(db: Database, world: World) -> object:
    return repr(db.stats(exact=True))


def _sql(name: str) -> Act:
    def act(db: Database, world: World) -> object:
        return digest(db.sql(f"SELECT count(*) AS n, min({_key(db.table(name))}) AS least FROM {name}").to_arrow())

    return act


@cache
def acts(world: World) -> dict[str, tuple[Act, bool]]:
    """By name, each act and whether it writes. Those that cost least and find most come first."""
    found: dict[str, tuple[Act, bool]] = {}
    for name in world.tables:
        key = "id" if world.name == "kinds" else "k"
        found[f"scan {name}"] = (lambda db, _, n=name: _rows(db.table(n)), False)
        found[f"count {name}"] = (lambda db, _, n=name: db.table(n).count(), False)
        found[f"count where {name}"] = (lambda db, _, n=name, k=key: db.table(n).count(f"{k} > 30"), False)
        found[f"look up {name}"] = (lambda db, _, n=name, k=key: _rows(db.table(n), f"{k} IN (77, 103)"), False)
        found[f"commit_ts {name}"] = (
            lambda db, _, n=name, k=key: digest(db.table(n).scan([k], with_commit_ts=True).to_arrow()), False,
        )  # fmt: skip
        for net in (False, True):
            found[f"{'net change' if net else 'changes'} {name}"] = (_changes(name, net=net), False)
        found[f"describe {name}"] = (lambda db, _, n=name: repr(db.table(n).describe()), False)
        found[f"delete {name}"] = (_delete_where(name), True)
        found[f"delete positions {name}"] = (_delete_positions(name), True)
        found[f"resolve {name}"] = (lambda db, _, n=name: db.resolve(n)[n].commits, True)
        found[f"compact {name}"] = (lambda db, _, n=name: compact(context_of(db), n, options=_ALL).commits, True)
    found["history"] = (_history, False)
    versions = range(world.horizon, world.newest)
    for version in sorted({*versions[:3], *versions[:: max(1, len(versions) // 8)], *versions[-2:]}):
        found[f"at {version}"] = (_at(version), False)
    for place in range(len(world.requests)):
        found[f"repeat {place}"] = (_repeat(place), True)
    found |= {
        "append": (_append, True),
        "upsert": (_upsert, True),
        "overwrite": (_overwrite, True),
        "transaction": (_transaction, True),
        "merge": (_merge, True),
        "gc": (_gc, True),
        "stats": (_stats, False),
        "verify": (_verify(None, False), False),
        "verify deep": (_verify(None, True), False),
    }
    return found


@cache
def healthy(world: World, name: str) -> Healthy:
    """What an act does with the healthy database."""
    act, writes = acts(world)[name]
    bucket = world.bucket()
    store = TouchStore(bucket, Runtime(lambda: world.now_us, lambda: world.now_us / 1e6, threads=1))
    db = opened(bucket, world, store)
    outcome = act(db, world)
    read, asked = dict(store.read), frozenset(store.asked)
    after = rows_after(name, opened(bucket, world)) if writes else None
    return Healthy(outcome, after, read, asked)


@cache
def rows_of(world: World) -> object:
    """Rows of all tables of the healthy database."""
    return all_rows(opened(world.bucket(), world))
