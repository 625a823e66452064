"""Figures of erasures that are not gone yet, for metrics and alarms."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.entries.segments.erasures import erasures_of
from dolmen.entries.segments.reader import SegmentReader
from dolmen.format.manifest import Manifest

_DANGER_PART = 16
"""An erasure is in danger when less than 1/_DANGER_PART of its time is left."""


@dataclass(frozen=True)
class ErasureFigures:
    """Figures of the erasures of a version.

    Args:
        pending: number of erasures of which objects may still hold rows.
        oldest_age_us: microseconds since the oldest of them was asked for; 0 if there is none.
        deadline_us: microseconds until the first of them is due, below 0 if that is past; None if there is none.
        in_danger: number of those of which hardly any time is left.
    """

    pending: int = 0
    oldest_age_us: int = 0
    deadline_us: int | None = None
    in_danger: int = 0


def figures_of(manifest: Manifest, reader: SegmentReader, now_us: int) -> ErasureFigures:
    """Computes the figures at a time by the server's clock. Costs no request for a database without erasures."""
    spans = [(each.requested_at, each.due_at, 1) for each in erasures_of(manifest, reader)]
    spans += [(each.requested_at, each.due_at, len(each.ids)) for each in manifest.leaving]
    if not spans:
        return ErasureFigures()
    return ErasureFigures(
        sum(count for _, _, count in spans),
        max(0, now_us - min(requested_at for requested_at, _, _ in spans)),
        min(due_at for _, due_at, _ in spans) - now_us,
        sum(count for asked, due, count in spans if is_in_danger(asked, due, now_us)),
    )


def is_in_danger(requested_at: int, due_at: int, now_us: int) -> bool:
    """Whether hardly any time is left of an erasure at a time, or none."""
    return now_us > due_at - (due_at - requested_at) // _DANGER_PART
