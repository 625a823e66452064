"""Finds versions through the chain of manifests and their histories, never by listing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from dolmen.base.units import DAY_US, MINUTE_US, SECOND_US
from dolmen.commit.head import Base, Head, commit_of
from dolmen.errors import (
    CorruptionError,
    DatabaseNotFoundError,
    TagNotFoundError,
    UnsettledTimestampError,
    VersionExpiredError,
    VersionNotFoundError,
)
from dolmen.format.manifest import HistoryEntry, Manifest

SETTLED_AFTER_US = 20 * MINUTE_US
"""Age by the server's clock, in microseconds, after which a point in time gets no more versions (docs/protocol.md)."""
_CLOCKS_DIFFER_US = MINUTE_US
"""How far a time may be ahead of the server's clock before it counts as in the future: clocks of machines differ."""


def commits(head: Head, newest: Manifest) -> Iterator[HistoryEntry]:
    """Yields all commits from ``newest`` back to the horizon, newest first; one GET per segment of history."""
    if newest.version:
        yield newest.as_history()
    segments = reversed(newest.segments_of("history"))
    older = (entry for segment in segments for entry in reversed(head.segments.history(segment)))
    for entry in chain(reversed(newest.history), older):
        if entry.version < newest.horizon:
            return
        yield entry


def history_between(head: Head, newest: Manifest, first: int, last: int) -> Iterator[HistoryEntry]:
    """Yields the commits that made the versions ``first`` to ``last``, oldest first; one GET per segment of history.

    ``newest`` is the last of them, or a later version. Raises VersionExpiredError if the first has left the history.
    """
    segments = [s for s in newest.segments_of("history") if s.least <= last and s.greatest >= first]
    spilled = chain.from_iterable(head.segments.history(segment) for segment in segments)
    expected = first
    for entry in chain(spilled, newest.history, [newest.as_history()]):
        if first <= entry.version <= last:
            if entry.version != expected:
                break
            expected += 1
            yield entry
    if expected <= last:
        raise VersionExpiredError(f"version {expected} is not in the history of version {newest.version} any more")


def manifest_at_version(head: Head, newest: Manifest, version: int) -> Manifest:
    """The manifest of one version. Raises VersionNotFoundError, or VersionExpiredError before the horizon."""
    _check_exists(head, newest)
    if not 1 <= version <= newest.version:
        raise VersionNotFoundError(f"no version {version}: the newest is {newest.version}")
    newest.check_kept(version)
    if version < newest.horizon and (key := newest.tagged_manifest(version)):
        return head.read_kept(key, version)
    if version == newest.version:
        return newest
    if entry := commit_of(head, newest, version):
        return manifest_of(head, entry)
    raise VersionNotFoundError(f"version {version} is not in the history of version {newest.version}")


def _check_exists(head: Head, newest: Manifest) -> None:
    if newest.version == 0:
        raise DatabaseNotFoundError(f"there is no database at {head.store.url} yet")


def manifest_at_tag(head: Head, newest: Manifest, name: str) -> Manifest:
    """The manifest of the version that a tag names, by one GET. Raises TagNotFoundError."""
    tag = newest.tags.get(name)
    if tag is None:
        raise TagNotFoundError(f"no tag {name!r}; tags: {', '.join(sorted(newest.tags)) or 'none'}")
    return newest if tag.version == newest.version else head.read_kept(tag.manifest, tag.version)


def manifest_at_time(
    head: Head, base: Base, timestamp_us: int, *, settled: bool = True, instead: str = "settled=False takes it"
) -> Manifest:
    """The version that was the newest at a point in time (microseconds since the epoch).

    Args:
        base: from ``refresh``, because the server's clock at that time decides whether the result is settled.
        settled: refuse a result that a commit under way may still change (see ``is_settled``).
        instead: the end of the error's text: how the caller can take the newest version, which the text calls "it".

    Raises UnsettledTimestampError (also for the future), VersionNotFoundError, VersionExpiredError.
    """
    newest = base.manifest
    _check_exists(head, newest)
    ahead_us = timestamp_us - base.date_us
    if ahead_us > _CLOCKS_DIFFER_US:
        days, seconds = divmod(ahead_us // SECOND_US, DAY_US // SECOND_US)
        ahead = f"{days:,} days and {seconds // 3600} hours" if days else f"{seconds:,} seconds"
        raise UnsettledTimestampError(f"that time is {ahead} in the future by the store's clock: give an earlier one")
    if settled and not is_settled(base, timestamp_us):
        raise UnsettledTimestampError(
            f"by the store's clock that time is {max(-ahead_us, 0) // SECOND_US:,} seconds ago, and no later commit "
            "exists: for 20 minutes a commit under way may still get an earlier time. The newest version is "
            f"{newest.version}: {instead}"
        )
    if newest.created_at <= timestamp_us:
        return newest
    for entry in chain(reversed(newest.history), _spilled_history(head, newest, timestamp_us)):
        if entry.created_at <= timestamp_us and entry.version >= newest.horizon:
            return manifest_of(head, entry)
    if newest.horizon > 1:
        raise VersionExpiredError(f"that time is before version {newest.horizon}, the oldest kept")
    raise VersionNotFoundError("the database did not exist at that time: give a later one")


def is_settled(base: Base, timestamp_us: int) -> bool:
    """Whether it is final which version was the newest at a time: a later one exists, or 20 minutes have passed."""
    return base.manifest.created_at > timestamp_us or timestamp_us <= base.date_us - SETTLED_AFTER_US


def _spilled_history(head: Head, newest: Manifest, timestamp_us: int) -> Iterator[HistoryEntry]:
    """History in segments, newest first, without segments that are entirely younger: at most two GETs."""
    segments = newest.segments_of("history")
    for index in range(len(segments) - 1, -1, -1):
        if index == 0 or segments[index - 1].created_at <= timestamp_us:
            yield from reversed(head.segments.history(segments[index]))


def manifest_of(head: Head, entry: HistoryEntry) -> Manifest:
    """Reads the manifest of a version that a later version names. Raises VersionExpiredError."""
    manifest = head.read_kept(entry.manifest, entry.version, entry.commit_id)
    if not manifest.as_history().is_same_commit(entry):
        raise CorruptionError(
            entry.manifest, f"it is of commit {manifest.commit_id}, but later versions name {entry.commit_id} there"
        )
    return manifest


def newest_at(head: Head, manifest: Manifest, time_us: int) -> int:
    """The version that was the newest at a time; 0 if there was none, or if it has left the history."""
    if manifest.created_at <= time_us:
        return manifest.version
    entries = chain(reversed(manifest.history), _spilled_history(head, manifest, time_us))
    return next((entry.version for entry in entries if entry.created_at <= time_us), 0)
