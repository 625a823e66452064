"""Types that nest thousands of levels, or have a billion fields, are refused at every door by which rows come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Table
from dolmen.errors import Error, SchemaError
from dolmen.format.schema import Schema

ID = pa.field("id", pa.int64(), nullable=False)
BASE = pa.schema([ID, ("c", pa.list_(pa.int64()))])


class Wrapped(pa.ExtensionType):
    """An extension of any type."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "dolmen.wrapped")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Wrapped:
        return cls(storage)


WRAP: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of a fixed size": lambda kind: pa.list_(kind, 1),
    "view of lists": pa.list_view,
    "struct": lambda kind: pa.struct([("x", kind)]),
    "map": lambda kind: pa.map_(pa.string(), kind),
    "key of a map": lambda kind: pa.map_(kind, pa.string()),
    "dictionary": lambda kind: pa.dictionary(pa.int8(), kind),
    "runs": lambda kind: pa.run_end_encoded(pa.int32(), kind),
    "extension": Wrapped,
    "union": lambda kind: pa.dense_union([pa.field("a", kind)]),
}


_SLOW = "extension", 3000
"""pyarrow makes all types inside an extension again, each time that one is looked at."""


def _nested(name: str, levels: int) -> pa.DataType:
    kind = pa.int64()
    for _ in range(levels):
        kind = WRAP[name](kind)
    return kind


def _rows(kind: pa.DataType) -> pa.Table:
    return pa.Table.from_batches([], pa.schema([ID, ("c", kind)]))


def _write(table: Table, kind: pa.DataType) -> None:
    with table.writer() as writer:
        writer.append(_rows(kind))


DOORS: dict[str, Callable[[Table, pa.DataType], object]] = {
    "create": lambda table, kind: Schema.from_arrow(_rows(kind).schema),
    "append": lambda table, kind: table.append(_rows(kind)),
    "append with casts": lambda table, kind: table.append(_rows(kind), cast=True),
    "append a reader": lambda table, kind: table.append(_rows(kind).to_reader()),
    "append arrays": lambda table, kind: table.append({"id": [], "c": pa.chunked_array([], kind)}),
    "insert": lambda table, kind: table.insert(_rows(kind)),
    "upsert": lambda table, kind: table.upsert(_rows(kind)),
    "overwrite": lambda table, kind: table.overwrite(_rows(kind)),
    "merge": lambda table, kind: table.merge(_rows(kind), "id"),
    "delete": lambda table, kind: table.delete(keys=pa.chunked_array([], kind)),
    "add_column": lambda table, kind: table.add_column("d", kind),
    "widen_column": lambda table, kind: table.widen_column("c", kind),
    "writer": _write,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "levels"), [(name, levels) for name in WRAP for levels in (200, 3000) if (name, levels) != _SLOW]
)
def test_a_type_that_is_nested_too_deeply_is_refused_at_every_door(name: str, levels: int, tmp_path: Path) -> None:
    table = dolmen.open(tmp_path / "db").create_table("t", BASE, primary_key="id")
    kind = _nested(name, levels)
    for door, act in DOORS.items():
        with pytest.raises(SchemaError) as caught:
            act(table, kind)
        assert "32 levels" in str(caught.value), door


def test_a_type_of_a_billion_fields_is_refused_without_going_through_them(tmp_path: Path) -> None:
    kind = pa.int64()
    for _ in range(30):
        kind = pa.struct([("a", kind), ("b", kind)])
    with pytest.raises(SchemaError, match=r"column 'c'.*250,000"):
        dolmen.open(tmp_path / "db").create_table("t", pa.schema([("c", kind)]))


@pytest.mark.parametrize("door", ["append", "append with casts", "upsert", "merge", "delete", "widen_column"])
def test_messages_show_the_beginning_of_a_long_type(door: str, tmp_path: Path) -> None:
    schema = pa.schema([ID, ("c", pa.int64())])
    table = dolmen.open(tmp_path / "db").create_table("t", schema, primary_key="id")
    kind = pa.struct([(f"field_{place}", pa.int64()) for place in range(1000)])
    with pytest.raises(Error, match=r"struct<field_0: .*\.\.\.") as caught:
        DOORS[door](table, kind)
    assert len(str(caught.value)) < 1000
