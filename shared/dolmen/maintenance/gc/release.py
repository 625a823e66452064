"""Deletes the objects that expired versions released. The work list is in the manifest, oldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dolmen.errors import CorruptionError
from dolmen.format.layout import parse_manifest_key
from dolmen.format.manifest import Manifest, Released
from dolmen.maintenance.gc.eraser import BATCH, ObjectEraser
from dolmen.maintenance.gc.keyset import KeySet
from dolmen.maintenance.gc.mark import needed_keys, reached_keys, released_since
from dolmen.segments.reader import SegmentReader
from dolmen.store.base import ObjectInfo, ObjectStore


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
        eraser: ObjectEraser,
        manifest: Manifest,
        kept: KeySet,
        through: int,
        deadline: Callable[[], bool],
    ) -> None:
        self._store, self._reader, self._eraser = store, reader, eraser
        self._manifest, self._kept, self._through, self._deadline = manifest, kept, through, deadline
        self._keys: list[str] = []
        self._oldest = 0
        self._failed: int | None = None
        self._failures = 0

    def run(self) -> ReleaseProgress:
        """Deletes, and returns the progress."""
        done = self._manifest.freed
        for entry in released_since(self._manifest, self._reader, done):
            if entry.version > self._through:
                break
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

    def _progress(self, done: int, *, complete: bool) -> ReleaseProgress:
        if self._failed is not None:  # objects that could not be deleted stay on the list
            done = min(done, self._failed - 1)
        return ReleaseProgress(max(done, self._manifest.freed), complete)

    def _free(self, entry: Released) -> None:
        self._add(entry.version, entry.objects)
        for tree in entry.trees:
            self._free_with_its_needs(entry.version, tree.object, reached_keys(tree, self._reader))
        for manifest in entry.manifests:
            self._free_with_its_needs(entry.version, manifest, self._needed_by(manifest))

    def _needed_by(self, manifest: str) -> Iterator[str]:
        yield from needed_keys(self._reader.manifest(manifest), self._reader)

    def _free_with_its_needs(self, version: int, holder: str, reached: Iterator[str]) -> None:
        """Deletes what a segment, or the manifest of a lost tag, names; then the holder itself."""
        self._flush()
        before = self._failures
        self._free_reached(version, reached)
        if self._failures == before:  # otherwise the next run needs the holder to find the rest
            self._add(version, (holder,))

    def _free_reached(self, version: int, reached: Iterator[str]) -> None:
        """Deletes the objects that a holder names. The holder itself goes later."""
        keys: list[str] = []
        try:
            for key in reached:
                keys.append(key)
                if len(keys) >= BATCH:
                    self._add(version, keys)
                    self._flush()
                    keys = []
        except CorruptionError as error:
            if not error.is_missing:
                raise
            return  # an earlier run has deleted everything that it names, and then itself
        self._add(version, keys)
        self._flush()

    def _add(self, version: int, keys: Sequence[str]) -> None:
        if not self._keys:
            self._oldest = version
        held = self._kept.holds(keys)
        self._keys += [key for key, needed in zip(keys, held.tolist(), strict=True) if not needed]

    def _flush(self) -> None:
        keys, self._keys = list(dict.fromkeys(self._keys)), []
        if keys and self._eraser.erase("released", keys):
            self._failures += 1
            self._failed = self._oldest if self._failed is None else self._failed

    def _manifests(self) -> bool:
        """Deletes manifests of expired versions and lost attempts, oldest first. Returns whether it came to the end."""
        some: list[ObjectInfo] = []

        def erase() -> None:
            keys = [info.key for info in some]
            if self._eraser.erase("manifests", keys, [info.size for info in some]) and self._failed is None:
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
