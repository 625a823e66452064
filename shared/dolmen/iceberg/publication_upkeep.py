"""Background work on publications: deletes objects that no reader needs any more, and checks publications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import PUBLICATION_CHECK, attempts
from dolmen.commit.head import Context
from dolmen.commit.versions import manifest_at_version, newest_at
from dolmen.errors import CorruptionError, NotFoundError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.iceberg.file_groups import FileGroups, read_position_deletes, read_vector_blob
from dolmen.iceberg.manifests import FileEntry, ManifestBody, decode_manifest_list
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.partition_specs import FilePartition
from dolmen.iceberg.publication_directory import (
    PREFIX,
    NewestMetadata,
    PublicationDirectory,
    asks_for_publication,
    pins_of,
    published_tables,
    unpin_versions,
)
from dolmen.store.base import ObjectInfo, folders


class PublicationProblem(NamedTuple):
    """A defect of a publication: the kind of finding, an object, the reason, and the table's name."""

    kind: str
    key: str
    reason: str
    table: str


def check_publications(context: Context, newest: Manifest) -> Iterator[list[PublicationProblem]]:
    """Yields the problems of each table's newest publication. Makes no request if there is no publication.

    Others may publish, drop and collect meanwhile, so problems count only if the publication is still the newest.
    """
    for uuid in sorted(published_tables(newest)):
        manifest = newest
        directory = PublicationDirectory(context.store, context.runtime, uuid)
        for _ in attempts(context.runtime, PUBLICATION_CHECK):
            name = manifest.name_of(uuid)
            if name is None:
                break  # dropped: the next collection deletes the publication
            latest = directory.newest(thorough=True)
            # Without a number a publisher stopped before its first publication.
            problems = list(_find_problems(context, manifest, name, directory, latest)) if latest.number else []
            is_newest = not problems or directory.newest(thorough=True).number == latest.number
            if problems:
                manifest = context.head.refresh().manifest
            if is_newest and manifest.name_of(uuid) is not None:
                if latest.number:
                    yield problems
                break


def _find_problems(
    context: Context, newest: Manifest, name: str, directory: PublicationDirectory, found: NewestMetadata
) -> Iterator[PublicationProblem]:
    key, metadata = directory.key(directory.metadata_path(found.number)), found.metadata
    if metadata is None or metadata.location != directory.location:
        yield PublicationProblem("publication-foreign", key, "it is not as dolmen wrote it for this place", name)
        return
    if found.hint != found.number:
        reason = f"it does not name v{found.number}.metadata.json"
        yield PublicationProblem("publication-hint", directory.hint_key, reason, name)
    if metadata.current.version > newest.version:  # it was published after this check began
        newest = context.head.refresh().manifest
    try:
        for object_key, reason in _compare(context, newest, directory, metadata):
            yield PublicationProblem("publication-differs", object_key, reason, name)
    except CorruptionError as error:
        yield PublicationProblem("publication-damaged", error.key, error.reason, name)
    except NotFoundError as error:
        yield PublicationProblem("publication-differs", key, f"its version cannot be read: {error}", name)


def _compare(
    context: Context, newest: Manifest, directory: PublicationDirectory, metadata: TableMetadata
) -> Iterator[tuple[str, str]]:
    """Compares a publication with the version that it names."""
    current = metadata.current
    manifest = manifest_at_version(context.head, newest, current.version)
    name, list_key = manifest.name_of(metadata.table_uuid), directory.key(current.manifest_list)
    if name is None or manifest.commit_id != current.commit_id:
        yield list_key, f"version {current.version} is of another commit, or has no such table"
        return
    groups = FileGroups(context, name, manifest, context.segments.whole(manifest.table(name)))
    files, deletes = list[FileEntry](), list[FileEntry]()
    for each in decode_manifest_list(directory.read(current.manifest_list), list_key):
        body = ManifestBody.decode(directory.read(each.path), directory.key(each.path))
        if each.content == "deletes":
            deletes += body.entries
        else:
            files += body.entries
    partitions = {entry.path: entry.partition for entry in files}
    paths = {file.uuid: directory.path(file.path) for group in groups.groups for file in groups.files(group, ())}
    if sorted(entry.path for entry in files) != sorted(paths.values()):
        yield list_key, f"it has {len(files):,} data files, not the {len(paths):,} of version {current.version}"
    positions_by_path = _read_positions(directory, deletes, partitions)
    for group in groups.groups:
        for file, positions in groups.positions(group, group.deleted.keys()):
            if positions_by_path.pop(directory.path(file.path), BitMap()) != positions:
                yield list_key, f"it hides other rows of {file.path!r}"
    for path in positions_by_path.keys() & partitions.keys():
        yield list_key, f"it hides rows of {directory.key(path)!r}"


