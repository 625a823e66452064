"""The mark: finds the keys of all objects that some readable version needs.

A *tree* is a segment that was released with all objects that it names, for example one of a dropped table.
Other processes may compute parts of the mark: a part always yields the same keys for the same manifest.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dolmen.base.runtime import cached_property
from dolmen.base.units import cut_by_size
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS, build_decoders
from dolmen.format.manifest import Manifest, Released, Segment, TableEntry, references

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
        keys = cls(())
        keys._code = stable_code
        for part in parts:
            keys._codes.frombytes(np.ascontiguousarray(part, np.int64).tobytes())
        return keys

    @cached_property
    def _sorted_codes(self) -> Codes:
        codes = np.frombuffer(self._codes, np.int64).copy()
        self._codes = array("q")
        codes.sort()
        return codes

    def __len__(self) -> int:
        return len(self._sorted_codes)

    def member_mask(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        codes = np.fromiter(map(self._code, keys), np.int64, len(keys))
        ordered = self._sorted_codes
        if not len(ordered):
            return np.zeros(len(keys), np.bool_)
        indexes = np.minimum(np.searchsorted(ordered, codes), len(ordered) - 1)
        is_needed: npt.NDArray[np.bool_] = ordered[indexes] == codes
        return is_needed

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.member_mask([key])[0])


Marker: TypeAlias = Callable[[Manifest, SegmentReader, int], KeySet]
"""``mark``, or a function with the same result. Objects that it leaves out are deleted."""


def read_released(manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[Released]:
    """Yields the lists of objects that commits after version ``after`` released, oldest first."""
    for segment in manifest.segments_of("released"):
        if segment.greatest > after:
            yield from (entry for entry in reader.released(segment) if entry.version > after)
    yield from (entry for entry in manifest.released if entry.version > after)


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
    for file in LiveFiles.of(entry, reader).find_matching(None, ids=()):
        yield from references(file)


def reached_keys(segment: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of all objects that a segment's entries name, without its own key. Raises CorruptionError."""
    match segment.kind:
        case "files":
            for file in reader.files(segment).entries(ids=()):
                yield from references(file)
        case "overlays" | "tombstones" | "erasures":
            yield from references(getattr(reader, segment.kind)(segment))
        case "table":
            for entry in reader.tables(segment):
                yield from references(entry)
                for each in entry.segments:
                    yield from reached_keys(each, reader)
        case "removed" | "applied" | "released" | "history" | "index":
            return


def tree_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of a tree and of all objects that it names.

    A missing segment names nothing: an earlier run deleted its objects, then it, and ended before it recorded that.
    """
    yield tree.object
    with _ignore_missing():
        yield from reached_keys(tree, reader)


def tree_segments(tree: Segment, reader: SegmentReader) -> list[str]:
    """Keys of a tree, and of the segments that it names if it still exists."""
    if tree.kind != "table":
        return [tree.object]
    keys = [tree.object]
    with _ignore_missing():
        for entry in reader.tables(tree):
            for segment in entry.segments:
                keys += tree_segments(segment, reader)
    return keys


def manifest_segments(key: str, reader: SegmentReader) -> list[str]:
    """Keys of all segments that a released manifest names; a missing object names none."""
    keys: list[str] = []
    with _ignore_missing():
        manifest = reader.manifest(key)
        keys += (name for name in references(manifest) if name.startswith(SEGMENTS))
        for entry in manifest.tables.values():
            if entry.section:
                keys += (name for name in references(reader.whole(entry)) if name.startswith(SEGMENTS))
    return keys


@contextmanager
def _ignore_missing() -> Iterator[None]:
    """Ends the block at a missing object: an earlier run deleted first the objects that it named, and then it."""
    try:
        yield
    except CorruptionError as error:
        if not error.is_missing:
            raise


def manifest_keys(key: str, reader: SegmentReader) -> Iterator[str]:
    """Keys of a manifest that was released with a tag, and of all objects that its version needs.

    A missing manifest or segment names nothing: an earlier run deleted first the objects that it named, and then it.
    """
    yield key
    with _ignore_missing():
        yield from needed_keys(reader.manifest(key), reader)


def tagged_manifests(manifest: Manifest) -> list[str]:
    """Keys of manifests of expired versions that tags keep. Other tags name versions that have not expired."""
    return sorted({tag.manifest for tag in manifest.tags.values() if tag.version < manifest.horizon})


def mark(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
    """Keys of all objects to keep: those the newest version needs, and those released after version ``after``.

    ``manifest`` must be of a commit that moved the fence, or a later one. Tagged versions that expired are read.
    """
    keys, parts = split_mark(manifest, reader, after)
    others = (keys_of_part(part, manifest, reader, after) for part in parts)
    return KeySet(chain(keys, chain.from_iterable(others)))


def _released_keys(entry: Released, reader: SegmentReader) -> Iterator[str]:
    yield from entry.objects
    for tree in entry.trees:
        yield from tree_keys(tree, reader)
    for key in entry.manifests:
        yield from manifest_keys(key, reader)


PART_ENTRIES = 200_000  # the most entries of one part, unless it is one segment, which is never divided

PartKind: TypeAlias = Literal["files", "tombstones", "erasures", "released", "trees", "manifests", "tagged"]


class MarkPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Segments or manifests that one process reads to find objects to keep."""

    # what is read: a table's live ``files`` or its ``tombstones``; the database's ``erasures``; the lists of objects
    # that commits ``released``; ``trees``, with all that they name; ``manifests`` of dropped tags, or of present tags
    # (``tagged``), with all that their versions need. Only those of present tags must exist.
    kind: PartKind
    segments: tuple[Segment, ...]
    table: str = ""
    manifests: tuple[str, ...] = ()

    @property
    def entries(self) -> int:
        return sum(segment.count for segment in self.segments)


build_decoders(MarkPart)


def split_mark(manifest: Manifest, reader: SegmentReader, after: int) -> tuple[list[str], list[MarkPart]]:
    """Splits ``mark``: returns the keys to keep that the manifest names, and the parts that must be read for others."""
    keys = list(references(manifest))
    parts: list[MarkPart] = []
    for name, stub in manifest.tables.items():
        entry = reader.whole(stub)
        if stub.section:
            keys += references(entry)
        parts += _group_segments("files", entry.segments_of("files"), name)
        parts += _group_segments("tombstones", entry.segments_of("tombstones"), name)
    parts += _group_segments("erasures", manifest.segments_of("erasures"))
    trees: list[Segment] = []
    untagged: list[str] = []
    for released in manifest.released:
        if released.version > after:
            keys += released.objects
            trees += released.trees
            untagged += released.manifests
    parts += (MarkPart("tagged", (), manifests=(key,)) for key in tagged_manifests(manifest))
    parts += (MarkPart("manifests", (), manifests=(key,)) for key in dict.fromkeys(untagged))
    parts += _group_segments("trees", trees)
    parts += _group_segments("released", [s for s in manifest.segments_of("released") if s.greatest > after])
    return keys, parts


def keys_of_part(part: MarkPart, manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[str]:
    """Keys to keep that one part of ``split_mark`` yields, with the same arguments; with repetitions."""
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
                # Raises CorruptionError if the manifest is missing: the tag may have been dropped meanwhile.
                yield key
                yield from needed_keys(reader.manifest(key), reader)


def _group_segments(kind: PartKind, segments: Sequence[Segment], table: str = "") -> Iterator[MarkPart]:
    for group in cut_by_size(segments, lambda segment: segment.count, PART_ENTRIES):
        yield MarkPart(kind, tuple(group), table)
