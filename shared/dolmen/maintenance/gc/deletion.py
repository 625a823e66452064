"""Deletes objects in batches, checks the outcome of every key, and deletes what commits released."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from msgspec import Struct

from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS, is_adopted, parse_manifest_key
from dolmen.format.manifest import Manifest, Released
from dolmen.maintenance.gc.mark import (
    KeySet,
    manifest_segments,
    needed_keys,
    reached_keys,
    read_released,
    tree_segments,
)
from dolmen.store.base import ObjectInfo, ObjectStore
from dolmen.store.cache import ObjectCache

BATCH = 1000  # the number of objects that are deleted at once. A run may stop between two batches.


class Amount(Struct, frozen=True):
    """A number of objects, and their size as far as it is known."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.objects + other.objects, self.bytes + other.bytes)


class ObjectDeleter:
    """Deletes objects, also from the cache, or only counts them in a dry run. It never deletes adopted files."""

    def __init__(self, store: ObjectStore, cache: ObjectCache | None = None, *, dry_run: bool = False) -> None:
        self._store, self._cache, self._dry_run = store, cache, dry_run
        self.deleted: dict[str, Amount] = {}
        self.errors: dict[str, str] = {}

    def delete(self, reason: str, keys: Sequence[str], sizes: Sequence[int] = ()) -> set[str]:
        """Deletes objects, and counts them by the reason. Returns the keys that could not be deleted."""
        if any(is_adopted(key) for key in keys):  # adopted files belong to others
            sizes = [size for key, size in zip(keys, sizes, strict=False) if not is_adopted(key)]
            keys = [key for key in keys if not is_adopted(key)]
        failed: set[str] = set()
        for start in range(0, len(keys), BATCH):
            if not self._dry_run:
                batch = keys[start : start + BATCH]
                for outcome in self._store.delete(batch):
                    if outcome.error is not None:
                        failed.add(outcome.key)
                        self.errors[outcome.key] = outcome.error
                if self._cache:
                    self._cache.remove_objects(batch)
        size = sum(size for key, size in zip(keys, sizes, strict=False) if key not in failed)
        done = Amount(len(keys) - len(failed), size)
        if done.objects:
            self.deleted[reason] = self.deleted.get(reason, Amount()) + done
        return failed

    def delete_listed(self, reason: str, infos: Sequence[ObjectInfo]) -> set[str]:
        return self.delete(reason, [info.key for info in infos], [info.size for info in infos])


@dataclass
class ReleasedDeleter:
    """Deletes the objects that commits up to version ``through`` released, and then the manifests before it.

    Some are released in groups: a *tree* is a segment with all objects that it names, as of a dropped table, and a
    manifest has the objects that its version needs. ``kept`` has the keys that some readable version still needs.
    """

    store: ObjectStore
    reader: SegmentReader
    deleter: ObjectDeleter
    manifest: Manifest
    kept: KeySet
    through: int
    deadline: Callable[[], bool]

    def __post_init__(self) -> None:
        self._keys: list[str] = []
        self._oldest = self._failures = 0
        self._failed_version: int | None = None
        self._deletion_versions = self._find_deletion_versions()
        self._segments_by_version: dict[int, list[str]] = defaultdict(list)

    def run(self) -> tuple[int, bool]:
        """Returns the version up to which all released objects are deleted, and whether the run is complete."""
        done = self.manifest.freed
        for key, version in self._deletion_versions.items():
            self._segments_by_version[version].append(key)
        for entry in self._entries():
            if len(self._keys) >= BATCH or entry.trees or entry.manifests:
                self._flush()
                if self.deadline():
                    return self._progress(done, is_complete=False)
            self._free(entry)
            done = entry.version
        self._flush()
        if self.deadline() or not self._delete_manifests():
            return self._progress(self.through - 1, is_complete=False)
        return self._progress(self.through, is_complete=True)

    def _entries(self) -> Iterator[Released]:
        for entry in read_released(self.manifest, self.reader, self.manifest.freed):
            if entry.version > self.through:
                return
            yield entry

    def _find_deletion_versions(self) -> dict[str, int]:
        """The segments that name released objects, each with the last version that released one of these.

        A segment is deleted last, after that version's objects, because only the segment tells which they are.
        """
        last: dict[str, int] = {}
        for entry in self._entries():
            for tree in entry.trees:
                last.update(dict.fromkeys(tree_segments(tree, self.reader), entry.version))
            for manifest in entry.manifests:
                last.update(dict.fromkeys(manifest_segments(manifest, self.reader), entry.version))
        return last

    def _progress(self, done: int, *, is_complete: bool) -> tuple[int, bool]:
        if self._failed_version is not None:  # objects that could not be deleted stay released
            done = min(done, self._failed_version - 1)
        return max(done, self.manifest.freed), is_complete

    def _free(self, entry: Released) -> None:
        """Deletes the objects that a commit released: data that trees and manifests name, segments, then manifests."""
        version, before = entry.version, self._failures
        for tree in entry.trees:
            self._free_data(version, reached_keys(tree, self.reader))
        for manifest in entry.manifests:
            self._free_data(version, self._needed_by(manifest))
        segments = self._segments_by_version.pop(version, [])
        if self._failures > before:  # the next run needs these to find the rest
            self._deletion_versions.update(dict.fromkeys(segments, self.through + 1))
        self._add(version, (*entry.objects, *segments))
        if entry.manifests:
            self._flush()
            if self._failures == before:
                self._add(version, entry.manifests)

    def _needed_by(self, manifest: str) -> Iterator[str]:
        yield from needed_keys(self.reader.manifest(manifest), self.reader)

    def _free_data(self, version: int, reached: Iterator[str]) -> None:
        """Deletes the data files and ``.del`` objects, but no segments, among keys that a tree or a manifest names."""
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
            # An earlier run deleted all of the data, and then the segment or manifest that named it.
        self._add(version, keys)
        self._flush()

    def _add(self, version: int, keys: Sequence[str]) -> None:
        """Adds keys to the next batch, without those that are needed, or that must be deleted with a later version."""
        if not self._keys:
            self._oldest = version
        is_needed = self.kept.member_mask(keys)
        unneeded = (key for key, needed in zip(keys, is_needed.tolist(), strict=True) if not needed)
        self._keys += [key for key in unneeded if self._deletion_versions.get(key, 0) <= version]

    def _flush(self) -> None:
        keys, self._keys = list(dict.fromkeys(self._keys)), []
        if keys and self.deleter.delete("released", keys):
            self._failures += 1
            self._failed_version = self._oldest if self._failed_version is None else self._failed_version

    def _delete_manifests(self) -> bool:
        """Deletes manifests of expired versions and lost attempts, oldest first. Returns False at the deadline."""
        tagged = {tag.manifest for tag in self.manifest.tags.values()}
        for released in read_released(self.manifest, self.reader, self.manifest.freed):
            tagged.update(released.manifests)  # deleted after the objects that they need, in this run or a later one
        untagged = (info for info in self.store.list("manifest/") if info.key not in tagged)
        versions = ((parsed[0], info) for info in untagged if (parsed := parse_manifest_key(info.key)) is not None)
        expired = (info for _, info in takewhile(lambda item: item[0] < self.through, versions))
        while batch := list(islice(expired, BATCH)):
            if self.deleter.delete_listed("manifests", batch) and self._failed_version is None:
                self._failed_version = self.through
            if len(batch) == BATCH and self.deadline():
                return False
        return True