def _read_positions(
    directory: PublicationDirectory, deletes: Iterable[FileEntry], partitions: Mapping[str, FilePartition]
) -> dict[str, BitMap]:
    """The positions that delete files hide, by the path of their data file. Raises CorruptionError.

    Readers ignore a delete file whose partition differs from that of the data file in ``partitions``.
    """
    positions_of: dict[str, BitMap] = defaultdict(BitMap)
    for entry in deletes:
        body = directory.read(entry.path)
        if len(body) != entry.size:
            raise CorruptionError(directory.key(entry.path), f"it has {len(body)} bytes, not {entry.size}")
        try:
            if entry.data_file is not None and entry.blob is not None:
                start, length = entry.blob
                found = iter([(entry.data_file, read_vector_blob(body[start : start + length], length))])
            else:
                found = read_position_deletes(body, entry.size)
            for path, positions in found:
                if partitions.get(path, entry.partition) == entry.partition:
                    positions_of[path] |= positions
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:
            raise CorruptionError(directory.key(entry.path), f"not a delete file: {error}") from error
    return positions_of


def sweep_publications(
    context: Context,
    manifest: Manifest,
    settings: DatabaseSettings,
    now_us: int,
    erase: Callable[[Sequence[ObjectInfo]], bool],
    deadline: Callable[[], bool],
    *,
    full: bool,
    dry_run: bool,
) -> tuple[bool, dict[str, str]]:
    """Deletes objects that no reader of a publication needs any more: see docs/iceberg.md.

    Makes no request if nothing is published. ``erase`` deletes objects, and says whether any could not be deleted;
    ``full`` also looks for publications without an entry in the manifest. Returns whether it finished before the
    deadline, and the reasons by key for what it could not delete.
    """
    full = full or bool(manifest.leaving)  # an erasure may have removed the pins of old publications
    if published_tables(manifest):
        manifest = context.head.refresh().manifest
    sweep = _Sweep(context, manifest, settings, now_us, erase, dry_run=dry_run)
    existing_uuids, problems = {entry.uuid for entry in manifest.tables.values()}, dict[str, str]()
    for table in sorted({*published_tables(manifest), *(folders(context.store, PREFIX) if full else ())}):
        if deadline():
            return False, problems
        if table not in existing_uuids:
            sweep.sweep_dropped(table)
            continue
        try:
            sweep.sweep_table(table)
        except CorruptionError as error:
            problems[error.key] = f"{error.reason}: publish the table again"
    return True, problems


