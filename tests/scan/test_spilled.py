"""Tables whose entries have left the manifest: every scan of them gives what it gave before."""

from __future__ import annotations

import os
import random

import duckdb
import msgspec
import pyarrow as pa
import pytest

from dolmen import Snapshot
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.tombstone_judge import TombstoneJudge
from dolmen.format.entries import Blob, KeysTombstone, Tombstone
from dolmen.format.manifest import Manifest
from dolmen.format.schema import Schema
from dolmen.format.segments import encode
from dolmen.format.types import to_plain
from dolmen.rows.scan.row_groups import FilePlan
from dolmen.rows.scan.scan import matching_positions, plan_of
from dolmen.store.cache import ObjectCache
from support.random_entries import random_file
from support.random_predicates import random_predicate
from support.random_tables import random_table
from support.spilled import spill_entries
from support.tables import World

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 200 if os.environ.get("DOLMEN_LONG") else 6


def history(rng: random.Random, world: World) -> pa.Table:
    """A table after some appends and deletes of all kinds; returns rows like its."""
    rows = random_table(rng, 60)
    world.db.create_table("t", rows.schema)
    table = world.db.table("t")
    keys = [f.name for f in rows.schema if not pa.types.is_nested(f.type) and not pa.types.is_floating(f.type)]
    for _ in range(rng.randint(3, 12)):
        kind = rng.random()
        first = rng.randrange(60)
        if kind < 0.5:
            world.append(rows.slice(first, rng.randint(1, 12)), group_rows=5)
        elif kind < 0.65 and keys:
            drawn = rows.slice(first, 2).select([rng.choice(keys)]).drop_null()
            if drawn.num_rows:
                table.delete(keys=drawn, on=drawn.column_names)
        else:
            table.delete(random_predicate(rng, rows), mode=rng.choice(["positions", "tombstone"]))
    return rows


def values(rows: pa.Table) -> str:
    """All values, so that equal ones look equal; times as numbers, as Python's own don't reach as far."""
    columns = [column.combine_chunks() for column in rows.columns]
    return repr([c.to_pylist() if pa.types.is_nested(c.type) else to_plain(c) for c in columns])


def as_stored(tombstones: tuple[Tombstone, ...]) -> bytes:
    """Tombstones as the manifest holds them: in memory a predicate's lists may be tuples."""
    return msgspec.json.encode(tombstones)


def same_files(plans: tuple[FilePlan, ...], others: tuple[FilePlan, ...]) -> bool:
    """Whether two plans read the same files in the same way; bounds may be known of fewer columns."""

    def told(plan: FilePlan) -> object:
        return msgspec.structs.replace(plan.file, stats={}), plan.needs_filter, as_stored(tuple(plan.tombstones))

    return [told(plan) for plan in plans] == [told(plan) for plan in others]


@pytest.mark.slow
def test_scans_of_a_spilled_table_are_those_of_the_same_table_before() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    looked_into = pruned = 0
    for round_ in range(ROUNDS):
        rng, seed = random.Random(SEED + round_), SEED + round_
        world = World(runtime=Runtime(threads=1))
        rows = history(rng, world)
        before = world.manifest
        for _ in range(3):
            after = spill_entries(world.store, rng, before)
            cache = ObjectCache(rng.choice([0, 1 << 24]))
            for _ in range(4):
                text = None if rng.random() < 0.2 else random_predicate(rng, rows)
                limit = rng.choice([None, None, 0, 1, 7])
                old = world.scan(where=text, limit=limit, manifest=before)
                new = world.scan(where=text, limit=limit, manifest=after, cache=cache)
                assert values(new.to_arrow()) == values(old.to_arrow()), (seed, text)
                assert new.count() == old.count(), (seed, text)
                assert same_files(plan_of(new).files, plan_of(old).files), (seed, text)
                # Which reason is found first differs; how many files there are does not.
                assert sum(plan_of(new).pruned.values()) == sum(plan_of(old).pruned.values()), (seed, text)
                assert text is not None or plan_of(new).pruned == plan_of(old).pruned, seed
                assert as_stored(plan_of(new).all_tombstones) == as_stored(plan_of(old).all_tombstones), (seed, text)
                new.explain()
                looked_into += plan_of(new).segments.read
                pruned += plan_of(new).segments.pruned
                if text is not None:
                    where = world.predicate(text)
                    old_positions, new_positions = (
                        matching_positions(world.view(manifest, cache=cache), where) for manifest in (before, after)
                    )
                    assert new_positions == old_positions, (seed, text)
    assert looked_into > 0
    assert pruned > 0


def context_of(world: World) -> Context:
    """The world's own."""
    return world.db._context


@pytest.fixture
def world() -> World:
    """A hundred rows in ten files, with a delete of each kind."""
    world = World(runtime=Runtime(threads=1))
    world.create(pa.table({"id": range(100), "k": [n % 7 for n in range(100)]}), files=10, key=["id"])
    table = world.db.table("t")
    table.delete("id IN (3, 4)", mode="positions")
    table.delete("k = 6 AND id > 90")
    table.delete(keys=[50, 51])
    return world


