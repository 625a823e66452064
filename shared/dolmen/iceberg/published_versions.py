"""The versions that publications show: which there are, what keeps them, and how far they are behind.

A reserved tag (a pin) keeps a published version. A version is pinned before it is published, and the pin of the version
before it is removed afterwards, so that collection never deletes an object that the newest publication names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dolmen.base.units import SECOND_US
from dolmen.commit.context import Context
from dolmen.commit.draft import Draft
from dolmen.commit.loop import submit
from dolmen.commit.statements.catalog import PutTag
from dolmen.errors import CorruptionError
from dolmen.format.layout import RESERVED_TAGS, Tag
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.iceberg.manifests import ManifestBody, decode_manifest_list
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication_directory import PREFIX, PublicationDirectory
from dolmen.store.base import ObjectStore

OPERATION = "publish"


def pin_name(table: str, version: int) -> str:
    """``iceberg.<uuid of the table>.<version>``."""
    return f"{RESERVED_TAGS}{table}.{version}"


def pins_of(manifest: Manifest, table: str) -> dict[int, str]:
    """The names of a table's pins by their version."""
    return {tag.version: name for name, tag in manifest.tags.items() if name.startswith(f"{RESERVED_TAGS}{table}.")}


def published_tables(manifest: Manifest) -> set[str]:
    """The uuids of the tables that have pins, dropped ones included."""
    return {
        name.removeprefix(RESERVED_TAGS).partition(".")[0] for name in manifest.tags if name.startswith(RESERVED_TAGS)
    }


def pin_version(context: Context, manifest: Manifest, table: str) -> None:
    """Keeps a version with all that it needs; makes no commit if it is pinned already.

    Raises:
        VersionExpiredError: it has expired.
        LimitError: there are too many tags.
    """
    tag = Tag(manifest.version, manifest.key, manifest.created_at)
    submit(context.head, OPERATION, [PutTag(pin_name(table, manifest.version), tag, move=True)])


def unpin_versions(context: Context, table: str, before: int | None) -> None:
    """Removes the pins of a table's versions before this one, or all of them; makes no commit if there are none."""
    submit(context.head, OPERATION, [UnpinVersions(table, before)])


@dataclass(frozen=True)
class UnpinVersions:
    """Removes pins of versions that are no longer published.

    Args:
        table: the table's uuid.
        before: the published version; None for all pins.
    """

    table: str
    before: int | None
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the tags, as far as they are there."""
        prefix = f"{RESERVED_TAGS}{self.table}."
        for name, tag in list(draft.tags.items()):
            if name.startswith(prefix) and (self.before is None or tag.version < self.before):
                draft.put_tag(name, None)


_CLOCKS_DIFFER_US = 10 * SECOND_US
"""The timestamp of a commit may be so far ahead of the time of its version, in microseconds."""


_SHOWS_THE_SAME = frozenset(("set", "resolve", "compact", "index", "merge"))


@dataclass(frozen=True)
class PublicationLag:
    """The place of a publication.

    Args:
        version: the version that all readers see, Glue's included, or a later one; 0 if there is none yet.
        lag_us: age of the oldest known change that is not published, at the newest commit, in microseconds; 0 if none
            is known.
    """

    version: int
    lag_us: int


def publication_lag(manifest: Manifest, name: str, entry: TableEntry) -> PublicationLag | None:
    """The lag of a table's publication; None for a table that is not published after maintenance, and never was.

    Args:
        entry: the table's whole entry in the manifest.
    """
    pins = pins_of(manifest, entry.uuid)
    if not pins and entry.properties.get("iceberg") is None:
        return None
    version = min(pins, default=0)  # an earlier one keeps its pin until the publication after it is done
    created_at = manifest.tags[pins[version]].created_at if pins else 0
    oldest = min(_changes(manifest, name, entry, version, created_at), default=manifest.created_at)
    return PublicationLag(version, max(0, manifest.created_at - oldest))


def _changes(manifest: Manifest, name: str, entry: TableEntry, version: int, created_at: int) -> Iterator[int]:
    """Yields times of changes since a version: of commits in the manifest's history, or of the newest row or delete."""
    commits = [*manifest.history, manifest.as_history()]
    for commit in commits:
        if commit.version > version and any(
            deed.table == name and deed.what not in _SHOWS_THE_SAME for deed in commit.did
        ):
            yield commit.created_at
    if commits[0].version > version:  # the history in the manifest does not reach back to that version
        newest = max(
            [entry.last_delete_ts, entry.schema.altered_ts]
            + [file.greatest_row_ts for file in entry.files]
            + [segment.greatest for segment in entry.segments_of("files")]
        )
        if newest > created_at + _CLOCKS_DIFFER_US:
            yield newest


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
