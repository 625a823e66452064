"""Plans a collection with a few requests: how far horizon and fence may move, and which jobs are dead.

Intents in a collection: finds dead jobs, and deletes the objects that they left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dolmen.base.units import HOUR_US
from dolmen.commit.head import Head
from dolmen.commit.uploads import INTENT_PREFIX, Heartbeat, parse_intent_key
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.manifest import HistoryEntry, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.erasures.erasure_work import ErasureWork, erasure_work
from dolmen.maintenance.gc.deletion import ObjectDeleter, directories, hour_floor, hour_prefix
from dolmen.maintenance.gc.mark import KeySet
from dolmen.maintenance.gc.sweep import has_come_of_age, sweepable
from dolmen.store.base import ObjectInfo, ObjectStore

SLACK_US = HOUR_US
"""An object counts as older than a moment only if it is older by this much, because clocks of servers differ."""


@dataclass
class KnownIntent:
    """An intent, as the listing shows it.

    Args:
        objects: its heartbeats, and the ``done`` object if there is one.
        done: whether its commit has landed.
    """

    txid: str
    objects: list[ObjectInfo] = field(default_factory=list)
    done: bool = False

    @property
    def first_us(self) -> int:
        """Time of its first heartbeat."""
        return min(info.last_modified_us for info in self.objects)

    @property
    def last_us(self) -> int:
        """Time of its last object."""
        return max(info.last_modified_us for info in self.objects)


def intents(store: ObjectStore) -> dict[str, KnownIntent]:
    """All intents in the store, by txid."""
    found: dict[str, KnownIntent] = {}
    for info in store.list(INTENT_PREFIX):
        parsed = parse_intent_key(info.key)
        if parsed:
            txid, done = parsed
            intent = found.setdefault(txid, KnownIntent(txid))
            intent.objects.append(info)
            intent.done |= done
    return found


def dead_jobs(known: dict[str, KnownIntent], manifest: Manifest, before_us: int) -> tuple[str, ...]:
    """Txids of jobs to revoke: those without a heartbeat since ``before_us``."""
    return tuple(
        sorted(
            intent.txid
            for intent in known.values()
            if not intent.done and intent.last_us < before_us and intent.txid not in manifest.revoked_intents
        )
    )


def finished_intents(known: dict[str, KnownIntent], manifest: Manifest) -> list[KnownIntent]:
    """Intents that are no longer needed, or will not be once their job's objects are deleted."""
    return [intent for intent in known.values() if intent.done or intent.txid in manifest.revoked_intents]


def clear_intent(
    store: ObjectStore, deleter: ObjectDeleter, intent: KnownIntent, manifest: Manifest, kept: KeySet | None
) -> None:
    """Deletes the objects of a revoked job, and then its intent.

    Args:
        manifest: the manifest of the commit that revoked it, or a later one.
        kept: keys of the objects to keep; not needed for a job that is done.
    """
    failed: set[str] = set()
    if not intent.done:
        assert kept is not None
        before_us = manifest.revoked_intents[intent.txid] - SLACK_US
        left = [info for info in _objects_of(store, intent, before_us) if info.last_modified_us < before_us]
        held = kept.holds([info.key for info in left])
        gone = [info for info, needed in zip(left, held.tolist(), strict=True) if not needed]
        failed = deleter.erase("revoked", [info.key for info in gone], [info.size for info in gone])
    if not failed:  # otherwise the next run needs the intent to find them
        infos = sorted(intent.objects, key=lambda info: info.key)  # "done" comes last
        deleter.erase("intents", [info.key for info in infos], [info.size for info in infos])


def _objects_of(store: ObjectStore, intent: KnownIntent, until_us: int) -> Iterator[ObjectInfo]:
    """Objects named after the intent in the hours in which its job was alive. Any others become orphans."""
    heartbeat = _first_heartbeat(store, intent.objects)
    tables: Sequence[str] = heartbeat.tables if heartbeat else ()
    started_us = min(intent.first_us, (heartbeat and heartbeat.started_us) or intent.first_us)
    kinds = "data", "tombstone"
    places = [f"{kind}/{table}/" for kind in kinds for table in tables] or [
        directory for kind in kinds for directory in directories(store, kind)
    ]
    until_us = min(until_us, intent.last_us) + HOUR_US
    for hour_us in range(hour_floor(started_us) - HOUR_US, until_us, HOUR_US):
        for place in places:
            yield from store.list(f"{hour_prefix(place, hour_us)}{intent.txid}-")


def _first_heartbeat(store: ObjectStore, objects: Sequence[ObjectInfo]) -> Heartbeat | None:
    """The first heartbeat; None if it cannot be read, and then objects are looked for under all tables."""
    for info in objects:
        if info.key.endswith("/0.json"):
            try:
                return Heartbeat.decode(store.get(info.key).body, info.key)
            except (ObjectNotFoundError, CorruptionError, UnsupportedFormatError):
                return None
    return None


OPERATION = "gc"
"""The operation of collection's commits in the history. These commits alone are no reason to collect again."""


