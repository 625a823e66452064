"""Intents in a collection: finds dead jobs, and deletes the objects that they left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dolmen.base.units import HOUR_US
from dolmen.commit.intent import PREFIX, Heartbeat, parse_intent_key
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc.eraser import ObjectEraser
from dolmen.maintenance.gc.keyset import KeySet
from dolmen.maintenance.gc.names import directories, hour_floor, hour_prefix
from dolmen.store.base import ObjectInfo, ObjectStore

SLACK_US = HOUR_US
"""An object counts as older than a moment only if it is older by this much, as clocks of servers differ."""


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
    for info in store.list(PREFIX):
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
    store: ObjectStore, eraser: ObjectEraser, intent: KnownIntent, manifest: Manifest, kept: KeySet | None
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
        failed = eraser.erase("revoked", [info.key for info in gone], [info.size for info in gone])
    if not failed:  # otherwise the next run needs the intent to find them
        infos = sorted(intent.objects, key=lambda info: info.key)  # "done" comes last
        eraser.erase("intents", [info.key for info in infos], [info.size for info in infos])


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
