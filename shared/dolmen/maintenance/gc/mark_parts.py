"""The mark in parts that other processes can compute. Together they have exactly the keys of ``gc.mark.mark``.

Keys in the manifest itself are found where the manifest is. All others are in segments, which are immutable. A part
names some segments, and always yields the same keys for the same manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.reader import SegmentReader
from dolmen.format.manifest import Manifest, Segment
from dolmen.format.references import references
from dolmen.maintenance.gc.mark import manifest_keys, tagged_keys, tagged_manifests, tree_keys

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
