"""The parts of a version as Arrow tables: files, deletes, commits and tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from dolmen.commit.head import Context
from dolmen.commit.versions import commits
from dolmen.entries.partitions import PartitionSpec
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.format.entries import ColumnStats, Tombstone, WhereTombstone
from dolmen.format.manifest import HistoryEntry, Manifest, TableEntry
from dolmen.format.schema import Field, is_nested
from dolmen.format.segments import join_bounds
from dolmen.format.types import Json, from_json, short_type
from dolmen.predicate.ast import from_builtins
from dolmen.predicate.text import plain_text, to_sql

_TIME = pa.timestamp("us", tz="UTC")
_FILES = pa.schema(
    [("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64()), ("deleted_rows", pa.int64()),
     ("least_commit_ts", pa.int64()), ("greatest_commit_ts", pa.int64())]
)  # fmt: skip
_PARTITIONS = pa.schema(
    [("partition", pa.string()), ("files", pa.int64()), ("rows", pa.int64()), ("deleted_rows", pa.int64()),
     ("bytes", pa.int64())]
)  # fmt: skip
_STATS = pa.schema(
    [("column", pa.string()), ("type", pa.string()), ("min", pa.string()), ("max", pa.string()),
     ("nulls", pa.int64()), ("nans", pa.int64())]
)  # fmt: skip
_DELETES = pa.schema([("commit_ts", pa.int64()), ("rows", pa.string())])
_TAGS = pa.schema([("name", pa.string()), ("version", pa.int64()), ("created_at", _TIME), ("until", _TIME)])
_COUNTS = ("rows_added", "rows_deleted", "files_added", "files_removed", "tombstones_added")
_VERSIONS = pa.schema(
    [("version", pa.int64()), ("created_at", _TIME), ("operation", pa.string()), ("did", pa.string()),
     *((name, pa.int64()) for name in _COUNTS), ("message", pa.string()), ("commit_id", pa.string()),
     ("metadata", pa.map_(pa.string(), pa.string()))]
)  # fmt: skip


def files_of(context: Context, manifest: Manifest, name: str) -> pa.Table:
    """The data files of a table, with the rows that deletes by position hide; other deletes are not resolved yet."""
    with context.reading(manifest.version):
        live = LiveFiles.of(manifest.table(name), context.segments)
        files = list(live)
    deleted = [each.vector.cardinality if each.vector else 0 for each in files]
    timestamps = [(each.least_row_ts, each.greatest_row_ts) for each in files]
    sizes = [(each.path, each.size, each.rows) for each in files]
    shown = _table(_FILES, ((*a, b, *c) for a, b, c in zip(sizes, deleted, timestamps, strict=True)))
    spec = PartitionSpec.of(live.entry)
    if spec is None:
        return shown
    names = [None if (found := spec.of_file(each)) is None else spec.name(found) for each in files]
    return shown.append_column("partition", pa.array(names, pa.string()))


def partitions_of(context: Context, manifest: Manifest, name: str) -> pa.Table:
    """The partitions of a table, by the entries of its files; none if it has no partitions."""
    files = files_of(context, manifest, name)
    if "partition" not in files.column_names:
        return _PARTITIONS.empty_table()
    sums = [("path", "count"), ("rows", "sum"), ("deleted_rows", "sum"), ("bytes", "sum")]
    return files.group_by("partition").aggregate(sums).sort_by("partition").rename_columns(_PARTITIONS.names)


def stats_of(context: Context, manifest: Manifest, name: str) -> pa.Table:
    """Bounds of each column over all files of a table, by the statistics in their entries."""
    with context.reading(manifest.version):
        live = LiveFiles.of(manifest.table(name), context.segments)
        files = list(live)
    rows = []
    for field in live.entry.schema.fields:
        found = ColumnStats(nulls=None, nans=None)
        if not is_nested(field.arrow_type):
            found = join_bounds([column_bounds(file, field) for file in files], [file.rows for file in files])
        ends = [None if end is None else _in_text(end, field) for end in (found.min, found.max)]
        rows.append((field.name, short_type(field.arrow_type), *ends, found.nulls, found.nans))
    return _table(_STATS, rows)


def _in_text(end: Json, field: Field) -> str:
    return plain_text(from_json(end, field.arrow_type), field.arrow_type)


def deletes_of(context: Context, manifest: Manifest, name: str) -> pa.Table:
    """The deletes of a table that are not resolved yet: the deleted rows in words."""
    with context.reading(manifest.version):
        entry = context.segments.whole(manifest.table(name))
        tombstones = tombstones_of(entry, context.segments)
        return _table(_DELETES, ((each.ts, in_words(each, entry)) for each in tombstones))


def versions_of(context: Context, manifest: Manifest, name: str | None = None) -> pa.Table:
    """The commits up to a version, newest first: all, or those that name a table in what they did."""
    with context.reading(manifest.version):
        found = [
            each
            for each in commits(context.head, manifest)
            if name is None or any(effect.table == name or name in effect.over for effect in each.did)
        ]
    return _table(_VERSIONS, map(_version_row, found))


def _version_row(entry: HistoryEntry) -> tuple[Any, ...]:
    counts = [getattr(entry.counts, name) for name in _COUNTS]
    did = "; ".join(map(str, entry.did))
    note = entry.message, entry.commit_id, list(entry.metadata.items())
    return (entry.version, entry.created_at, entry.operation, did, *counts, *note)


def tags_of(manifest: Manifest) -> pa.Table:
    """The versions that have names."""
    tags = sorted(manifest.tags.items())
    return _table(_TAGS, ((name, tag.version, tag.created_at, tag.until or None) for name, tag in tags))


def _table(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def in_words(tombstone: Tombstone, entry: TableEntry) -> str:
    """The rows that a tombstone deletes."""
    if isinstance(tombstone, WhereTombstone):
        if tombstone.predicate is not None:
            return to_sql(from_builtins(tombstone.predicate), entry.schema)
        return f"a predicate of {tombstone.blob.length:,} bytes"
    names = entry.schema.names_of(tombstone.columns)
    if tombstone.count == 1 and tombstone.values is not None:
        return " AND ".join(f"{name} = {values[0]}" for name, values in zip(names, tombstone.values, strict=True))
    return f"{tombstone.count:,} keys of {', '.join(names)}"
