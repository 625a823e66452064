"""Readback: finds out whose commit followed a base. The one place that resolves an ambiguous pointer PUT.

An attempt on version n can only have landed as version n+1, and the pointer's ETag shows whether anything landed. So
the question is always "which commit id has version n+1?". The newest manifest has the answer, or else its history, or
the history's segments. An object that cannot be read proves nothing.
"""

from __future__ import annotations

from enum import Enum

from dolmen.commit.head import Base, Head, commit_of
from dolmen.errors import Error


class Readback(Enum):
    """The outcome of an attempt, as the store shows it."""

    OURS = "ours"
    THEIRS = "theirs"
    UNMOVED = "the pointer is still the one the attempt was based on"
    TURN = "the pointer names the same version, and another turn"
    UNKNOWN = "unreadable"


def read_back(head: Head, base: Base, commit_id: str) -> Readback:
    """Looks for the commit that followed ``base``. Leaves ``head`` refreshed."""
    try:
        newest = head.refresh()
        if newest.etag == base.etag:
            return Readback.UNMOVED
        if newest.manifest.version == base.manifest.version:
            return Readback.TURN  # the ETag that the attempt depends on will never come back
        successor = commit_of(head, newest.manifest, base.manifest.version + 1)
    except Error:
        return Readback.UNKNOWN
    if successor is None:
        return Readback.UNKNOWN
    return Readback.OURS if successor.commit_id == commit_id else Readback.THEIRS
