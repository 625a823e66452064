"""Keeping the root small: the commit that passes its byte budget moves the largest tail into one segment.

A spill takes entries of the BASE alone, never the commit's own, whose timestamps change with every rebase; so a spill
that was uploaded for a lost attempt serves the next one if all its entries still stand there, equal and inline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from dolmen.format.layout import segment_key
from dolmen.format.manifest import HISTORY_LENGTH, Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.segments import encode_checked

LEAST_PART = 16
"""A tail is worth a segment from this part of the budget on: else every commit of a crowded root would write one."""

LEAST_HISTORY = 8
"""Earlier commits that are worth a segment. Collection commits too: if every commit of a crowded root wrote a segment,
which is collected one day by another commit, a database would never come to rest."""

_TABLE_TAILS: tuple[SegmentKind, ...] = ("files", "tombstones", "overlays", "removed")

Entries: TypeAlias = Sequence[Any]


@dataclass(frozen=True)
class Spill:
    """A segment, and the inline entries it takes the place of.

    Args:
        table: name of the table whose tail it was; None for the database's own.
        uuid: of that table.
        entries: what it holds.
        segment: what the manifest says of it.
        body: the object.
    """

    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    segment: Segment
    body: bytes

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with the segment instead of the entries; None unless all of them stand there, equal."""
        if self.kind == "table":
            return _idle(manifest, self.entries, self.segment)
        if self.table is None:
            kept = _without(getattr(manifest, self.kind), self.entries)
            if kept is None:
                return None
            return msgspec.structs.replace(manifest, **{self.kind: kept}, segments=(*manifest.segments, self.segment))
        entry = manifest.tables.get(self.table)
        if entry is None or entry.uuid != self.uuid:
            return None
        kept = _without(getattr(entry, self.kind), self.entries)
        if kept is None:
            return None
        changed = msgspec.structs.replace(entry, **{self.kind: kept}, segments=(*entry.segments, self.segment))
        return msgspec.structs.replace(manifest, tables={**manifest.tables, self.table: changed})


def spill(base: Manifest, manifest: Manifest, budget: int, new_uuid: Callable[[], str]) -> Spill | None:
    """What to move out of a manifest that is over its budget; None if no tail is worth it.

    Args:
        base: the version it was made from.
        budget: bytes of a root.
        new_uuid: names the segment.
    """
    sized = [(len(msgspec.json.encode(tail.entries)), tail) for tail in _tails(base, manifest)]
    size, chosen = max(sized, key=lambda item: item[0], default=(0, None))
    if chosen is None or size < budget // LEAST_PART:
        return None
    key = segment_key(chosen.kind, new_uuid())
    segment, body = encode_checked(chosen.kind, chosen.entries, key, chosen.schema)
    if chosen.kind == "history":
        segment = msgspec.structs.replace(segment, created_at=chosen.entries[-1].created_at)
    elif chosen.kind == "applied":
        segment = msgspec.structs.replace(segment, created_at=base.created_at)
    return Spill(chosen.kind, chosen.table, chosen.uuid, chosen.entries, segment, body)


@dataclass(frozen=True)
class _Tail:
    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    schema: Any = None


def _tails(base: Manifest, manifest: Manifest) -> Iterator[_Tail]:
    """What may leave the manifest: entries that its base has too."""
    history = _shared(base.history, manifest.history[:-HISTORY_LENGTH])
    yield _Tail("history", None, "", history if len(history) >= LEAST_HISTORY else ())
    yield _Tail("applied", None, "", _shared(base.applied, manifest.applied))
    yield _Tail("released", None, "", _shared(base.released, manifest.released))
    active, idle = _active_since(manifest), list[TableEntry]()
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if before is None or before.uuid != entry.uuid or entry.section:
            continue
        for kind in _TABLE_TAILS:
            shared = _shared(getattr(before, kind), getattr(entry, kind))
            yield _Tail(kind, name, entry.uuid, shared, entry.schema)
        if entry == before and _last_change(entry) < active:
            idle.append(entry)
    yield _Tail("table", None, "", idle)


def _shared(old: Entries, new: Entries) -> Entries:
    """The entries at the front of both: tails grow at their end, and what was replaced stays."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return old[:count]


def _without(entries: Entries, taken: Entries) -> tuple[Any, ...] | None:
    """``entries`` less ``taken``, which have to stand at the front of them."""
    if tuple(entries[: len(taken)]) != tuple(taken):
        return None
    return tuple(entries[len(taken) :])


def _active_since(manifest: Manifest) -> int:
    """Timestamp of the commit from which on a table counts as in use."""
    return manifest.history[-HISTORY_LENGTH].commit_ts if len(manifest.history) >= HISTORY_LENGTH else 0


def _last_change(entry: TableEntry) -> int:
    """Timestamp of the last statement that a table's entry shows."""
    files = max((file.applied_through for file in entry.files), default=0)
    tombstones = max((tombstone.ts for tombstone in entry.tombstones), default=0)
    spilled = max((max(segment.greatest, segment.resolved_through) for segment in entry.segments), default=0)
    return max(files, tombstones, spilled, entry.last_delete_ts)


def _idle(manifest: Manifest, entries: Entries, section: Segment) -> Manifest | None:
    """The manifest with stubs instead of idle tables' entries; None unless all of them are as they were."""
    wanted = {entry.uuid: entry for entry in entries}
    stubs = {name: _stub(entry, section) for name, entry in manifest.tables.items() if wanted.get(entry.uuid) == entry}
    if len(stubs) < len(wanted):
        return None
    return msgspec.structs.replace(manifest, tables={**manifest.tables, **stubs})


def _stub(entry: TableEntry, section: Segment) -> TableEntry:
    """What stays in the root of an idle table."""
    return TableEntry(
        uuid=entry.uuid,
        epoch=entry.epoch,
        schema=msgspec.structs.replace(entry.schema, fields=()),
        last_delete_ts=entry.last_delete_ts,
        unseen_delete_ts=entry.unseen_delete_ts,
        section=section,
    )
