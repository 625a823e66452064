"""The root's byte budget: moves entries out of a manifest that is too large, or whose entries are uploaded too often.

The *root* is the manifest's own object, without its segments; a *tail* is a run of its oldest entries. A spill takes
entries of the base, so that the segment of a lost attempt serves the next one, if all its entries are still inline and
equal. The commit's own files, whose timestamps change with every rebase, are taken only if they alone exceed the
budget: then a manifest with them costs each attempt more than the segment does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from dolmen.base.runtime import Runtime
from dolmen.base.units import KIB
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import Error
from dolmen.format.layout import segment_key
from dolmen.format.manifest import (
    HISTORY_LENGTH,
    SHORT_HISTORY,
    TABLE_TAILS,
    Manifest,
    Released,
    Segment,
    SegmentKind,
    TableEntry,
)
from dolmen.format.properties import root_bytes
from dolmen.format.segments import encode_checked

LEAST_HISTORY = 8
"""The fewest earlier commits that are moved into a segment. Collection commits too: if each commit of a crowded root
wrote a segment, which a later commit collects, an idle database would never stop committing."""

LEAST_ENTRIES = 16
"""The fewest entries that leave a root which is within its budget, so that small tables stay in one object."""

LEAST_PART = 16
"""A tail is moved only if it takes at least 1/16 of the budget. Otherwise every commit of a crowded root would write a
segment."""

PUT_BYTES = 448 * KIB
"""The bytes of repeated uploads after which a tail leaves a root that is within its budget: as much as the PUT of a
segment is worth, so that both together cost at most twice the least possible, whatever the size of the entries. Only if
the database has no budget of its own."""

MOST_MERGED, MOST_MERGED_BYTES = 512, 64 * KIB
"""A spill merges the segment before it if both together have at most this many entries, and that segment has at
most this many bytes. This keeps segments few though spills are small, and writes an entry about ten times. Only if
the database has no budget of its own."""

_MERGED: frozenset[SegmentKind] = frozenset({"files", "tombstones", "applied", "released", "history"})
_TIMES: dict[SegmentKind, Callable[[Any], int]] = {
    "files": lambda entry: entry.applied_through,
    "tombstones": lambda entry: entry.ts,
    "overlays": lambda entry: entry.applied_through,
}
"""The timestamp of the commit that brought an entry, or changed it last."""

Entries: TypeAlias = Sequence[Any]
Owner = TypeVar("Owner", Manifest, TableEntry)


class Tail(Struct, frozen=True):
    """Entries of a manifest, from the oldest on: a table's, or the database's own (``table`` is None)."""

    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    schema: Any = None

    @property
    def size_bytes(self) -> int:
        return len(msgspec.json.encode(self.entries))

    def spent_bytes(self, manifest: Manifest, times: Sequence[int]) -> int:
        """The bytes that earlier versions have uploaded for the entries, by their average size.

        Idle tables, removed uuids and erasures count as 0: they leave only a manifest that exceeds its budget.
        ``times`` are the timestamps of the commits in the manifest's history, ascending.
        """
        if len(self.entries) < LEAST_ENTRIES:
            return 0
        if self.kind == "history":
            uploads = sum(manifest.version - SHORT_HISTORY - entry.version for entry in self.entries)
        elif self.kind in ("applied", "released"):
            uploads = sum(manifest.version - entry.version for entry in self.entries)
        elif (time := _TIMES.get(self.kind)) is not None:
            uploads = sum(len(times) - bisect_left(times, time(entry)) for entry in self.entries)
        else:
            return 0
        return self.size_bytes * int(uploads) // len(self.entries)


def _tails(base: Manifest, manifest: Manifest, newest: int) -> Iterator[Tail]:
    """The tails that may move into a segment, except idle tables: entries that the base has too.

    The ``newest`` earlier commits stay.
    """
    history = _common_front(base.history, manifest.history[:-newest])
    yield Tail("history", None, "", history if len(history) >= LEAST_HISTORY else ())
    yield Tail("applied", None, "", _common_front(base.applied, manifest.applied))
    yield Tail("released", None, "", _common_front(base.released, manifest.released))
    yield Tail("erasures", None, "", _common_front(base.erasures, manifest.erasures))
    for name, entry, before in _tables_in_both(base, manifest):
        for kind in TABLE_TAILS:
            shared = _common_front(getattr(before, kind), getattr(entry, kind))
            yield Tail(kind, name, entry.uuid, shared, entry.schema)


def _new_files(base: Manifest, manifest: Manifest, least_bytes: int) -> Iterator[Tail]:
    """The inline files of each table whose new files in this version take ``least_bytes``."""
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if entry is before or entry.section:
            continue
        is_same = before is not None and before.uuid == entry.uuid
        earlier = len(_common_front(before.files, entry.files)) if before is not None and is_same else 0
        if len(msgspec.json.encode(entry.files[earlier:])) >= least_bytes:
            yield Tail("files", name, entry.uuid, entry.files, entry.schema)


def _idle_tables(base: Manifest, manifest: Manifest) -> Tail:
    """The whole entries of the tables that no statement of the last ``HISTORY_LENGTH`` commits has changed."""
    active = manifest.history[-HISTORY_LENGTH].commit_ts if len(manifest.history) >= HISTORY_LENGTH else 0
    idle = [
        entry
        for _, entry, before in _tables_in_both(base, manifest)
        if (entry is before or entry == before) and _last_change(entry) < active
    ]
    return Tail("table", None, "", idle)


def _tables_in_both(base: Manifest, manifest: Manifest) -> Iterator[tuple[str, TableEntry, TableEntry]]:
    """Yields tables that both have under one name, with whole entries: the name, the entry, and the base's."""
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if before is not None and before.uuid == entry.uuid and not entry.section:
            yield name, entry, before


