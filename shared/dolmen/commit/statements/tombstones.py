"""Drops tombstones: the one place where a commit decides that no data file needs a tombstone any more.

Resolution and compaction bring files up to a table's deletes, and call ``put_entry`` with the table's new entry.
"""

from __future__ import annotations

import msgspec

from dolmen.commit.draft import Draft
from dolmen.entries.segments.judging import may_match
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.manifest import Counts, Segment, TableEntry


def put_entry(draft: Draft, name: str, before: TableEntry, after: TableEntry) -> None:
    """Puts a table's new entry into the draft, without the tombstones that its files do not need any more."""
    after, tombstones, segments = without_unneeded_tombstones(after)
    draft.release(tombstone.blob.object for tombstone in tombstones)
    for segment in segments:
        draft.release_tree(segment)
    draft.counts += Counts(tombstones_removed=len(tombstones) + sum(segment.count for segment in segments))
    if after != before:
        draft.tables[name] = after


def without_unneeded_tombstones(entry: TableEntry) -> tuple[TableEntry, list[Tombstone], list[Segment]]:
    """The table's entry without the tombstones that no live file needs.

    No live file needs a tombstone with timestamp T when each has ``applied_through`` >= T, or provably has no row that
    matches. A segment counts as one live file with the least ``applied_through`` of its files. Its overlays are not
    considered, so that nothing has to be loaded.

    Returns:
        The entry, the dropped inline tombstones, and the dropped segments of tombstones.
    """
    lagging: list[DataFile | Segment] = [*entry.segments_of("files"), *entry.files]
    settled = min((file.applied_through for file in lagging), default=None)
    dropped: list[Tombstone] = []
    kept: list[Tombstone] = []
    for tombstone in entry.tombstones:
        if settled is None or tombstone.ts <= settled:
            dropped.append(tombstone)
            continue
        needed = any(
            file.applied_through < tombstone.ts and may_match(tombstone, file, entry.schema) for file in lagging
        )
        (kept if needed else dropped).append(tombstone)
    gone = [s for s in entry.segments_of("tombstones") if settled is None or s.greatest <= settled]
    if not dropped and not gone:
        return entry, [], []
    unseen = max(entry.unseen_delete_ts, *(t.ts for t in dropped), *(s.greatest for s in gone))
    objects = {segment.object for segment in gone}
    return (
        msgspec.structs.replace(
            entry,
            tombstones=tuple(kept),
            segments=tuple(segment for segment in entry.segments if segment.object not in objects),
            unseen_delete_ts=unseen,
        ),
        dropped,
        gone,
    )
