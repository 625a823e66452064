"""Moves a table's entries to segments, with overlays, removals and all other kinds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from dolmen.format.entries import DataFile, Overlay
from dolmen.format.layout import segment_key
from dolmen.format.manifest import Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.schema import Schema
from dolmen.format.segments import encode
from dolmen.store.base import ObjectStore
from support.random_entries import uuid

Rng = random.Random


def spill_entries(store: ObjectStore, rng: Rng, manifest: Manifest, name: str = "t") -> Manifest:
    """Makes a version with the same rows, and some or all of a table's entries in segments."""
    entry = manifest.table(name)
    schema = entry.schema
    segments: list[Segment] = []
    overlays: list[Overlay] = []
    removed: list[str] = []
    left = list(entry.files)
    for _ in range(rng.randint(1, 3)):
        count = rng.randint(0, len(left))
        taken, left = left[:count], left[count:]
        held = [_older(rng, file, overlays) for file in taken]
        if taken:
            for _ in range(rng.randint(0, 2)):  # files that are gone, and never were
                gone = msgspec.structs.replace(rng.choice(taken), path=f"data/t/2026/01/02/03/{uuid(rng)}.parquet")
                held.insert(rng.randint(0, len(held)), gone)
                removed.append(gone.uuid)
            segments += _put(store, rng, "files", held, schema)
    rng.shuffle(overlays)
    rng.shuffle(removed)
    kept = {"overlays": overlays, "removed": removed, "tombstones": list(entry.tombstones)}
    for kind in kept:
        count = rng.randint(0, len(kept[kind]))  # type: ignore[arg-type]
        segments += _put(store, rng, kind, kept[kind][:count], schema)  # type: ignore[arg-type, index]
        kept[kind] = kept[kind][count:]  # type: ignore[index]
    changed: TableEntry = msgspec.structs.replace(
        entry, files=tuple(left), segments=tuple(segments), **{kind: tuple(rest) for kind, rest in kept.items()}
    )
    if rng.random() < 0.2:
        (section,) = _put(store, rng, "table", [changed], schema)
        changed = TableEntry(
            uuid=entry.uuid,
            epoch=entry.epoch,
            schema=Schema(fields=(), next_id=schema.next_id),
            last_delete_ts=entry.last_delete_ts,
            unseen_delete_ts=entry.unseen_delete_ts,
            section=section,
        )
    return msgspec.structs.replace(manifest, tables={**manifest.tables, name: changed})


def _older(rng: Rng, file: DataFile, overlays: list[Overlay]) -> DataFile:
    """An entry before its newest pair, which is then among the overlays."""
    if rng.random() < 0.2:
        overlays.append(Overlay(file.uuid, file.applied_through - 1, file.vector))  # of no account
    if file.vector is None or rng.random() < 0.3:
        return file
    overlays.append(Overlay(file.uuid, file.applied_through, file.vector))
    if rng.random() < 0.5:
        overlays.append(Overlay(file.uuid, file.applied_through))
    return msgspec.structs.replace(file, vector=None)


def _put(store: ObjectStore, rng: Rng, kind: SegmentKind, entries: Sequence[Any], schema: Schema) -> list[Segment]:
    if not entries:
        return []
    segment, body = encode(kind, entries, segment_key(kind, uuid(rng)), schema)
    if kind == "files" and rng.random() < 0.3:  # what is so anyway
        segment = msgspec.structs.replace(segment, resolved_through=segment.least_applied_through)
    store.put(segment.object, body)
    return [segment]
