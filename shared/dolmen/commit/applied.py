"""Request ids that are applied exactly once: the digest of a request's content, and the search for applied ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import date, time
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import pyarrow as pa

from dolmen.entries.segments.reader import SegmentReader
from dolmen.errors import InputError
from dolmen.format.manifest import AppliedId, Manifest


def find_applied(manifest: Manifest, ids: Collection[str], segments: SegmentReader) -> dict[str, AppliedId]:
    """Finds those of ``ids`` that a version has applied.

    A segment's Bloom filter rules an id out without a request. The segment's ids are fetched only on a hit.
    """
    if not ids:
        return {}
    known = {entry.id: entry for entry in manifest.applied if entry.id in ids}
    for segment in reversed(manifest.segments_of("applied")):
        if missing := [id_ for id_ in ids if id_ not in known]:
            known |= {entry.id: entry for entry in segments.applied(segment, missing)}
    return known


def applied_by(manifest: Manifest, versions: range, segments: SegmentReader) -> dict[int, list[str]]:
    """The request ids that some versions applied, by version. One GET for each segment that holds any of them."""
    found: dict[int, list[str]] = {}
    held = [s for s in manifest.segments_of("applied") if s.least < versions.stop and s.greatest >= versions.start]
    for entry in chain(chain.from_iterable(map(segments.applied, held)), manifest.applied):
        if entry.version in versions:
            found.setdefault(entry.version, []).append(entry.id)
    return found


def digest_of(request: Any) -> str:
    """The digest of a request's content: SHA-256 over canonical JSON (sorted keys, no spaces).

    Raises:
        InputError: the content can be read only once, or has no canonical form.
    """
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=_canonical)
    return hashlib.sha256(text.encode()).hexdigest()


def is_raw_digest(digest: str, request: Any) -> bool:
    """Whether a digest is that of a request's raw arguments. Digests of deletes were once made so."""
    try:
        return digest == digest_of(request)
    except (InputError, TypeError, ValueError):
        return False


def _canonical(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (range, tuple)):
        return list(value)
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        return value.to_pylist()
    if isinstance(value, (date, time, Decimal, UUID)):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise InputError(f"keys are {type(value).__name__}: with a request id, give them as a list or an Arrow table")