def _common_front(old: Entries, new: Entries) -> Entries:
    """The entries that both have in common from the first on. Tails grow at their end."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return old[:count]


def _last_change(entry: TableEntry) -> int:
    """The timestamp of the last statement that a table's entry shows."""
    files = max((file.applied_through for file in entry.files), default=0)
    tombstones = max((tombstone.ts for tombstone in entry.tombstones), default=0)
    spilled = max((max(segment.greatest, segment.resolved_through) for segment in entry.segments), default=0)
    return max(files, tombstones, spilled, entry.last_delete_ts)


class Spill(Struct, frozen=True):
    """A segment, and the tail that it replaces; ``merged`` is an older segment whose entries it has as well."""

    tail: Tail
    segment: Segment
    body: bytes
    merged: Segment | None = None

    def apply(self, manifest: Manifest) -> Manifest | None:
        """The manifest with the segment in place of the entries; None unless all of them are inline and equal."""
        tail = self.tail
        if tail.kind == "table":
            return self._replace_idle_tables(manifest)
        if tail.table is None:
            changed = self._replace_entries(manifest)
        else:
            entry = manifest.tables.get(tail.table)
            replaced = self._replace_entries(entry) if entry is not None and entry.uuid == tail.uuid else None
            tables = {**manifest.tables, tail.table: replaced} if replaced is not None else None
            changed = msgspec.structs.replace(manifest, tables=tables) if tables is not None else None
        return changed if changed is None or self.merged is None else _release(changed, self.merged.object)

    def _replace_entries(self, owner: Owner) -> Owner | None:
        """The table or database with the segment in place of the entries, and of the segment that it has merged."""
        kind, count = self.tail.kind, len(self.tail.entries)
        entries: tuple[Any, ...] = getattr(owner, kind)
        if entries[:count] != tuple(self.tail.entries):
            return None
        segments: tuple[Segment, ...] = owner.segments
        if self.merged is not None:
            if self.merged != _last(owner, kind):
                return None
            segments = tuple(segment for segment in segments if segment != self.merged)
        return msgspec.structs.replace(owner, **{kind: entries[count:]}, segments=(*segments, self.segment))

    def _replace_idle_tables(self, manifest: Manifest) -> Manifest | None:
        """The manifest with references in place of idle tables' entries; None unless all of these are unchanged."""
        idle = {entry.uuid: entry for entry in self.tail.entries}
        references = {
            name: TableEntry(
                uuid=entry.uuid,
                epoch=entry.epoch,
                schema=msgspec.structs.replace(entry.schema, fields=()),
                properties={name: value for name, value in entry.properties.items() if name == "subject"},
                last_delete_ts=entry.last_delete_ts,
                unseen_delete_ts=entry.unseen_delete_ts,
                section=self.segment,
                source=entry.source,
                origins=entry.origins,
            )
            for name, entry in manifest.tables.items()
            if idle.get(entry.uuid) == entry
        }
        if len(references) < len(idle):
            return None
        return msgspec.structs.replace(manifest, tables={**manifest.tables, **references})


def _spill(base: Manifest, tail: Tail, key: str, reader: SegmentReader, mergeable: Segment | None) -> Spill:
    """Moves a tail into a segment, together with the entries of ``mergeable``, the segment before it."""
    entries, merged = tail.entries, None
    if mergeable is not None:
        with suppress(Error):  # it stays as it is: a commit need not read it, and its readers will raise the error
            entries, merged = [*_entries(reader, mergeable, tail), *entries], mergeable
    segment, body = encode_checked(tail.kind, entries, key, tail.schema)
    if tail.kind == "history":
        segment = msgspec.structs.replace(segment, created_at=entries[-1].created_at)
    elif tail.kind == "applied":
        segment = msgspec.structs.replace(segment, created_at=base.created_at)
    return Spill(tail, segment, body, merged)


