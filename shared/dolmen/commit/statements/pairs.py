"""Replacing and removing data files in a table's entry, whether their own entries are inline or in segments.

A file in a segment is changed by what stands inline: an overlay gives it a newer (``applied_through``, vector) pair,
its uuid among ``removed`` takes it away. No segment is ever rewritten for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from dolmen.format.entries import DataFile, Overlay, Tombstone
from dolmen.format.manifest import Segment, TableEntry
from dolmen.segments.judging import may_match


def with_pairs(entry: TableEntry, files: Iterable[DataFile]) -> TableEntry:
    """The table with the pairs that these effective entries have.

    ``applied_through`` never falls: a file of this very commit may have been prepared under an earlier timestamp.
    """
    changed = {file.uuid: file for file in files}
    if not changed:
        return entry
    inline: list[DataFile] = []
    for file in entry.files:
        newer = changed.pop(file.uuid, None)
        if newer is not None:
            through = max(file.applied_through, newer.applied_through)
            file = msgspec.structs.replace(file, applied_through=through, vector=newer.vector)
        inline.append(file)
    kept = tuple(overlay for overlay in entry.overlays if overlay.file not in changed)
    added = tuple(Overlay(uuid, file.applied_through, file.vector) for uuid, file in changed.items())
    return msgspec.structs.replace(entry, files=tuple(inline), overlays=(*kept, *added))


def without_files(entry: TableEntry, uuids: Collection[str]) -> TableEntry:
    """The table without these files, all of which it has."""
    spilled = dict.fromkeys(uuids)
    inline: list[DataFile] = []
    for file in entry.files:
        if file.uuid in spilled:
            del spilled[file.uuid]
        else:
            inline.append(file)
    return msgspec.structs.replace(
        entry,
        files=tuple(inline),
        overlays=tuple(overlay for overlay in entry.overlays if overlay.file not in spilled),
        removed=(*entry.removed, *spilled),
    )


def without_resolved_tombstones(entry: TableEntry) -> tuple[TableEntry, list[Tombstone], list[Segment]]:
    """Drops the tombstones that no live file needs: each has ``applied_through`` >= T, or provably cannot match.

    A segment counts as one live file with the least ``applied_through`` that any of its files has; what its overlays
    say beyond that is not looked at, so that nothing has to be loaded.

    Returns:
        The table, and what was dropped: inline tombstones, and segments of tombstones.
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
