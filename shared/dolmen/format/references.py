"""The one registry of all fields that hold references: what a version needs, field by field.

Collection must not forget a kind of object, so each field of each struct of the format is listed here: as the key of an
object, as something that holds references inside, or as neither. An unclassified field fails a test.
References in segments are found by reading them (maintenance/gc/mark.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dolmen.errors import UnsupportedFormatError
from dolmen.format.entries import Blob, ColumnStats, DataFile, KeysTombstone, Overlay, Vector, WhereTombstone
from dolmen.format.layout import Cursor, Tag
from dolmen.format.manifest import (
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
)
from dolmen.format.schema import Field, FormerName, MappedColumn, Schema

KEYS: dict[type, tuple[str, ...]] = {Blob: ("object",), DataFile: ("path",), Segment: ("object",), Vector: ("object",)}
"""Fields that are the key of an object."""

INSIDE: dict[type, tuple[str, ...]] = {
    DataFile: ("vector",),
    ErasedTable: ("tombstone",),
    Erasure: ("tables",),
    KeysTombstone: ("blob",),
    Manifest: ("tables", "segments", "erasures"),
    Overlay: ("vector",),
    TableEntry: ("files", "tombstones", "segments", "overlays", "section"),
    WhereTombstone: ("blob",),
}
"""Fields whose value, or whose values, hold references."""

RESERVED: dict[type, tuple[str, ...]] = {TableEntry: ("indexes",)}
"""Fields that will hold references one day. If one is not empty, this code cannot tell what the version needs."""
RELEASED: dict[type, tuple[str, ...]] = {Manifest: ("released",), Released: ("objects", "trees", "manifests")}
"""Fields that name objects of OLDER versions: the work list of collection, no need of this version."""
TAGGED: dict[type, tuple[str, ...]] = {Manifest: ("tags",), Tag: ("manifest",)}
"""Fields that keep OLDER versions alive: the mark reads those of the newest version only."""

WITHOUT: dict[type, tuple[str, ...]] = {
    AppliedId: ("id", "digest", "version"),
    Blob: ("offset", "length", "crc32"),
    ColumnStats: ("min", "max", "nulls", "nans"),
    Counts: Counts.__struct_fields__,
    Cursor: Cursor.__struct_fields__,
    TableEffect: TableEffect.__struct_fields__,
    DataFile: ("size", "rows", "footer", "row_ts", "row_ts_bounds", "applied_through", "stats", "erasing", "filters"),
    ErasedTable: ("uuid", "columns"),
    Erasure: (
        "id", "ts", "version", "requested_at", "due_at", "subject", "request", "digest",
        "has_own_deadline", "hurried_at",
    ),
    Field: ("id", "name", "type", "nullable", "comment", "added_ts", "initial_default", "write_default", "widened_ts"),
    FormerName: FormerName.__struct_fields__,
    HistoryEntry: HistoryEntry.__struct_fields__,  # names a manifest, which lives as long as its version
    KeysTombstone: ("columns", "types", "count", "bounds", "values", "ts"),
    LeavingErasures: LeavingErasures.__struct_fields__,
    Manifest: (
        "format_version", "version", "attempt", "previous", "commit_id", "commit_ts", "created_at", "operation",
        "counts", "data_change", "history", "applied", "orphan_cutoff", "revoked_intents", "horizon", "horizon_at",
        "freed", "swept", "properties", "cursors", "features", "did", "did_more", "message",
        "leaving", "rewritten",
    ),
    MappedColumn: MappedColumn.__struct_fields__,
    Mark: Mark.__struct_fields__,
    Overlay: ("file", "applied_through", "erasing"),
    Released: ("version",),
    RewrittenErasures: RewrittenErasures.__struct_fields__,
    Schema: ("fields", "next_id", "dropped", "altered_ts", "mapping", "former", "named_since", "placed_since",
        "narrower",
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


def references(value: Any) -> Iterator[str]:
    """Keys of all objects that a manifest, a table's entry or any entry names itself; with repetitions.

    Raises:
        UnsupportedFormatError: it has a part whose references this code does not know.
    """
    if value is None:
        return
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        for name in RESERVED.get(kind, ()):
            if getattr(value, name):
                raise UnsupportedFormatError(f"this dolmen does not know what {name} of a table needs: upgrade it")
        for name in KEYS.get(kind, ()):
            yield getattr(value, name)
        for name in INSIDE.get(kind, ()):
            yield from references(getattr(value, name))
    else:
        for each in value.values() if isinstance(value, dict) else value:
            yield from references(each)
