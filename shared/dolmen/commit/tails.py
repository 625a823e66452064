"""The tails of a manifest: entries that may leave it, and what it costs to upload them with every version."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from dolmen.format.manifest import HISTORY_LENGTH, SHORT_HISTORY, Manifest, SegmentKind, TableEntry

LEAST_HISTORY = 8
"""The fewest earlier commits that are moved into a segment. Collection commits too: if each commit of a crowded root
wrote a segment, which a later commit collects, an idle database would go on committing for ever."""

LEAST_WORN = 16
"""The fewest entries that leave a root which is within its budget, so that small tables stay in one object."""

_TABLE_TAILS: tuple[SegmentKind, ...] = ("files", "tombstones", "overlays", "removed")

_TIMES: dict[SegmentKind, Callable[[Any], int]] = {
    "files": lambda entry: entry.applied_through,
    "tombstones": lambda entry: entry.ts,
    "overlays": lambda entry: entry.applied_through,
}
"""The timestamp of the commit that brought an entry, or changed it last."""

Entries: TypeAlias = Sequence[Any]


@dataclass(frozen=True)
class Tail:
    """Entries of a manifest, from the oldest on.

    Args:
        table: the name of the table whose entries they are; None for the database's own.
        uuid: the uuid of that table.
        schema: the columns of that table.
    """

    kind: SegmentKind
    table: str | None
    uuid: str
    entries: Entries
    schema: Any = None

    @property
    def size_bytes(self) -> int:
        """The bytes that they take in the manifest."""
        return len(msgspec.json.encode(self.entries))

    def spent_bytes(self, manifest: Manifest, times: Sequence[int]) -> int:
        """The bytes that were uploaded for them with the versions before this one, by their average size.

        Idle tables, removed uuids and erasures count as 0: they leave only a manifest that exceeds its budget.

        Args:
            times: the timestamps of the commits in the manifest's history, ascending.
        """
        if len(self.entries) < LEAST_WORN:
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


def tails(base: Manifest, manifest: Manifest, newest: int) -> Iterator[Tail]:
    """The parts of the manifest that may move into a segment, but for idle tables: entries that its base has too.

    Args:
        newest: so many earlier commits stay.
    """
    history = _common_front(base.history, manifest.history[:-newest])
    yield Tail("history", None, "", history if len(history) >= LEAST_HISTORY else ())
    yield Tail("applied", None, "", _common_front(base.applied, manifest.applied))
    yield Tail("released", None, "", _common_front(base.released, manifest.released))
    yield Tail("erasures", None, "", _common_front(base.erasures, manifest.erasures))
    for name, entry, before in _unmoved(base, manifest):
        for kind in _TABLE_TAILS:
            shared = _common_front(getattr(before, kind), getattr(entry, kind))
            yield Tail(kind, name, entry.uuid, shared, entry.schema)


def new_files(base: Manifest, manifest: Manifest, least_bytes: int) -> Iterator[Tail]:
    """The inline files of each table that gets so many with this version that the new ones take ``least_bytes``."""
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if entry is before or entry.section:
            continue
        is_same = before is not None and before.uuid == entry.uuid
        known = len(_common_front(before.files, entry.files)) if before is not None and is_same else 0
        if len(msgspec.json.encode(entry.files[known:])) >= least_bytes:
            yield Tail("files", name, entry.uuid, entry.files, entry.schema)


def idle_tables(base: Manifest, manifest: Manifest) -> Tail:
    """The whole entries of the tables that no statement has touched for long."""
    active = _active_since(manifest)
    idle = [
        entry
        for _, entry, before in _unmoved(base, manifest)
        if (entry is before or entry == before) and _last_change(entry) < active
    ]
    return Tail("table", None, "", idle)


def _unmoved(base: Manifest, manifest: Manifest) -> Iterator[tuple[str, TableEntry, TableEntry]]:
    """The tables with whole entries that the base has under the same names: their names, and both entries."""
    for name, entry in manifest.tables.items():
        before = base.tables.get(name)
        if before is not None and before.uuid == entry.uuid and not entry.section:
            yield name, entry, before


def _common_front(old: Entries, new: Entries) -> Entries:
    """The entries that both begin with. Tails grow at their end."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return old[:count]


def _active_since(manifest: Manifest) -> int:
    """The commit timestamp since which a table must have changed to count as in use."""
    return manifest.history[-HISTORY_LENGTH].commit_ts if len(manifest.history) >= HISTORY_LENGTH else 0


def _last_change(entry: TableEntry) -> int:
    """The timestamp of the last statement that a table's entry shows."""
    files = max((file.applied_through for file in entry.files), default=0)
    tombstones = max((tombstone.ts for tombstone in entry.tombstones), default=0)
    spilled = max((max(segment.greatest, segment.resolved_through) for segment in entry.segments), default=0)
    return max(files, tombstones, spilled, entry.last_delete_ts)