class _Sweep:
    def __init__(
        self,
        context: Context,
        manifest: Manifest,
        settings: DatabaseSettings,
        now_us: int,
        erase: Callable[[Sequence[ObjectInfo]], bool],
        *,
        dry_run: bool,
    ) -> None:
        self._context, self._manifest, self._settings = context, manifest, settings
        self._now_us, self._erase, self._dry_run = now_us, erase, dry_run
        self._before_us = now_us - settings.orphan_age_us

    def _sweep_abandoned(self, directory: PublicationDirectory, infos: Sequence[ObjectInfo]) -> None:
        """Deletes the metadata first, and in a later round the rest.

        A concurrent publisher pins a version before it looks for metadata. So this run sees its pin, or the publisher
        finds no metadata that names deleted objects.
        """
        documents, others = _divide(directory, (info for info in infos if info.last_modified_us < self._before_us))
        if documents:
            _ = self._erase(documents[:-1]) or self._erase(documents[-1:])  # the newest last
        elif not any(info.key.endswith(".json") for info in infos):
            self._erase(others)

    def _is_abandoned(self, directory: PublicationDirectory, metadata: TableMetadata | None, table: str) -> bool:
        leaving = self._manifest.leaving
        if not leaving or pins_of(self._manifest, table):
            return False
        entry = next(entry for entry in self._manifest.tables.values() if entry.uuid == table)
        if asks_for_publication(self._context, self._manifest, entry):
            return False
        is_own = metadata is not None and metadata.location == directory.location
        return metadata is None or not is_own or metadata.current.version < max(each.version for each in leaving)

    def sweep_table(self, table: str) -> None:
        directory = PublicationDirectory(self._context.store, self._context.runtime, table)
        newest_metadata = directory.newest(thorough=True)
        infos = list(self._context.store.list(f"{PREFIX}{table}/"))
        if self._is_abandoned(directory, newest_metadata.metadata, table):
            self._sweep_abandoned(directory, infos)
            return
        needed = set[str]()
        if newest_metadata.number:  # else a publisher stopped before its first publication
            if newest_metadata.metadata is None or newest_metadata.metadata.location != directory.location:
                return  # another writer's: the next publication replaces it
            hint_us = max((info.last_modified_us for info in infos if info.key == directory.hint_key), default=0)
            needed = self._find_needed(directory, newest_metadata, newest_metadata.metadata, table, hint_us)
        unneeded = (info for info in infos if info.key not in needed and info.last_modified_us < self._before_us)
        documents, others = _divide(directory, unneeded)
        if not self._erase(documents):  # while metadata exists, so must the objects that it names
            self._erase(others)

    def sweep_dropped(self, table: str) -> None:
        """Deletes the metadata, newest last; after all metadata, the old objects; and then removes the pins.

        The publisher of a version that had the table may still be running, and create metadata at any time before
        ``orphan_age`` has passed. The objects that it names must exist, because the table may be restored.
        """
        directory = PublicationDirectory(self._context.store, self._context.runtime, table)
        pins = pins_of(self._manifest, table)
        infos = list(self._context.store.list(f"{PREFIX}{table}/"))
        documents, others = _divide(directory, infos)
        before_us = self._now_us + 1 if pins else self._before_us
        removable = [info for info in documents if info.last_modified_us < before_us]
        if self._erase(removable[:-1]) or self._erase(removable[-1:]) or len(removable) < len(documents):
            return
        old_infos = [info for info in others if info.last_modified_us < self._before_us]
        if old_infos and self._context.head.refresh().manifest.name_of(table) is not None:
            return  # it was restored: its publisher may have read the metadata before it was deleted
        if self._erase(old_infos) or len(old_infos) < len(others):
            return
        if pins and self._can_be_unpinned(pins) and not self._dry_run:
            unpin_versions(self._context, table, max(pins) + 1)  # no later pins: the table may have been restored

    def _can_be_unpinned(self, pins: dict[int, str]) -> bool:
        """Whether no process can still publish these versions: none of them was the newest within ``orphan_age``."""
        newest = newest_at(self._context.head, self._manifest, self._before_us)
        if newest:
            return max(pins) < newest
        return all(self._manifest.tags[name].created_at < self._before_us for name in pins.values())  # no history

    def _find_needed(
        self, directory: PublicationDirectory, newest: NewestMetadata, metadata: TableMetadata, table: str, hint_us: int
    ) -> set[str]:
        """Keys of the objects to keep: those that a reader may still reach.

        Metadata may be read as the newest until the next is created. Readers that trust the hint find it until the hint
        is replaced: at the latest (``hint_us``) before the first metadata whose publisher saw a later hint.
        """
        needed = {directory.hint_key, directory.key(directory.metadata_path(newest.number))}
        read = set[str]()
        grace_us = self._now_us - self._settings.reader_grace_us
        replaced_ms = metadata.updated_ms
        hints = [_seen_hint(newest.number, metadata)]  # newest first
        pinned = [version for version in pins_of(self._manifest, table) if version < metadata.current.version]
        add_objects(directory, metadata, needed, read)
        if 0 < newest.hint < newest.number:  # its publisher stopped, and readers still trust the hint
            hinted = directory.metadata_path(newest.hint)
            needed.add(directory.key(hinted))
            if (earlier := TableMetadata.decode(directory.read(hinted))) is not None:
                add_objects(directory, earlier, needed, read)
            between = range(newest.hint + 1, newest.number)  # through which the newest is found from the hint
            needed.update(directory.key(directory.metadata_path(number)) for number in between)
        for published_ms, path in reversed(metadata.log):
            number = directory.number(path)
            is_old = replaced_ms * 1_000 < grace_us
            # The hint named later metadata at the latest when the first publisher saw that, or when it was last set.
            hinted_us = next((at_us for hint, at_us in reversed(hints) if hint > number), hint_us)
            is_hinted = hinted_us >= grace_us
            if is_old and (not (is_hinted or pinned) or not directory.has_metadata(number)):
                break
            earlier = TableMetadata.decode(directory.read(path))
            if is_old and not is_hinted and (earlier is None or earlier.current.version < min(pinned)):
                break
            if not is_old or is_hinted or (earlier is not None and earlier.current.version in pinned):
                needed.add(directory.key(path))
                if earlier is not None:
                    add_objects(directory, earlier, needed, read)
            if earlier is not None:
                hints.append(_seen_hint(number, earlier))
            replaced_ms = published_ms
        return needed