class RootBudget:
    """Keeps the manifests of one commit's attempts within the root's byte budget."""

    def __init__(self, runtime: Runtime, segments: SegmentReader) -> None:
        self._runtime, self._segments = runtime, segments
        self._spill: Spill | None = None
        self._uploaded_us: int | None = None

    def take_waiting(self, now_us: int) -> tuple[Segment, bytes] | None:
        """The segment that is to be uploaded together with the manifest, now, if there is one."""
        if self._spill is None or self._uploaded_us is not None:
            return None
        self._uploaded_us = now_us
        return self._spill.segment, self._spill.body

    def spill_from(self, manifest: Manifest, base: Manifest, *, is_background: bool) -> Manifest:
        """``manifest`` with at most one tail in a segment, so that it is within the root's budget if that suffices.

        Background work (``is_background``) moves nothing early, and takes in no segment: objects that its own commits
        release would have to be collected, so that an idle database would go on committing.
        """
        may_move_early = not is_background and "root_bytes" not in manifest.properties
        tail = _tail_to_move(base, manifest, may_move_early)
        if tail is None:
            return manifest
        # The fence first: a segment of a lost attempt that is older may be collected already.
        if self._uploaded_us is not None and self._uploaded_us <= base.orphan_cutoff:
            self._spill = None
        # Then reuse: the segment of a lost attempt serves if its entries are still inline and equal.
        reduced = self._spill.apply(manifest) if self._spill else None
        if reduced is None:  # otherwise a new segment, which is uploaded with the manifest
            mergeable = _mergeable_segment(base, manifest, tail) if may_move_early else None
            key = segment_key(tail.kind, self._runtime.uuid())
            self._spill, self._uploaded_us = _spill(base, tail, key, self._segments, mergeable), None
            reduced = self._spill.apply(manifest)
        return reduced or manifest


def _tail_to_move(base: Manifest, manifest: Manifest, may_move_early: bool) -> Tail | None:
    """The tail to move into a segment: the largest of a root above its budget, or else the one that has cost most."""
    budget = root_bytes(manifest)
    # Above the budget size alone decides, and the commit's own files may move as well.
    if len(manifest.encode()) > budget:
        own = _new_files(base, manifest, budget)
        tails = [*_tails(base, manifest, HISTORY_LENGTH), _idle_tables(base, manifest), *own]
        size, largest = max(((tail.size_bytes, tail) for tail in tails), key=lambda item: item[0])
        return largest if size >= budget // LEAST_PART else None
    if not may_move_early:
        return None
    # Within the budget a tail moves once its repeated upload has cost as much as the PUT of a segment.
    times, tails = [entry.commit_ts for entry in manifest.history], [*_tails(base, manifest, SHORT_HISTORY)]
    spent, most_expensive = max(((tail.spent_bytes(manifest, times), tail) for tail in tails), key=lambda item: item[0])
    return most_expensive if spent >= PUT_BYTES else None


def _mergeable_segment(base: Manifest, manifest: Manifest, tail: Tail) -> Segment | None:
    """The segment before a tail, if a spill may take it in: it is small, and background work has not changed it."""
    if tail.kind not in _MERGED or (tail.table is not None and tail.table not in base.tables):
        return None
    was, now = (each if tail.table is None else each.tables[tail.table] for each in (base, manifest))
    last = _last(now, tail.kind)
    if last is None or last != _last(was, tail.kind) or last.resolved_through or last.erasing:
        return None
    fits = last.count + len(tail.entries) <= MOST_MERGED and last.size <= MOST_MERGED_BYTES
    return last if fits else None


def _last(owner: Manifest | TableEntry, kind: SegmentKind) -> Segment | None:
    return next((segment for segment in reversed(owner.segments) if segment.kind == kind), None)


def _entries(reader: SegmentReader, segment: Segment, tail: Tail) -> list[Any]:
    """The entries of a segment, with bounds in the form of the columns' present types."""
    if segment.kind == "files":
        return [*chain.from_iterable(reader.files(segment).entries(types=tail.schema.widened_types))]
    return list(getattr(reader, segment.kind)(segment))


def _release(manifest: Manifest, key: str) -> Manifest:
    """The manifest with one more object that its own commit has released."""
    *earlier, last = manifest.released or (Released(0),)
    if last.version != manifest.version:
        earlier, last = [*manifest.released], Released(manifest.version)
    objects = tuple(sorted({*last.objects, key}))
    return msgspec.structs.replace(manifest, released=(*earlier, msgspec.structs.replace(last, objects=objects)))
