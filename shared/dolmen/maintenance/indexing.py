"""Indexing: builds and merges the parts of the index of tables with the property ``index``.

New files get a part of their own, and parts of similar size are merged (log-structured). Each part has a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.runtime import cached_property, never
from dolmen.base.units import MIB, cut_by_size
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import PutIndexParts
from dolmen.entries.index.key_encoding import KeyEncoding, Keys
from dolmen.entries.index.pages import Addresses, LeafPage
from dolmen.entries.index.sorting import EntrySorter, large_blocks, merge, renumber
from dolmen.entries.index.table_index import MOST_CHUNKS, IndexReader, OpenPart, encoding_of, write_part
from dolmen.entries.segments.erasures_in_force import erasure_timestamps
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.format.entries import DataFile
from dolmen.format.layout import segment_key
from dolmen.format.manifest import Manifest, Segment, TableEntry
from dolmen.format.properties import has_index
from dolmen.format.types import to_mask
from dolmen.maintenance.segment_merging import size_tier
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import FilePlan, RowGroup, column_of
from dolmen.store.cache import ObjectCache

FAN_IN = 4  # the number of parts of similar size that become one

MOST_ENTRIES = 1 << 26  # parts are not merged into a larger one

MOST_LOST = 3  # a run stops after this many commits that failed because others had changed the index

_ROWS_AT_ONCE = 1 << 24  # the most rows of the files in a new part, unless it is one file

_CACHE_BYTES = 16 * MIB


class Indexed(Struct, frozen=True):
    """The result of a run."""

    table: str
    files: int  # data files that were read
    entries: int  # entries that were written, including entries of merged parts
    commits: int
    finished: bool  # False when it stopped early: call it again


def index_table(
    context: Context,
    name: str,
    *,
    deadline: Callable[[], bool] = never,
    build: BuildParts | None = None,
    at_once: int = 1,
    progress: Callable[[Indexed], None] = lambda done: None,
) -> Indexed:
    """Brings a table's index up to its newest version; removes the index if the table should have none.

    Args:
        deadline: asked before each commit; when it returns True, the rest is left.
        build: builds up to ``at_once`` parts, which become one commit; by default here, one after the other.
        progress: called after each commit with the result so far.

    Raises:
        TableNotFoundError: no such table.
        CorruptionError: a data file, or a part of the index, is damaged or missing.
    """
    reader, done, tried = index_reader(context), Indexed(name, 0, 0, 0, finished=False), set[str]()
    lost, manifest = 0, context.head.refresh().manifest
    while lost < MOST_LOST:
        with context.reading(manifest.version):
            version = IndexVersion.of(context, name, manifest, reader)
            inputs, buildings = version.useless_parts(), list[PartBuilding]()
            if not inputs and has_index(version.entry):
                buildings = version.plan_parts(tried)[:at_once]
            if not inputs and not buildings:
                return replace(done, finished=True)
            if deadline():
                return done
            first_upload_us: int | None = None
            outputs = list[Segment]()
            if buildings:
                files = [file.uuid for building in buildings for file in building.files]
                tried.update(files)
                done = replace(done, files=done.files + len(files))
                inputs = [part for building in buildings for part in building.parts]
                first_upload_us = context.store.clock.now_us
                built = build(version, buildings) if build else map(version.build, buildings)
                outputs = [part for part in built if part is not None]
            put = version.statement(inputs, outputs)
            if submit(context.head, "index", [put], first_upload_us=first_upload_us).manifest is None:
                lost += 1
            else:
                entries = sum(part.count for part in outputs)
                done = replace(done, entries=done.entries + entries, commits=done.commits + 1)
                progress(done)
        manifest = (context.head.cached or context.head.refresh()).manifest
    return done


class PartBuilding(Struct, frozen=True):
    """A part to build from data files, or from other parts, which it replaces."""

    files: tuple[DataFile, ...] = ()
    parts: tuple[Segment, ...] = ()


class IndexVersion(Struct, frozen=True, dict=True):
    """A table and its index in one version."""

    context: Context
    name: str
    manifest: Manifest
    entry: TableEntry
    reader: IndexReader

    @classmethod
    def of(cls, context: Context, name: str, manifest: Manifest, reader: IndexReader) -> IndexVersion:
        return cls(context, name, manifest, context.segments.whole(manifest.table(name)), reader)

    @cached_property
    def encoding(self) -> KeyEncoding:
        return encoding_of(self.entry)

    @cached_property
    def parts(self) -> tuple[Segment, ...]:
        return self.entry.segments_of("index")

    @cached_property
    def live(self) -> dict[str, DataFile]:
        files = LiveFiles.of(self.entry, self.context.segments).find_matching(None, ids=())
        return {file.uuid: file for file in files}

    @cached_property
    def open_parts(self) -> dict[str, OpenPart]:
        return {part.object: self.reader.open(part) for part in self.parts}

    def useless_parts(self) -> list[Segment]:
        """The parts of another key, or of files that are all gone; all parts if the table has no property ``index``."""
        if not has_index(self.entry):
            return list(self.parts)
        return [
            part
            for part, opened in ((part, self.open_parts[part.object]) for part in self.parts)
            if not opened.has_keys_of(self.entry.primary_key, self.encoding.kinds)
            or self.live.keys().isdisjoint(opened.head.files)
        ]

    def plan_parts(self, tried: set[str]) -> list[PartBuilding]:
        """Parts that can be built at the same time: of files without an index (except ``tried``), or merged parts."""
        indexed_uuids = {uuid for part in self.open_parts.values() for uuid in part.head.files}
        new_files = cut_by_size(self._unindexed_files(indexed_uuids | tried), lambda file: file.rows, _ROWS_AT_ONCE)
        new_parts = [PartBuilding(files=tuple(group)) for group in new_files]
        if new_parts:
            return new_parts
        files = {key: part.head.files for key, part in self.open_parts.items()}
        shares = {key: sum(uuid in self.live for uuid in uuids) / len(uuids) for key, uuids in files.items()}
        return [PartBuilding(parts=parts) for parts in parts_to_merge(self.parts, shares)]

    def build(self, building: PartBuilding) -> Segment | None:
        """Writes a part and returns it; None if it would have no entry. Raises CorruptionError."""
        return self._merge_parts(building.parts) if building.parts else self._index_files(building.files)

    def statement(self, inputs: Sequence[Segment], outputs: Sequence[Segment]) -> PutIndexParts:
        entry, existing = self.entry, frozenset(part.object for part in self.parts)
        replaced = tuple(part.object for part in inputs)
        return PutIndexParts(
            self.name, entry.uuid, entry.epoch, existing, self.manifest.commit_ts, replaced, tuple(outputs)
        )

    def _unindexed_files(self, uuids: set[str]) -> Iterator[DataFile]:
        """Files without an index, except files that may hold erased rows: these are rewritten first."""
        erased = erasure_timestamps(self.manifest, self.context.segments)
        tombstones = tombstones_of(self.entry, self.context.segments)
        latest = max((tombstone.ts for tombstone in tombstones if tombstone.ts in erased), default=0)
        for uuid, file in self.live.items():
            if uuid not in uuids and not file.erasing and file.applied_through >= latest:
                yield file

    def _write(
        self, files: Sequence[str], blocks: Iterable[LeafPage], chunks: Mapping[str, ChunkLocations]
    ) -> Segment | None:
        key = segment_key("index", self.context.runtime.uuid())
        columns = self.entry.primary_key
        return write_part(self.context.store, key, columns, self.encoding, tuple(files), blocks, chunks)

    def _index_files(self, files: Sequence[DataFile]) -> Segment | None:
        sorter, chunks = EntrySorter(), dict[str, ChunkLocations]()
        for keys, addresses in self._read(files, chunks):
            sorter.add(keys, addresses)
        return self._write([file.uuid for file in files], sorter.sorted(), chunks)

    def _read(self, files: Sequence[DataFile], chunks: dict[str, ChunkLocations]) -> Iterator[tuple[Keys, Addresses]]:
        """The keys and addresses of all rows, including hidden ones; also collects ``chunks`` by file."""
        entry, encoding = self.entry, self.encoding
        reader = PlanReader.of_table(self.context, self.name, self.manifest, entry)
        fields = [entry.schema.by_id[id_] for id_ in entry.primary_key]
        numbers = {file.path: np.uint64(number << 32) for number, file in enumerate(files)}
        plans = [FilePlan(msgspec.structs.replace(file, vector=None), False, ()) for file in files]

        def groups() -> Iterator[RowGroup]:
            chunks_left = MOST_CHUNKS
            for file in reader.open_files(plans):
                metadata = file.footer.metadata
                chunks_left -= metadata.num_row_groups * metadata.num_columns
                locations = ChunkLocations.collect(metadata, file.footer.sums) if chunks_left >= 0 else None
                if locations is not None:
                    chunks[file.file.uuid] = locations
                for index, first in enumerate(file.footer.firsts):
                    yield RowGroup(file, index, first, file.footer.rows(index), 0, None, (), ())

        def work(group: RowGroup, columns: RowGroupColumns) -> list[tuple[Keys, Addresses]]:
            columns_by_id = columns.read(ids)
            arrays = [column_of(group, key, columns_by_id) for key in fields]
            positions = np.arange(group.first, group.first + group.rows).astype(np.uint64)
            if any(array.null_count for array in arrays):  # a key with NULL equals nothing
                is_valid = pa.array(np.logical_and.reduce([pc.is_valid(array) for array in arrays]))
                arrays = [array.filter(is_valid) for array in arrays]
                positions = positions[to_mask(is_valid)]
            addresses = numbers[group.file.file.path] | positions
            return [(keys, addresses[start : start + len(keys)]) for start, keys in encoding.encode_blocks(arrays)]

        ids = frozenset(entry.primary_key)
        for blocks in reader.read(work, groups(), ids):
            yield from blocks

    def _merge_parts(self, parts: Sequence[Segment]) -> Segment | None:
        numbers: dict[str, int] = {}
        chunks: dict[str, ChunkLocations] = {}
        streams = []
        for part in parts:
            opened = self.open_parts[part.object]
            numbers_in_part = []
            for uuid in opened.head.files:
                is_new = uuid in self.live and uuid not in numbers
                numbers_in_part.append(numbers.setdefault(uuid, len(numbers)) if is_new else -1)
            streams.append(renumber(large_blocks(opened.tree.leaves()), numbers_in_part))
            chunks = opened.head.all_locations() | chunks
        return self._write(tuple(numbers), merge(streams), chunks)


BuildParts: TypeAlias = Callable[[IndexVersion, Sequence[PartBuilding]], list[Segment]]
"""Builds parts, some beside each other. Those without an entry are left out."""


def index_reader(context: Context) -> IndexReader:
    return IndexReader(context.store, context.runtime, ObjectCache(_CACHE_BYTES))


def parts_to_merge(parts: Sequence[Segment], live_share: dict[str, float]) -> list[tuple[Segment, ...]]:
    """Groups of parts to merge next. ``live_share`` has the share of live files by part, for parts to shrink."""
    tiers: dict[int, list[Segment]] = {}
    for part in parts:
        tiers.setdefault(size_tier(part.count), []).append(part)
    groups = []
    for _, tier in sorted(tiers.items()):
        for start in range(0, len(tier) - FAN_IN + 1, FAN_IN):
            group = tuple(tier[start : start + FAN_IN])
            if sum(part.count for part in group) <= MOST_ENTRIES:
                groups.append(group)
    return groups or [(part,) for part in parts if live_share[part.object] < 1 / 2]
