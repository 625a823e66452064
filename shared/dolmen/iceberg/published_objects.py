"""The objects of publications: what each metadata needs, and which publications are from before a version."""

from __future__ import annotations

from collections.abc import Iterator

from dolmen.commit.context import Context
from dolmen.errors import CorruptionError
from dolmen.iceberg.directory import PREFIX, PublicationDirectory
from dolmen.iceberg.manifests import ManifestBody, decode_manifest_list
from dolmen.iceberg.metadata import TableMetadata
from dolmen.store.base import ObjectStore


def published_tables_of(store: ObjectStore) -> Iterator[str]:
    """The uuids of all tables that have objects of publications, one request each."""
    last = ""
    while (first := next(iter(store.list(PREFIX, last)), None)) is not None:
        table = first.key.split("/")[1]
        yield table
        last = f"{PREFIX}{table}/~"


def add_objects(directory: PublicationDirectory, metadata: TableMetadata, needed: set[str], read: set[str]) -> None:
    """Adds the keys of the manifest lists of all snapshots, their manifests, and the delete files in these.

    Args:
        needed: the keys so far.
        read: paths of manifest lists that were read before.

    Raises:
        CorruptionError: one is missing or damaged.
    """
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list in read:
            continue
        read.add(snapshot.manifest_list)
        key = directory.key(snapshot.manifest_list)
        needed.add(key)
        for manifest in decode_manifest_list(directory.read(snapshot.manifest_list), key):
            own = directory.key(manifest.path)
            if own not in needed and manifest.content == "deletes":
                body = ManifestBody.decode(directory.read(manifest.path), own)
                needed.update(directory.key(entry.path) for entry in body.entries)
            needed.add(own)


def publications_before(context: Context, version: int) -> dict[str, bool]:
    """The publications of which an object may hold values of versions before this one, by the table's uuid.

    Returns:
        Whether the newest metadata is that old: only a publication replaces it. Otherwise the newest one is of this
        version or a later one, and there is something left that it does not need.
    """
    found: dict[str, bool] = {}
    for table in published_tables_of(context.store):
        directory = PublicationDirectory(context.store, context.runtime, table)
        newest = directory.newest()
        metadata = newest.metadata
        if metadata is None or metadata.location != directory.location or metadata.snapshots[0].version < version:
            found[table] = metadata is not None or newest.number > 0
            continue
        needed = {directory.hint_key, directory.key(directory.metadata_path(newest.number))}
        try:
            add_objects(directory, metadata, needed, set())
        except CorruptionError:
            found[table] = True
            continue
        if any(info.key not in needed for info in context.store.list(f"{PREFIX}{table}/")):
            found[table] = False
    return found
