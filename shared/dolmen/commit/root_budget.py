"""The root's byte budget: a commit whose manifest exceeds it moves the manifest's largest tail into one segment.

A spill takes entries of the base only, never the commit's own entries, whose timestamps change with every rebase.
So a spill that was uploaded for a lost attempt serves the next attempt, if all its entries are still inline and equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from dolmen.format.layout import segment_key
from dolmen.format.manifest import HISTORY_LENGTH, Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.properties import root_bytes
from dolmen.format.segments import encode_checked
from dolmen.runtime import Runtime

LEAST_PART = 16
"""A tail is moved only if it takes at least this part of the budget. Otherwise every commit of a crowded root would
write a segment."""

LEAST_HISTORY = 8
"""The fewest earlier commits that are moved into a segment. Collection commits too: if each commit of a crowded root
wrote a segment, which a later commit collects, an idle database would go on committing for ever."""

_TABLE_TAILS: tuple[SegmentKind, ...] = ("files", "tombstones", "overlays", "removed")

Entries: TypeAlias = Sequence[Any]


@dataclass(frozen=True)
class Spill:
    """A segment, and the inline entries that it replaces.

    Args:
        table: the name of the table whose tail it was; None for the database's own.
        uuid: the uuid of that table.
        entries: the entries in the segment.
        segment: the segment's entry in the manifest.
        body: the bytes of the segment's object.
    """

    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    segment: Segment
    body: bytes

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with the segment in place of the entries; None unless all of them are inline and equal."""
        if self.kind == "table":
            return _replace_idle_tables(manifest, self.entries, self.segment)
        if self.table is None:
            kept = _drop_front(getattr(manifest, self.kind), self.entries)
            if kept is None:
                return None
            return msgspec.structs.replace(manifest, **{self.kind: kept}, segments=(*manifest.segments, self.segment))
        entry = manifest.tables.get(self.table)
        if entry is None or entry.uuid != self.uuid:
            return None
        kept = _drop_front(getattr(entry, self.kind), self.entries)
        if kept is None:
            return None
        changed = msgspec.structs.replace(entry, **{self.kind: kept}, segments=(*entry.segments, self.segment))
        return msgspec.structs.replace(manifest, tables={**manifest.tables, self.table: changed})


def spill(base: Manifest, manifest: Manifest, budget: int, new_uuid: Callable[[], str]) -> Spill | None:
    """Moves the largest tail of a manifest that exceeds its budget into a segment; None if no tail is large enough.

    Args:
        base: the version that the manifest was made from.
        budget: the size that a root may have, in bytes.
        new_uuid: gives the segment its name.
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


class RootBudget:
    """Keeps the manifests of one commit's attempts within the root's byte budget."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._spill: Spill | None = None
        self._uploaded_us: int | None = None

    @property
    def waiting(self) -> Spill | None:
        """The spill that must be uploaded together with the manifest, if there is one."""
        return self._spill if self._uploaded_us is None else None

    def mark_uploaded(self, now_us: int) -> None:
        """Notes when the spill was uploaded, in microseconds by the server's clock."""
        if self.waiting:
            self._uploaded_us = now_us

    def fit(self, manifest: Manifest, base: Manifest) -> Manifest:
        """``manifest`` within the root's budget, as far as one segment can bring it there.

        A segment that was uploaded for a lost attempt is used again if it still fits; otherwise it becomes an orphan.
        """
        budget = root_bytes(manifest)
        if len(manifest.encode()) <= budget:
            return manifest
        if self._uploaded_us is not None and self._uploaded_us <= base.orphan_cutoff:
            self._spill = None  # it may have been collected
        fitted = self._spill.apply(manifest) if self._spill else None
        if fitted is None:
            self._spill, self._uploaded_us = spill(base, manifest, budget, self._runtime.uuid), None
            fitted = self._spill.apply(manifest) if self._spill else None
        return fitted or manifest


@dataclass(frozen=True)
class _Tail:
    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    schema: Any = None


def _tails(base: Manifest, manifest: Manifest) -> Iterator[_Tail]:
    """The parts of the manifest that may move into a segment: entries that its base has too."""
    history = _common_front(base.history, manifest.history[:-HISTORY_LENGTH])
    yield _Tail("history", None, "", history if len(history) >= LEAST_HISTORY else ())
    yield _Tail("applied", None, "", _common_front(base.applied, manifest.applied))
    yield _Tail("released", None, "", _common_front(base.released, manifest.released))
    yield _Tail("erasures", None, "", _common_front(base.erasures, manifest.erasures))
    active, idle = _active_since(manifest), list[TableEntry]()
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if before is None or before.uuid != entry.uuid or entry.section:
            continue
        for kind in _TABLE_TAILS:
            shared = _common_front(getattr(before, kind), getattr(entry, kind))
            yield _Tail(kind, name, entry.uuid, shared, entry.schema)
        if entry == before and _last_change(entry) < active:
            idle.append(entry)
    yield _Tail("table", None, "", idle)


def _common_front(old: Entries, new: Entries) -> Entries:
    """The entries that both begin with. Tails grow at their end."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return old[:count]


def _drop_front(entries: Entries, taken: Entries) -> tuple[Any, ...] | None:
    """``entries`` without ``taken``; None unless they begin with ``taken``."""
    if tuple(entries[: len(taken)]) != tuple(taken):
        return None
    return tuple(entries[len(taken) :])


def _active_since(manifest: Manifest) -> int:
    """The commit timestamp since which a table must have changed to count as in use."""
    return manifest.history[-HISTORY_LENGTH].commit_ts if len(manifest.history) >= HISTORY_LENGTH else 0


def _last_change(entry: TableEntry) -> int:
    """The timestamp of the last statement that a table's entry shows."""
    files = max((file.applied_through for file in entry.files), default=0)
    tombstones = max((tombstone.ts for tombstone in entry.tombstones), default=0)
    spilled = max((max(segment.greatest, segment.resolved_through) for segment in entry.segments), default=0)
    return max(files, tombstones, spilled, entry.last_delete_ts)


def _replace_idle_tables(manifest: Manifest, entries: Entries, section: Segment) -> Manifest | None:
    """The manifest with stubs in place of idle tables' entries; None unless all of these are unchanged."""
    wanted = {entry.uuid: entry for entry in entries}
    stubs = {name: _stub(entry, section) for name, entry in manifest.tables.items() if wanted.get(entry.uuid) == entry}
    if len(stubs) < len(wanted):
        return None
    return msgspec.structs.replace(manifest, tables={**manifest.tables, **stubs})


def _stub(entry: TableEntry, section: Segment) -> TableEntry:
    """The stub that stays in the root for an idle table."""
    return TableEntry(
        uuid=entry.uuid,
        epoch=entry.epoch,
        schema=msgspec.structs.replace(entry.schema, fields=()),
        properties={name: value for name, value in entry.properties.items() if name == "subject"},
        last_delete_ts=entry.last_delete_ts,
        unseen_delete_ts=entry.unseen_delete_ts,
        section=section,
        source=entry.source,
        origins=entry.origins,
    )
