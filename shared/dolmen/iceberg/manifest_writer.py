"""Writes the manifests and delete files of a snapshot, except unchanged ones, which the last snapshot has already.

The hidden rows of a data file only increase, so its path and their number identify them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.iceberg.file_groups import (
    BLOB_OFFSET,
    FILE_PATH_ID,
    FileGroup,
    FileGroups,
    encode_position_deletes,
    encode_puffin,
    encode_vector_blob,
)
from dolmen.iceberg.manifests import (
    POSITION_DELETES,
    Content,
    FileEntry,
    ManifestBody,
    ManifestFile,
    Metrics,
    encode_manifest,
    summarize,
)
from dolmen.iceberg.metadata import FormatVersion
from dolmen.iceberg.partition_specs import UNPARTITIONED, BoundSpec, FilePartition
from dolmen.iceberg.publication_directory import PublicationDirectory

_NAME = re.compile(r".*/(?:data|deletes)-([0-9a-f]{16})-[0-9a-f]{32}\.avro")


class BaseManifests:
    """The manifests of the last published snapshot that can be carried over."""

    def __init__(self, directory: PublicationDirectory, manifests: Sequence[ManifestFile]) -> None:
        self._directory = directory
        self._by_identity: dict[tuple[Content, str], list[ManifestFile]] = defaultdict(list)
        for each in manifests:
            if match := _NAME.fullmatch(each.path):
                self._by_identity[each.content, match[1]].append(each)
        self._kept: set[tuple[Content, str]] = set()
        self._bodies: dict[Content, list[ManifestBody]] = {}
        self._data_files: dict[str, FileEntry] | None = None

    def note_kept(self, content: Content, identities: Iterable[str]) -> None:
        """Notes which manifests the next snapshot carries over, so that they are not read."""
        self._kept.update((content, identity) for identity in identities)

    def find(self, content: Content, identity: str) -> list[ManifestFile]:
        """The manifests with this identity, one for each partition spec."""
        return self._by_identity.get((content, identity), [])

    def find_partitions(self, identity: str) -> dict[str, FilePartition]:
        """The partitions of data files, by their path, in the manifests with this identity. Unpartitioned ones lack."""
        manifests = [each for each in self.find("data", identity) if each.spec]
        return {entry.path: entry.partition for each in manifests for entry in self._read(each).entries}

    def read_replaced(self, content: Content) -> list[ManifestBody]:
        """The content of the manifests that are not carried over, one GET each."""
        if content not in self._bodies:
            dropped = [key for key in self._by_identity if key[0] == content and key not in self._kept]
            self._bodies[content] = [self._read(each) for key in dropped for each in self._by_identity[key]]
        return self._bodies[content]

    def _read(self, manifest: ManifestFile) -> ManifestBody:
        return ManifestBody.decode(self._directory.read(manifest.path), self._directory.key(manifest.path))

    def find_data_file(self, path: str) -> FileEntry | None:
        """The entry of a data file in a manifest that is not carried over; None if there is none."""
        if self._data_files is None:
            self._data_files = {entry.path: entry for body in self.read_replaced("data") for entry in body.entries}
        return self._data_files.get(path)


@dataclass
class ManifestWriter:
    """Writes manifests under names that identify their content."""

    directory: PublicationDirectory
    format_version: FormatVersion
    schema: dict[str, Any]
    snapshot: int
    sequence: int
    specs: Mapping[int, BoundSpec]

    def write(
        self,
        content: Content,
        identity: str,
        entries: Iterable[FileEntry],
        spec: int,
        coverage: Mapping[str, int] | None = None,
    ) -> ManifestFile:
        """Creates a manifest whose name has these 16 digits. For ``coverage``, see ``ManifestBody``."""
        file = ManifestFile(content, self.sequence, self.snapshot, self.sequence, spec=spec)
        counted, bound, partitions = file.count(entries), self.specs[spec], set[FilePartition]()

        def noted() -> Iterator[FileEntry]:
            for entry in counted:
                partitions.add(entry.partition)
                yield entry

        data = encode_manifest(noted(), self.format_version, content, self.schema, self.snapshot, coverage, bound)
        file.path, file.size = self.directory.write(f"{content}-{identity}", "avro", data), len(data)
        file.partitions = summarize(partitions, bound)
        return file


MOST_DELETE_FILES = 8  # if there would be more position-delete files for each partition, all are rewritten

_POSITIONS_PER_FILE = 1 << 24


@dataclass
class DeletesWriter:
    """Writes the manifests of delete files. A delete file has the partition of its data files."""

    directory: PublicationDirectory
    runtime: Runtime
    base: BaseManifests
    writer: ManifestWriter
    groups: FileGroups
    epoch: int
    added: Collection[str]  # uuids of data files that no earlier snapshot has
    # by path, of data files in manifests that were not carried over; unpartitioned ones may be missing
    partitions: Mapping[str, FilePartition]

    def write(self) -> tuple[ManifestFile, ...]:
        """Writes the delete files of a snapshot in the writer's format, and their manifests."""
        return tuple(self._position_deletes() if self.writer.format_version == 2 else self._vectors())

    def _position_deletes(self) -> Iterator[ManifestFile]:
        """The manifests of a v2 snapshot's position deletes, one for each spec."""
        deleted = {uuid: count for group in self.groups.groups for uuid, count in group.deleted.items()}
        if not deleted:
            return
        all_files = FileGroup(None, self.groups.groups[0].indexes[:0], deleted)
        identity = all_files.deletes_identity(self.epoch)
        if previous := self.base.find("deletes", identity):
            yield from previous
            return
        coverage, entries = self._find_position_deletes(deleted)
        changed_uuids = {uuid for uuid, count in deleted.items() if coverage.get(uuid) != count}
        if len(entries) >= MOST_DELETE_FILES * len({entry.partition for entry in entries}) > 0:
            changed_uuids, entries = set(deleted), []
        entries += self._position_delete_files(changed_uuids)
        yield from self._manifests(identity, entries, deleted)

    def _manifests(
        self, identity: str, entries: Sequence[FileEntry], coverage: Mapping[str, int] | None = None
    ) -> Iterator[ManifestFile]:
        """A manifest for each spec; the first one has the coverage."""
        for spec in sorted({entry.partition.spec for entry in entries}):
            own = (entry for entry in entries if entry.partition.spec == spec)
            yield self.writer.write("deletes", identity, own, spec, coverage)
            coverage = None

    def _vectors(self) -> Iterator[ManifestFile]:
        """Manifests of deletion vectors, for each group of a v3 snapshot that has hidden rows."""
        identities = [group.deletes_identity(self.epoch) for group in self.groups.groups]
        self.base.note_kept("deletes", identities)
        for group, identity in zip(self.groups.groups, identities, strict=True):
            if not group.deleted:
                continue
            if previous := self.base.find("deletes", identity):
                yield from previous
            else:
                yield from self._manifests(identity, self._vector_entries(group))

    def _find_position_deletes(self, deleted: dict[str, int]) -> tuple[dict[str, int], list[FileEntry]]:
        """Position-delete files of the base, and the number of rows that they hide, by data file.

        Both are empty if most of the data files are gone: then all positions are written again.
        """
        coverage: dict[str, int] = {}
        entries: list[FileEntry] = []
        for body in self.base.read_replaced("deletes"):
            coverage.update(body.coverage)
            entries += body.entries
        present = {uuid: count for uuid, count in coverage.items() if uuid in deleted and uuid not in self.added}
        if len(coverage) > 2 * len(present) or any(count > deleted[uuid] for uuid, count in present.items()):
            return {}, []
        return present, entries

    def _position_delete_files(self, changed: Collection[str]) -> Iterator[FileEntry]:
        batches: dict[FilePartition, dict[str, BitMap]] = defaultdict(dict)
        size = 0
        for group in self.groups.groups:
            for path, positions, partition in self._positions(group, group.deleted.keys() & changed):
                batches[partition][path] = positions
                size += len(positions)
                if size >= _POSITIONS_PER_FILE:
                    yield from map(self._position_delete_file, batches, batches.values())
                    batches.clear()
                    size = 0
        yield from map(self._position_delete_file, batches, batches.values())

    def _position_delete_file(self, partition: FilePartition, positions: dict[str, BitMap]) -> FileEntry:
        body = encode_position_deletes(positions)
        path = self.directory.write("positions", "parquet", body)
        bounds = Metrics(lower={FILE_PATH_ID: min(positions).encode()}, upper={FILE_PATH_ID: max(positions).encode()})
        return FileEntry(
            path,
            "PARQUET",
            sum(map(len, positions.values())),
            len(body),
            self.writer.snapshot,
            self.writer.sequence,
            POSITION_DELETES,
            bounds,
            partition=partition,
        )

    def _vector_entries(self, group: FileGroup) -> list[FileEntry]:
        previous: dict[str, FileEntry] = {
            entry.data_file: entry
            for body in self.base.read_replaced("deletes")
            for entry in body.entries
            if entry.data_file is not None
        }
        entries: list[FileEntry] = []
        carried_uuids: set[str] = set()
        for file in self.groups.files(group, ()) if previous else ():
            entry = previous.get(self.directory.path(file.path))
            if entry is not None and file.uuid not in self.added and group.deleted.get(file.uuid) == entry.rows:
                entries.append(entry)
                carried_uuids.add(file.uuid)
        entries += self.runtime.map(self._vector_entry, self._positions(group, group.deleted.keys() - carried_uuids))
        return entries

    def _vector_entry(self, item: tuple[str, BitMap, FilePartition]) -> FileEntry:
        data_file, positions, partition = item
        blob = encode_vector_blob(positions)
        body = encode_puffin(blob, data_file, len(positions))
        path = self.directory.write("vector", "puffin", body)
        return FileEntry(
            path,
            "PUFFIN",
            len(positions),
            len(body),
            self.writer.snapshot,
            self.writer.sequence,
            POSITION_DELETES,
            data_file=data_file,
            blob=(BLOB_OFFSET, len(blob)),
            partition=partition,
        )

    def _positions(self, group: FileGroup, uuids: Collection[str]) -> Iterator[tuple[str, BitMap, FilePartition]]:
        """The paths of these data files, with the positions of their hidden rows, and their partitions."""
        if not uuids:
            return
        carried = self.base.find_partitions(self.groups.identity(group))
        for file, positions in self.groups.positions(group, uuids):
            path = self.directory.path(file.path)
            yield path, positions, self.partitions.get(path) or carried.get(path, UNPARTITIONED)
