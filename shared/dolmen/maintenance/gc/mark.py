"""The mark finds the objects that any version needs which may still be read; ``Release`` deletes the others.

Other processes may compute parts of it: a part always yields the same keys for the same manifest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS, parse_manifest_key
from dolmen.format.manifest import Manifest, Released, Segment, TableEntry, references
from dolmen.maintenance.gc.deletion import BATCH, KeySet, ObjectDeleter, released_since
from dolmen.store.base import ObjectInfo, ObjectStore

Marker: TypeAlias = Callable[[Manifest, SegmentReader, int], KeySet]
"""``mark``, or a function with the same result. Objects that it leaves out are deleted."""


def needed_keys(manifest: Manifest, reader: SegmentReader) -> Iterator[str]:
    """Keys of all objects that a version needs, including those named in segments; with repetitions."""
    yield from references(manifest)
    for segment in manifest.segments_of("erasures"):
        yield from references(reader.erasures(segment))
    for entry in manifest.tables.values():
        yield from _keys_of_table(entry, reader)


def _keys_of_table(entry: TableEntry, reader: SegmentReader) -> Iterator[str]:
    """Keys that a table needs: for files in segments, only live files and their effective vectors."""
    if entry.section:
        entry = reader.whole(entry)
        yield from references(entry)
    for segment in entry.segments_of("tombstones"):
        yield from references(reader.tombstones(segment))
    for file in LiveFiles.of(entry, reader).matching(None, ids=()):
        yield from references(file)


def reached_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of all objects that a segment's entries name, without its own key. Raises CorruptionError."""
    match tree.kind:
        case "files":
            for some in reader.files(tree).entries(ids=()):
                yield from references(some)
        case "overlays" | "tombstones" | "erasures":
            yield from references(getattr(reader, tree.kind)(tree))
        case "table":
            for entry in reader.tables(tree):
                yield from references(entry)
                for segment in entry.segments:
                    yield from reached_keys(segment, reader)
        case "removed" | "applied" | "released" | "history" | "index":
            return


def tree_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of a released segment and of all objects that it reaches.

    A missing segment reaches nothing: an earlier run deleted all that it names, then the segment itself, and ended
    before it could record that.
    """
    yield tree.object
    with _ignoring_missing():
        yield from reached_keys(tree, reader)


def tree_segments(tree: Segment, reader: SegmentReader) -> list[str]:
    """Keys of a released segment and of those that it names, as far as it is still there."""
    if tree.kind != "table":
        return [tree.object]
    keys = [tree.object]
    with _ignoring_missing():
        for entry in reader.tables(tree):
            for segment in entry.segments:
                keys += tree_segments(segment, reader)
    return keys


def manifest_segments(key: str, reader: SegmentReader) -> list[str]:
    """Keys of all segments that a released manifest names, as far as it, and they, are still there."""
    keys: list[str] = []
    with _ignoring_missing():
        manifest = reader.manifest(key)
        keys += (name for name in references(manifest) if name.startswith(SEGMENTS))
        for entry in manifest.tables.values():
            if entry.section:
                keys += (name for name in references(reader.whole(entry)) if name.startswith(SEGMENTS))
    return keys


@contextmanager
def _ignoring_missing() -> Iterator[None]:
    """Ends the block at a missing object: an earlier run has deleted it, and what it led to before."""
    try:
        yield
    except CorruptionError as error:
        if not error.is_missing:
            raise


def tagged_keys(key: str, reader: SegmentReader) -> Iterator[str]:
    """Keys of the manifest of an expired version that a tag keeps, and of all that the version needs.

    Raises CorruptionError if the manifest is missing or damaged; or deleted, because the tag was dropped meanwhile.
    """
    yield key
    yield from needed_keys(reader.manifest(key), reader)


def manifest_keys(key: str, reader: SegmentReader) -> Iterator[str]:
    """Keys of a manifest that was released with a tag, and of all that its version needs.

    A missing manifest or segment reaches nothing: an earlier run deleted all that it names before it.
    """
    yield key
    with _ignoring_missing():
        yield from needed_keys(reader.manifest(key), reader)


def tagged_manifests(manifest: Manifest) -> list[str]:
    """Manifests of expired versions that tags keep. What other tags name is kept as a version that has not expired."""
    return sorted({tag.manifest for tag in manifest.tags.values() if tag.version < manifest.horizon})


def mark(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
    """Keys of all objects to keep: those the newest version needs, and those released after version ``after``.

    ``manifest`` must be of a commit that moved the fence, or a later one. Tagged versions that expired are read.
    """

    def keys() -> Iterator[str]:
        yield from needed_keys(manifest, reader)
        for key in tagged_manifests(manifest):
            yield from tagged_keys(key, reader)
        for entry in released_since(manifest, reader, after):
            yield from _released_keys(entry, reader)

    return KeySet(keys())


def _released_keys(entry: Released, reader: SegmentReader) -> Iterator[str]:
    yield from entry.objects
    for tree in entry.trees:
        yield from tree_keys(tree, reader)
    for key in entry.manifests:
        yield from manifest_keys(key, reader)


ENTRIES_TOGETHER = 200_000
"""The approximate number of entries of one part. A segment is never divided."""

PartKind: TypeAlias = Literal["files", "tombstones", "erasures", "released", "trees", "manifests", "tagged"]


class MarkPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some segments that are read to find objects to keep.

    Args:
        kind: the source: a table's live ``files``, its ``tombstones``, the database's ``erasures``, entries that
            commits have ``released``, everything that released ``trees`` reach, or that ``manifests`` of lost tags
            need, or those of the present tags (``tagged``), which must be there.
        table: the table's name; "" for the database.
    """

    kind: PartKind
    segments: tuple[Segment, ...]
    table: str = ""
    manifests: tuple[str, ...] = ()

    @property
    def entries(self) -> int:
        return sum(segment.count for segment in self.segments)


