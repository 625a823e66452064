"""Finding versions: through the chain of manifests and their histories, never by listing."""

from __future__ import annotations

from collections.abc import Iterator

from dolmen.commit.head import Base, Head
from dolmen.errors import (
    CorruptionError,
    DatabaseNotFoundError,
    ObjectNotFoundError,
    UnsettledTimestampError,
    VersionExpiredError,
    VersionNotFoundError,
)
from dolmen.format.manifest import HistoryEntry, Manifest

SETTLED_AFTER_US = 20 * 60 * 1_000_000
"""Once this old by the server's clock, a point in time can get no more versions (docs/protocol.md)."""


def commits(head: Head, newest: Manifest) -> Iterator[HistoryEntry]:
    """All commits up to ``newest``, newest first; one GET per 64 beyond the first 65. Stops at the horizon."""
    manifest = newest
    if manifest.version:
        yield manifest.as_history()
    while manifest.history and manifest.history[-1].version >= newest.horizon:
        for entry in reversed(manifest.history):
            if entry.version < newest.horizon:
                return
            yield entry
        if manifest.history[0].version == 1:
            return
        manifest = _read(head, manifest.history[0].manifest, manifest.history[0].version)


def manifest_at_version(head: Head, newest: Manifest, version: int) -> Manifest:
    """The manifest of one version.

    Raises:
        VersionNotFoundError: there is no such version yet, or never was.
        VersionExpiredError: it is before the horizon.
    """
    if newest.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {head.store.url} yet")
    if not 1 <= version <= newest.version:
        raise VersionNotFoundError(f"no version {version}: the newest is {newest.version}")
    if version < newest.horizon:
        raise VersionExpiredError(f"version {version} has expired: the oldest kept is {newest.horizon}")
    if version == newest.version:
        return newest
    for entry in commits(head, newest):
        if entry.version == version:
            return _read(head, entry.manifest, version)
    raise VersionNotFoundError(f"version {version} is not in the history of version {newest.version}")


def manifest_at_time(head: Head, base: Base, timestamp_us: int) -> Manifest:
    """The version that was the newest at a point in time (microseconds since the epoch).

    ``base`` must have been read just now: whether the answer is settled depends on the server's clock.

    Raises:
        UnsettledTimestampError: a commit under way could still get a ``created_at`` up to then.
        VersionNotFoundError: the database is younger.
        VersionExpiredError: it was before the horizon.
    """
    newest = base.manifest
    if newest.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {head.store.url} yet")
    if newest.created_at <= timestamp_us and timestamp_us > head.store.clock.now_us - SETTLED_AFTER_US:
        raise UnsettledTimestampError(
            "that time is less than 20 minutes ago and no later commit exists, so the answer could still change: "
            f"use at(version={newest.version}) for the newest version"
        )
    oldest = newest.as_history()
    for oldest in commits(head, newest):
        if oldest.created_at <= timestamp_us:
            return newest if oldest.version == newest.version else _read(head, oldest.manifest, oldest.version)
    if oldest.version > 1:
        raise VersionExpiredError(f"that time is before version {oldest.version}, the oldest kept")
    raise VersionNotFoundError("the database is younger than that")


def _read(head: Head, key: str, version: int) -> Manifest:
    try:
        return head.read_manifest(key)
    except ObjectNotFoundError:
        horizon = head.refresh().manifest.horizon
        if version < horizon:
            raise VersionExpiredError(f"version {version} has expired: the oldest kept is {horizon}") from None
        raise CorruptionError(key, "the manifest is missing") from None
