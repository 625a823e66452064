"""The registry of fields that hold references is complete, and collection reads nothing else."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from dolmen.errors import UnsupportedFormatError
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Overlay, Vector, WhereTombstone
from dolmen.format.manifest import EMPTY, ErasedTable, Erasure, Manifest, Released, Segment, TableEntry
from dolmen.format.references import INSIDE, KEYS, RELEASED, RESERVED, TAGGED, WITHOUT, references
from dolmen.format.schema import Schema


def structs_within(kind: Any) -> Iterator[type]:
    """Every struct that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from structs_within(part)


def structs_of_the_format() -> set[type]:
    found: set[type] = set()
    waiting: list[type] = [Manifest, Overlay, Erasure]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            for hint in typing.get_type_hints(kind).values():
                waiting += structs_within(hint)
    return found


def test_every_field_of_every_struct_is_classified_once_so_that_no_object_kind_can_be_forgotten() -> None:
    for kind in structs_of_the_format():
        classified = [
            name for table in (KEYS, INSIDE, RESERVED, RELEASED, TAGGED, WITHOUT) for name in table.get(kind, ())
        ]
        assert sorted(classified) == sorted(kind.__struct_fields__), kind


def test_a_struct_that_holds_references_is_looked_into_wherever_it_stands() -> None:
    holders = {kind for kind in structs_of_the_format() if kind in KEYS or kind in INSIDE or kind in RESERVED}
    for kind in structs_of_the_format():
        hints = typing.get_type_hints(kind)
        for name in kind.__struct_fields__:
            if holders & set(structs_within(hints[name])):
                assert name in (*INSIDE.get(kind, ()), *RELEASED.get(kind, ())), (kind, name)


def segment(name: str, kind: Any = "files") -> Segment:
    return Segment(kind, f"segment/{kind}/{name}", 1, 0, 1)


def an_erasure() -> Erasure:
    tombstone = WhereTombstone((1,), Blob("tombstone/t/e.del", 4, 2, 0), ts=5)
    return Erasure(id="0" * 32, ts=5, version=2, requested_at=3, due_at=9, tables=(ErasedTable("1", tombstone),))


def a_table() -> TableEntry:
    blob, vector = Blob("tombstone/t/a.del", 4, 2, 0), Vector("tombstone/t/b.del", 4, 2, 0, 1)
    return TableEntry(
        uuid="1",
        epoch=1,
        schema=Schema((), 1),
        files=(
            DataFile("data/t/a.parquet", 1, 1, (0, 1, 0), vector=vector),
            DataFile("data/t/b.parquet", 1, 1, (0, 1, 0)),
        ),
        tombstones=(
            WhereTombstone((1,), blob),
            KeysTombstone((1,), ("int64",), 1, (), msgspec.structs.replace(blob, object="tombstone/t/c.del")),
        ),
        segments=(segment("s1"), segment("s2", "overlays")),
        overlays=(Overlay("x", 1, msgspec.structs.replace(vector, object="tombstone/t/d.del")), Overlay("y", 1)),
        removed=("z",),
        section=segment("s3", "table"),
    )


def test_a_manifest_names_all_that_it_needs_and_not_what_it_released() -> None:
    released = (Released(1, ("data/t/old.parquet",), (segment("old"),)),)
    manifest = msgspec.structs.replace(
        EMPTY,
        tables={"t": a_table()},
        segments=(segment("h", "history"), segment("e", "erasures")),
        released=released,
        erasures=(an_erasure(),),
    )
    assert sorted(references(manifest)) == [
        "data/t/a.parquet",
        "data/t/b.parquet",
        "segment/erasures/e",
        "segment/files/s1",
        "segment/history/h",
        "segment/overlays/s2",
        "segment/table/s3",
        "tombstone/t/a.del",
        "tombstone/t/b.del",
        "tombstone/t/c.del",
        "tombstone/t/d.del",
        "tombstone/t/e.del",
    ]


def test_what_a_version_needs_is_not_told_when_a_part_of_it_is_unknown() -> None:
    entry = msgspec.structs.replace(a_table(), indexes=({"root": "index/t/x.ext"},))
    with pytest.raises(UnsupportedFormatError, match="indexes"):
        list(references(entry))
