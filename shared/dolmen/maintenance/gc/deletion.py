"""Deletes objects in batches, checks the outcome of every key, and sweeps what no commit can still name.

Data and tombstone objects have their hour in the name, so a sweep goes on where the last one ended. Segments have no
date in their names and are few. Manifests are listed from the version that was the newest at the last sweep.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from heapq import merge
from itertools import chain

import numpy as np
import numpy.typing as npt

from dolmen.base.runtime import cached_property
from dolmen.base.units import HOUR_US, SECOND_US
from dolmen.commit.head import Head
from dolmen.commit.uploads import INTENT_PREFIX, Heartbeat, parse_intent_key
from dolmen.commit.versions import commits
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.layout import data_key, is_adopted, manifest_key, parse_manifest_key, tombstone_key
from dolmen.format.manifest import Manifest, Released
from dolmen.store.base import ObjectInfo, ObjectStore

BATCH = 1000
"""The number of objects that are deleted at once. A run may stop between two batches."""

SLACK_US = HOUR_US
"""An object counts as older than a moment only if it is older by this much: clocks of servers differ, and S3 dates an
upload in parts from its beginning."""

MARGIN_US = 48 * HOUR_US
"""How much older a name may be than its upload (a slow upload, an idle process) to be found by an ordinary sweep. Older
names are found by a full sweep only."""

_KINDS = ("data", "tombstone")

Codes = npt.NDArray[np.int64]


def stable_code(key: str) -> int:
    """64 bits of a key that are the same in every process, unlike Python's ``hash`` of a text."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)


def stable_codes(keys: Iterable[str]) -> Codes:
    """The codes of keys, ascending and without repetitions."""
    return np.unique(np.fromiter(map(stable_code, keys), np.int64))


class KeySet:
    """A set of sorted 64-bit hashes of keys: no false negatives, and false positives with a probability of 2^-64."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._codes = array("q", map(hash, keys))
        self._code: Callable[[str], int] = hash

    @classmethod
    def of_codes(cls, parts: Sequence[Codes]) -> KeySet:
        found = cls(())
        found._code = stable_code
        for part in parts:
            found._codes.frombytes(np.ascontiguousarray(part, np.int64).tobytes())
        return found

    @cached_property
    def _sorted(self) -> Codes:
        codes = np.frombuffer(self._codes, np.int64).copy()
        self._codes = array("q")
        codes.sort()
        return codes

    def __len__(self) -> int:
        return len(self._sorted)

    def holds(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        codes = np.fromiter(map(self._code, keys), np.int64, len(keys))
        ordered = self._sorted
        if not len(ordered):
            return np.zeros(len(keys), np.bool_)
        indexes = np.minimum(np.searchsorted(ordered, codes), len(ordered) - 1)
        is_needed: npt.NDArray[np.bool_] = ordered[indexes] == codes
        return is_needed

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.holds([key])[0])


@dataclass(frozen=True)
class Amount:
    """A number of objects, and their size as far as it is known."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.objects + other.objects, self.bytes + other.bytes)


class ObjectDeleter:
    """Deletes objects, or only counts them in a dry run. It never deletes adopted files."""

    def __init__(self, store: ObjectStore, *, dry_run: bool = False) -> None:
        self._store, self._dry_run = store, dry_run
        self.deleted: dict[str, Amount] = {}
        self.errors: dict[str, str] = {}

    def erase(self, reason: str, keys: Sequence[str], sizes: Sequence[int] = ()) -> set[str]:
        """Deletes objects, and counts them by the reason. Returns the keys that could not be deleted."""
        if any(is_adopted(key) for key in keys):  # they are others' files, which nothing here deletes
            sizes = [size for key, size in zip(keys, sizes, strict=False) if not is_adopted(key)]
            keys = [key for key in keys if not is_adopted(key)]
        failed: set[str] = set()
        for start in range(0, len(keys), BATCH):
            some = keys[start : start + BATCH]
            if not self._dry_run:
                for outcome in self._store.delete(some):
                    if outcome.error is not None:
                        failed.add(outcome.key)
                        self.errors[outcome.key] = outcome.error
        size = sum(size for key, size in zip(keys, sizes, strict=False) if key not in failed)
        done = Amount(len(keys) - len(failed), size)
        if done.objects:
            self.deleted[reason] = self.deleted.get(reason, Amount()) + done
        return failed

    def erase_listed(self, reason: str, infos: Sequence[ObjectInfo]) -> set[str]:
        return self.erase(reason, [info.key for info in infos], [info.size for info in infos])


