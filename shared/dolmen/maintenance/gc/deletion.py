"""Deletes objects in batches, and checks the outcome of every key.

``Release`` deletes the objects that expired versions released: the manifest has the work list, oldest first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dolmen.base.units import HOUR_US, SECOND_US
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS, data_key, is_adopted, parse_manifest_key, tombstone_key
from dolmen.format.manifest import Manifest, Released
from dolmen.maintenance.gc.mark import (
    KeySet,
    manifest_segments,
    needed_keys,
    reached_keys,
    released_since,
    tree_segments,
)
from dolmen.store.base import ObjectInfo, ObjectStore

BATCH = 1000
"""The number of objects that are deleted at once. A run may stop between two batches."""


@dataclass(frozen=True)
class Amount:
    """A number of objects, and their size as far as it is known."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.objects + other.objects, self.bytes + other.bytes)


class ObjectDeleter:
    """Deletes objects, or only counts them in a dry run. It never deletes adopted files.

    Args:
        dry_run: delete nothing.
    """

    def __init__(self, store: ObjectStore, *, dry_run: bool = False) -> None:
        self._store, self._dry_run = store, dry_run
        self.deleted: dict[str, Amount] = {}
        self.errors: dict[str, str] = {}

    def erase(self, reason: str, keys: Sequence[str], sizes: Sequence[int] = ()) -> set[str]:
        """Deletes objects. Returns the keys that could not be deleted.

        Args:
            reason: the reason, by which deleted objects are counted.
            sizes: the objects' sizes in bytes, if known.
        """
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


_DATED = re.compile(r"(?:data|tombstone)/[a-z0-9_]{1,64}/(\d{4})/(\d\d)/(\d\d)/(\d\d)/[^/]+")


_AFTER_DATES = "~"  # sorts after every digit


def hour_floor(time_us: int) -> int:
    """The beginning of the hour, in microseconds."""
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
    """``<kind>/<table>/`` of every table with objects, dropped tables included: one request each, whatever they
    hold."""
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


@dataclass(frozen=True)
class ReleaseProgress:
    """The progress on the work list.

    Args:
        freed: everything that commits up to this version released is deleted.
        complete: True if nothing was left for lack of time.
    """

    freed: int
    complete: bool


class Release:
    """Deletes objects that commits up to version ``through`` released, and then the manifests before it.

    Everything may be repeated: after a crash at any point, or beside another collection.

    Args:
        kept: keys of the objects to keep.
        through: the horizon whose ``reader_grace`` is over.
    """

    def __init__(
        self,
        store: ObjectStore,
        reader: SegmentReader,
        deleter: ObjectDeleter,
        manifest: Manifest,
        kept: KeySet,
        through: int,
        deadline: Callable[[], bool],
    ) -> None:
        self._store, self._reader, self._deleter = store, reader, deleter
        self._manifest, self._kept, self._through, self._deadline = manifest, kept, through, deadline
        self._keys: list[str] = []
        self._oldest = 0
        self._failed: int | None = None
        self._failures = 0
        self._last: dict[str, int] = {}
        self._named: dict[int, list[str]] = defaultdict(list)

    def run(self) -> ReleaseProgress:
        """Deletes, and returns the progress."""
        done = self._manifest.freed
        self._last = self._last_holders()
        for key, version in self._last.items():
            self._named[version].append(key)
        for entry in self._expired():
            if len(self._keys) >= BATCH or entry.trees or entry.manifests:
                self._flush()
                if self._deadline():
                    return self._progress(done, complete=False)
            self._free(entry)
            done = entry.version
        self._flush()
        if self._deadline() or not self._manifests():
            return self._progress(self._through - 1, complete=False)
        return self._progress(self._through, complete=True)

    def _expired(self) -> Iterator[Released]:
        """The part of the work list that may be deleted."""
        for entry in released_since(self._manifest, self._reader, self._manifest.freed):
            if entry.version > self._through:
                return
            yield entry

    def _last_holders(self) -> dict[str, int]:
        """By key of a segment, the last version that released a tree or a manifest which names data through it.

        Such a segment stays until the data is deleted, even if it was released before: nothing else finds the data.
        """
        last: dict[str, int] = {}
        for entry in self._expired():
            for tree in entry.trees:
                last.update(dict.fromkeys(tree_segments(tree, self._reader), entry.version))
            for manifest in entry.manifests:
                last.update(dict.fromkeys(manifest_segments(manifest, self._reader), entry.version))
        return last

    def _progress(self, done: int, *, complete: bool) -> ReleaseProgress:
        if self._failed is not None:  # objects that could not be deleted stay on the list
            done = min(done, self._failed - 1)
        return ReleaseProgress(max(done, self._manifest.freed), complete)

    def _free(self, entry: Released) -> None:
        """Deletes what a commit released: data that trees and manifests name, then segments, then manifests."""
        version, before = entry.version, self._failures
        for tree in entry.trees:
            self._free_data(version, reached_keys(tree, self._reader))
        for manifest in entry.manifests:
            self._free_data(version, self._needed_by(manifest))
        segments = self._named.pop(version, [])
        if self._failures > before:  # the next run needs these to find the rest
            self._last.update(dict.fromkeys(segments, self._through + 1))
        self._add(version, (*entry.objects, *segments))
        if entry.manifests:
            self._flush()
            if self._failures == before:
                self._add(version, entry.manifests)

    def _needed_by(self, manifest: str) -> Iterator[str]:
        yield from needed_keys(self._reader.manifest(manifest), self._reader)

    def _free_data(self, version: int, reached: Iterator[str]) -> None:
        """Deletes the data and the deletes that a holder names, and no segment."""
        self._flush()
        keys: list[str] = []
        try:
            for key in reached:
                if key.startswith(SEGMENTS):
                    continue
                keys.append(key)
                if len(keys) >= BATCH:
                    self._add(version, keys)
                    self._flush()
                    keys = []
        except CorruptionError as error:
            if not error.is_missing:
                raise
            # an earlier run has deleted all of the data, and then a segment or the holder
        self._add(version, keys)
        self._flush()

    def _add(self, version: int, keys: Sequence[str]) -> None:
        if not self._keys:
            self._oldest = version
        held = self._kept.holds(keys)
        free = (key for key, needed in zip(keys, held.tolist(), strict=True) if not needed)
        self._keys += [key for key in free if self._last.get(key, 0) <= version]

    def _flush(self) -> None:
        keys, self._keys = list(dict.fromkeys(self._keys)), []
        if keys and self._deleter.erase("released", keys):
            self._failures += 1
            self._failed = self._oldest if self._failed is None else self._failed

    def _manifests(self) -> bool:
        """Deletes manifests of expired versions and lost attempts, oldest first. Returns whether it came to the end."""
        some: list[ObjectInfo] = []

        def erase() -> None:
            keys = [info.key for info in some]
            if self._deleter.erase("manifests", keys, [info.size for info in some]) and self._failed is None:
                self._failed = self._through
            some.clear()

        tagged = {tag.manifest for tag in self._manifest.tags.values()}
        for released in released_since(self._manifest, self._reader, self._manifest.freed):
            tagged.update(released.manifests)  # those go after what they need, in this run or in a later one
        for info in self._store.list("manifest/"):
            parsed = parse_manifest_key(info.key)
            if parsed is None or info.key in tagged:
                continue
            if parsed[0] >= self._through:
                break
            some.append(info)
            if len(some) >= BATCH:
                erase()
                if self._deadline():
                    return False
        if some:
            erase()
        return True