def snapshots(world: World, seed: int) -> tuple[Snapshot, Snapshot]:
    """The newest version, and the same with its entries in segments."""
    before = world.manifest
    return tuple(  # type: ignore[return-value]
        Snapshot(context_of(world), manifest)
        for manifest in (before, spill_entries(world.store, random.Random(seed), before))
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_spilled_table_describes_itself_and_answers_sql_as_before(world: World, seed: int) -> None:
    before, after = snapshots(world, seed)
    old, new = before.table("t"), after.table("t")
    assert new.describe() == old.describe()
    assert (new.schema, new.primary_key, new.sort_key) == (old.schema, old.primary_key, old.sort_key)
    assert repr(new) == repr(old)
    query = "SELECT k, count(*) AS n, sum(id) AS s FROM t WHERE id > 20 GROUP BY k ORDER BY k"
    assert after.sql(query).to_arrow() == before.sql(query).to_arrow()
    oracle = duckdb.connect()
    oracle.register("t", before.table("t").to_arrow())
    assert after.sql(query).fetchall() == oracle.sql(query).fetchall()


def all_spilled(world: World, *, at_once: bool = True) -> Manifest:
    """The newest version with its files in one segment each half, and nothing else changed."""
    manifest, entry = world.manifest, world.entry()
    segments = []
    for number, files in enumerate([entry.files] if at_once else [entry.files[:5], entry.files[5:]]):
        segment, body = encode("files", files, f"segment/files/{number}", entry.schema)
        world.store.put(segment.object, body)
        segments.append(segment)
    changed = msgspec.structs.replace(entry, files=(), segments=tuple(segments))
    return msgspec.structs.replace(manifest, tables={"t": changed})


def test_explain_tells_which_segments_were_looked_into_and_what_they_cost(world: World) -> None:
    manifest = all_spilled(world, at_once=False)
    size = manifest.table("t").segments[1].size
    cache = ObjectCache()
    shown = repr(world.scan(where="id BETWEEN 70 AND 71", manifest=manifest, cache=cache).explain())
    assert f"{size:,} bytes" in shown
    assert "1 of 10" in shown
    assert "9 by statistics" in shown
    again = repr(world.scan(where="id BETWEEN 70 AND 71", manifest=manifest, cache=cache).explain())
    assert "1 of 2 looked into, fetched with 0 requests" in again
    assert "segments" not in repr(world.scan(where="id BETWEEN 70 AND 71").explain())


def test_a_scan_with_a_limit_fetches_no_segment_beyond_it(world: World) -> None:
    manifest = all_spilled(world, at_once=False)
    scan = world.scan(limit=3, manifest=manifest)
    world.store.reset()
    assert plan_of(scan).segments.requests == world.store.gets == 1
    assert plan_of(scan).pruned == {"limit": 9}


def test_files_that_no_tombstone_can_touch_are_counted_from_columns_alone(world: World) -> None:
    manifest = all_spilled(world)
    world.store.reset()
    plan = world.scan(manifest=manifest)._plan(counting=True)
    touched = {file.file.stats[1].min for file in plan.files}
    assert touched == {50, 90}
    assert (plan.counted_files, plan.counted_rows) == (8, 80 - 2)
    assert world.store.gets == 1
    assert world.scan(manifest=manifest).count() == len(world.rows())


@pytest.mark.slow
def test_many_tombstones_are_judged_together_as_they_are_one_by_one() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rows = pa.table({"a": range(1_000), "b": [f"{n:04}" for n in range(1_000)]})
    schema = Schema.from_arrow(rows.schema)
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        tombstones = []
        for ts in range(rng.choice([1, 5, 100])):
            ids = rng.choice([(1,), (2,), (1, 2)])
            first = rng.randrange(1_000)
            ends = {1: (first, first + rng.randrange(20)), 2: (f"{first:04}", rng.choice([f"{first + 9:04}", None]))}
            types = {1: "int64", 2: "string"}
            blob = Blob("tombstone/t/x.del", ts, 1, 1)
            tombstones.append(
                KeysTombstone(ids, tuple(types[i] for i in ids), 1, tuple(ends[i] for i in ids), blob, ts=ts * 10)
            )
        judge = TombstoneJudge(tombstones, schema)
        world = World(runtime=Runtime(threads=1))
        world.create(rows.slice(0, 1))
        files = [random_file(rng, rows.slice(rng.randrange(1_000), 5), schema) for _ in range(30)]
        entry = msgspec.structs.replace(world.entry(), files=tuple(files))
        manifest = msgspec.structs.replace(world.manifest, tables={"t": entry})
        after = spill_entries(world.store, rng, manifest).table("t")
        live = LiveFiles.of(after, context_of(world).segments)
        for part in live.live_segments():
            mask = judge.file_mask(part)
            narrowed = judge.of_segment(part.segment)
            for place, file in zip(part.positions(), part.entries(), strict=True):
                each = [TombstoneJudge([t], schema).of_file(file) for t in tombstones]
                expected = tuple(t for found in each for t in found or ())
                assert judge.of_file(file) == narrowed.of_file(file) == expected, SEED + round_
                assert mask[place] or not expected, SEED + round_
