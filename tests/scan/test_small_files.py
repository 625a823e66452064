"""Scans of many small files: what they take from the file before, and how their rows come."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.rows.scan.data_objects import FooterSchema, parquet_reader
from support.tables import World
from support.written import events

BASE = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "1"}), ("s", pa.struct([("x", pa.int32())]))])


def footer_of(schema: pa.Schema, rows: int, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.nulls(rows, field.type) for field in schema], schema), sink, **options)
    body: bytes = sink.getvalue().to_pybytes()
    return body[-8 - int.from_bytes(body[-8:-4], "little") :]


def is_found(one: bytes, other: bytes) -> bool:
    found = FooterSchema.of(one, parquet_reader(pa.BufferReader(one)).metadata)
    return found.is_in(other, parquet_reader(pa.BufferReader(other)).metadata)


@pytest.mark.parametrize("stores_schema", [True, False])
def test_footers_with_the_same_columns_are_found_whatever_their_rows_are(stores_schema: bool) -> None:
    one, other = (footer_of(BASE, rows, store_schema=stores_schema) for rows in (3, 70_000))
    assert is_found(one, other)
    assert is_found(b"before" + one, b"it" + other)


@pytest.mark.parametrize(
    "field",
    [
        pa.field("b", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "2"}),
        pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "1"}),
        pa.field("a", pa.duration("s"), metadata={"PARQUET:field_id": "1"}),  # Arrow's schema alone says so
        pa.field("a", pa.timestamp("us"), metadata={"PARQUET:field_id": "1"}),
    ],
)
def test_footers_with_another_name_id_or_type_are_not_the_same(field: pa.Field) -> None:
    assert not is_found(footer_of(BASE, 3), footer_of(BASE.set(0, field), 3))
    inner = BASE.set(1, pa.field("s", pa.struct([field.with_name("x")])))
    assert not is_found(footer_of(BASE, 3), footer_of(inner, 3))
    assert not is_found(footer_of(BASE, 3), footer_of(BASE.append(field.with_name("c")), 3))


def test_rows_of_small_files_come_in_few_batches_in_the_order_of_the_files() -> None:
    world, rows = World(), events(900)
    world.create(rows, files=30, group_rows=10)
    batches = list(world.scan().to_batches())
    assert len(batches) < 10
    assert pa.Table.from_batches(batches).equals(rows.cast(batches[0].schema))
    assert [batch.num_rows for batch in world.scan(limit=25, columns=["id"]).to_batches()] == [10, 10, 5]


def test_adopted_files_of_two_kinds_in_turns_are_each_read_with_their_own_columns(tmp_path: Path) -> None:
    for number in range(12):
        kind = pa.int64() if number % 3 else pa.int32()
        columns = {"a": pa.array([number], pa.int64()), "b": pa.array([-number], kind)}
        pq.write_table(
            pa.table(dict(reversed(columns.items())) if number % 2 else columns), tmp_path / f"{number}.parquet"
        )
    database = dolmen.open(tmp_path / "db")
    table = database.create_table("t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    database.adopt("t", [str(tmp_path / f"{number}.parquet") for number in range(12)], into=True)
    found = table.scan().to_arrow()
    assert found["a"].to_pylist() == list(range(12))
    assert found["b"].to_pylist() == [-number for number in range(12)]
