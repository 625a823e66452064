"""Publishes a table's newest version as an Iceberg snapshot, without copying a data file.

It is safe to stop after each request, because of their order: the version is pinned, its objects are created,
``v<N>.metadata.json`` is created (this publishes), the hint is replaced, the table is registered in Glue if requested,
and earlier versions lose their pins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dolmen.base.records import FactSheet, replace
from dolmen.base.runtime import PUBLICATION, attempts, never
from dolmen.base.units import count_text
from dolmen.commit.head import Context
from dolmen.commit.statements.row_changes import without_index
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import ConflictError, CorruptionError, Error, SchemaError, VersionExpiredError
from dolmen.format.column_terms import partition_terms
from dolmen.format.layout import file_label
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import DatabaseSettings, TableSettings
from dolmen.iceberg.file_groups import FileGroup, FileGroups
from dolmen.iceberg.glue import GlueCatalog
from dolmen.iceberg.manifest_writer import BaseManifests, DeletesWriter, ManifestWriter
from dolmen.iceberg.manifests import FileEntry, ManifestFile, decode_manifest_list, encode_manifest_list, metrics
from dolmen.iceberg.metadata import (
    FormatVersion,
    PublishedSchema,
    PublishedSnapshot,
    TableMetadata,
    keeps_types,
    sort_order_of,
)
from dolmen.iceberg.partition_specs import NO_PARTITIONS, UNPARTITIONED, BoundSpec, FilePartition, unpublished_terms
from dolmen.iceberg.publication_directory import (
    PREFIX,
    NewestMetadata,
    PublicationDirectory,
    asks_for_publication,
    pin_version,
    pins_of,
    published_tables,
    unpin_versions,
)

MOST_SNAPSHOTS = 100  # the most snapshots of a publication; the oldest are dropped


@dataclass(frozen=True, repr=False)
class IcebergPublication(FactSheet):
    """The result of a publication."""

    table: str
    version: int  # the version that Iceberg readers see; it is the snapshot's id
    # absolute path of the metadata that shows it; "" in a dry run without an earlier publication
    metadata_location: str
    format_version: int  # of Iceberg, 2 or 3
    is_new: bool  # whether there was, or in a dry run is, something to publish
    is_repaired: bool = False  # whether it replaced another writer's metadata
    # files, rows: data files, and physical rows in them. A dry run has no figures from here on.
    files: int = 0
    rows: int = 0
    # delete_files, deleted_rows: delete files, and positions in them
    delete_files: int = 0
    deleted_rows: int = 0
    snapshots: int = 0
    # the reason for each column that Iceberg's readers do not see, by name, and for each term of ``partition_by`` that
    # they do not know
    left_out: dict[str, str] | None = None
    files_read: int = 0  # data files that were read, to find the rows that unresolved deletes hide
    # objects, bytes: written objects, including the hint, and their size. Pins take two more commits.
    objects: int = 0
    bytes: int = 0
    glue: str = ""  # the table in Glue that shows it, or a later one, as ``database.table``; "" if not requested

    @property
    def commits(self) -> int:
        """1 if it published something: other background work counts its commits."""
        return int(self.is_new and self.objects > 0)

    @property
    def finished(self) -> bool:
        """Always True: a publication is never left half done."""
        return True

    def facts(self) -> list[tuple[str, str]]:
        is_tried = self.is_new and not self.objects
        what = f"{self.table}, version {self.version}, as Iceberg v{self.format_version}"
        facts = [("to publish" if is_tried else "published", what), ("metadata", self.metadata_location or "none yet")]
        if not is_tried:
            facts += [
                ("files", f"{self.files:,} with {count_text(self.rows, 'row')}"),
                ("delete files", f"{self.delete_files:,} with {self.deleted_rows:,} positions"),
                ("snapshots", f"{self.snapshots:,}"),
                ("written", f"{count_text(self.objects, 'object')}, {self.bytes:,} bytes"),
            ]
        if self.glue:
            facts.append(("Glue", self.glue))
        return facts + [("left out", f"{name}: {reason}") for name, reason in (self.left_out or {}).items()]


def publish(
    context: Context,
    name: str,
    *,
    glue: str | None = None,
    anew: bool = False,
    dry_run: bool = False,
    lookup_bytes: int | None = None,
) -> IcebergPublication:
    """Publishes the newest version of a table: see ``Table.publish_iceberg``.

    Safe beside any other work, including other publishers: the newest version wins. If an object of the last
    publication is damaged, the whole table is published again.

    Args:
        lookup_bytes: the most bytes of data files to search for rows of unresolved deletes; None for no limit. Raises
            LimitError if there are more; resolving the deletes helps.
    """
    catalog = GlueCatalog.of(context.store.url, glue)
    for _ in attempts(context.runtime, PUBLICATION):
        manifest = context.head.refresh().manifest
        try:
            with context.reading(manifest.version):
                publication = _Publisher(context, name, manifest, catalog).run(anew, dry_run, lookup_bytes)
        except VersionExpiredError:
            continue
        except CorruptionError as error:
            if anew or not error.key.startswith(PREFIX):
                raise
            anew = True  # carries over no damaged object
            continue
        if publication is not None:
            return publication
    raise ConflictError(f"table {name!r}: others kept publishing it, or expiring its versions: publish it again")


def state_of(entry: TableEntry) -> str:
    """A digest of the parts of a table's whole entry that decide which rows and columns it shows."""
    bare = msgspec.structs.replace(
        without_index(entry),
        properties={},
        last_delete_ts=0,
        unseen_delete_ts=0,
        sequences=None,
        source="",
        primary_key=(),
    )
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()[:32]