def _divide(directory: PublicationDirectory, infos: Iterable[ObjectInfo]) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """Metadata, the newest last, and all other objects."""
    documents, others = list[ObjectInfo](), list[ObjectInfo]()
    for info in infos:
        (documents if info.key.endswith(".json") else others).append(info)
    return sorted(documents, key=lambda info: directory.number(directory.path(info.key))), others


def _seen_hint(number: int, metadata: TableMetadata) -> tuple[int, int]:
    """The hint that the publisher of this metadata saw, and when."""
    return number - 1 if metadata.hint is None else metadata.hint, metadata.updated_ms * 1_000


def add_objects(directory: PublicationDirectory, metadata: TableMetadata, needed: set[str], read: set[str]) -> None:
    """Adds the keys of the manifest lists of snapshots (unless in ``read``), their manifests and delete files."""
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list in read:
            continue
        read.add(snapshot.manifest_list)
        key = directory.key(snapshot.manifest_list)
        needed.add(key)
        for manifest in decode_manifest_list(directory.read(snapshot.manifest_list), key):
            manifest_key = directory.key(manifest.path)
            if manifest_key not in needed and manifest.content == "deletes":
                body = ManifestBody.decode(directory.read(manifest.path), manifest_key)
                needed.update(directory.key(entry.path) for entry in body.entries)
            needed.add(manifest_key)


def publications_before(context: Context, version: int) -> dict[str, bool]:
    """Finds publications with objects that may hold values of versions before this one.

    Returns:
        by the table's uuid, whether the newest metadata is that old, so that only a publication replaces it. If not,
        the directory has objects that the newest metadata does not need.
    """
    is_old_by_table: dict[str, bool] = {}
    for table in folders(context.store, PREFIX):
        directory = PublicationDirectory(context.store, context.runtime, table)
        newest = directory.newest()
        metadata = newest.metadata
        if metadata is None or metadata.location != directory.location or metadata.snapshots[0].version < version:
            is_old_by_table[table] = metadata is not None or newest.number > 0
            continue
        needed = {directory.hint_key, directory.key(directory.metadata_path(newest.number))}
        try:
            add_objects(directory, metadata, needed, set())
        except CorruptionError:
            is_old_by_table[table] = True
            continue
        if any(info.key not in needed for info in context.store.list(f"{PREFIX}{table}/")):
            is_old_by_table[table] = False
    return is_old_by_table
