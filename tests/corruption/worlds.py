"""Databases that hold every kind of object, each built once by production code, from one seed, with its own clock.

- ``kinds``: many types, encodings and row groups, page index, Bloom filters, every kind of blob, inline and not,
  and a check;
- ``spilled``: a life long enough for segments of all kinds, sections of idle tables, released trees, applied ids,
  intents of jobs that live, died, and are done;
- ``kept``: what compaction, resolution, merging, collection, an overwrite and a change of the schema leave behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.commit.uploads import Intent
from dolmen.format.layout import POINTER
from dolmen.format.schema import Field
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen.transactions.transaction import unit_of
from support.aging import Place
from support.damaged import copy_of
from support.tables import write_file

_DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class World:
    """A healthy database.

    Args:
        objects: all there are, orphans too.
        now_us: the server's time, and everybody's.
        tables: of the newest version.
        earlier: bodies that objects had before, by key: the pointer alone ever changes.
        requests: an id that was applied, with the table and the rows it was applied with.
    """

    name: str
    objects: dict[str, MemoryObject]
    now_us: int
    tables: tuple[str, ...]
    newest: int
    horizon: int
    earlier: dict[str, list[bytes]] = field(default_factory=dict)
    requests: tuple[tuple[str, str, pa.Table], ...] = ()

    def bucket(self) -> MemoryBucket:
        """A copy of it, to do with as one likes."""
        bucket = MemoryBucket(lambda: self.now_us, self.name)
        bucket.objects.update(self.objects)
        return bucket


def rows_of_many_types(rng: random.Random, ids: range) -> pa.Table:
    """Rows with NULL, NaN, repeated and unique values, in columns that are stored in different encodings."""

    def some(value: Callable[[int], Any], nulls: float = 0.2) -> list[Any]:
        return [None if rng.random() < nulls else value(id_) for id_ in ids]

    return pa.table(
        {
            "id": pa.array(list(ids), pa.int64()),
            "at": pa.array([_DAY_0 + timedelta(seconds=rng.randrange(10**6)) for _ in ids], pa.timestamp("us", "UTC")),
            "kind": pa.array([rng.choice(["view", "click", "order"]) for _ in ids], pa.string()),
            "text": pa.array(some(lambda id_: f"{id_:x}" * rng.randrange(1, 9))),
            "amount": pa.array(some(lambda _: rng.choice([rng.random(), float("nan"), -0.0, 1e300])), pa.float64()),
            "small": pa.array(some(lambda _: rng.randrange(-100, 100)), pa.int16()),
            "flag": pa.array(some(lambda _: rng.random() < 0.5), pa.bool_()),
            "price": pa.array(some(lambda _: Decimal(rng.randrange(10**6)).scaleb(-2)), pa.decimal128(12, 2)),
            "raw": pa.array(some(lambda _: rng.randbytes(rng.randrange(8))), pa.binary()),
            "tags": pa.array(some(lambda _: [rng.randrange(9) for _ in range(rng.randrange(3))]), pa.list_(pa.int32())),
            "place": pa.array(
                some(lambda _: {"x": rng.random(), "city": rng.choice(["Kyiv", "Lviv", None])}),
                pa.struct([("x", pa.float32()), ("city", pa.string())]),
            ),
        }
    )


@cache
def kinds() -> World:
    """See above."""
    place, rng = Place(7), random.Random(7)
    db, earlier = place.db, list[bytes]()
    for name in ("t", "twin"):
        data = rows_of_many_types(rng, range(100))
        db.create_table(name, data.schema, primary_key=["id", "kind"], sort_key="day(at) DESC, small NULLS FIRST")
        for start in (0, 60):
            _append(db, name, data.slice(start, 60), group_rows=30)
            earlier.append(_pointer(place))
            place.pass_hours(1)
        t = db.table(name)
        t.delete("id < 12 AND small > 10")
        t.delete(" OR ".join(f"(id = {n} AND small > {n})" for n in range(20, 29)))  # too long to stand inline
        t.delete(keys=[(n, "view") for n in range(40, 50)])
        t.delete(keys=[(n, "click") for n in range(70, 1000)])
        t.delete("id BETWEEN 55 AND 80", mode="positions")
        t.delete("id BETWEEN 93 AND 95", mode="positions")
        t.upsert(rows_of_many_types(rng, range(92, 105)))
        t.delete("place.city = 'Lviv' AND NOT list_contains(tags, 3) AND id < 30")
        t.add_check("near", "small < 100 OR list_contains(tags, 1)")
        earlier.append(_pointer(place))
        place.pass_hours(1)
    return _world("kinds", place, earlier)


@cache
def spilled() -> World:
    """See above."""
    place, rng = Place(11), random.Random(11)
    db, earlier, requests = place.db, list[bytes](), list[tuple[str, str, pa.Table]]()
    db.set(root_bytes="4KB", keep_versions=3, retention="1h", reader_grace="1h")
    for name in ("idle", "still"):
        table = db.create_table(name, _FEW, primary_key=["k"], properties={"target_file_bytes": "16MB"})
        for start in (0, 10):
            table.append(_few(rng, range(start, start + 10)))
        table.delete("k = 3 OR v > 90")
        table.delete("k = 4", mode="positions")
    dropped = db.create_table("dropped", _FEW, primary_key=["k"])
    for start in range(12):
        dropped.append(_few(rng, range(start, start + 3)))
    t = db.create_table("t", _FEW, primary_key=["k"])
    for turn in range(80):
        rows = _few(rng, range(turn * 5, turn * 5 + 5))
        id_ = f"request {turn} {rng.getrandbits(128):032x}"
        t.append(rows, request=id_)
        if turn % 20 == 0:
            requests.append((id_, "t", rows))
        if turn % 5 == 1:
            t.delete(f"k = {turn * 5 - 2}", mode="positions")
        if turn % 5 == 2:
            t.upsert(_few(rng, range(turn * 5 - 4, turn * 5 - 2)))
        if turn % 5 == 3:
            t.delete(f"k > {turn * 5 - 3} AND v < {rng.randrange(60)} AND s <> 'x'")
        if turn == 50:
            db.drop_table("dropped")
        if turn % 12 == 4:
            db.merge()
        if turn in (30, 70):
            db.resolve("t")
        if turn in (45, 65):
            db.compact("t")
        place.pass_hours(0.5)
        earlier.append(_pointer(place))
    dead = Intent.begin(place.context().store, place.runtime(), "a job that died", ["t"])
    place.orphan(f"data/t/2025/10/11/12/{dead.name()}.parquet")
    db.gc()
    place.pass_hours(3)
    db.gc()
    compact(place.context(), "t", options=CompactionOptions(growth=1))
    for turn in range(12):
        t.append(_few(rng, range(1000 + turn, 1003 + turn)))
    t.delete("s = 'x' OR v < 20", mode="positions")
    place.pass_hours(2)
    db.gc()
    done = Intent.begin(place.context().store, place.runtime(), "a job that is done", ["t"])
    done.finish()
    Intent.begin(place.context().store, place.runtime(), "a job under way", ["t"])
    for turn in range(2):
        t.append(_few(rng, range(1100 + turn, 1103 + turn)))
    place.pass_hours(2)  # what expired may go now
    return _world("spilled", place, earlier, requests)


@cache
def kept() -> World:
    """See above."""
    place, rng = Place(13), random.Random(13)
    db, earlier = place.db, list[bytes]()
    db.set(keep_versions=8, retention="1d", reader_grace="1h")
    t = db.create_table("t", _FEW, primary_key=["k"], sort_key=["v"])
    for start in range(0, 120, 8):
        t.append(_few(rng, range(start, start + 8)))
    t.delete("k < 20", mode="positions")
    t.delete("v < 10")
    t.upsert(_few(rng, range(60, 64)))
    db.resolve("t")
    db.compact("t")
    place.pass_hours(30)
    over = db.create_table("over", _FEW, primary_key=["k"], cluster_by="v, k")
    over.append(_few(rng, range(40)))
    over.delete("k = 7")
    earlier.append(_pointer(place))
    over.overwrite(_few(rng, range(50)))
    over.delete("k BETWEEN 5 AND 9", mode="positions")
    db.gc()
    place.pass_hours(3)
    db.gc()
    _change_schema(place, "over")
    db = place.db = place.open()
    wide = _few(rng, range(100, 130)).append_column("extra", pa.array([f"e{n % 4}" for n in range(30)]))
    db.table("over").append(wide)
    db.table("over").delete("extra = 'e1'")
    t = db.table("t")
    for start in range(200, 240, 8):
        t.append(_few(rng, range(start, start + 8)))
    t.delete("k IN (201, 209, 217)")
    db.compact("t")
    earlier.append(_pointer(place))
    t.append(_few(rng, range(300, 310)))
    t.delete("k = 301", mode="positions")
    return _world("kept", place, earlier)


WORLDS: tuple[Callable[[], World], ...] = (kinds, spilled, kept)

_FEW = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def few_rows(rng: random.Random, ids: range) -> pa.Table:
    """Rows of the tables of ``spilled`` and ``kept``."""
    values = [round(rng.random() * 100, 3) for _ in ids]
    return pa.table([list(ids), values, [rng.choice("xyz") * rng.randrange(1, 5) for _ in ids]], schema=_FEW)


_few = few_rows


def _append(db: Database, name: str, data: pa.Table, group_rows: int) -> None:
    """One file with small row groups."""
    with db.transaction() as tx:
        entry = unit_of(tx).entry(name)
        unit_of(tx).begin_upload()
        file = write_file(context_of(db).store, name, entry, data, group_rows)
        unit_of(tx).add(Write(name, entry.uuid, files=(file,)))


def _change_schema(place: Place, name: str) -> None:
    """One more column, in the newest manifest: no statement does that yet."""
    changed = copy_of(place.bucket)
    schema = changed.table(name).schema
    fields = [*schema.fields, Field(id=schema.next_id, name="extra", type="string")]
    key = changed.edit_table(
        name, schema=msgspec.structs.replace(schema, fields=tuple(fields), next_id=len(fields) + 1)
    )
    place.bucket.objects[key] = changed.bucket.objects[key]


def _pointer(place: Place) -> bytes:
    return place.bucket.objects[POINTER].body


def _world(
    name: str, place: Place, earlier: list[bytes], requests: list[tuple[str, str, pa.Table]] | None = None
) -> World:
    manifest = place.manifest
    tables = tuple(sorted(manifest.tables))
    MemoryStore(place.bucket).put("data/t/2026/01/01/00/orphan.parquet", b"left by a crash")
    older = [body for body in dict.fromkeys(earlier) if body != _pointer(place)]
    return World(
        name, dict(place.bucket.objects), place.now_us, tables, manifest.version, max(manifest.horizon, 1),
        {POINTER: older}, tuple(requests or ()),
    )  # fmt: skip
