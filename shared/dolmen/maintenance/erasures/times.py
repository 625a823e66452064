"""Deadlines of an erasure: when its rows are rewritten, and when versions that hold them expire, at the latest."""

from __future__ import annotations

from dolmen.base.units import DAY_US
from dolmen.commit.context import Context
from dolmen.entries.segments.erasures import erasures_of
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