_DATED = re.compile(r"(?:data|tombstone)/[a-z0-9_]{1,64}/(\d{4})/(\d\d)/(\d\d)/(\d\d)/[^/]+")

_AFTER_DATES = "~"  # sorts after every digit


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
    last = ""
    while True:
        first = next(iter(store.list(f"{kind}/", last)), None)
        if first is None:
            return
        parts = first.key.split("/")
        if len(parts) < 3:  # not an object of dolmen
            last = first.key
            continue
        directory = f"{kind}/{parts[1]}/"
        if hour_of(f"{directory}2000/01/01/00/x") is not None:  # a table's name
            yield directory
        last = directory + _AFTER_DATES


def released_since(manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[Released]:
    """Yields what commits after version ``after`` released, oldest first."""
    for segment in manifest.segments_of("released"):
        if segment.greatest > after:
            yield from (entry for entry in reader.released(segment) if entry.version > after)
    yield from (entry for entry in manifest.released if entry.version > after)


@dataclass
class KnownIntent:
    """An intent: its heartbeats, and the ``done`` object if its commit has landed."""

    txid: str
    objects: list[ObjectInfo] = field(default_factory=list)
    done: bool = False

    @property
    def first_us(self) -> int:
        return min(info.last_modified_us for info in self.objects)

    @property
    def last_us(self) -> int:
        return max(info.last_modified_us for info in self.objects)


def intents(store: ObjectStore) -> dict[str, KnownIntent]:
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
    """Deletes the objects of a revoked job, and then its intent. A job that is done needs no ``kept``."""
    failed: set[str] = set()
    if not intent.done:
        assert kept is not None
        before_us = manifest.revoked_intents[intent.txid] - SLACK_US
        left = [info for info in _objects_of(store, intent, before_us) if info.last_modified_us < before_us]
        is_needed = kept.holds([info.key for info in left])
        gone = [info for info, needed in zip(left, is_needed.tolist(), strict=True) if not needed]
        failed = deleter.erase_listed("revoked", gone)
    if not failed:  # otherwise the next run needs the intent to find them
        deleter.erase_listed("intents", sorted(intent.objects, key=lambda info: info.key))  # "done" comes last


def _objects_of(store: ObjectStore, intent: KnownIntent, until_us: int) -> Iterator[ObjectInfo]:
    """Objects named after the intent in the hours in which its job was alive. Any others become orphans."""
    heartbeat = _first_heartbeat(store, intent.objects)
    tables: Sequence[str] = heartbeat.tables if heartbeat else ()
    started_us = min(intent.first_us, (heartbeat and heartbeat.started_us) or intent.first_us)
    kinds = "data", "tombstone"
    searched = [f"{kind}/{table}/" for kind in kinds for table in tables] or [
        directory for kind in kinds for directory in directories(store, kind)
    ]
    until_us = min(until_us, intent.last_us) + HOUR_US
    for hour_us in range(hour_floor(started_us) - HOUR_US, until_us, HOUR_US):
        for where in searched:
            yield from store.list(f"{hour_prefix(where, hour_us)}{intent.txid}-")


def _first_heartbeat(store: ObjectStore, objects: Sequence[ObjectInfo]) -> Heartbeat | None:
    """The first heartbeat; None if it cannot be read, and then objects are looked for under all tables."""
    for info in objects:
        if info.key.endswith("/0.json"):
            try:
                return Heartbeat.decode(store.get(info.key).body, info.key)
            except (ObjectNotFoundError, CorruptionError, UnsupportedFormatError):
                return None
    return None


def sweepable(orphan_cutoff: int) -> int:
    """The time before which unmodified orphans may be deleted when the fence is at ``orphan_cutoff``: a full hour."""
    return max(0, hour_floor(orphan_cutoff - SLACK_US))


def has_come_of_age(head: Head, manifest: Manifest, before_us: int) -> bool:
    """Whether a sweep has anything to look at: objects older than ``before_us``, and younger than the last sweep.

    Costs a request or two for each table. If nothing was written since, it also lists the hours before the last sweep,
    because names may be older than their objects.
    """
    since_us, store = manifest.swept, head.store
    if before_us <= since_us:
        return False
    for directory in _directories(store):
        start = hour_prefix(directory, since_us)
        for info in store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:
                if hour < before_us:
                    return True
                break
    if any(since_us <= info.last_modified_us < before_us for info in store.list("segment/")):
        return True
    for directory in _directories(store):
        for info in store.list(directory, hour_prefix(directory, max(0, since_us - MARGIN_US))):
            if (hour_of(info.key) or 0) >= since_us:
                break
            if since_us <= info.last_modified_us < before_us:
                return True
    return any(info.last_modified_us < before_us for info in _losers(head, manifest, since_us))


@dataclass(frozen=True)
class Swept:
    """The progress of a sweep: orphans before ``swept`` are deleted, and ``waiting`` are too young."""

    swept: int
    complete: bool
    waiting: Amount


@dataclass
class Sweep:
    """Deletes orphans last modified before ``before_us``, by the manifest that moved the fence, or a later one.

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

    def run(self) -> Swept:
        """Sweeps from the oldest hour to the newest, over all tables at once, and returns the progress."""
        start_us = self.manifest.swept
        undated = chain(self.head.store.list("segment/"), _losers(self.head, self.manifest, self._from_us))
        if self._sweep((0, info) for info in undated) is not None:
            return self._result(start_us, complete=False)
        # Data and tombstone objects have hours in their names.
        dated = merge(*map(self._in_directory, _directories(self.head.store)), key=lambda item: item[0])
        reached_us = self._sweep(dated)
        return self._result(self.before_us if reached_us is None else reached_us, complete=reached_us is None)

    def _result(self, reached_us: int, *, complete: bool) -> Swept:
        if self._failed_us is not None:
            reached_us = min(reached_us, self._failed_us)
        return Swept(max(self.manifest.swept, min(reached_us, self.before_us)), complete, self._waiting)

    def _sweep(self, dated: Iterable[tuple[int, ObjectInfo]]) -> int | None:
        """Deletes orphans. Returns None at the end, or the hour that it had reached at the deadline."""
        batch: list[tuple[int, ObjectInfo]] = []
        for item in dated:
            batch.append(item)
            if len(batch) >= BATCH:
                self._judge(batch)
                batch = []
                if self.deadline():
                    return item[0]
        self._judge(batch)
        return None

    def _judge(self, batch: list[tuple[int, ObjectInfo]]) -> None:
        is_needed = self.kept.holds([info.key for _, info in batch]).tolist()
        orphans = [item for item, needed in zip(batch, is_needed, strict=True) if not needed]
        old = [item for item in orphans if item[1].last_modified_us < self.before_us]
        young = [info.size for _, info in orphans if info.last_modified_us >= self.before_us]
        self._waiting += Amount(len(young), sum(young))
        if not old:
            return
        failed = self.deleter.erase_listed("orphans", [info for _, info in old])
        hours = [hour for hour, info in old if info.key in failed]
        if hours:
            self._failed_us = min(hours + ([] if self._failed_us is None else [self._failed_us]))

    def _in_directory(self, directory: str) -> Iterator[tuple[int, ObjectInfo]]:
        start = hour_prefix(directory, self._from_us) if self._from_us else ""
        for info in self.head.store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:  # otherwise not an object of dolmen
                yield hour, info


def _directories(store: ObjectStore) -> Iterator[str]:
    for kind in _KINDS:
        yield from directories(store, kind)


def _losers(head: Head, manifest: Manifest, since_us: int) -> Iterator[ObjectInfo]:
    """Manifests of attempts that lost since then, and somewhat before; oldest first.

    A slow PUT may land long after another attempt took its version.
    """
    winners: list[str] = []
    oldest = manifest.version
    for entry in commits(head, manifest):
        if entry.version < oldest - 1:
            break  # without its history it is unknown which attempt won
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
