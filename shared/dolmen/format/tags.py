"""Tags and cursors: names that a database gives to versions."""

from __future__ import annotations

import re

import msgspec

from dolmen.base import arguments
from dolmen.errors import InvalidNameError

RESERVED_TAGS = "iceberg."
"""Names of tags that begin with this are of versions that are published (``dolmen.iceberg.pins``)."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Tag(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name for one version, which is kept with all that it needs.

    Args:
        version: the number of the version.
        manifest: key of its manifest, as histories forget expired versions.
        created_at: that of the version.
        until: time from which collection may remove the tag, in microseconds; 0 = never.
    """

    version: int
    manifest: str
    created_at: int
    until: int = 0


class Cursor(msgspec.Struct, frozen=True):
    """The place of a reader of changes: no version from this one on expires while the cursor lasts.

    Args:
        version: the newest version that its reader has seen.
        moved_at: when the cursor was made, or last moved, by the server's clock.
        age_us: the cursor ends when it has not moved for so long. Then versions expire, and it stays where it is.
    """

    version: int
    moved_at: int
    age_us: int

    def holds(self, now_us: int) -> bool:
        """Whether versions may not expire at this time, because its reader may still come."""
        return now_us <= self.moved_at + self.age_us


def check_tag_name(name: str, what: str = "tag") -> str:
    """Returns ``name`` if a tag, or a cursor, may be called so. Raises InvalidNameError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{what} {arguments.short_repr(name)} is not 1 to 64 of A-Z, a-z, 0-9, _, . and -, with no . or - first"
        )
    return name
