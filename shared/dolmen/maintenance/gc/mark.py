"""The mark: finds the objects that any version needs which may still be read, also by readers that have begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.reader import SegmentReader
from dolmen.errors import CorruptionError
from dolmen.format.layout import SEGMENTS
from dolmen.format.manifest import Manifest, Released, Segment, TableEntry
from dolmen.format.references import references
from dolmen.maintenance.gc.keyset import KeySet

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
        CorruptionError: the manifest is missing or damaged, so nobody knows what the tag keeps; or another commit has
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
