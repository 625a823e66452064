"""Finds what collection has to do next for erasures, from the newest manifest and the receipts.

Each step of an erasure is a commit of collection:

1. No file of the newest version contains its rows any more. ``Manifest.rewritten`` records that version.
2. The versions before that one expire, at ``expire_at`` at the latest.
3. The erasure leaves the list for ``Manifest.leaving``: the values by which it finds rows must be erased, too.
4. The versions that list it expire, and objects that only they needed are deleted. The receipt says "gone".
"""

from __future__ import annotations

from msgspec import Struct

from dolmen.base.units import DAY_US, HOUR_US
from dolmen.commit.draft import Statement
from dolmen.commit.head import Context
from dolmen.commit.statements.erasures import DelistErasures, NoteRewritten, UnspillTables, first_to_delist
from dolmen.entries.segments.erasures_in_force import (
    first_rewritten_version,
    last_rewritten_ts,
    rewritten_before,
    stale_sections,
)
from dolmen.entries.segments.segment_reader import SegmentReader, erasures_of
from dolmen.format.manifest import Erasure, Manifest
from dolmen.format.properties import DatabaseSettings

_SPARE_US = 3 * DAY_US  # time for rounds that are late, or fail


def expire_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When versions that hold rows of an erasure expire, whatever other settings say.

    A quarter of its time must remain, and enough for twice ``reader_grace`` and a sweep.
    """
    if erasure.hurried_at:
        return erasure.hurried_at
    period_us = erasure.due_at - erasure.requested_at
    needed_us = settings.orphan_age_us + 2 * settings.reader_grace_us + _SPARE_US
    return max(erasure.requested_at, erasure.due_at - max(period_us // 4, needed_us))


def rewrite_due_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When files that hold rows of an erasure are rewritten for it alone: half-way to ``expire_at``.

    Until then most of them are rewritten for other reasons, or for several erasures at once.
    """
    return erasure.requested_at + (expire_at(erasure, settings) - erasure.requested_at) // 2


def last_due_ts(context: Context, manifest: Manifest) -> int:
    """Timestamp of the youngest erasure whose files must be rewritten now, else 0. Without erasures, no request."""
    listed = erasures_of(manifest, context.segments)
    if not listed:
        return 0
    settings, now_us = DatabaseSettings.of(manifest), max(context.store.clock.now_us, manifest.created_at)
    return max((each.ts for each in listed if rewrite_due_at(each, settings) <= now_us), default=0)


MOST_DELISTED = 1_000  # the most erasures that leave the list with one commit, which writes all their receipts first


class ErasureWork(Struct, frozen=True):
    """The work of a collection for erasures."""

    listed: tuple[Erasure, ...] = ()  # the listed erasures, oldest first
    must_note: bool = False  # whether the files of more erasures are rewritten than ``Manifest.rewritten`` records
    expire_before: int = 0  # all versions before this one expire, whatever other settings say; 0 if none must
    tags: tuple[str, ...] = ()  # names of tags of these versions
    to_delist: tuple[Erasure, ...] = ()  # the erasures that leave the list; their receipts are written first
    # keys of segments with entries of idle tables, and with an obsolete entry that may name files with erased rows
    stale_sections: frozenset[str] = frozenset()
    now_us: int = 0
    late_drops_us: int = 0  # how long an erasure applies to late drops

    def needs_fence(self, horizon: int) -> bool:
        """Whether this work needs the commit that moves the fence."""
        is_due = self.must_note or self.expire_before > horizon
        return is_due or bool(self.tags or self.to_delist or self.stale_sections)

    def before_fence(self) -> list[Statement]:
        """The statements of that commit before the one that moves the fence."""
        if self.stale_sections:
            return [UnspillTables(self.stale_sections), NoteRewritten()]
        return [NoteRewritten()] if self.must_note else []

    def after_fence(self) -> list[Statement]:
        """The statements of that commit after the one that moves the fence."""
        if not self.to_delist:
            return []
        return [DelistErasures(self.to_delist[-1].ts, self.now_us, self.late_drops_us, self.now_us + HOUR_US)]


def erasure_work(
    manifest: Manifest, reader: SegmentReader, settings: DatabaseSettings, now_us: int, horizon: int
) -> ErasureWork:
    """Finds the work that is due if the horizon moves to this version. Without erasures, it sends no request."""
    listed = erasures_of(manifest, reader)
    if not listed and not manifest.leaving:
        return ErasureWork()
    # No version may hold rows of an erasure that is due, or list one that must be gone.
    due = [each for each in listed if expire_at(each, settings) <= now_us]
    versions = [first_rewritten_version(manifest.rewritten, each.ts) for each in due]
    versions += [each.version for each in manifest.leaving if each.expire_at <= now_us]
    expire_before = max(versions, default=0)
    tags = tuple(name for name, tag in sorted(manifest.tags.items()) if tag.version < expire_before)
    oldest = min(
        [max(horizon, expire_before), *(tag.version for tag in manifest.tags.values() if tag.version >= expire_before)]
    )
    until = rewritten_before(manifest.rewritten, oldest)
    to_delist = first_to_delist(
        listed[:MOST_DELISTED], until, through=until, now_us=now_us, late_drops_us=settings.late_drops_us
    )
    is_due = any(rewrite_due_at(each, settings) <= now_us for each in listed)
    sections = stale_sections(manifest.tables.values()) if is_due else ()
    stale = frozenset(section.object for section in sections)
    noted_ts = max((each.through for each in manifest.rewritten), default=0)
    must_note = (
        bool(listed)
        and listed[-1].ts > noted_ts
        and last_rewritten_ts(manifest.tables.values(), reader, listed) > noted_ts
    )
    return ErasureWork(listed, must_note, expire_before, tags, to_delist, stale, now_us, settings.late_drops_us)
