"""The mark: what no version that may be read, now or by a reader that has begun, can do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from dolmen.errors import CorruptionError
from dolmen.format.manifest import Manifest, Released, Segment, TableEntry
from dolmen.format.references import references
from dolmen.maintenance.gc.keyset import KeySet
from dolmen.segments.live import LiveFiles
from dolmen.segments.reader import SegmentReader

Marker: TypeAlias = Callable[[Manifest, SegmentReader, int], KeySet]
"""``mark``, or what gives the same answer by other means: what it leaves out is deleted."""


def needed_keys(manifest: Manifest, reader: SegmentReader) -> Iterator[str]:
    """Keys of all objects that a version needs, its segments' entries included; with repetitions."""
    yield from references(manifest)
    for entry in manifest.tables.values():
        yield from _keys_of_table(entry, reader)


def _keys_of_table(entry: TableEntry, reader: SegmentReader) -> Iterator[str]:
    """What a table needs: of files in segments those that are still there, with the vectors that count."""
    if entry.section:
        entry = reader.whole(entry)
        yield from references(entry)
    for segment in entry.segments_of("tombstones"):
        yield from references(reader.tombstones(segment))
    for file in LiveFiles.of(entry, reader).matching(None, ids=()):
        yield from references(file)


def reached_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """Keys of all objects that a segment's entries name, less its own.

    Raises:
        CorruptionError: it cannot be read.
    """
    match tree.kind:
        case "files":
            for some in reader.files(tree).entries(ids=()):
                yield from references(some)
        case "overlays":
            yield from references(reader.overlays(tree))
        case "tombstones":
            yield from references(reader.tombstones(tree))
        case "table":
            for entry in reader.tables(tree):
                yield from references(entry)
                for segment in entry.segments:
                    yield from reached_keys(segment, reader)
        case "removed" | "applied" | "released" | "history":
            return


def tree_keys(tree: Segment, reader: SegmentReader) -> Iterator[str]:
    """A released segment and all that it reaches.

    One that is missing reaches nothing: an earlier run has deleted all that it names and then itself, and died before
    it could say so; by its clock, or the settings then, the grace of the readers was over.
    """
    yield tree.object
    try:
        yield from reached_keys(tree, reader)
    except CorruptionError as error:
        if not error.is_missing:
            raise


def released_since(manifest: Manifest, reader: SegmentReader, after: int) -> Iterator[Released]:
    """What commits after version ``after`` released, oldest first."""
    for segment in manifest.segments_of("released"):
        if segment.greatest > after:
            yield from (entry for entry in reader.released(segment) if entry.version > after)
    yield from (entry for entry in manifest.released if entry.version > after)


def mark(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
    """All that must stay: what the newest version needs, and what commits after version ``after`` released.

    An older version needs, beside what the newest one does, only what was released since. ``manifest`` must be that of
    a commit that moved the fence, or a later one: what it does not name and was uploaded before the fence can't be
    committed any more, so that nothing can land between this mark and the deletes.
    """

    def keys() -> Iterator[str]:
        yield from needed_keys(manifest, reader)
        for entry in released_since(manifest, reader, after):
            yield from entry.objects
            for tree in entry.trees:
                yield from tree_keys(tree, reader)

    return KeySet(keys())
