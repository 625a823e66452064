"""Rows that all have the same value: deletes by that value are answered by statistics, not row by row."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.rows.scan.scan import plan_of
from support.tables import World

VALUES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "int64": (pa.int64(), 1, 2),
    "uint64": (pa.uint64(), 2**64 - 1, 2**63),
    "string": (pa.string(), "acme", "acmf"),
    "a long string": (pa.string(), "an organisation with a long name", "an organisation with a long nam"),
    "binary": (pa.binary(), b"\x00\xff", b"\x00"),
    "decimal": (pa.decimal128(9, 2), Decimal("1.10"), Decimal("1.11")),
    "bool": (pa.bool_(), True, False),
    "timestamp": (pa.timestamp("us"), datetime(2024, 1, 1), datetime(2024, 1, 2)),
}


def world_of(values: list[Any], kind: pa.DataType, *, group_rows: int = 10) -> World:
    world = World(runtime=Runtime(threads=1))
    world.create(pa.table({"k": pa.array(values, kind), "id": range(len(values))}), group_rows=group_rows)
    return world


@pytest.mark.parametrize("name", VALUES)
def test_a_file_of_one_value_is_counted_by_the_manifest_when_that_value_is_deleted(name: str) -> None:
    kind, value, other = VALUES[name]
    world = world_of([value] * 30, kind)
    world.db.table("t").delete(keys=pa.table({"k": pa.array([other], kind)}), on=["k"])
    assert world.scan().count() == 30
    world.db.table("t").delete(keys=pa.table({"k": pa.array([value], kind)}), on=["k"])
    manifest_alone = name != "a long string"  # whose bounds are cut
    assert len(plan_of(world.scan()).files) == (0 if manifest_alone else 1)
    assert world.scan().explain().row_groups_tested == 0
    assert world.scan().count() == 0
    assert world.scan().to_arrow().num_rows == 0
    done = world.db.resolve()["t"]
    assert (done.rows, done.dropped) == (30, 2)
    assert world.scan().count() == 0


@pytest.mark.parametrize("name", VALUES)
def test_of_sorted_values_only_row_groups_with_several_are_tested(name: str) -> None:
    kind, value, other = VALUES[name]
    first, second = sorted([value, other])
    world = world_of([first] * 34 + [second] * 36, kind)
    world.db.table("t").delete(keys=pa.table({"k": pa.array([value], kind)}), on=["k"])
    left = [n for n in range(70) if (n < 34) != (value == first)]
    assert world.scan().explain().row_groups_tested == 1
    assert world.scan().count() == len(left)
    assert world.scan(["id"]).to_arrow()["id"].to_pylist() == left
    done = world.db.resolve()["t"]
    assert done.rows == 70 - len(left)
    assert world.scan(["id"]).to_arrow()["id"].to_pylist() == left


def test_rows_that_may_be_null_or_lack_the_column_are_read() -> None:
    world = world_of([1] * 15 + [None] * 5, pa.int64())
    world.db.table("t").delete(keys=[1], on=["k"])
    assert world.scan().explain().row_groups_tested == 1
    assert world.scan(["k"]).to_arrow()["k"].to_pylist() == [None] * 5
    assert world.db.resolve()["t"].rows == 15


def test_a_tuple_hides_a_file_only_when_all_of_its_columns_are_that_tuple() -> None:
    world = World(runtime=Runtime(threads=1))
    rows = pa.table({"a": [1] * 20, "b": ["x"] * 10 + ["y"] * 10, "id": range(20)})
    world.create(rows)
    world.append(pa.table({"a": [1] * 10, "b": ["y"] * 10, "id": range(20, 30)}))
    world.db.table("t").delete(keys=pa.table({"a": [1, 2], "b": ["y", "x"]}), on=["a", "b"])
    assert world.scan(["id"]).to_arrow()["id"].to_pylist() == list(range(10))
    assert world.scan().explain().row_groups_tested == 0
    assert len(plan_of(world.scan()).files) == 2  # of two keys the manifest's bounds don't tell
    world.db.table("t").delete(keys=pa.table({"a": [1], "b": ["y"]}), on=["a", "b"])
    assert len(plan_of(world.scan()).files) == 1
    assert world.scan(["id"]).to_arrow()["id"].to_pylist() == list(range(10))


def test_compaction_leaves_out_what_statistics_call_deleted() -> None:
    world = world_of([1] * 30 + [2] * 25, pa.int64())
    world.append(pa.table({"k": [1] * 10, "id": range(100, 110)}))
    world.append(pa.table({"k": [3] * 10, "id": range(200, 210)}))
    world.db.table("t").delete(keys=[1], on=["k"])
    world.append(pa.table({"k": [1] * 10, "id": range(300, 310)}))
    expected = [*range(30, 55), *range(200, 210), *range(300, 310)]
    assert world.scan(["id"]).to_arrow()["id"].to_pylist() == expected
    world.db.compact()
    assert sorted(world.scan(["id"]).to_arrow()["id"].to_pylist()) == expected
