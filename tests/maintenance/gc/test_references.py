"""The registry of fields that hold references is complete, and collection reads nothing else."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from dolmen.errors import CorruptionError, UnsupportedFormatError
from dolmen.format.entries import (
    Blob,
    ColumnStats,
    ConstantColumn,
    DataFile,
    KeysTombstone,
    Overlay,
    Vector,
    WhereTombstone,
)
from dolmen.format.layout import Cursor, Tag
from dolmen.format.manifest import (
    EMPTY,
    KEY_FIELDS,
    REFERENCE_FIELDS,
    RESERVED_FIELDS,
    AppliedId,
    Counts,
    ErasedTable,
    Erasure,
    HistoryEntry,
    LeavingErasures,
    Manifest,
    Mark,
    Released,
    RewrittenErasures,
    Segment,
    Sequences,
    TableEffect,
    TableEntry,
    references,
)
from dolmen.format.schema import CheckConstraint, Field, FormerName, MappedColumn, Schema
from dolmen.format.segments import decode, encode

RELEASED: dict[type, tuple[str, ...]] = {Manifest: ("released",), Released: ("objects", "trees", "manifests")}
"""Fields that name objects of OLDER versions: those that collection will delete; this version does not need them."""
TAGGED: dict[type, tuple[str, ...]] = {Manifest: ("tags",), Tag: ("manifest",)}
"""Fields that keep OLDER versions alive: the mark reads those of the newest version only."""

WITHOUT: dict[type, tuple[str, ...]] = {
    AppliedId: ("id", "digest", "version"),
    Blob: ("offset", "length", "crc32"),
    CheckConstraint: CheckConstraint.__struct_fields__,
    ColumnStats: ("min", "max", "nulls", "nans"),
    Counts: Counts.__struct_fields__,
    Cursor: Cursor.__struct_fields__,
    TableEffect: TableEffect.__struct_fields__,
    ConstantColumn: ConstantColumn.__struct_fields__,
    DataFile: (
        "size", "rows", "footer", "row_ts", "row_ts_bounds", "applied_through", "stats", "erasing", "filters",
        "constants", "partitions",
    ),
    ErasedTable: ("uuid", "columns"),
    Erasure: (
        "id", "ts", "version", "requested_at", "due_at", "subject", "request", "digest",
        "has_own_deadline", "hurried_at",
    ),
    Field: (
        "id", "name", "type", "nullable", "comment", "added_ts", "initial_default", "write_default", "write_function",
        "widened_ts",
    ),
    FormerName: FormerName.__struct_fields__,
    HistoryEntry: HistoryEntry.__struct_fields__,  # names a manifest, which lives as long as its version
    KeysTombstone: ("columns", "types", "count", "bounds", "values", "ts"),
    LeavingErasures: LeavingErasures.__struct_fields__,
    Manifest: (
        "format_version", "version", "attempt", "previous", "commit_id", "commit_ts", "created_at", "operation",
        "counts", "data_change", "history", "applied", "orphan_cutoff", "revoked_intents", "horizon", "horizon_at",
        "freed", "swept", "properties", "cursors", "features", "did", "did_more", "message", "metadata",
        "leaving", "rewritten",
    ),
    MappedColumn: MappedColumn.__struct_fields__,
    Mark: Mark.__struct_fields__,
    Overlay: ("file", "applied_through", "erasing"),
    Released: ("version",),
    RewrittenErasures: RewrittenErasures.__struct_fields__,
    Schema: ("fields", "next_id", "dropped", "altered_ts", "mapping", "former", "named_since", "placed_since",
        "narrower", "checks",
    ),
    Sequences: Sequences.__struct_fields__,
    Segment: (
        "kind", "size", "crc32", "count", "least", "greatest", "least_applied_through", "resolved_through", "rows",
        "bytes", "deleted", "stats", "created_at", "bloom", "erasing", "root",
    ),
    TableEntry: (
        "uuid", "epoch", "schema", "primary_key", "sort_key", "properties", "last_delete_ts", "unseen_delete_ts",
        "source", "origins", "sequences",  # of a memory its uuid, which is a table of its own
        "removed",  # uuids of files that are NOT needed
    ),
    Tag: ("version", "created_at", "until"),
    Vector: ("offset", "length", "crc32", "cardinality"),
    WhereTombstone: ("columns", "predicate", "ts", "needs"),
}  # fmt: skip
"""Fields that hold no references."""


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
            name
            for table in (KEY_FIELDS, REFERENCE_FIELDS, RESERVED_FIELDS, RELEASED, TAGGED, WITHOUT)
            for name in table.get(kind, ())
        ]
        assert sorted(classified) == sorted(kind.__struct_fields__), kind


def test_a_struct_that_holds_references_is_looked_into_wherever_it_stands() -> None:
    holders = {
        kind
        for kind in structs_of_the_format()
        if kind in KEY_FIELDS or kind in REFERENCE_FIELDS or kind in RESERVED_FIELDS
    }
    for kind in structs_of_the_format():
        hints = typing.get_type_hints(kind)
        for name in kind.__struct_fields__:
            if holders & set(structs_within(hints[name])):
                assert name in (*REFERENCE_FIELDS.get(kind, ()), *RELEASED.get(kind, ())), (kind, name)


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


def test_every_key_that_a_manifest_needs_is_checked_when_it_is_read() -> None:
    manifest = msgspec.structs.replace(EMPTY, tables={"t": a_table()}, erasures=(an_erasure(),))
    for key in set(references(manifest)):
        body = msgspec.json.encode(manifest).replace(f'"{key}"'.encode(), f'"{key}/../x"'.encode())
        damaged = msgspec.json.decode(body, type=Manifest)
        with pytest.raises(CorruptionError, match="refers to"):
            Manifest.decode(damaged.encode(), damaged.key)


def test_what_a_version_needs_is_not_told_when_a_part_of_it_is_unknown() -> None:
    entry = msgspec.structs.replace(a_table(), indexes=({"root": "index/t/x.ext"},))
    with pytest.raises(UnsupportedFormatError, match="indexes"):
        list(references(entry))
    manifest = msgspec.structs.replace(EMPTY, tables={"t": entry})
    assert Manifest.decode(manifest.encode(), manifest.key) == manifest  # its rows can be read


@pytest.mark.parametrize(
    "released",
    [
        Released(1, objects=("data/t/../t/old.parquet",)),
        Released(1, trees=(segment("../x"),)),
        Released(1, manifests=("MANIFEST/v00000000000000000001-00000000.json",)),
    ],
)
def test_what_can_not_be_an_object_is_not_accepted_as_released_in_the_manifest_or_in_a_segment(
    released: Released,
) -> None:
    manifest = msgspec.structs.replace(EMPTY, released=(released,))
    with pytest.raises(CorruptionError, match="refers to"):
        Manifest.decode(manifest.encode(), manifest.key)
    part, body = encode("released", [released], "segment/released/x")
    with pytest.raises(CorruptionError, match="refers to"):
        decode(part, body)
