"""Which tables can be created: those whose rows can be stored, of any Arrow type; the others are refused by name."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import SchemaError
from dolmen.format import schema as schema_module
from dolmen.format.schema import MAX_DEPTH, Schema


def _deep(kind: pa.DataType, levels: int) -> pa.DataType:
    for level in range(levels):
        kind = (pa.list_(kind), pa.struct([("x", kind)]), pa.map_(pa.string(), kind))[level % 3]
    return kind


KINDS: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(),
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(0), pa.binary(1), pa.binary(16), pa.binary(100_000),
    pa.null(), pa.date32(), pa.date64(),
    *(pa.time32(unit) for unit in ("s", "ms")), *(pa.time64(unit) for unit in ("us", "ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo", "+05:30")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")), pa.month_day_nano_interval(),
    *(pa.decimal32(precision, scale) for precision, scale in ((1, 0), (9, 9), (5, -2), (2, 5))),
    *(pa.decimal64(precision, scale) for precision, scale in ((18, 0), (18, 18), (5, -2))),
    *(pa.decimal128(p, scale) for p in (1, 2, 5, 9, 10, 18, 19, 38) for scale in (-2, 0, 1, 2, 9, 38)),
    *(pa.decimal256(precision, scale) for precision, scale in ((38, 38), (39, 0), (76, 76), (5, 6))),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.list_(pa.int8())),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 0),
    pa.list_view(pa.int64()), pa.large_list_view(pa.int64()), pa.list_(pa.null()), pa.list_(pa.binary(0)),
    pa.list_(pa.field("item", pa.string(), nullable=False)),
    pa.struct([]), pa.struct([("a", pa.int64()), ("a", pa.int64())]), pa.struct([("", pa.int64())]),
    pa.struct([pa.field("a.b", pa.int64(), nullable=False), ("`", pa.string()), ("é\0", pa.bool_())]),
    pa.map_(pa.string(), pa.int64()), pa.map_(pa.struct([("a", pa.int64())]), pa.list_(pa.bool_())),
    pa.dense_union([pa.field("a", pa.int64())]), pa.sparse_union([pa.field("a", pa.int64())]),
    pa.uuid(), pa.json_(), pa.bool8(), pa.opaque(pa.int32(), "a", "b"), pa.opaque(pa.null(), "a", "b"),
    pa.fixed_shape_tensor(pa.int32(), [2]), pa.list_(pa.uuid()), pa.struct([("u", pa.uuid())]),
    *(_deep(pa.int64(), levels) for levels in (3, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 60, 150, 5000)),
]  # fmt: skip


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("place", range(len(KINDS)))
def test_what_can_be_created_can_be_appended(place: int, nullable: bool) -> None:
    db = dolmen.open(f"memory://storable-{place}-{nullable}")
    field = pa.field("column", KINDS[place], nullable or KINDS[place] == pa.null())
    try:
        table = db.create_table("t", pa.schema([("id", pa.int64()), field]))
    except SchemaError:
        assert db.version == 0
        return
    stored = table.schema.field("column").type
    values = [None] if nullable else [_example(stored)]
    values.append(_example(stored))
    rows = pa.table([pa.array([1, 2]), pa.array(values, stored)], schema=table.schema)
    table.append(rows)
    assert table.scan(order_by="id").to_arrow().equals(rows)
    assert db.verify(deep=True).ok


def _example(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_example(kind.key_type), _example(kind.item_type))]
    if pa.types.is_list(kind):
        return [_example(kind.value_type), _example(kind.value_type)]
    if pa.types.is_fixed_size_binary(kind):
        return b"x" * kind.byte_width
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "x" if pa.types.is_string(kind) else b"x"
    return True if pa.types.is_boolean(kind) else 0


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.duration("ms"), "int64"),
        (pa.month_day_nano_interval(), "struct"),
        (pa.null(), "cast"),
        (pa.float16(), "float32"),
        (pa.list_view(pa.int64()), "list"),
        (pa.dense_union([pa.field("a", pa.int64())]), "column"),
        (pa.decimal128(5, -2), "1 to 38 digits"),
        (pa.decimal128(2, 5), "1 to 38 digits"),
        (pa.decimal256(39, 0), "1 to 38 digits"),
        (pa.binary(0), "binary"),
        (pa.struct([]), "leave it out"),
        (_deep(pa.int64(), MAX_DEPTH + 1), "levels deep"),
    ],
)
def test_a_type_that_is_not_stored_is_refused_with_advice(kind: pa.DataType, advice: str) -> None:
    for field in (pa.field("c", kind), pa.field("c", pa.list_(kind))):
        with pytest.raises(SchemaError, match="column 'c'") as caught:
            Schema.from_arrow(pa.schema([field]))
        assert advice in str(caught.value)


def test_extension_types_are_stored_as_what_they_extend(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=n) for n in range(3)]
    rows = pa.table({"u": pa.array(ids, pa.uuid()), "j": pa.array(["{}", None, "[1]"], pa.json_())})
    table = dolmen.open(tmp_path / "db").create_table("t", rows.schema, primary_key="u")
    assert table.schema.types == [pa.binary(16), pa.string()]
    table.append(rows)
    table.delete(keys=[ids[1].bytes])
    assert table.scan(order_by="u").to_arrow().to_pylist() == [
        {"u": ids[0].bytes, "j": "{}"},
        {"u": ids[2].bytes, "j": "[1]"},
    ]


def test_what_the_schema_lets_through_and_pyarrow_does_not_store_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_module, "stored_type", lambda kind: kind)
    db = dolmen.open(tmp_path / "db")
    with pytest.raises(SchemaError, match="stored"):
        db.create_table("t", pa.schema([("b", pa.binary(0))]))
    assert db.version == 0
