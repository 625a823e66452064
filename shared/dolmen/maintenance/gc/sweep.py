"""The sweep: deletes orphans, which are objects that no commit can name any more, and the uploads of dead jobs.

A job without a recent heartbeat counts as dead. Its uploads are named after its intent, so they are deleted days before
a sweep would find them.

The names of data and tombstone objects contain an hour, so a sweep begins where the last one ended. Segments have no
date in their names and are few. Manifests are listed from the version that was the newest at the last sweep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from itertools import chain, islice

from msgspec import Struct

from dolmen.base.units import HOUR_US, SECOND_US
from dolmen.commit.head import Head
from dolmen.commit.uploads import INTENT_PREFIX, Heartbeat, parse_intent_key
from dolmen.commit.versions import commits
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.layout import data_key, manifest_key, parse_manifest_key, tombstone_key
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc.deletion import BATCH, Amount, ObjectDeleter
from dolmen.maintenance.gc.mark import KeySet
from dolmen.store.base import ObjectInfo, ObjectStore, folders

SLACK_US = HOUR_US
"""An object is deleted only once it is older than the limit by this much: clocks of servers differ, and S3 dates an
upload in parts from its beginning."""

MARGIN_US = 48 * HOUR_US
"""A sweep begins this long before the end of the last one, because objects may be uploaded later than the hour in their
names (a slow upload, an idle process). Only a full sweep finds objects that were uploaded later still."""

KINDS = ("data", "tombstone")

_DATED = re.compile(r"(?:data|tombstone)/[a-z0-9_]{1,64}/(\d{4})/(\d\d)/(\d\d)/(\d\d)/[^/]+")


def hour_floor(time_us: int) -> int:
    return time_us - time_us % HOUR_US


def hour_of(key: str) -> int | None:
    """The hour in which a data or tombstone object was named, in microseconds; None for other names."""
    match = _DATED.fullmatch(key)
    if match is None:
        return None
    try:
        year, month, day, hour = map(int, match.groups())
        return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * SECOND_US
    except ValueError:
        return None


def hour_prefix(directory: str, time_us: int) -> str:
    """``data/<table>/YYYY/MM/DD/HH/``, or the same under ``tombstone/``, for a directory ``data/<table>/``."""
    kind, table, _ = directory.split("/")
    name = {"data": data_key, "tombstone": tombstone_key}[kind](table, max(time_us, 0), "")
    return name[: name.rindex("/") + 1]


def directories(store: ObjectStore, kind: str) -> Iterator[str]:
    """Yields ``<kind>/<table>/`` of every table with objects, dropped tables included: one request each."""
    for name in folders(store, f"{kind}/"):
        directory = f"{kind}/{name}/"
        if hour_of(f"{directory}2000/01/01/00/x") is not None:  # else the directory is not named after a table
            yield directory


def sweep_cutoff(orphan_cutoff: int) -> int:
    """The full hour before which orphans must have been last modified to be deleted.

    ``orphan_cutoff``: the time at which the fence is: see ``dolmen.maintenance.gc.collection``.
    """
    return max(0, hour_floor(orphan_cutoff - SLACK_US))


def has_objects_to_sweep(head: Head, manifest: Manifest, before_us: int) -> bool:
    """Whether there are objects older than ``before_us`` and younger than the last sweep.

    Costs a request or two for each table. If no name is younger than the last sweep, it also lists the hours before it,
    because objects may be uploaded later than the hours in their names.
    """
    since_us, store = manifest.swept, head.store
    if before_us <= since_us:
        return False
    for directory in all_directories(store):
        start = hour_prefix(directory, since_us)
        for info in store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:
                if hour < before_us:
                    return True
                break
    if any(since_us <= info.last_modified_us < before_us for info in store.list("segment/")):
        return True
    for directory in all_directories(store):
        for info in store.list(directory, hour_prefix(directory, max(0, since_us - MARGIN_US))):
            if (hour_of(info.key) or 0) >= since_us:
                break
            if since_us <= info.last_modified_us < before_us:
                return True
    return any(info.last_modified_us < before_us for info in _lost_manifests(head, manifest, since_us))


class SweepProgress(Struct, frozen=True):
    """The progress of a sweep: orphans before ``swept`` (µs) are deleted; ``waiting`` counts those still too young."""

    swept: int
    is_complete: bool
    waiting: Amount


@dataclass
class Sweep:
    """Deletes orphans last modified before ``before_us``. Needs the manifest that moved the fence
    (``orphan_cutoff``), or a later one.

    If ``full``, it looks at all objects, not only at those younger than the last sweep.
    """

    head: Head
    deleter: ObjectDeleter
    manifest: Manifest
    kept: KeySet
    before_us: int
    deadline: Callable[[], bool]
    full: bool = False

    def __post_init__(self) -> None:
        self._from_us = 0 if self.full else max(0, self.manifest.swept - MARGIN_US)
        self._waiting = Amount()
        self._failed_us: int | None = None

    def run(self) -> SweepProgress:
        """Sweeps from the oldest hour to the newest, over all tables at once, and returns the progress."""
        start_us = self.manifest.swept
        undated = chain(self.head.store.list("segment/"), _lost_manifests(self.head, self.manifest, self._from_us))
        if self._sweep((0, info) for info in undated) is not None:
            return self._result(start_us, is_complete=False)
        # Data and tombstone objects have hours in their names.
        dated = merge(*map(self._in_directory, all_directories(self.head.store)), key=lambda item: item[0])
        reached_us = self._sweep(dated)
        return self._result(self.before_us if reached_us is None else reached_us, is_complete=reached_us is None)

    def _result(self, reached_us: int, *, is_complete: bool) -> SweepProgress:
        if self._failed_us is not None:
            reached_us = min(reached_us, self._failed_us)
        return SweepProgress(max(self.manifest.swept, min(reached_us, self.before_us)), is_complete, self._waiting)

    def _sweep(self, dated: Iterable[tuple[int, ObjectInfo]]) -> int | None:
        """Deletes orphans. Returns None at the end, or the hour that it had reached at the deadline."""
        remaining = iter(dated)
        while batch := list(islice(remaining, BATCH)):
            self._delete_orphans(batch)
            if len(batch) == BATCH and self.deadline():
                return batch[-1][0]
        return None

    def _delete_orphans(self, batch: list[tuple[int, ObjectInfo]]) -> None:
        """Deletes the orphans of a batch that are old enough, and counts the others."""
        is_needed = self.kept.member_mask([info.key for _, info in batch]).tolist()
        orphans = [item for item, needed in zip(batch, is_needed, strict=True) if not needed]
        old = [item for item in orphans if item[1].last_modified_us < self.before_us]
        young = [info.size for _, info in orphans if info.last_modified_us >= self.before_us]
        self._waiting += Amount(len(young), sum(young))
        if not old:
            return
        failed = self.deleter.delete_listed("orphans", [info for _, info in old])
        hours = [hour for hour, info in old if info.key in failed]
        if hours:
            self._failed_us = min(hours + ([] if self._failed_us is None else [self._failed_us]))

    def _in_directory(self, directory: str) -> Iterator[tuple[int, ObjectInfo]]:
        start = hour_prefix(directory, self._from_us) if self._from_us else ""
        for info in self.head.store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:  # otherwise not an object of dolmen
                yield hour, info


def all_directories(store: ObjectStore) -> Iterator[str]:
    for kind in KINDS:
        yield from directories(store, kind)


def _lost_manifests(head: Head, manifest: Manifest, since_us: int) -> Iterator[ObjectInfo]:
    """Manifests of attempts that lost since that time, or shortly before; oldest first.

    A slow PUT may land long after another attempt took its version.
    """
    winners: list[str] = []
    oldest = manifest.version
    for entry in commits(head, manifest):
        if entry.version < oldest - 1:
            break  # a version is missing in the history, so which attempts won before it is unknown
        winners.append(entry.manifest)
        oldest = entry.version
        if entry.created_at < since_us - SLACK_US:
            break
    won = KeySet(winners)
    for info in head.store.list("manifest/", manifest_key(oldest, "")):
        parsed = parse_manifest_key(info.key)
        if parsed is None or parsed[0] < oldest:
            continue
        if parsed[0] > manifest.version:  # it may still be committed
            return
        if info.key not in won:
            yield info


@dataclass
class ListedIntent:
    """The objects of an intent: its heartbeats, and the ``done`` object if its commit has landed.

    ``txid`` is the intent's id, which the names of its objects have.
    """

    txid: str
    objects: list[ObjectInfo] = field(default_factory=list)
    is_done: bool = False

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
            intent.is_done |= parsed[1]
    return intents


def dead_jobs(intents: dict[str, ListedIntent], manifest: Manifest, before_us: int) -> tuple[str, ...]:
    """The ids of the intents to revoke: those of jobs without a heartbeat since ``before_us``."""
    silent = {intent.txid for intent in intents.values() if not intent.is_done and intent.last_us < before_us}
    return tuple(sorted(silent.difference(manifest.revoked_intents)))


def intents_to_clear(intents: dict[str, ListedIntent], manifest: Manifest) -> list[ListedIntent]:
    """Intents to delete: their jobs are done, or were revoked; the objects of revoked jobs are deleted first."""
    return [intent for intent in intents.values() if intent.is_done or intent.txid in manifest.revoked_intents]


def clear_intent(
    store: ObjectStore, deleter: ObjectDeleter, intent: ListedIntent, manifest: Manifest, kept: KeySet | None
) -> None:
    """Deletes the objects of a revoked job, and then its intent. ``kept`` may be None for a job that is done."""
    failed: set[str] = set()
    if not intent.is_done:
        assert kept is not None
        before_us = manifest.revoked_intents[intent.txid] - SLACK_US
        uploads = [info for info in _objects_of(store, intent, before_us) if info.last_modified_us < before_us]
        is_needed = kept.member_mask([info.key for info in uploads])
        garbage = [info for info, needed in zip(uploads, is_needed.tolist(), strict=True) if not needed]
        failed = deleter.delete_listed("revoked", garbage)
    if not failed:  # otherwise the next run needs the intent to find them
        deleter.delete_listed("intents", sorted(intent.objects, key=lambda info: info.key))  # "done" comes last


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
