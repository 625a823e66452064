"""The erasures that a version lists, wherever they are: inline, or in segments."""

from __future__ import annotations

from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest
from dolmen.segments.reader import SegmentReader


def erasures_of(manifest: Manifest, reader: SegmentReader, after: int = 0) -> tuple[Erasure, ...]:
    """The erasures in a version's list, spilled and inline, oldest first.

    Args:
        after: a timestamp: only those with a greater one. Segments without any are not fetched.
    """
    spilled = [s for s in manifest.segments_of("erasures") if s.greatest > after]
    listed = (
        *(erasure for some in reader.runtime.map(reader.erasures, spilled) for erasure in some),
        *manifest.erasures,
    )
    return tuple(erasure for erasure in listed if erasure.ts > after)


def erasure_timestamps(manifest: Manifest, reader: SegmentReader) -> frozenset[int]:
    """The timestamps of all listed erasures. A tombstone of such a timestamp is an erasure's."""
    return frozenset(erasure.ts for erasure in erasures_of(manifest, reader))
