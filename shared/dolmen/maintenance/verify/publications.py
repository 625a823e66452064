"""Checks publications: that their objects are there, and that they show the rows of the version they name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from dolmen.commit.context import Context
from dolmen.commit.versions import manifest_at_version
from dolmen.errors import CorruptionError, NotFoundError
from dolmen.format.manifest import Manifest
from dolmen.iceberg.directory import Newest, PublicationDirectory
from dolmen.iceberg.groups import FileGroups
from dolmen.iceberg.manifests import FileEntry, ManifestBody, decode_manifest_list
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.pins import published_tables
from dolmen.iceberg.puffin import vector_in
from dolmen.maintenance.verify.report import FindingLog

_TRIES = 5
"""How often a publication is looked at, while others publish."""


def check_publications(context: Context, newest: Manifest, log: FindingLog) -> None:
    """Checks the newest publication of each table that has one. Makes no request where nothing is published.

    Others may publish, drop and collect meanwhile, so a finding counts only if the publication is still the newest.

    Args:
        newest: the newest version.
    """
    for uuid in sorted(published_tables(newest)):
        manifest = newest
        directory = PublicationDirectory(context.store, context.runtime, uuid)
        for _ in range(_TRIES):
            name = manifest.name_of(uuid)
            if name is None:
                break  # dropped: the next collection deletes the publication
            found, own = directory.newest(thorough=True), FindingLog()
            if found.number:  # else a publisher stopped before its first publication
                _check_newest(context, manifest, name, directory, found, own)
            is_newest = not own.findings or directory.newest(thorough=True).number == found.number
            if own.findings:
                manifest = context.head.refresh().manifest
            if is_newest and manifest.name_of(uuid) is not None:
                log.count("publications", int(found.number > 0))
                log.merge(own)
                break


def _check_newest(
    context: Context, newest: Manifest, name: str, directory: PublicationDirectory, found: Newest, log: FindingLog
) -> None:
    key, metadata = directory.key(directory.metadata_path(found.number)), found.metadata
    if metadata is None or metadata.location != directory.location:
        log.add("publication-foreign", key, "it is not as dolmen wrote it for this place", table=name)
        return
    if found.hint != found.number:
        log.add("publication-hint", directory.hint_key, f"it does not name v{found.number}.metadata.json", table=name)
    if metadata.current.version > newest.version:  # it was published after this check began
        newest = context.head.refresh().manifest
    try:
        _check(context, newest, name, directory, metadata, log)
    except CorruptionError as error:
        log.add("publication-damaged", error.key, error.reason, table=name)
    except NotFoundError as error:
        log.add("publication-differs", key, f"its version cannot be read: {error}", table=name)


def _check(
    context: Context,
    newest: Manifest,
    name: str,
    directory: PublicationDirectory,
    metadata: TableMetadata,
    log: FindingLog,
) -> None:
    current = metadata.current
    manifest = manifest_at_version(context.head, newest, current.version)
    then = manifest.name_of(metadata.table_uuid)
    if then is None or manifest.commit_id != current.commit_id:
        reason = f"version {current.version} is of another commit, or has no such table"
        log.add("publication-differs", directory.key(current.manifest_list), reason, table=name)
        return
    groups = FileGroups.of(context, then, manifest, context.segments.whole(manifest.table(then)))
    files = list[str]()
    deletes = list[FileEntry]()
    list_key = directory.key(current.manifest_list)
    for each in decode_manifest_list(directory.read(current.manifest_list), list_key):
        body = ManifestBody.decode(directory.read(each.path), directory.key(each.path))
        if each.content == "deletes":
            deletes += body.entries
        else:
            files += [entry.path for entry in body.entries]
    shown = {file.uuid: directory.path(file.path) for group in groups.groups for file in groups.files(group, ())}
    if sorted(files) != sorted(shown.values()):
        reason = f"it has {len(files):,} data files, which are not the {len(shown):,} of version {current.version}"
        log.add("publication-differs", list_key, reason, table=name)
    hidden = _positions(directory, deletes)
    for group in groups.groups:
        for file, positions in groups.positions(group, group.deleted.keys()):
            if hidden.pop(directory.path(file.path), BitMap()) != positions:
                log.add("publication-differs", list_key, f"it hides other rows of {file.path!r}", table=name)
    for path in hidden.keys() & set(files):
        log.add("publication-differs", list_key, f"it hides rows of {directory.key(path)!r}", table=name)


def _positions(directory: PublicationDirectory, deletes: Iterable[FileEntry]) -> dict[str, BitMap]:
    """The positions that delete files hide, by the path of their data file. Raises CorruptionError."""
    found: dict[str, BitMap] = defaultdict(BitMap)
    for entry in deletes:
        body = directory.read(entry.path)
        if len(body) != entry.size:
            raise CorruptionError(directory.key(entry.path), f"it has {len(body)} bytes, not {entry.size}")
        try:
            if entry.data_file is not None and entry.blob is not None:
                found[entry.data_file] |= vector_in(body, *entry.blob)
                continue
            rows = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
            table = rows.group_by("file_path", use_threads=False).aggregate([("pos", "list")])
        except (ValueError, pa.ArrowException, OSError) as error:
            raise CorruptionError(directory.key(entry.path), f"not a delete file: {error}") from error
        for path, positions in zip(table["file_path"].to_pylist(), table["pos_list"], strict=True):
            found[path] |= BitMap(positions.values.to_numpy())
    return found
