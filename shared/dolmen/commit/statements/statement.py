"""The protocols of statements: each can be applied to a draft of the next version.

Changes and removes data files in a table's entry, whether the files' entries are inline or in segments.

A file in a segment is changed by an inline entry: an overlay gives it a newer pair (``applied_through``, vector), and
its uuid in ``removed`` takes it away. No segment is rewritten for that.

Drops tombstones: the one place where a commit decides that no data file needs a tombstone any more.

Resolution and compaction bring files up to a table's deletes, and call ``put_entry`` with the table's new entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeGuard

import msgspec

from dolmen.commit.draft import Draft
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.row_bounds import may_match
from dolmen.format.entries import DataFile, Overlay, Tombstone
from dolmen.format.manifest import Counts, Segment, TableEntry


class Statement(Protocol):
    """One step of a change."""

    @property
    def name(self) -> str | None:
        """The table's name at this point of the change; None for the database."""

    @property
    def uuid(self) -> str:
        """The table's uuid; "" for the database."""

    @property
    def request(self) -> str | None:
        """The request that this statement belongs to, if any."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Pure. Raises ConflictError, and the errors that the statement documents."""


class Prepared(Statement, Protocol):
    """A statement that must be fitted to a base version before it is applied to it."""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Statement:
        """Returns the statement fitted to the draft's base. Reads what it needs for that."""


def is_prepared(statement: Statement) -> TypeGuard[Prepared]:
    """Whether a statement must be fitted. ``isinstance`` would check the whole protocol each time."""
    return hasattr(statement, "prepare")


def with_pairs(entry: TableEntry, files: Iterable[DataFile]) -> TableEntry:
    """The table's entry with the pairs of these files.

    ``applied_through`` never falls: a file of this very commit may have been prepared under an earlier timestamp.

    Args:
        files: effective entries of files that the table has.
    """
    changed = {file.uuid: file for file in files}
    if not changed:
        return entry
    inline: list[DataFile] = []
    for file in entry.files:
        newer = changed.pop(file.uuid, None)
        if newer is not None:
            through = max(file.applied_through, newer.applied_through)
            file = msgspec.structs.replace(file, applied_through=through, vector=newer.vector, erasing=newer.erasing)
        inline.append(file)
    kept = tuple(overlay for overlay in entry.overlays if overlay.file not in changed)
    added = tuple(Overlay(uuid, file.applied_through, file.vector, file.erasing) for uuid, file in changed.items())
    return msgspec.structs.replace(entry, files=tuple(inline), overlays=(*kept, *added))


def without_files(entry: TableEntry, uuids: Collection[str]) -> TableEntry:
    """The table's entry without these files. It must have all of them."""
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
