"""Indexing: makes and merges the parts of a table's index, for tables with the property ``index``.

New files get a part of their own, and parts of similar size are merged (log-structured), so that an entry is written a
logarithmic number of times. Each part is one commit. Readers see no change, and nothing waits for an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.commit.loop import submit
from dolmen.commit.statements.index_parts import PutIndexParts
from dolmen.context import Context
from dolmen.format.entries import DataFile
from dolmen.format.layout import segment_key
from dolmen.format.manifest import Manifest, Segment, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.index.key_bytes import KeyEncoding, Keys
from dolmen.index.pages import LeafPage, Places
from dolmen.index.parts import IndexReader, OpenPart, write_part
from dolmen.index.sorting import EntrySorter, large_blocks, merge, renumber
from dolmen.index.table_index import encoding_of
from dolmen.maintenance import never
from dolmen.maintenance.resolve.unresolved import table_reader
from dolmen.scan.plan import FilePlan
from dolmen.scan.read import RowGroupColumns
from dolmen.scan.row_groups import RowGroup
from dolmen.scan.row_masks import column_of
from dolmen.segments.erasures import erasure_timestamps
from dolmen.segments.live import LiveFiles, tombstones_of
from dolmen.store.cache import ObjectCache
from dolmen.units import MIB

FAN_IN = 4
"""The number of parts of similar size that become one."""
MOST_ENTRIES = 1 << 26
"""Parts are not merged into a larger one."""
_ROWS_AT_ONCE = 1 << 24
"""A new part is of files with about so many rows."""
_MOST_LOST = 3
_CACHE_BYTES = 16 * MIB


@dataclass(frozen=True)
class Indexed:
    """The result of a run.

    Args:
        table: its name.
        files: data files that were read.
        entries: entries that were written, those of merged parts included.
        commits: number of versions made.
        finished: False when it stopped early: call it again.
    """

    table: str
    files: int
    entries: int
    commits: int
    finished: bool


def index_table(context: Context, name: str, *, deadline: Callable[[], bool] = never) -> Indexed:
    """Brings a table's index up to its newest version; removes the index if the table is to have none.

    Args:
        deadline: asked before each part; when it returns True, the rest is left.

    Raises:
        TableNotFoundError: no such table.
        CorruptionError: a data file, or a part of the index, is damaged or missing.
    """
    run = _Indexing(context, name)
    lost, manifest = 0, context.head.refresh().manifest
    while (work := run.next_work(manifest)) is not None:
        if deadline():
            return Indexed(name, run.files, run.entries, run.commits, finished=False)
        with context.reading(manifest.version):
            landed = work()
        lost += not landed
        if lost == _MOST_LOST:
            return Indexed(name, run.files, run.entries, run.commits, finished=False)
        manifest = (context.head.cached or context.head.refresh()).manifest
    return Indexed(name, run.files, run.entries, run.commits, finished=True)


@dataclass
class _Indexing:
    """One call of ``index_table``."""

    context: Context
    name: str
    files: int = 0
    entries: int = 0
    commits: int = 0
    tried: set[str] = field(default_factory=set)
    """Uuids of files that were read."""

    def __post_init__(self) -> None:
        self._index = IndexReader(self.context.store, self.context.runtime, ObjectCache(_CACHE_BYTES))

    def next_work(self, manifest: Manifest) -> Callable[[], bool] | None:
        """The next piece of work on a version, which says whether its commit landed; None when all is done."""
        entry = self.context.segments.whole(manifest.table(self.name))
        parts = entry.segments_of("index")
        if not TableSettings.of(entry).index:
            return (lambda: self._put(manifest, entry, parts, None)) if parts else None
        encoding = encoding_of(entry)
        opened = {part.object: self._index.open(part) for part in parts}
        live = {file.uuid: file for file in LiveFiles.of(entry, self.context.segments).matching(None, ids=())}
        useless = [part for part in parts if not _is_useful(opened[part.object], entry, encoding, live)]
        if useless:
            return lambda: self._put(manifest, entry, useless, None)
        covered = {uuid for part in opened.values() for uuid in part.head.files}
        wanted = _some_files(self._indexable(manifest, entry, live, covered | self.tried))
        if wanted:
            return lambda: self._add(manifest, entry, encoding, wanted)
        together = parts_to_merge(parts, {part.object: _live_share(opened[part.object], live) for part in parts})
        if together:
            return lambda: self._merge(manifest, entry, encoding, together, live)
        return None

    def _indexable(
        self, manifest: Manifest, entry: TableEntry, live: dict[str, DataFile], done: set[str]
    ) -> Iterator[DataFile]:
        """Files without an index. Those that may hold erased rows are left out until they are rewritten."""
        erased = erasure_timestamps(manifest, self.context.segments)
        latest = max((t.ts for t in tombstones_of(entry, self.context.segments) if t.ts in erased), default=0)
        for uuid, file in live.items():
            if uuid not in done and not file.erasing and file.applied_through >= latest:
                yield file

    def _add(self, manifest: Manifest, entry: TableEntry, encoding: KeyEncoding, files: Sequence[DataFile]) -> bool:
        self.tried.update(file.uuid for file in files)
        self.files += len(files)
        sorter = EntrySorter()
        for keys, places in self._read(manifest, entry, encoding, files):
            sorter.add(keys, places)
        uuids = tuple(file.uuid for file in files)
        return self._put(manifest, entry, (), (encoding, uuids, sorter.sorted()))

    def _read(
        self, manifest: Manifest, entry: TableEntry, encoding: KeyEncoding, files: Sequence[DataFile]
    ) -> Iterator[tuple[Keys, Places]]:
        """The keys of all rows of some files, hidden ones included, and their places."""
        reader = table_reader(self.context, self.name, manifest, entry)
        fields = [entry.schema.by_id[id_] for id_ in entry.primary_key]
        numbers = {file.path: np.uint64(number << 32) for number, file in enumerate(files)}
        plans = [FilePlan(msgspec.structs.replace(file, vector=None), False, ()) for file in files]

        def groups() -> Iterator[RowGroup]:
            for file in reader.open_files(plans):
                for index, first in enumerate(file.footer.firsts):
                    yield RowGroup(file, index, first, file.footer.rows(index), 0, None, (), ())

        def work(group: RowGroup, columns: RowGroupColumns) -> list[tuple[Keys, Places]]:
            read = columns.read(ids)
            arrays = [column_of(group, key, read) for key in fields]
            positions = np.arange(group.first, group.first + group.rows).astype(np.uint64)
            if any(array.null_count for array in arrays):  # a key with NULL equals nothing
                known = pa.array(np.logical_and.reduce([pc.is_valid(array) for array in arrays]))
                arrays = [array.filter(known) for array in arrays]
                positions = positions[known.to_numpy(zero_copy_only=False)]
            places = numbers[group.file.file.path] | positions
            return [(keys, places[start : start + len(keys)]) for start, keys in encoding.encode_blocks(arrays)]

        ids = frozenset(entry.primary_key)
        for blocks in reader.read(work, groups(), ids):
            yield from blocks

    def _merge(
        self,
        manifest: Manifest,
        entry: TableEntry,
        encoding: KeyEncoding,
        parts: Sequence[Segment],
        live: dict[str, DataFile],
    ) -> bool:
        numbers: dict[str, int] = {}
        streams = []
        for part in parts:
            opened = self._index.open(part)
            own = []
            for uuid in opened.head.files:
                wanted = uuid in live and uuid not in numbers
                own.append(numbers.setdefault(uuid, len(numbers)) if wanted else -1)
            streams.append(renumber(large_blocks(opened.tree.leaves()), own))
        return self._put(manifest, entry, parts, (encoding, tuple(numbers), merge(streams)))

    def _put(
        self,
        manifest: Manifest,
        entry: TableEntry,
        inputs: Sequence[Segment],
        content: tuple[KeyEncoding, tuple[str, ...], Iterable[LeafPage]] | None,
    ) -> bool:
        """Writes a part, if there is one to write, and commits it in place of others. Says whether that landed."""
        context, outputs = self.context, tuple[Segment, ...]()
        now_us = context.store.clock.now_us
        if content is not None:
            encoding, uuids, blocks = content
            key = segment_key("index", context.runtime.uuid())
            written = write_part(context.store, key, entry.primary_key, encoding, uuids, blocks)
            outputs = () if written is None else (written,)
        seen = frozenset(part.object for part in entry.segments_of("index"))
        gone = tuple(part.object for part in inputs)
        statement = PutIndexParts(self.name, entry.uuid, entry.epoch, seen, manifest.commit_ts, gone, outputs)
        if submit(context.head, "index", [statement], first_upload_us=now_us).manifest is None:
            return False
        self.commits += 1
        self.entries += sum(part.count for part in outputs)
        return True


def parts_to_merge(parts: Sequence[Segment], live_share: dict[str, float]) -> Sequence[Segment]:
    """The parts that become one next; none if all are well as they are.

    Args:
        live_share: by key, the share of a part's files that are live.
    """
    tiers: dict[int, list[Segment]] = {}
    for part in parts:
        tiers.setdefault(_tier(part.count), []).append(part)
    for _, together in sorted(tiers.items()):
        some = together[:FAN_IN]
        if len(some) == FAN_IN and sum(part.count for part in some) <= MOST_ENTRIES:
            return some
    return [part for part in parts if live_share[part.object] < 1 / 2][:1]


def _tier(count: int) -> int:
    tier = 0
    while count >= FAN_IN:
        count //= FAN_IN
        tier += 1
    return tier


def _some_files(files: Iterable[DataFile]) -> list[DataFile]:
    found: list[DataFile] = []
    rows = 0
    for file in files:
        found.append(file)
        rows += file.rows
        if rows >= _ROWS_AT_ONCE:
            break
    return found


def _is_useful(part: OpenPart, entry: TableEntry, encoding: KeyEncoding, live: dict[str, DataFile]) -> bool:
    return part.fits(entry.primary_key, encoding.kinds) and not live.keys().isdisjoint(part.head.files)


def _live_share(part: OpenPart, live: dict[str, DataFile]) -> float:
    return sum(uuid in live for uuid in part.head.files) / len(part.head.files)