class _Publisher:
    """One attempt to publish one version."""

    def __init__(self, context: Context, name: str, manifest: Manifest, catalog: GlueCatalog | None) -> None:
        self._context, self._name, self._manifest, self._catalog = context, name, manifest, catalog
        self._entry = context.segments.whole(manifest.table(name))
        settings = TableSettings.of(self._entry)
        self._format_version: FormatVersion = 3 if settings.iceberg == "v3" else 2
        self._keep_snapshots = settings.iceberg_snapshots == "kept"
        self._directory = PublicationDirectory(context.store, context.runtime, self._entry.uuid)
        self._schema = PublishedSchema.of(self._entry.schema, self._format_version)
        self._state = state_of(self._entry)
        self._added: set[str] = set()
        self._began_us = context.store.clock.now_us
        self._next_row_id = 0
        self._terms, self._specs = partition_terms(self._entry.properties), NO_PARTITIONS
        self._left_out = self._schema.left_out | unpublished_terms(self._terms, self._schema.columns)
        self._partitions: dict[str, FilePartition] = {}

    def run(self, anew: bool, dry_run: bool, lookup_bytes: int | None) -> IcebergPublication | None:
        """Publishes. Returns None if another publisher was faster."""
        newest = self._directory.newest(thorough=anew)
        own_metadata = self._own_metadata(newest.metadata)
        if anew and own_metadata is not None and own_metadata.current.version > self._manifest.version:
            return None
        metadata = None if anew else own_metadata
        earlier = own_metadata.partitioning if own_metadata else NO_PARTITIONS
        self._specs = earlier.with_default(self._terms, self._schema.columns)
        pins = pins_of(self._manifest, self._entry.uuid)
        if metadata is not None and self._is_current(metadata, pins):
            registered = "" if dry_run else self._finish(newest, newest.number, metadata, pins)
            return replace(self._result(newest.number, metadata, is_new=False), glue=registered)
        is_repaired = newest.number > 0 and own_metadata is None
        if dry_run:
            location = self._directory.metadata_path(newest.number) if newest.number else ""
            return IcebergPublication(
                self._name,
                self._manifest.version,
                location,
                self._format_version,
                is_new=True,
                is_repaired=is_repaired,
                left_out=self._left_out,
            )
        pin_version(self._context, self._manifest, self._entry.uuid)
        groups = FileGroups(self._context, self._name, self._manifest, self._entry, lookup_bytes)
        new_metadata = self._write(metadata, groups)
        number = newest.number + 1
        if own_metadata is not None:
            new_metadata = new_metadata.continue_log(own_metadata, self._directory.metadata_path(newest.number))
        if newest.hint != newest.number:
            new_metadata = replace(new_metadata, hint=newest.hint)
        if self._took_too_long() or not self._directory.commit(number, new_metadata):
            return None
        registered = self._finish(newest, number, new_metadata, pins)
        publication = self._result(number, new_metadata, is_new=True)
        return replace(publication, is_repaired=is_repaired, files_read=groups.files_read, glue=registered)

    def _took_too_long(self) -> bool:
        """Whether it took so long that collection may take its objects for orphans."""
        elapsed_us = self._context.store.clock.now_us - self._began_us
        return elapsed_us > DatabaseSettings.of(self._manifest).orphan_age_us // 2

    def _own_metadata(self, metadata: TableMetadata | None) -> TableMetadata | None:
        """The metadata, if its paths are of this database; None if the database was copied."""
        is_here = metadata is not None and metadata.location == self._directory.location
        return metadata if is_here and metadata is not None and metadata.table_uuid == self._entry.uuid else None

    def _is_current(self, metadata: TableMetadata, pins: dict[int, str]) -> bool:
        """Whether the publication is up to date, so that nothing has to be published."""
        current = metadata.current
        if current.version > self._manifest.version:
            return True
        snapshots = 1 if not self._keep_snapshots else len(metadata.snapshots)
        return (
            current.state == self._state
            and current.version == max(pins, default=0)  # a greater one is left by a publisher that lost, or ended
            and metadata.format_version == self._format_version
            and metadata.partitioning == self._specs
            and len(metadata.snapshots) == snapshots
        )

    def _finish(self, newest: NewestMetadata, number: int, metadata: TableMetadata, pins: dict[int, str]) -> str:
        """Replaces the hint, registers the table in Glue, and returns its name there; removes earlier pins.

        Pins are removed last: until then the version that Glue names is complete.
        """
        self._directory.set_hint(newest, number)
        registered = ""
        if self._catalog is not None:
            registered = self._catalog.register(self._name, self._directory, number, metadata, self._context.runtime)
        if any(version < metadata.current.version for version in pins):
            unpin_versions(self._context, self._entry.uuid, metadata.current.version)
        return registered

    def _write(self, metadata: TableMetadata | None, groups: FileGroups) -> TableMetadata:
        """Creates all objects of the snapshot, and returns the metadata that names them."""
        schemas, schema_id = self._schemas(metadata)
        first_row_id = self._next_row_id = metadata.next_row_id if metadata else 0
        base = self._base(metadata)
        version, commit_ts = self._manifest.version, self._manifest.commit_ts
        specs = self._specs.bind(self._schema.columns)
        writer = ManifestWriter(
            self._directory, self._format_version, self._schema.to_json(schema_id), version, commit_ts, specs
        )
        data = list(self._data_manifests(base, groups, writer))
        deletes = DeletesWriter(
            self._directory,
            self._context.runtime,
            base,
            writer,
            groups,
            self._entry.epoch,
            self._added,
            self._partitions,
        ).write()
        body = encode_manifest_list([*data, *deletes], self._format_version, version, commit_ts)
        snapshot = PublishedSnapshot(
            version=version,
            commit_id=self._manifest.commit_id,
            commit_ts=commit_ts,
            created_at=self._manifest.created_at,
            state=self._state,
            epoch=self._entry.epoch,
            manifest_list=self._directory.write(f"snap-{version}", "avro", body),
            schema_id=schema_id,
            files=sum(each.files for each in data),
            rows=sum(each.rows for each in data),
            delete_files=sum(each.files for each in deletes),
            positions=sum(each.rows for each in deletes),
            first_row_id=first_row_id,
            added_rows=self._next_row_id - first_row_id,
        )
        now_ms = max(self._context.store.clock.now_us, self._manifest.created_at) // 1_000
        return TableMetadata(
            self._format_version,
            self._entry.uuid,
            self._directory.location,
            max(now_ms, metadata.updated_ms if metadata else 0),
            self._schema.last_id,
            schemas,
            schema_id,
            (*self._kept_snapshots(metadata), snapshot),
            next_row_id=self._next_row_id,
            mapping=self._entry.schema.mapping,
            partitioning=self._specs,
            sort_order=sort_order_of(self._entry.sort_key),
        )

    def _schemas(self, metadata: TableMetadata | None) -> tuple[tuple[dict[str, object], ...], int]:
        schemas = metadata.schemas if metadata else ()
        schema_id = metadata.schema_id(self._schema) if metadata else None
        if schema_id is not None:
            return schemas, schema_id
        return (*schemas, self._schema.to_json(len(schemas))), len(schemas)

    def _base(self, metadata: TableMetadata | None) -> BaseManifests:
        """Manifests that may be carried over.

        There are none after a restore, which may show hidden rows again, or after a change of a column's type, because
        old manifests have bounds of the old type; and none if files do not keep their partitions.
        """
        if (
            metadata is None
            or metadata.format_version != self._format_version
            or metadata.current.epoch != self._entry.epoch
            or not self._specs.continues(metadata.partitioning)
            or not keeps_types(metadata.schemas[metadata.current_schema]["fields"], self._schema.fields)
        ):
            return BaseManifests(self._directory, ())
        path = metadata.current.manifest_list
        manifests = decode_manifest_list(self._directory.read(path), self._directory.key(path))
        return BaseManifests(self._directory, manifests)

    def _kept_snapshots(self, metadata: TableMetadata | None) -> tuple[PublishedSnapshot, ...]:
        """The earlier snapshots that readers can still travel to, except those with rows that were erased since."""
        if (
            metadata is None
            or not self._keep_snapshots
            or metadata.format_version != self._format_version
            or not self._specs.has_all(metadata.partitioning)
        ):
            return ()
        oldest_ts = metadata.snapshots[0].commit_ts
        erasures = erasures_of(self._manifest, self._context.segments, after=oldest_ts)
        erased_ts = max((erasure.ts for erasure in erasures if reaches(erasure, self._entry)), default=0)
        snapshots = (each for each in metadata.snapshots if erased_ts < each.commit_ts < self._manifest.commit_ts)
        return tuple(each for each in snapshots if self._manifest.is_kept(each.version))[1 - MOST_SNAPSHOTS :]

    def _data_manifests(
        self, base: BaseManifests, groups: FileGroups, writer: ManifestWriter
    ) -> Iterator[ManifestFile]:
        identities = [groups.identity(group) for group in groups.groups]
        base.note_kept("data", identities)
        for group, identity in zip(groups.groups, identities, strict=True):
            manifests = base.find("data", identity)
            yield from manifests
            for part, partitions in () if manifests else self._divide(base, groups, group, writer.specs):
                entries = self._data_entries(base, groups, part, partitions)
                yield writer.write("data", identity, entries, partitions[0].spec)

    def _divide(
        self, base: BaseManifests, groups: FileGroups, group: FileGroup, specs: Mapping[int, BoundSpec]
    ) -> Iterator[tuple[FileGroup, Sequence[FilePartition]]]:
        """The files of a group that are of the same spec, with their partitions: those of the last publication, or else
        of the first spec whose values their entries prove. All files are of the last one, which has no partitions."""
        if len(specs) == 1:
            yield group, [UNPARTITIONED] * len(group.indexes)
            return
        sources = {each.source_id for bound in specs.values() for each in bound.spec.fields}
        partitions = []
        for file in groups.files(group, sources):
            previous = base.find_data_file(self._directory.path(file.path))
            proven = filter(None, (each.of_file(file) for each in specs.values()))
            partitions.append(previous.partition if previous else next(proven))
        ids = np.array([partition.spec for partition in partitions])
        for spec in np.unique(ids):
            part = replace(group, indexes=group.indexes[ids == spec])
            yield part, [partition for partition in partitions if partition.spec == spec]

    def _data_entries(
        self, base: BaseManifests, groups: FileGroups, group: FileGroup, partitions: Sequence[FilePartition]
    ) -> Iterator[FileEntry]:
        for file, partition in zip(groups.files(group, self._schema.columns), partitions, strict=True):
            if file.constants:
                raise SchemaError(
                    f"table {self._name!r}: Iceberg's readers do not see values in names of folders, as those of "
                    f"{file_label(file.path)}. With the setting iceberg, compaction writes them into files: set it, "
                    "compact the table, then publish it"
                )
            path = self._directory.path(file.path)
            if file.uuid in group.deleted:
                self._partitions[path] = partition
            previous = base.find_data_file(path)
            first_row_id = previous.first_row_id if previous else None
            if previous is None:
                self._added.add(file.uuid)
                if self._format_version == 3:
                    first_row_id = self._next_row_id
                    self._next_row_id += file.rows
            yield FileEntry(
                path,
                "PARQUET",
                file.rows,
                file.size,
                previous.snapshot if previous else self._manifest.version,
                previous.sequence if previous else self._manifest.commit_ts,
                metrics=metrics(file, self._schema.columns),
                first_row_id=first_row_id,
                partition=partition,
            )

    def _result(self, number: int, metadata: TableMetadata, *, is_new: bool) -> IcebergPublication:
        current = metadata.current
        return IcebergPublication(
            table=self._name,
            version=current.version,
            metadata_location=self._directory.metadata_path(number),
            format_version=metadata.format_version,
            is_new=is_new,
            files=current.files,
            rows=current.rows,
            delete_files=current.delete_files,
            deleted_rows=current.positions,
            snapshots=len(metadata.snapshots),
            left_out=self._left_out,
            objects=self._directory.objects,
            bytes=self._directory.bytes,
        )