@dataclass(frozen=True)
class CollectionPlan:
    """The plan of a collection.

    Args:
        now_us: the server's clock.
        horizon_before: the horizon so far.
        horizon, orphan_cutoff, revoke, applied_before: values for the commit that moves the fence; the present ones if
            nothing is to move.
        moves: whether that commit is needed.
        sweep: whether there may be orphans that are old enough to delete.
        erasures: what is to be done for erasures.
        intents: all intents, by txid.
    """

    now_us: int
    horizon_before: int
    horizon: int
    orphan_cutoff: int
    revoke: tuple[str, ...]
    applied_before: int
    moves: bool
    sweep: bool
    erasures: ErasureWork
    intents: dict[str, KnownIntent]


def plan(head: Head, manifest: Manifest, settings: DatabaseSettings, *, full: bool = False) -> CollectionPlan:
    """Plans a collection on a version that was just read."""
    now_us = head.server_now(manifest)
    known = intents(head.store)
    # Objects of expired versions are deleted first, so that the grace of their readers does not begin again.
    horizon = next_horizon(head, manifest, settings, now_us) if has_deleted_expired(manifest) else manifest.horizon
    erasures = erasure_work(manifest, head.segments, settings, now_us, horizon)
    if not has_deleted_expired(manifest):
        erasures = erasures.without_expiry()
    orphan_cutoff = max(manifest.orphan_cutoff, now_us - settings.orphan_age_us)
    revoke = dead_jobs(known, manifest, now_us - settings.intent_timeout_us)
    applied_before = now_us - settings.applied_retention_us
    forgets = any(segment.created_at < applied_before for segment in manifest.segments_of("applied"))
    sweep = (
        full
        or _has_erased_orphans(manifest, orphan_cutoff)
        or has_come_of_age(head, manifest, sweepable(orphan_cutoff))
    )
    ends = any(0 < tag.until <= now_us for tag in manifest.tags.values())
    moves = horizon > manifest.horizon or bool(revoke) or forgets or sweep or ends or erasures.moves(manifest.horizon)
    return CollectionPlan(
        now_us, manifest.horizon, horizon, orphan_cutoff, revoke, applied_before, moves, sweep, erasures, known
    )


def _has_erased_orphans(manifest: Manifest, orphan_cutoff: int) -> bool:
    """Whether orphans must be searched for because they may contain rows of an erasure."""
    return any(manifest.swept < each.left_at <= sweepable(orphan_cutoff) for each in manifest.leaving)


def has_deleted_expired(manifest: Manifest) -> bool:
    """Whether the objects of all expired versions are deleted."""
    return manifest.freed >= manifest.horizon


def last_deletable_version(manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """The version up to which objects may be deleted: the horizon, once readers of older versions had time to end."""
    over = manifest.horizon_at + settings.reader_grace_us <= now_us
    return manifest.horizon if over else min(manifest.freed, manifest.horizon)


def next_horizon(head: Head, manifest: Manifest, settings: DatabaseSettings, now_us: int) -> int:
    """The oldest version to keep; the present horizon when moving it is not worth a commit.

    A version is kept if it was the newest at some time within the retention, if it is among the newest
    ``keep_versions``, or if a cursor still needs it. A tag keeps its version alone.
    """
    horizon = manifest.horizon
    held = (cursor.version for cursor in manifest.cursors.values() if cursor.holds(now_us))
    oldest_kept = min([manifest.version - settings.keep_versions + 1, *held])
    if oldest_kept > horizon:
        oldest_kept = min(oldest_kept, newest_at(head, manifest, now_us - settings.retention_us))
    return oldest_kept if oldest_kept > horizon and _worth_it(head, manifest, horizon, oldest_kept) else horizon


def newest_at(head: Head, manifest: Manifest, time_us: int) -> int:
    """The version that was the newest at a time; 0 if there was none, or if it has left the history."""
    if manifest.created_at <= time_us:
        return manifest.version
    found = _last(manifest.history, time_us)
    segments = manifest.segments_of("history")
    for index in range(len(segments) - 1, -1, -1):
        if found:
            break
        if index and segments[index - 1].created_at > time_us:
            continue  # all entries of this segment are younger
        found = _last(head.segments.history(segments[index]), time_us)
    return found


def _last(history: Sequence[HistoryEntry], time_us: int) -> int:
    return next((entry.version for entry in reversed(history) if entry.created_at <= time_us), 0)


def _worth_it(head: Head, manifest: Manifest, horizon: int, oldest_kept: int) -> bool:
    """Whether more than collection's own commits would expire. Else an idle database would never stop committing."""
    if any(segment.greatest > horizon and segment.least <= oldest_kept for segment in manifest.segments_of("released")):
        return True
    if any(horizon < entry.version <= oldest_kept for entry in manifest.released):
        return True
    if any(_expires(entry, horizon, oldest_kept) for entry in manifest.history):
        return True
    older = (s for s in manifest.segments_of("history") if s.least < oldest_kept and s.greatest >= horizon)
    return any(_expires(entry, horizon, oldest_kept) for segment in older for entry in head.segments.history(segment))


def _expires(entry: HistoryEntry, horizon: int, oldest_kept: int) -> bool:
    return horizon <= entry.version < oldest_kept and entry.operation != OPERATION