def split_mark(manifest: Manifest, reader: SegmentReader, after: int) -> tuple[list[str], list[MarkPart]]:
    """Keys to keep by the manifest alone, and the parts that must be read. See ``gc.mark.mark``."""
    keys = list(references(manifest))
    parts: list[MarkPart] = []
    for name, stub in manifest.tables.items():
        entry = reader.whole(stub)
        if stub.section:
            keys += references(entry)
        parts += _together("files", entry.segments_of("files"), name)
        parts += _together("tombstones", entry.segments_of("tombstones"), name)
    parts += _together("erasures", manifest.segments_of("erasures"))
    trees: list[Segment] = []
    lost: list[str] = []
    for one in manifest.released:
        if one.version > after:
            keys += one.objects
            trees += one.trees
            lost += one.manifests
    parts += (MarkPart("tagged", (), manifests=(key,)) for key in tagged_manifests(manifest))
    parts += (MarkPart("manifests", (), manifests=(key,)) for key in dict.fromkeys(lost))
    parts += _together("trees", trees)
    parts += _together("released", [s for s in manifest.segments_of("released") if s.greatest > after])
    return keys, parts


def keys_of_part(part: MarkPart, manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[str]:
    """Keys to keep by one part of ``split_mark`` with the same arguments; with repetitions."""
    match part.kind:
        case "files":
            live = LiveFiles.of(manifest.tables[part.table], reader)
            for piece in live.live_segments(part.segments):
                for file in piece.entries(ids=()):
                    yield from references(file)
        case "tombstones" | "erasures":
            for segment in part.segments:
                yield from references(getattr(reader, part.kind)(segment))
        case "released":
            for segment in part.segments:
                for entry in reader.released(segment):
                    if entry.version > after:
                        yield from _released_keys(entry, reader)
        case "trees":
            for tree in part.segments:
                yield from tree_keys(tree, reader)
        case "manifests":
            for key in part.manifests:
                yield from manifest_keys(key, reader)
        case "tagged":
            for key in part.manifests:
                yield from tagged_keys(key, reader)


def _together(kind: PartKind, segments: Sequence[Segment], table: str = "") -> Iterator[MarkPart]:
    some: list[Segment] = []
    for segment in segments:
        some.append(segment)
        if sum(each.count for each in some) >= ENTRIES_TOGETHER:
            yield MarkPart(kind, tuple(some), table)
            some = []
    if some:
        yield MarkPart(kind, tuple(some), table)


@dataclass
class Release:
    """Deletes objects that commits up to version ``through`` released, and then the manifests before it."""

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
        self._failed: int | None = None
        self._last = self._last_holders()
        self._named: dict[int, list[str]] = defaultdict(list)

    def run(self) -> tuple[int, bool]:
        """Deletes. Returns the version up to which all that was released is deleted, and whether it came to its end."""
        done = self.manifest.freed
        for key, version in self._last.items():
            self._named[version].append(key)
        for entry in self._expired():
            if len(self._keys) >= BATCH or entry.trees or entry.manifests:
                self._flush()
                if self.deadline():
                    return self._progress(done, complete=False)
            self._free(entry)
            done = entry.version
        self._flush()
        if self.deadline() or not self._manifests():
            return self._progress(self.through - 1, complete=False)
        return self._progress(self.through, complete=True)

    def _expired(self) -> Iterator[Released]:
        for entry in released_since(self.manifest, self.reader, self.manifest.freed):
            if entry.version > self.through:
                return
            yield entry

    def _last_holders(self) -> dict[str, int]:
        """By key of a segment, the last version that released a tree or a manifest which names data through it.

        Such a segment stays until the data is deleted, even if it was released before: nothing else finds the data.
        """
        last: dict[str, int] = {}
        for entry in self._expired():
            for tree in entry.trees:
                last.update(dict.fromkeys(tree_segments(tree, self.reader), entry.version))
            for manifest in entry.manifests:
                last.update(dict.fromkeys(manifest_segments(manifest, self.reader), entry.version))
        return last

    def _progress(self, done: int, *, complete: bool) -> tuple[int, bool]:
        if self._failed is not None:  # objects that could not be deleted stay on the list
            done = min(done, self._failed - 1)
        return max(done, self.manifest.freed), complete

    def _free(self, entry: Released) -> None:
        """Deletes what a commit released: data that trees and manifests name, then segments, then manifests."""
        version, before = entry.version, self._failures
        for tree in entry.trees:
            self._free_data(version, reached_keys(tree, self.reader))
        for manifest in entry.manifests:
            self._free_data(version, self._needed_by(manifest))
        segments = self._named.pop(version, [])
        if self._failures > before:  # the next run needs these to find the rest
            self._last.update(dict.fromkeys(segments, self.through + 1))
        self._add(version, (*entry.objects, *segments))
        if entry.manifests:
            self._flush()
            if self._failures == before:
                self._add(version, entry.manifests)

    def _needed_by(self, manifest: str) -> Iterator[str]:
        yield from needed_keys(self.reader.manifest(manifest), self.reader)

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
        is_needed = self.kept.holds(keys)
        free = (key for key, needed in zip(keys, is_needed.tolist(), strict=True) if not needed)
        self._keys += [key for key in free if self._last.get(key, 0) <= version]

    def _flush(self) -> None:
        keys, self._keys = list(dict.fromkeys(self._keys)), []
        if keys and self.deleter.erase("released", keys):
            self._failures += 1
            self._failed = self._oldest if self._failed is None else self._failed

    def _manifests(self) -> bool:
        """Deletes manifests of expired versions and lost attempts, oldest first. Returns whether it came to the end."""
        some: list[ObjectInfo] = []

        def erase() -> None:
            if self.deleter.erase_listed("manifests", some) and self._failed is None:
                self._failed = self.through
            some.clear()

        tagged = {tag.manifest for tag in self.manifest.tags.values()}
        for released in released_since(self.manifest, self.reader, self.manifest.freed):
            tagged.update(released.manifests)  # those go after what they need, in this run or in a later one
        for info in self.store.list("manifest/"):
            parsed = parse_manifest_key(info.key)
            if parsed is None or info.key in tagged:
                continue
            if parsed[0] >= self.through:
                break
            some.append(info)
            if len(some) >= BATCH:
                erase()
                if self.deadline():
                    return False
        if some:
            erase()
        return True
