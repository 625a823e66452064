"""What a NULL hides in Arrow, values or NULLs of fields that can't be NULL, neither comes back nor stops a write."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.errors import RowError
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.compact.compaction_plan import CompactionOptions

_LEAVES = [pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.binary(3), pa.decimal128(9, 2), pa.timestamp("us")]


def _leaf(draw: random.Random, count: int, nullable: bool) -> pa.Array:
    kind = draw.choice(_LEAVES)
    numbers = [None if nullable and draw.random() < 0.3 else draw.randrange(100) for _ in range(count)]
    if pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        texts = pa.array([None if number is None else f"{number:03}" for number in numbers], pa.string())
        return texts.cast(pa.binary()).cast(kind) if kind != pa.string() else texts
    array = pa.array(numbers, pa.int64())
    return array.cast(pa.decimal128(21, 2)).cast(kind) if pa.types.is_decimal(kind) else array.cast(kind)


def _mask(draw: random.Random, count: int, nullable: bool) -> pa.Array | None:
    return pa.array([draw.random() < 0.3 for _ in range(count)], pa.bool_()) if nullable else None


def _nested(draw: random.Random, count: int, nullable: bool, depth: int) -> pa.Array:
    """Values of some type. What is under its NULLs is as full of values and of NULLs as anything else in it."""
    shape = draw.choice(["struct", "struct", "list", "fixed", "map", "leaf"]) if depth else "leaf"
    if shape == "leaf":
        return _leaf(draw, count, nullable)
    mask = _mask(draw, count, nullable)
    if shape == "struct":
        flags = [draw.random() < 0.5 for _ in range(draw.randrange(1, 3))]
        # a field that can't be NULL may still be NULL where the struct is
        made = [_nested(draw, count, flag, depth - 1) for flag in flags]
        if mask is not None and draw.random() < 0.5:
            visible = pa.array([None if hidden else place for place, hidden in enumerate(mask.to_pylist())], pa.int64())
            made = [child.take(visible) for child in made]
        fields = [
            pa.field(f"f{place}", child.type, flag) for place, (child, flag) in enumerate(zip(made, flags, strict=True))
        ]
        return pa.StructArray.from_arrays(made, fields=fields, mask=mask)
    inner = draw.random() < 0.5
    if shape == "fixed":
        values = _nested(draw, 2 * count, inner, depth - 1)
        return pa.FixedSizeListArray.from_arrays(
            values, type=pa.list_(pa.field("item", values.type, inner), 2), mask=mask
        )
    ends = [0]
    for _ in range(count):
        ends.append(ends[-1] + draw.randrange(3))
    values = _nested(draw, ends[-1], inner, depth - 1)
    if shape == "list":
        kind = pa.list_(pa.field("item", values.type, inner))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)
    keys = pa.array([f"{place}" for place in range(ends[-1])], pa.string())
    kind = pa.map_(pa.string(), pa.field("value", values.type, inner))
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, values, type=kind, mask=mask)


@pytest.mark.parametrize("seed", range(24))
def test_random_nested_values_come_back(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    nullable = draw.random() < 0.8
    values = _nested(draw, 40, nullable, 3)
    rows = pa.table(
        [pa.array(range(40)), values], schema=pa.schema([("id", pa.int64()), pa.field("c", values.type, nullable)])
    )
    db = dolmen.open(tmp_path / "db")
    table = db.create_table("t", rows.schema, sort_key="id")
    wanted: list[Any] = values.to_pylist()
    table.append(rows.slice(10))
    table.append(rows.slice(0, 10))
    _same(table, wanted)
    table.overwrite(table.scan().to_arrow())  # as a reader makes them, with NULL wherever nothing is seen
    _same(table, wanted)
    table.append(pa.table({"id": [40], "c": values.slice(0, 1)}, rows.schema))
    table.delete("id = 40", mode="positions")
    options = CompactionOptions(growth=1, target_file_bytes=1 << 30, memory_bytes=1)
    assert compact(context_of(db), "t", options=options).plan.groups
    _same(table, wanted)
    assert db.verify(deep=True).ok


def _same(table: dolmen.Table, wanted: list[Any]) -> None:
    found = table.scan(order_by="id").to_arrow()
    found.validate(full=True)
    assert found["c"].to_pylist() == wanted


def test_a_null_that_is_seen_is_refused_still(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("s", kind)]))
    table.append({"s": [{"x": 1}, None]})
    with pytest.raises(RowError, match="NULL in field 'x'") as caught:
        table.append({"s": [{"x": 1}, None, {"x": None}]})
    assert (caught.value.row, caught.value.column) == (3, "s")
    assert table.scan().to_arrow()["s"].to_pylist() == [{"x": 1}, None]