@dataclass(frozen=True)
class ErasurePublications:
    """The result of publishing the tables in which rows were erased."""

    published: tuple[IcebergPublication, ...] = ()  # the publications that no longer show the rows
    # errors by table. The erasure is done, and the next round of maintenance publishes these tables.
    failures: dict[str, Error] = field(default_factory=dict)
    postponed: tuple[str, ...] = ()  # tables that are left to the next round, for lack of time
    # tables that were published without the setting ``iceberg``: their readers see the rows until the table is
    # published again, or collection deletes the publication
    by_hand: tuple[str, ...] = ()


def publish_erasures(
    context: Context, ids: Collection[str], *, deadline: Callable[[], bool] = never, lookup_bytes: int | None = None
) -> ErasurePublications:
    """Publishes the tables with the setting ``iceberg`` in which erasures have just been committed.

    Makes no request if no table has the setting. Begins no publication after ``deadline``.
    """
    cached = context.head.cached
    assert cached is not None
    manifest = cached.manifest
    publications: list[IcebergPublication] = []
    failures: dict[str, Error] = {}
    postponed: list[str] = []
    with_setting, by_hand = _find_reached_tables(context, manifest, ids)
    for name in with_setting:
        if deadline():
            postponed.append(name)
            continue
        try:
            publications.append(publish(context, name, lookup_bytes=lookup_bytes))
        except Error as error:
            failures[name] = error
    return ErasurePublications(tuple(publications), failures, tuple(postponed), by_hand)


def _find_reached_tables(
    context: Context, manifest: Manifest, ids: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tables that erasures reach: those with the setting ``iceberg``, and others that were published by hand."""
    published = published_tables(manifest)
    with_setting, by_hand = [], []
    for name, entry in manifest.tables.items():
        if asks_for_publication(context, manifest, entry):
            with_setting.append(name)
        elif entry.uuid in published:
            by_hand.append(name)
    if not (with_setting or by_hand) or not ids:
        return (), ()
    erasures = [each for each in erasures_of(manifest, context.segments) if each.id in ids]

    def filter_reached(names: list[str]) -> tuple[str, ...]:
        return tuple(name for name in names if any(reaches(each, manifest.tables[name]) for each in erasures))

    return filter_reached(with_setting), filter_reached(by_hand)
