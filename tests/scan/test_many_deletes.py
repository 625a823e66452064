"""Thousands of unresolved deletes: the same rows as by a plain model, and no work for each file and tombstone."""

from __future__ import annotations

import cProfile
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from pstats import Stats
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import RowBounds
from dolmen.entries.segments.tombstone_judge import KeysTombstones, TombstoneJudge
from dolmen.format.entries import Blob, Bounds, KeysTombstone, Tombstone
from dolmen.format.schema import Schema, type_from_json
from dolmen.format.types import from_json, to_json
from dolmen.predicate.evaluate import matches
from dolmen.predicate.parse import parse
from dolmen.store.cache import ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.spilled import spill_entries
from support.tables import World

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ROUNDS = 20 if os.environ.get("DOLMEN_LONG") else 1
ROWS = 1_500

Row = dict[str, Any]

COLUMNS = pa.schema([("a", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("b", pa.int32()), ("id", pa.int64())])
SCHEMA = Schema.from_arrow(COLUMNS)


def drawn(rng: random.Random, count: int, first_id: int) -> list[Row]:
    """Rows of few enough values for most deletes to find one, some of them NULL."""

    def value(found: Any) -> Any:
        return None if rng.random() < 0.02 else found

    return [
        {
            "a": value(rng.randrange(-2_000, 2_000)),
            "s": value(f"{rng.randrange(4_000):05}" + rng.choice(["", " and longer than bounds are"])),
            "d": value(date(2020, 1, 1) + timedelta(days=rng.randrange(3_000))),
            "b": value(rng.randrange(50)),
            "id": first_id + number,
        }
        for number in range(count)
    ]


def some_deletes(rng: random.Random, world: World, rows: list[Row], count: int) -> list[Row]:
    """Deletes by keys over tuples of all kinds in one commit; returns the rows that a plain model keeps."""
    gone: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}
    with world.db.transaction() as tx:
        for _ in range(count):
            on = rng.choice([("a",), ("s",), ("d",), ("a", "b"), ("s", "d")])
            keys = {tuple(row[name] for name in on) for row in rng.sample(rows, rng.choice([1, 1, 1, 2]))}
            if rng.random() < 0.005 and on == ("a",):  # too long to stand in the entry
                keys |= {(n,) for n in rng.sample(range(2_000, 900_000), 600)}
            keys = {key for key in keys if None not in key}
            if keys:
                columns = zip(*sorted(keys), strict=True)
                arrays = [pa.array(c, COLUMNS.field(name).type) for c, name in zip(columns, on, strict=True)]
                tx.table("t").delete(keys=pa.table(arrays, names=list(on)), on=list(on))
                gone.setdefault(on, set()).update(keys)
    return [row for row in rows if not any(tuple(row[name] for name in on) in keys for on, keys in gone.items())]


