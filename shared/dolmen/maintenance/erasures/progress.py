"""The state of all erasures by the newest manifest: what collection has to do for them next.

An erasure passes these steps, each by a commit of collection:

1. no file of the newest version holds its rows any more: that version is noted (``Manifest.rewritten``);
2. versions before that one expire: by their age, or at the latest when the time comes that ``expire_at`` tells;
3. the erasure leaves the list (``Manifest.leaving``), as no version needs it, and it holds values;
4. versions before this one expire, too, and what they needed is deleted: it is gone.

Deadlines of an erasure: when its rows are rewritten, and when versions that hold them expire, at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dolmen.base.units import DAY_US, HOUR_US
from dolmen.commit.context import Context
from dolmen.commit.statements.erasures import ForgetErasures, NoteRewritten, WakeTables, forgettable
from dolmen.commit.statements.statement import Statement
from dolmen.entries.segments.erasures_in_force import erasures_of, least_held, stale_sections
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings

_SPARE_US = 3 * DAY_US
"""Time for rounds that come late, or fail."""


_LAST_PART = 4
"""Versions that hold rows of an erasure expire when 1/_LAST_PART of its time is left, or earlier."""


def expire_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When versions that hold rows of an erasure expire, whatever other settings say, in microseconds.

    What follows takes time: readers' grace, twice, and the age at which orphans are swept.
    """
    if erasure.hurried_at:
        return erasure.hurried_at
    within = erasure.due_at - erasure.requested_at
    needed = settings.orphan_age_us + 2 * settings.reader_grace_us + _SPARE_US
    return max(erasure.requested_at, erasure.due_at - max(within // _LAST_PART, needed))


def rewrite_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When files that hold rows of an erasure are rewritten for it alone: at half of its time, or earlier.

    Until then most of them are rewritten for other reasons, and many erasures share one rewriting.
    """
    return erasure.requested_at + (expire_at(erasure, settings) - erasure.requested_at) // 2


def rewrite_through(context: Context, manifest: Manifest) -> int:
    """Timestamp of the youngest erasure whose rows are to be rewritten now; 0 if there is none.

    Costs no request for a database without erasures.
    """
    listed = erasures_of(manifest, context.segments)
    if not listed:
        return 0
    settings, now_us = DatabaseSettings.of(manifest), max(context.store.clock.now_us, manifest.created_at)
    return max((each.ts for each in listed if rewrite_at(each, settings) <= now_us), default=0)


MOST_FORGOTTEN = 1_000
"""The most erasures that leave the list with one commit: the receipt of each is written before."""


@dataclass(frozen=True)
class ErasureWork:
    """The work of a collection for erasures.

    Args:
        listed: the listed erasures, oldest first.
        notes: whether files hold rows of fewer erasures than the last note says.
        forced: the version before which all versions expire, whatever other settings say; 0 = none has to.
        tags: names of tags of these versions.
        forgets: the erasures that leave the list; their receipts are written first.
        stale: keys of sections that keep an old entry of a table alive.
        now_us: the server's clock.
        listed_us: how long an erasure is held against late drops, in microseconds.
    """

    listed: tuple[Erasure, ...] = ()
    notes: bool = False
    forced: int = 0
    tags: tuple[str, ...] = ()
    forgets: tuple[Erasure, ...] = ()
    stale: frozenset[str] = frozenset()
    now_us: int = 0
    listed_us: int = 0

    def moves(self, horizon: int) -> bool:
        """Whether a commit is needed.

        Args:
            horizon: the present one.
        """
        return self.notes or self.forced > horizon or bool(self.tags or self.forgets or self.stale)

    def without_expiry(self) -> ErasureWork:
        """The same work, but no version expires for it yet."""
        return replace(self, forced=0, tags=())

    def before_fence(self) -> list[Statement]:
        """The statements before the one that moves the fence."""
        wake: list[Statement] = [WakeTables(self.stale)] if self.stale else []
        return [*wake, NoteRewritten()] if self.notes or self.stale else wake

    def after_fence(self) -> list[Statement]:
        """The statements after the one that moves the fence."""
        if not self.forgets:
            return []
        return [ForgetErasures(self.forgets[-1].ts, self.now_us, self.listed_us, self.now_us + HOUR_US)]


def erasure_work(
    manifest: Manifest, reader: SegmentReader, settings: DatabaseSettings, now_us: int, horizon: int
) -> ErasureWork:
    """Finds what is to be done. Costs no request for a database without erasures.

    Args:
        horizon: the horizon that the same commit moves to by the ages of versions.
    """
    listed = erasures_of(manifest, reader)
    if not listed and not manifest.leaving:
        return ErasureWork()
    forced = max(
        _least_version(manifest, listed, settings, now_us),
        max((each.version for each in manifest.leaving if each.expire_at <= now_us), default=0),
    )
    tags = tuple(name for name, tag in sorted(manifest.tags.items()) if tag.version < forced)
    oldest = min([max(horizon, forced), *(tag.version for tag in manifest.tags.values() if tag.version >= forced)])
    until = max((each.through for each in manifest.rewritten if each.version <= oldest), default=0)
    forgets = forgettable(listed[:MOST_FORGOTTEN], until, through=until, now_us=now_us, listed_us=settings.listed_us)
    due = any(rewrite_at(each, settings) <= now_us for each in listed)
    stale = frozenset(section.object for section in stale_sections(manifest.tables.values())) if due else frozenset()
    return ErasureWork(
        listed, _notes(manifest, reader, listed), forced, tags, forgets, stale, now_us, settings.listed_us
    )


def rewritten_through(manifest: Manifest, reader: SegmentReader, listed: tuple[Erasure, ...]) -> int:
    """Timestamp of the youngest listed erasure up to which no file of this version holds rows; 0 = of none."""
    held = least_held(manifest.tables.values(), reader, {erasure.ts for erasure in listed})
    return max((erasure.ts for erasure in listed if not held or erasure.ts < held), default=0)


def _notes(manifest: Manifest, reader: SegmentReader, listed: tuple[Erasure, ...]) -> bool:
    known = max((each.through for each in manifest.rewritten), default=0)
    if not listed or listed[-1].ts <= known:
        return False
    return rewritten_through(manifest, reader, listed) > known


def _least_version(manifest: Manifest, listed: tuple[Erasure, ...], settings: DatabaseSettings, now_us: int) -> int:
    """The version before which all must expire, so that none holds rows of an erasure whose time has come."""
    due = [each.ts for each in listed if expire_at(each, settings) <= now_us]
    versions = [min((note.version for note in manifest.rewritten if note.through >= ts), default=0) for ts in due]
    return max(versions, default=0)
