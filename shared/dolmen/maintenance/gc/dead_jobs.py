"""Finds jobs that died, by the heartbeats of their intents, and deletes what a revoked job has uploaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dolmen.base.units import HOUR_US
from dolmen.commit.uploads import INTENT_PREFIX, Heartbeat, parse_intent_key
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc.deletion import ObjectDeleter
from dolmen.maintenance.gc.mark import KeySet
from dolmen.maintenance.gc.sweep import KINDS, SLACK_US, all_directories, hour_floor, hour_prefix
from dolmen.store.base import ObjectInfo, ObjectStore


@dataclass
class ListedIntent:
    """The objects of an intent: its heartbeats, and the ``done`` object if its commit has landed."""

    txid: str
    objects: list[ObjectInfo] = field(default_factory=list)
    done: bool = False

    @property
    def first_us(self) -> int:
        return min(info.last_modified_us for info in self.objects)

    @property
    def last_us(self) -> int:
        return max(info.last_modified_us for info in self.objects)


def list_intents(store: ObjectStore) -> dict[str, ListedIntent]:
    intents: dict[str, ListedIntent] = {}
    for info in store.list(INTENT_PREFIX):
        if parsed := parse_intent_key(info.key):
            intent = intents.setdefault(parsed[0], ListedIntent(parsed[0]))
            intent.objects.append(info)
            intent.done |= parsed[1]
    return intents


def dead_jobs(intents: dict[str, ListedIntent], manifest: Manifest, before_us: int) -> tuple[str, ...]:
    """Txids of jobs to revoke: jobs without a heartbeat since ``before_us``."""
    silent = {intent.txid for intent in intents.values() if not intent.done and intent.last_us < before_us}
    return tuple(sorted(silent.difference(manifest.revoked_intents)))


def finished_intents(intents: dict[str, ListedIntent], manifest: Manifest) -> list[ListedIntent]:
    """Intents to delete: their job is done, or it was revoked and its objects go first."""
    return [intent for intent in intents.values() if intent.done or intent.txid in manifest.revoked_intents]


def clear_intent(
    store: ObjectStore, deleter: ObjectDeleter, intent: ListedIntent, manifest: Manifest, kept: KeySet | None
) -> None:
    """Deletes the objects of a revoked job, and then its intent. ``kept`` may be None for a job that is done."""
    failed: set[str] = set()
    if not intent.done:
        assert kept is not None
        before_us = manifest.revoked_intents[intent.txid] - SLACK_US
        uploads = [info for info in _objects_of(store, intent, before_us) if info.last_modified_us < before_us]
        is_needed = kept.holds([info.key for info in uploads])
        garbage = [info for info, needed in zip(uploads, is_needed.tolist(), strict=True) if not needed]
        failed = deleter.erase_listed("revoked", garbage)
    if not failed:  # otherwise the next run needs the intent to find them
        deleter.erase_listed("intents", sorted(intent.objects, key=lambda info: info.key))  # "done" comes last


def _objects_of(store: ObjectStore, intent: ListedIntent, until_us: int) -> Iterator[ObjectInfo]:
    """Objects named after the intent in the hours in which its job was alive. Other objects become orphans."""
    heartbeat = _first_heartbeat(store, intent.objects)
    tables: Sequence[str] = heartbeat.tables if heartbeat else ()
    started_us = min(intent.first_us, (heartbeat and heartbeat.started_us) or intent.first_us)
    named = [f"{kind}/{table}/" for kind in KINDS for table in tables]
    directories = named or list(all_directories(store))
    until_us = min(until_us, intent.last_us) + HOUR_US
    for hour_us in range(hour_floor(started_us) - HOUR_US, until_us, HOUR_US):
        for directory in directories:
            yield from store.list(f"{hour_prefix(directory, hour_us)}{intent.txid}-")


def _first_heartbeat(store: ObjectStore, objects: Sequence[ObjectInfo]) -> Heartbeat | None:
    """The first heartbeat; None if it cannot be read, so that the objects of all tables are searched."""
    for info in objects:
        if info.key.endswith("/0.json"):
            try:
                return Heartbeat.decode(store.get(info.key).body, info.key)
            except (ObjectNotFoundError, CorruptionError, UnsupportedFormatError):
                return None
    return None