@pytest.mark.slow
def test_thousands_of_deletes_by_keys_of_all_kinds_hide_what_a_plain_model_deletes() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        world = World(runtime=Runtime(threads=1))
        world.db.create_table("t", COLUMNS)
        expected: list[Row] = []
        for step in range(6):  # what is appended after a delete stays, though it has the same keys
            new = drawn(rng, ROWS, step * ROWS)
            for start in range(0, ROWS, ROWS // 3):
                world.append(pa.Table.from_pylist(new[start : start + ROWS // 3], COLUMNS), group_rows=100)
            expected = some_deletes(rng, world, expected + new, 400)
        assert len(expected) < 5 * ROWS
        entry = world.entry()
        tombstones = tombstones_of(entry, world.db._context.segments)
        assert len(tombstones) > 2_000
        assert entry.segments_of("tombstones")
        assert entry.tombstones
        assert sum(t.values is None for t in tombstones if isinstance(t, KeysTombstone)) < 100
        whole = msgspec.structs.replace(
            entry, files=tuple(LiveFiles.of(entry, world.db._context.segments)), tombstones=tombstones, segments=()
        )
        inline = msgspec.structs.replace(world.manifest, tables={"t": whole})
        for manifest in (world.manifest, inline, spill_entries(world.store, rng, inline)):
            assert world.scan(manifest=manifest).to_arrow().sort_by("id").to_pylist() == expected
            assert world.scan(manifest=manifest).count() == len(expected)
            where = "a BETWEEN -100 AND 500 AND s > '01'"
            some = [row for row in expected if None not in (row["a"], row["s"])]
            some = [row for row in some if -100 <= row["a"] <= 500 and row["s"] > "01"]
            assert world.scan(where=where, manifest=manifest).to_arrow().sort_by("id").to_pylist() == some


#: A draw of plain values for each type that can be a key.
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "int64": lambda rng: rng.choice([rng.randrange(-50, 50), 2**63 - 1, -(2**63)]),
    "uint64": lambda rng: rng.choice([rng.randrange(50), rng.randrange(2**63, 2**63 + 50), 2**64 - 1]),
    "int8": lambda rng: rng.randrange(-128, 128),
    "bool": lambda rng: rng.random() < 0.5,
    "string": lambda rng: rng.choice(["", "a", "é", "\U0001f600", "z" * 16]) + rng.choice("abc"),
    "binary": lambda rng: bytes(rng.choices(range(256), k=rng.randrange(3))),
    "decimal128(9, 2)": lambda rng: Decimal(rng.randrange(-500, 500)).scaleb(-2),
    "date32[day]": lambda rng: rng.randrange(18_000, 18_100),
    "timestamp[us, tz=UTC]": lambda rng: rng.randrange(10**15, 10**15 + 100),
}


def pair(rng: random.Random, kind: str) -> tuple[Any, Any]:
    """Bounds of a column, sometimes unknown."""
    least, greatest = sorted([VALUES[kind](rng), VALUES[kind](rng)])
    if rng.random() < 0.3:
        greatest = least
    return None if rng.random() < 0.05 else least, None if rng.random() < 0.05 else greatest


def random_tombstone(rng: random.Random, kinds: dict[int, str], ts: int) -> KeysTombstone:
    """One over some of these columns; nothing of it can be fetched."""
    ids = tuple(sorted(rng.sample(sorted(kinds), rng.choice([1, 1, 2]))))
    ends = tuple(pair(rng, kinds[id_]) for id_ in ids)
    stored = tuple((to_json(least), to_json(greatest)) for least, greatest in ends)
    blob = Blob("tombstone/t/x.del", 4 + ts, 1, ts)
    return KeysTombstone(ids, tuple(kinds[id_] for id_ in ids), 1, stored, blob, ts=ts)


def may_hold_key(tombstone: KeysTombstone, rows: RowBounds) -> bool:
    """Whether rows may have a key of a tombstone, by its bounds; None is unknown."""

    def is_less(a: Any, b: Any) -> bool:
        return a is not None and b is not None and a < b

    for id_, kind, ends in zip(tombstone.columns, tombstone.types, tombstone.bounds, strict=True):
        least, greatest = (from_json(end, type_from_json(kind)) for end in ends)
        own = rows.columns.get(id_)
        if own and (own.nulls == rows.rows or is_less(own.max, least) or is_less(greatest, own.min)):
            return False
    return rows.rows > 0


def test_many_tombstones_are_judged_as_each_is_alone_whatever_the_types() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    kinds = dict(enumerate(VALUES, 1))
    rng = random.Random(SEED)
    matched = 0
    tombstones = [random_tombstone(rng, kinds, ts) for ts in range(1, 600)]
    every = KeysTombstones.grouped(tombstones, {})
    assert sorted(np.concatenate([ranges.indexes for ranges in every]).tolist()) == list(range(len(tombstones)))
    for _ in range(40 * ROUNDS):
        rows, through = rng.choice([0, 1, 9]), rng.choice([0, 0, 300, 598, 599])
        known = {id_: Bounds(*pair(rng, kind), rng.choice([None, 0, 9]), 0) for id_, kind in kinds.items()}
        for id_ in rng.sample(sorted(known), 2):
            del known[id_]
        own = RowBounds(known, rows, through)
        for ranges in every:
            alone = [t.ts > through and may_hold_key(t, own) for t in ranges.tombstones]
            assert ranges.tombstone_mask(own).tolist() == alone
            matched += sum(alone)
            kept = np.array([rng.random() < 0.5 for _ in alone])
            if kept.any():
                found = ranges.some(kept).tombstone_mask(own)
                assert found.tolist() == [each for each, there in zip(alone, kept, strict=True) if there]
    assert matched > 0


def test_integers_are_compared_exactly_with_bounds_of_any_size_and_kind() -> None:
    (ranges,) = KeysTombstones.grouped(
        [
            KeysTombstone((1,), ("int64",), 1, ((n, n),), Blob("tombstone/t/x.del", 4, 1, 1), ts=1)
            for n in (-(2**63), 0, 5, 2**63 - 1)
        ],
        {},
    )
    for least, greatest, expected in (
        (2**63, 2**64, [False] * 4),
        (-(2**64), -(2**63) - 1, [False] * 4),
        (-(2**64), 2**64, [True] * 4),
        (Decimal("0.01"), Decimal("5.00"), [False, False, True, False]),
        (Decimal("-0.99"), Decimal("4.99"), [False, True, False, False]),
        (float("-inf"), 4.5, [True, True, False, False]),
        (None, 0, [True, True, False, False]),
    ):
        assert ranges.tombstone_mask(RowBounds({1: Bounds(least, greatest)}, 1)).tolist() == expected, (least, greatest)


def deleted_by(world: World, deletes: int, on: str) -> None:
    """Deletes one key each, in one commit; no row has any of these, and all lie within every file's bounds."""
    with world.db.transaction() as tx:
        for number in range(deletes):
            tx.table("t").delete(keys=[number * 2 + 1] if on == "k" else [f"{number * 2 + 1:06}"], on=[on])


def wide_files(files: int, deletes: int, on: str) -> World:
    """Files whose rows lie far apart, with two row groups each, and deletes of keys between them."""
    world = World(runtime=Runtime(threads=1))
    wide = [value for _ in range(files) for value in (0, 8, 100_000, 2, 4, 100_002)]
    rows = pa.table({"k": wide, "s": [f"{value:06}" for value in wide]})
    world.create(rows, files=files, group_rows=3)
    deleted_by(world, deletes, on)
    return world


def calls(world: World, where: str | None = None) -> int:
    """How many Python functions, and functions called by them, a scan runs."""
    profile = cProfile.Profile()
    scan = world.scan(where=where)
    profile.enable()
    try:
        found = scan.to_arrow().num_rows
    finally:
        profile.disable()
    assert found > 0
    return sum(count for _, count, *_ in Stats(profile).stats.values())  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["k", "s"])
def test_no_function_is_called_for_each_file_and_tombstone(on: str) -> None:
    few_files, many_files, few, many = 2, 12, 10, 400
    found = {}
    for files in (few_files, many_files):
        for deletes in (few, many):
            world = wide_files(files, deletes, on)
            calls(world)
            found[files, deletes] = calls(world)
    for_files = found[many_files, few] - found[few_files, few]
    for_files_with_many = found[many_files, many] - found[few_files, many]
    more = (many_files - few_files) * (many - few)
    assert for_files > 0
    assert for_files_with_many - for_files < more / 50, found
    for_one = (found[few_files, many] - found[few_files, few]) / (many - few)
    assert for_one < 40, found


def test_a_predicate_that_many_scans_and_files_test_is_parsed_once() -> None:
    world = World(runtime=Runtime(threads=1))
    world.create(pa.table({"k": range(60), "tag": ["x"] * 60}), files=6)
    unheard_of = Runtime().uuid()
    deletes = 30
    for number in range(deletes):
        world.db.table("t").delete(f"k = {number} AND tag <> '{unheard_of}'", mode="tombstone")

    def parsed() -> Counter[str]:
        profile = cProfile.Profile()
        scan = world.scan()
        profile.enable()
        rows = scan.to_arrow().num_rows
        profile.disable()
        assert rows == 60 - deletes
        stats = Stats(profile).stats  # type: ignore[attr-defined]
        return Counter({name: count for (file, _, name), (count, *_) in stats.items() if "predicate" in file})

    first, second = parsed(), parsed()
    assert first["from_json"] <= deletes
    assert second["from_json"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        "u = {n} AND s LIKE '%x'",
        "u = {n} AND s LIKE '%x' AND k % 7 = {rest}",
        "u > {n} AND u < {n} + 2 AND s <> 'y'",
        "u = {n} AND s = 'x' OR u = {rest} AND k < 100",
        "u + 1 = {n} AND lower(s) = 'x'",
    ],
)
def test_a_predicate_is_evaluated_once_for_many_small_files(form: str) -> None:
    """Files before and after the first half of the deletes, most of them in segments."""
    files, deletes, rows_each = 60, 80, 50
    db = Database(MemoryStore(), Runtime(threads=1))
    schema = pa.schema([("k", pa.int64()), ("u", pa.int64()), ("s", pa.string())])
    table, texts = db.create_table("t", schema), [form.format(n=n, rest=n % 7) for n in range(deletes)]
    rows = [
        pa.table([[file * rows_each + n for n in range(rows_each)], range(rows_each), ["x"] * rows_each], schema=schema)
        for file in range(files)
    ]
    for file in range(files):
        if file == files // 2:
            for text in texts[: deletes // 2]:
                table.delete(text, mode="tombstone")
        table.append(rows[file])
    for text in texts[deletes // 2 :]:
        table.delete(text, mode="tombstone")
    expected = [*left(pa.concat_tables(rows[: files // 2]), texts)["k"].to_pylist()]
    expected += left(pa.concat_tables(rows[files // 2 :]), texts[deletes // 2 :])["k"].to_pylist()

    profile = cProfile.Profile()
    scan = table.scan()
    profile.enable()
    found = scan.to_arrow()
    profile.disable()
    assert found["k"].to_pylist() == expected
    stats = Stats(profile).stats  # type: ignore[attr-defined]
    called = Counter[str]()
    for (path, _, name), (count, *_) in stats.items():
        called[f"{Path(path).stem}.{name}"] += count
    assert called["evaluate.matches"] <= 4 * deletes, "evaluated for each file, it would be called 30 times as often"
    assert called["prune.judge"] < files * deletes / 2, "most files are judged all at once"


def left(rows: pa.Table, deletes: list[str]) -> pa.Table:
    """The rows that no delete matches."""
    schema = Schema.from_arrow(rows.schema)
    arrays = {field.id: rows[field.name] for field in schema.fields}
    for text in deletes:
        mask = matches(parse(text, schema, now_us=0), arrays, rows.num_rows)
        rows = rows.filter(pc.invert(mask))
        arrays = {field.id: rows[field.name] for field in schema.fields}
    return rows


@pytest.mark.slow
def test_explain_counts_the_tombstones_that_may_hide_rows_of_some_file() -> None:
    world = World(runtime=Runtime(threads=1))
    world.create(pa.table({"k": range(0, 2_000, 2), "s": [f"{n:06}" for n in range(0, 2_000, 2)]}), files=4)
    with world.db.transaction() as tx:
        for number in range(-300, 300):
            tx.table("t").delete(keys=[number], on=["k"])
            tx.table("t").delete(keys=[f"{3_000 + number * 10:06}"], on=["s"])
    told = world.scan().explain()
    entry = world.entry()
    every = tombstones_of(entry, world.db._context.segments)
    files = [RowBounds.of(file, entry.schema, (1, 2)) for file in entry.files]
    needed = [t for t in every if any(may_hold_key(t, rows) for rows in files)]
    assert 300 <= len(needed) < len(every)
    assert told.keys_tombstones == len(needed)
    assert told.plan.tombstones == tuple(needed)
    for file in told.plan.files:
        own = RowBounds.of(file.file, entry.schema, (1, 2))
        expected = tuple(t for t in every if may_hold_key(t, own))
        assert file.tombstones == expected
        assert len(file.tombstones) == len(expected)
        assert bool(file.tombstones) is bool(expected)
    assert f"{len(needed):,} of {len(every):,}" in repr(told)


def test_suspects_of_mixed_kinds_come_oldest_first() -> None:
    rows = pa.table({"k": range(10), "s": ["x"] * 9 + ["w"]})
    world = World(runtime=Runtime(threads=1))
    world.create(rows)
    table = world.db.table("t")
    for number in range(6):
        table.delete(f"k = {number} AND s = 'y'", mode="tombstone")
        table.delete(keys=[number + 5], on=["k"])
        table.delete(keys=["x" * (number % 2)], on=["s"])
    entry = world.entry()
    every: tuple[Tombstone, ...] = tombstones_of(entry, world.db._context.segments)
    (file,) = entry.files
    through = msgspec.structs.replace(file, applied_through=every[4].ts)
    schema: Schema = entry.schema
    for each in (file, through):
        found = TombstoneJudge(every, schema).of_file(each)
        assert found is not None
        alone = [TombstoneJudge([t], schema).of_file(each) for t in every]
        expected = tuple(t for one in alone for t in one or ())
        assert 0 < len(expected) < len(every)
        assert found == expected
        assert len(found) == len(expected)
        assert [every[place] for place in sorted(found.indexes())] == list(expected)


@pytest.mark.parametrize("held", [0, 32 << 20])
def test_keys_take_the_same_requests_in_memory_and_in_files(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.rows.scan.load_deletes.MEMORY_BYTES", held)
    world = World(runtime=Runtime(threads=4))
    world.create(pa.table({"k": range(20_000), "s": [f"{n:05}" for n in range(20_000)]}), group_rows=2_000)
    for number in range(5):
        world.db.table("t").delete(keys=pa.table({"k": range(number, 20_000, 11)}), on=["k"])
    with world.db.transaction() as tx:  # one object: its lists come together
        for number in range(5, 8):
            tx.table("t").delete(keys=pa.table({"s": [f"{n:05}" for n in range(number, 20_000, 11)]}), on=["s"])
    scan = world.scan(cache=ObjectCache())
    told = scan.explain()
    assert told.tombstone_fetch.requests == 6
    assert isinstance(world.store, CountingStore)
    left = [n for n in range(20_000) if n % 11 >= 8]
    scan = world.scan(cache=ObjectCache())
    world.store.gets = 0
    assert scan.to_arrow()["k"].to_pylist() == left
    assert world.store.gets == told.fetch.requests
    assert world.scan().count() == len(left)
    assert world.db.resolve()["t"].rows == 20_000 - len(left)
    assert world.scan().count() == len(left)
