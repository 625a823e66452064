"""Keys of every type where Bloom filters are asked wherever they can be, whatever that costs: no row is ever lost."""

from __future__ import annotations

import os
import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dolmen.predicate.parse import Where
from support.altered_history import ask_all_filters
from support.tables import World

SEED = os.environ["DOLMEN_TEST_SEED"]


@pytest.fixture(autouse=True)
def exclusions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Asks all filters that can be asked, and lists how many files each answer excluded."""
    return ask_all_filters(monkeypatch)


EPOCH = datetime(2020, 1, 1)
WIDENED: dict[str, list[pa.DataType]] = {
    "int": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "uint": [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "decimal": [pa.decimal128(6, 2), pa.decimal128(12, 2)],
    "day": [pa.date32(), pa.timestamp("us")],
    "text": [pa.string()],
    "binary": [pa.binary()],
    "fixed": [pa.binary(4)],
}


def value(kind: str, arrow_type: pa.DataType, number: int) -> Any:
    """One of a hundred values of a type."""
    if kind == "day":
        day = EPOCH + timedelta(days=number)
        return day if pa.types.is_timestamp(arrow_type) else date(day.year, day.month, day.day)
    if kind in ("text", "binary", "fixed"):
        text = f"{number:04d}" if kind == "fixed" else "x" * (number % 40) + str(number)
        return text if kind == "text" else text.encode()
    return Decimal(number).quantize(Decimal("0.01")) if kind == "decimal" else number


@pytest.mark.slow
@pytest.mark.parametrize("kind", WIDENED)
@pytest.mark.parametrize("composite", [False, True])
def test_keys_are_found_and_deleted_in_every_type_that_their_column_had(
    kind: str, composite: bool, exclusions: list[int]
) -> None:
    rng, types = random.Random(f"{SEED} {kind} {composite}"), WIDENED[kind]
    world = World()
    extra = [("part", pa.int16())] if composite else []
    schema = pa.schema([("id", types[0]), *extra, ("v", pa.int64())])
    world.db.create_table("t", schema, primary_key=["id", "part"] if composite else ["id"])
    table, model, serial = world.db.table("t"), list[tuple[int, int, int]](), 0
    for arrow_type in types:
        if arrow_type != types[0]:
            table.widen_column("id", arrow_type)
        for _ in range(6):
            rows = [(rng.randrange(100), rng.randrange(3) if composite else 0, serial + n) for n in range(6)]
            serial += len(rows)
            columns = {
                "id": pa.array([value(kind, arrow_type, number) for number, _, _ in rows], arrow_type),
                "v": [v for _, _, v in rows],
            }
            if composite:
                columns["part"] = pa.array([part for _, part, _ in rows], pa.int16())
            table.append(pa.table(columns))
            model += rows
            _check(world, kind, arrow_type, model, rng)
            if rng.random() < 0.6:
                gone = [rng.choice(model)[:2], (rng.randrange(100), 0)]
                keys = [(value(kind, arrow_type, number), part) for number, part in gone]
                if composite:
                    table.delete(
                        keys=pa.table(
                            {
                                "id": pa.array([k for k, _ in keys], arrow_type),
                                "part": pa.array([p for _, p in keys], pa.int16()),
                            }
                        )
                    )
                else:
                    table.delete(keys=[k for k, _ in keys])
                model = [row for row in model if row[:2] not in [(n, p if composite else 0) for n, p in gone]]
            if rng.random() < 0.4:
                world.db.resolve("t")
            assert _values(table.to_arrow()) == sorted(v for _, _, v in model)
            assert table.count() == len(model)
    assert world.db.verify(deep=True).ok
    assert sum(exclusions) > 0 or kind == "decimal"


def _check(
    world: World, kind: str, arrow_type: pa.DataType, model: list[tuple[int, int, int]], rng: random.Random
) -> None:
    table = world.db.table("t")
    wanted = [rng.randrange(100) for _ in range(rng.choice([1, 1, 3]))]
    condition: Where = {"id": [value(kind, arrow_type, number) for number in wanted]}
    expected = sorted(v for number, _, v in model if number in wanted)
    assert _values(table.scan(where=condition).to_arrow()) == expected
    assert table.count(condition) == len(expected)


def _values(rows: pa.Table) -> list[int]:
    found: list[int] = rows["v"].to_pylist()
    return sorted(found)
