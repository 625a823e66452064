"""Finding the ids that were applied before, inline or in segments."""

from __future__ import annotations

from collections.abc import Collection

from dolmen.format.manifest import AppliedId, Manifest
from dolmen.segments.reader import SegmentReader


def find_applied(manifest: Manifest, ids: Collection[str], segments: SegmentReader) -> dict[str, AppliedId]:
    """Those of ``ids`` that a version has applied.

    A segment's bloom filter decides alone that an id is not there: its ids are fetched only on a hit.
    """
    if not ids:
        return {}
    known = {entry.id: entry for entry in manifest.applied if entry.id in ids}
    for segment in reversed(manifest.segments_of("applied")):
        if missing := [id_ for id_ in ids if id_ not in known]:
            known |= {entry.id: entry for entry in segments.applied(segment, missing)}
    return known
