"""The mark: finds the objects that any version needs which may still be read, also by readers that have begun.

The mark in parts that other processes can compute. Together they have exactly the keys of ``gc.mark.mark``.

Keys in the manifest itself are found where the manifest is. All others are in segments, which are immutable. A part
names some segments, and always yields the same keys for the same manifest.

Sets of millions of keys, in 8 bytes per key.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dolmen.base.runtime import cached_property
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS
from dolmen.format.manifest import Manifest, Released, Segment, TableEntry
from dolmen.format.references import references

Codes = npt.NDArray[np.int64]


def stable_code(key: str) -> int:
    """64 bits of a key that are the same in every process, unlike Python's ``hash`` of a text."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)


def stable_codes(keys: Iterable[str]) -> Codes:
    """The codes of keys, ascending and without repetitions."""
    return np.unique(np.fromiter(map(stable_code, keys), np.int64))


class KeySet:
    """A set of keys without false negatives; a false positive has a probability of 2^-64 per key and question.

    It holds sorted 64-bit hashes. On a false positive, collection keeps an object that it could have deleted.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._codes = array("q", map(hash, keys))
        self._code: Callable[[str], int] = hash

    @classmethod
    def of_codes(cls, parts: Sequence[Codes]) -> KeySet:
        """The union of parts that other processes found with ``stable_codes``."""
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
        """Number of keys that were given, including repetitions."""
        return len(self._sorted)

    def holds(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each of ``keys`` is in the set."""
        wanted = np.fromiter(map(self._code, keys), np.int64, len(keys))
        ordered = self._sorted
        if not len(ordered):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        held: npt.NDArray[np.bool_] = ordered[places] == wanted
        return held

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.holds([key])[0])


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
    """Keys of all objects that a segment's entries name, without its own key.

    Raises:
        CorruptionError: the segment cannot be read.
    """
    match tree.kind:
        case "files":
            for some in reader.files(tree).entries(ids=()):
                yield from references(some)
        case "overlays":
            yield from references(reader.overlays(tree))
        case "tombstones":
            yield from references(reader.tombstones(tree))
        case "erasures":
            yield from references(reader.erasures(tree))
        case "table":
            for entry in reader.tables(tree):
                yield from references(entry)
                for segment in entry.segments:
                    yield from reached_keys(segment, reader)
        case "removed" | "applied" | "released" | "history" | "index":
            return


def tree_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of a released segment and of all objects that it reaches.

    A missing segment reaches nothing. An earlier run, for which the readers' grace was over by its clock or settings,
    deleted all that it names, then the segment itself, and ended before it could record that.
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

    Raises:
        CorruptionError: the manifest is missing or damaged, so it is unknown what the tag keeps; or another commit has
            dropped the tag, and another collection has deleted the manifest.
    """
    yield key
    yield from needed_keys(reader.manifest(key), reader)


def manifest_keys(key: str, reader: SegmentReader) -> Iterator[str]:
    """Keys of a manifest that was released with a tag, and of all that its version needs.

    A missing manifest or segment reaches nothing: an earlier run deleted all data that the version needs, then the
    segments, and then the manifest itself.
    """
    yield key
    with _ignoring_missing():
        yield from needed_keys(reader.manifest(key), reader)


def tagged_manifests(manifest: Manifest) -> list[str]:
    """Manifests of expired versions that tags keep. What other tags name is kept as a version that has not expired."""
    return sorted({tag.manifest for tag in manifest.tags.values() if tag.version < manifest.horizon})


def released_since(manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[Released]:
    """Yields what commits after version ``after`` released, oldest first."""
    for segment in manifest.segments_of("released"):
        if segment.greatest > after:
            yield from (entry for entry in reader.released(segment) if entry.version > after)
    yield from (entry for entry in manifest.released if entry.version > after)


def mark(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
    """Keys of all objects to keep: those the newest version needs, and those released after version ``after``.

    An older version needs only what the newest one needs, and what was released since. An expired version that a tag
    keeps is read for what it needs. ``manifest`` must be of a commit
    that moved the fence, or a later one. An object that it does not name, and that was uploaded before the fence, can
    no longer be committed. So nothing can land between this mark and the deletes.
    """

    def keys() -> Iterator[str]:
        yield from needed_keys(manifest, reader)
        for key in tagged_manifests(manifest):
            yield from tagged_keys(key, reader)
        for entry in released_since(manifest, reader, after):
            yield from entry.objects
            for tree in entry.trees:
                yield from tree_keys(tree, reader)
            for key in entry.manifests:
                yield from manifest_keys(key, reader)

    return KeySet(keys())


ENTRIES_TOGETHER = 200_000
"""The approximate number of entries of one part. A segment is never divided."""


PartKind: TypeAlias = Literal["files", "tombstones", "erasures", "released", "trees", "manifests", "tagged"]


class MarkPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some segments that are read to find objects to keep.

    Args:
        kind: what is read from the segments: a table's live ``files``, its ``tombstones``, the database's
            ``erasures``, entries that commits have ``released``, everything that released ``trees`` reach, or that
            ``manifests`` of lost tags need, or those of the present tags (``tagged``), which must be there.
        table: the table's name; "" for the database.
        manifests: keys of manifests.
    """

    kind: PartKind
    segments: tuple[Segment, ...]
    table: str = ""
    manifests: tuple[str, ...] = ()

    @property
    def entries(self) -> int:
        """The number of entries in its segments."""
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
    """Keys to keep by one part; with repetitions.

    Args:
        manifest: the manifest that was split.
        after: the version that was given to ``split_mark``.
    """
    match part.kind:
        case "files":
            live = LiveFiles.of(manifest.tables[part.table], reader)
            for piece in live.live_segments(part.segments):
                for file in piece.entries(ids=()):
                    yield from references(file)
        case "tombstones":
            for segment in part.segments:
                yield from references(reader.tombstones(segment))
        case "erasures":
            for segment in part.segments:
                yield from references(reader.erasures(segment))
        case "released":
            for segment in part.segments:
                for entry in reader.released(segment):
                    if entry.version > after:
                        yield from entry.objects
                        for tree in entry.trees:
                            yield from tree_keys(tree, reader)
                        for key in entry.manifests:
                            yield from manifest_keys(key, reader)
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
