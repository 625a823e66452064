"""The depth of overlap in a sort key, against counting file by file."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.maintenance.health.file_figures import MOST_PARTS, BoundsCollector
from support.tables import World

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "int64": (pa.int64(), lambda n: n - 10),
    "int8": (pa.int8(), lambda n: n - 10),
    "uint64": (pa.uint64(), lambda n: 2**64 - 30 + n),
    "float64": (pa.float64(), lambda n: (n - 10) / 4),
    "bool": (pa.bool_(), lambda n: n > 10),
    "string": (pa.string(), lambda n: "é" * (n % 3) + chr(97 + n)),
    "long string": (pa.string(), lambda n: "a" * 30 + chr(97 + n)),
    "binary": (pa.binary(), lambda n: bytes([255, n])),
    "decimal": (pa.decimal128(20, 2), lambda n: Decimal(n) / 4),
    "date": (pa.date32(), lambda n: date(2026, 1, 1) + timedelta(n)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n)),
    "time": (pa.time64("us"), lambda n: (datetime(2026, 1, 1) + timedelta(minutes=n)).time()),
}


def counted(ranges: list[tuple[Any, Any]]) -> list[int]:
    """The number of ranges at each distinct bound, and in each gap between two of them, in turns."""
    places = sorted({end for range_ in ranges for end in range_})
    depths = []
    for place, after in zip(places, [*places[1:], None], strict=True):
        depths.append(sum(least <= place <= greatest for least, greatest in ranges))
        if after is not None:
            depths.append(sum(least <= place and greatest >= after for least, greatest in ranges))
    return depths


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("spilled", [False, True], ids=["inline", "spilled"])
def test_depths_are_those_of_counting_file_by_file(kind: str, spilled: bool) -> None:
    rng = random.Random(kind)
    type_, value = VALUES[kind]
    world = World()
    world.db.create_table("t", pa.schema([("s", type_), ("n", pa.int64())]), sort_key="s")
    if spilled:
        world.db.set(root_bytes="4KB")
    ranges = []
    for _ in range(30):
        least, greatest = sorted(value(rng.randint(0, 20)) for _ in range(2))
        ranges.append((least, greatest))
        world.append(pa.table({"s": pa.array([greatest, least], type_), "n": [1, 2]}))
    assert bool(world.entry().segments_of("files")) == spilled
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert (found.column, found.files, found.unknown) == ("s", 30, 0)
    if kind == "long string":  # their bounds are cut, and all begin alike
        assert found.deepest == 30
        return
    depths = counted(ranges)
    assert found.deepest == max(depths)
    assert found.mean == pytest.approx(sum(depths) / len(depths))
    assert [most for _, most in found.depths] == depths


def test_files_that_follow_each_other_do_not_overlap_and_those_of_one_value_do() -> None:
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64())]), sort_key="s")
    for start in range(0, 100, 10):
        world.append(pa.table({"s": list(range(start, start + 10))}))
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert (found.deepest, found.mean) == (1, pytest.approx(30 / 39))  # 20 bounds, 10 gaps in files, 9 between them
    world.db.create_table("same", pa.schema([("s", pa.int64())]), sort_key="s")
    for _ in range(5):
        world.append(pa.table({"s": [7, 7]}), "same")
    same = next(table for table in world.db.health().tables if table.name == "same").overlap
    assert same is not None
    assert (same.deepest, same.mean, same.depths) == (5, 5.0, ((5.0, 5),))


def test_files_without_bounds_are_counted_apart() -> None:
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64()), ("n", pa.int64())]), sort_key="s")
    world.append(pa.table({"s": [1, 2], "n": [1, 1]}))
    world.append(pa.table({"s": pa.nulls(2, pa.int64()), "n": [1, 1]}))
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert (found.files, found.unknown) == (1, 1)


def test_a_table_without_a_sort_key_or_without_files_has_no_overlap() -> None:
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64())]))
    world.db.create_table("u", pa.schema([("s", pa.int64())]), sort_key="s")
    world.append(pa.table({"s": [1, 2]}))
    assert [table.overlap for table in world.db.health().tables] == [None, None]


@pytest.mark.parametrize("spilled", [False, True], ids=["inline", "spilled"])
def test_bounds_of_a_widened_column_are_compared_as_what_they_are_now(spilled: bool) -> None:
    world = World()
    world.db.create_table("t", pa.schema([("day", pa.date32()), ("n", pa.int32())]), sort_key="day")
    if spilled:
        world.db.set(root_bytes="4KB")
    for start in range(20):
        world.append(pa.table({"day": pa.array([date(2026, 1, 1 + start)] * 2), "n": pa.array([1, 2], pa.int32())}))
    world.db.table("t").widen_column("day", pa.timestamp("us"))
    for start in range(20):
        at = datetime(2026, 1, 1 + start, 12)
        world.append(pa.table({"day": pa.array([at, at], pa.timestamp("us")), "n": pa.array([1, 2], pa.int32())}))
    assert bool(world.entry().segments_of("files")) == spilled
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert (found.files, found.unknown, found.deepest) == (40, 0, 1)
    assert len(found.depths) == 79


def test_many_places_are_drawn_as_few_parts_with_the_same_mean_and_depth() -> None:
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64())]), sort_key="s")
    [field] = world.entry().schema.fields
    collector = BoundsCollector(field)
    rng = random.Random(3)
    ranges = [(least, least + rng.randint(0, 3_000)) for least in rng.sample(range(100_000), 700)]
    least, greatest = zip(*ranges, strict=True)
    collector._add(pa.array(least), pa.array(greatest))
    found = collector.overlap()
    assert found is not None
    depths = counted(ranges)
    assert len(found.depths) == MOST_PARTS
    assert max(most for _, most in found.depths) == found.deepest == max(depths)
    assert found.mean == pytest.approx(sum(depths) / len(depths))
    assert min(mean for mean, _ in found.depths) <= found.mean <= max(mean for mean, _ in found.depths)


def test_bounds_that_take_too_much_memory_are_counted_and_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.maintenance.health.file_figures.MOST_BOUNDS_BYTES", 20)
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64())]), sort_key="s")
    world.db.set(root_bytes="4KB")
    for start in range(40):
        world.append(pa.table({"s": [start, start + 1]}))
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert (found.files, found.unknown, found.depths) == (40, 0, ())
    assert "too many to compare" in world.db.report()


def test_a_gap_between_files_is_a_place_that_no_file_covers() -> None:
    world = World()
    world.db.create_table("t", pa.schema([("s", pa.int64())]), sort_key="s")
    world.append(pa.table({"s": [0, 9]}))
    world.append(pa.table({"s": [20, 29]}))
    found = world.db.health().tables[0].overlap
    assert found is not None
    assert [most for _, most in found.depths] == [1, 1, 1, 0, 1, 1, 1]
