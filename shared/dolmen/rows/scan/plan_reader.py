"""Reading row groups: open files, prune row groups, fetch ranges, decode; each stage ahead of the next.

Only the thread that consumes the rows waits: the stages use pools whose tasks never wait for each other. Each stage
bounds its work in flight, and so memory: at most ``threads`` requests and ``AHEAD_BYTES``, and one decoded row group
per processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap

from dolmen.base.records import replace
from dolmen.base.units import MIB, cut_by_size
from dolmen.commit.head import Context
from dolmen.entries.index.table_index import FoundRows
from dolmen.errors import CorruptionError, ObjectChangedError, ObjectNotFoundError
from dolmen.format.del_object import vector_of_mask
from dolmen.format.entries import DataFile
from dolmen.format.layout import is_adopted
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field, Schema, constant, type_from_json
from dolmen.format.types import one_array
from dolmen.rows.scan.access_path import FilterChoice, FilterUse, IndexedRows, indexed_rows
from dolmen.rows.scan.conditions import ConditionTest
from dolmen.rows.scan.data_objects import (
    GAP_BYTES,
    MERGED_BYTES,
    PAGE_GAP_BYTES,
    DataFileFooter,
    FetchedFooter,
    Pending,
    Range,
    bytes_key,
    coalesce,
    data_object,
    first_request,
    is_local,
    local_path,
    missing_file_error,
    open_file,
)
from dolmen.rows.scan.file_bytes import FileBytes
from dolmen.rows.scan.load_deletes import (
    VECTOR_BYTES,
    BlobReader,
    VectorReader,
    VectorRequest,
    load_deletes,
    vector_bytes,
)
from dolmen.rows.scan.plan import ScanPlan
from dolmen.rows.scan.row_groups import Deletes, FilePlan, OpenFile, RowGroup, add_hidden_masks, live_mask, row_groups

R = TypeVar("R")

FetchTask: TypeAlias = VectorRequest | Sequence[FilePlan]
"""Fetches vectors of several files, or opens one file, or several small local ones."""

AHEAD_BYTES = 64 * MIB
"""At most this many bytes of footers and small files are fetched at once, and as many of ranges. The last request may
exceed it."""

LOCAL_FILES = 16  # the most small local files that a task opens

TOGETHER_BYTES = MIB
"""Consecutive small row groups are decoded one after the other up to this size: see ``Runtime.near``."""

FEW_PREDICATES, MOST_TOGETHER = 4, 16
"""With n times 4 deletes by predicate, n times as many row groups are decoded together, at most 16 times as many: each
delete is evaluated once for all of them."""

VALUE_BYTES = 16
"""A value counts as at least this size: one that is compressed well takes as long to decode as any other."""

FEW_COLUMNS, AHEAD_OF_FEW = 4, 4
"""Row groups of few columns are decoded in a few milliseconds. More of them are decoded ahead, so that processors don't
wait for the caller."""


class RowGroupColumns:
    """Columns of one row group, decoded when they are read; ``tested_leaves``: see ``RowGroup``."""

    def __init__(
        self,
        group: RowGroup,
        source: FileBytes,
        table: str,
        schema: Schema,
        tested_leaves: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._group, self._source, self._table, self._schema = group, source, table, schema
        self._tested_leaves = tested_leaves
        self._read: dict[int, pa.Array] = {}

    def read(self, ids: frozenset[int]) -> dict[int, pa.Array]:
        """The rows of these columns by id, in the file's types; constants if the file is older than a column."""
        if not ids:
            return {}
        group, path = self._group, self._group.file.file.path
        try:
            self._decode(ids - self._read.keys())
        except FileNotFoundError as error:
            raise CorruptionError(path, f"it is missing, and is a data file of table {self._table!r}") from error
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(path, f"row group {group.index}, table {self._table!r}: {error}") from error
        for id_ in ids - self._read.keys():
            field = self._schema.by_id.get(id_)  # none for the commit timestamp
            if own := group.file.footer.constants.get(id_):
                self._read[id_] = constant(own.value, type_from_json(own.type), group.rows)
            else:
                self._read[id_] = field.initial_values(group.rows) if field else pa.nulls(group.rows)
        return {id_: self._read[id_] for id_ in ids}

    def _decode(self, ids: frozenset[int]) -> None:
        index, columns = self._group.index, self._group.file.footer.columns
        file_ids = [id_ for id_ in columns if id_ in ids]
        if not file_ids:
            return
        if self._group.picked is not None:
            self._read |= self._source.pick(index, file_ids, self._group.picked)
        else:
            table = self._source.read(index, self._group.file.footer.leaves(ids, self._tested_leaves))
            self._read |= {id_: one_array(column) for id_, column in zip(file_ids, table.columns, strict=True)}


@dataclass
class PlanReader:
    """Reads the rows of a plan. An object is used once."""

    context: Context
    plan: ScanPlan
    pending: Pending | None = None
    is_cautious: bool = False  # opens no file before its row groups are asked for; for scans that may stop early
    tests_only: bool = False  # reads only columns that decide about rows
    by_index: bool = False  # finds the rows of listed keys through the table's index, if that reads less
    caches_bytes: bool = False  # takes fetched bytes from the cache, and keeps them there: for what may be read again
    # by uuid, footers, or parts of them, that need not be fetched
    footers: Mapping[str, DataFileFooter] = field(default_factory=dict)
    row_groups_seen: int = field(default=0, init=False)  # row groups in the files opened so far
    filters: FilterUse = field(default_factory=FilterUse, init=False)
    indexed: IndexedRows | None = field(default=None, init=False)
    """The rows that the index found once the row groups have been asked for; None if it was not used."""

    @classmethod
    def of_table(
        cls, context: Context, name: str, manifest: Manifest, entry: TableEntry, output: tuple[Field, ...] = ()
    ) -> PlanReader:
        """A reader whose caller chooses files and columns at each step."""
        return cls(context, ScanPlan(name, manifest.version, entry, output, None, None, (), {}))

    def __post_init__(self) -> None:
        self._latest: DataFileFooter | None = None
        self.caches_bytes = self.caches_bytes and not is_local(self.context.store)
        self._blobs = BlobReader(self.context, self.pending)
        self._vectors = VectorReader(self.context, self._blobs)

    def open_files(self, files: Sequence[FilePlan], choice: FilterChoice | None = None) -> Iterator[OpenFile]:
        """Fetches footers and vectors, and the Bloom filters that ``choice`` chooses, all of them at the same time."""
        bitmaps: dict[str, BitMap] = {}
        are_local = is_local(self.context.store)
        most_files = LOCAL_FILES if are_local and not self.is_cautious else 1

        def tasks() -> Iterator[FetchTask]:
            for some in cut_by_size(files, vector_bytes, 0 if self.is_cautious else VECTOR_BYTES):
                here, requests = self._vectors.split([plan.file for plan in some])
                bitmaps.update(here)
                yield from requests
                yield from cut_by_size(some, lambda plan: first_request(plan.file).length, GAP_BYTES, most_files)

        def work(item: FetchTask) -> dict[str, BitMap] | list[OpenFile]:
            if isinstance(item, VectorRequest):
                return self._vectors.fetch(item)
            return [self._open_one(plan, choice) for plan in item]

        def count(item: FetchTask) -> int:
            return 1 if isinstance(item, VectorRequest) else len(item)

        def size(item: FetchTask) -> int:
            if isinstance(item, VectorRequest):
                return item.request.range.length
            return sum(first_request(plan.file).length for plan in item)

        runtime, items = self.context.runtime, tasks()
        here = runtime.near(work, items, count=count) if are_local else ()
        ahead = 1 if self.is_cautious else None
        others = runtime.map(work, items, ahead=ahead, size=size, most=AHEAD_BYTES)
        for opened in chain(here, others):
            if isinstance(opened, dict):
                bitmaps |= opened
                continue
            for file in opened:
                if file.file.vector:
                    if file.file.path not in bitmaps:
                        raise CorruptionError(file.file.path, "the table lists it twice")
                    file = replace(file, vector=bitmaps.pop(file.file.path))
                self.filters.add(file)
                yield file

    def _open_one(self, plan: FilePlan, choice: FilterChoice | None) -> OpenFile:
        footer = self.footers.get(plan.file.uuid)
        if footer is not None:
            return OpenFile(plan, footer, None, self._source(plan.file, FetchedFooter(footer)))
        with_filters = choice is not None and choice.comes_with_footer(plan)
        fetched = self._open_file(plan.file, with_filters=with_filters)
        file = OpenFile(plan, fetched.footer, None, self._source(plan.file, fetched))
        probe = choice.probe(file, fetched) if choice else None
        return replace(file, probe=probe) if probe else file

    def _open_file(self, file: DataFile, *, refetch: bool = False, with_filters: bool = False) -> FetchedFooter:
        mapping, store, cache = self.plan.entry.schema.mapping, self.context.store, self.context.cache
        fetched = open_file(
            store,
            cache,
            file,
            self.plan.table,
            mapping,
            caches_bytes=self.caches_bytes,
            refetch=refetch,
            with_filters=with_filters,
            like=self._latest,
        )
        self._latest = fetched.footer
        return fetched

    def deletes(self) -> Deletes:
        """Fetches the tombstones that some file has to be checked against."""
        return load_deletes(self.plan.tombstones, self.plan.entry.schema, self._blobs)

    def groups(self, found: Mapping[str, FoundRows] = MappingProxyType({})) -> Iterator[RowGroup]:
        """Row groups that may have rows, in file order; in files whose rows are ``found``, by uuid: those with one."""
        deletes, where = self.deletes(), self.plan.where
        test = None if self.plan.condition is None else ConditionTest(self.plan.condition)
        output = frozenset[int]() if self.tests_only else self.plan.output_ids
        tested_files = sum(where is None or file.needs_filter for file in self.plan.files)
        choice = FilterChoice(self.context, self.plan.entry, where, deletes, output, tested_files).or_none()
        files: Sequence[FilePlan] = self.plan.files
        if self.by_index:
            self.indexed = indexed_rows(self.context, self.plan.entry, choice, files)
        if self.indexed is not None:
            files = [plan for plan in files if not self.indexed.has_none_of(plan)]
            self.footers, found = self.indexed.footers, self.indexed.rows
        for file in self.open_files(files, choice):
            self.row_groups_seen += len(file.footer.firsts)
            rows = found.get(file.file.uuid)
            bitmap = rows.bitmap if rows else None
            file_groups = list(row_groups(file, where, deletes, self.plan.entry.schema, bitmap))
            if test is not None:
                file_groups = [replace(group, test=test) for group in file_groups]
            self.filters.judge(file, file_groups, tests_only=not output)
            if rows is None or self.indexed is None:
                yield from file_groups
                continue
            picks = ((group, group.rows_at(rows.bitmap)) for group in file_groups)
            yield from (group.pick(rows_of_group) for group, rows_of_group in picks if len(rows_of_group))

    def read(
        self,
        work: Callable[[RowGroup, RowGroupColumns], R],
        groups: Iterable[RowGroup],
        ids: frozenset[int],
        join: Callable[[list[R]], list[R]] = lambda results: results,
    ) -> Iterator[R]:
        """Yields the results of ``work`` in order. It may read the columns ``ids``, and runs for several row groups.

        ``join`` combines the results of small row groups that are decoded together.
        """

        def run(some: Sequence[tuple[RowGroup, FileBytes]]) -> list[R]:
            try:
                return decode(some)
            except CorruptionError:  # the objects may be intact
                self.context.cache.remove_objects({group.file.file.path for group, _ in some})
                raise

        def decode(some: Sequence[tuple[RowGroup, FileBytes]]) -> list[R]:
            table, schema = self.plan.table, self.plan.entry.schema
            columns = [
                RowGroupColumns(group, source, table, schema, group.tested_leaves(ids)) for group, source in some
            ]
            read = [
                each.read(group.tested_ids) if group.hiding_predicates else {}
                for (group, _), each in zip(some, columns, strict=True)
            ]
            groups = add_hidden_masks([group for group, _ in some], read)
            results = [work(group, each) for group, each in zip(groups, columns, strict=True)]
            return join(results) if len(results) > 1 else results

        def size(item: tuple[RowGroup, FileBytes]) -> int:
            group = item[0]
            stored_bytes = group.file.file.size // len(group.file.footer.firsts)
            read = max(stored_bytes, group.rows * len(ids | group.tested_ids) * VALUE_BYTES)
            return read // max(1, min(MOST_TOGETHER, len(group.hiding_predicates) // FEW_PREDICATES))

        together = cut_by_size(self._sources(groups, ids), size, TOGETHER_BYTES)

        def is_short(some: Sequence[tuple[RowGroup, FileBytes]]) -> bool:
            return len(some) > 1 or some[0][0].picked is not None

        ahead = self.context.runtime.cores + (AHEAD_OF_FEW if len(ids) <= FEW_COLUMNS else 1)
        for results in self.context.runtime.compute(run, together, ahead=ahead, here=is_short):
            yield from results

    def _source(self, file: DataFile, fetched: FetchedFooter) -> FileBytes | None:
        """The file's bytes if no more have to be fetched."""
        if fetched.body is not None:
            return FileBytes.from_body(fetched)
        path = local_path(self.context.store, file.path)
        return None if path is None else FileBytes.from_path(path, fetched.footer)

    def vectors(self, files: Sequence[FilePlan]) -> dict[str, BitMap]:
        return self._vectors.read([plan.file for plan in files])

    def _sources(self, groups: Iterable[RowGroup], ids: frozenset[int]) -> Iterator[tuple[RowGroup, FileBytes]]:
        """Yields each row group with the bytes it needs, or the file they are in."""
        groups = iter(groups)
        for group in groups:
            if group.file.source is None:
                groups = chain([group], groups)
                break
            yield group, group.file.source
        cut = batches(groups, ids, self.cached_bytes)
        for batch in cut:  # batches without requests need no threads
            if batch.requests:
                cut = chain([batch], cut)
                break
            yield from batch.sources([])
        for batch, parts in self._fetch_batches(cut):
            yield from batch.sources(parts)

    def _fetch_batches(self, some: Iterable[FetchBatch]) -> Iterator[tuple[FetchBatch, list[tuple[int, bytes]]]]:
        """Yields batches with their (offset, bytes); requests of several batches are sent at once."""
        parts: list[tuple[int, bytes]] = []
        requests = ((batch, requested) for batch in some for requested in batch.requests or (None,))
        fetched = self.context.runtime.map(
            self._fetch, requests, size=lambda item: item[1].length if item[1] else 0, most=AHEAD_BYTES
        )
        for batch, part in fetched:
            if part:
                parts.append(part)
            if len(parts) == len(batch.requests):
                yield batch, parts
                parts = []

    def _fetch(self, item: tuple[FetchBatch, Range | None]) -> tuple[FetchBatch, tuple[int, bytes] | None]:
        batch, requested = item
        if requested is None:
            return batch, None
        open_ = batch.groups[0].file
        file, etag = open_.file, open_.footer.etag
        location = data_object(self.context.store, file.path)
        try:
            try:
                body = location.store.get(location.key, requested, etag=etag).body
            except ObjectChangedError:  # perhaps the same bytes were written again: the footer shows that
                etag = self._open_file(file, refetch=True).footer.etag
                body = location.store.get(location.key, requested, etag=etag).body
        except ObjectNotFoundError as error:
            raise missing_file_error(self.context.store, file, self.plan.table) from error
        if len(body) != requested.length:
            raise CorruptionError(file.path, f"{len(body)} bytes at {requested.start}, not {requested.length}")
        for part in batch.ranges if self._caches_bytes_of(file) else ():
            is_inside = requested.start <= part.start and part.end <= requested.end
            if is_inside and part not in batch.cached and self.context.cache.has_room_for(part.length):
                own = body[part.start - requested.start : part.end - requested.start]  # a copy, unless it is all
                self.context.cache.put_bytes(bytes_key(file, part), own)
        return batch, (requested.start, body)

    def cached_bytes(self, file: OpenFile, range_: Range) -> bytes | None:
        """A range of a file, if it is in the cache."""
        return self.context.cache.get_bytes(bytes_key(file.file, range_)) if self._caches_bytes_of(file.file) else None

    def _caches_bytes_of(self, file: DataFile) -> bool:
        return self.caches_bytes and not is_adopted(file.path)  # each reader notices if an adopted file is replaced


class FetchBatch(Struct, frozen=True):
    """Consecutive row groups of one file whose bytes are fetched together, and the GETs for them, if any.

    ``ranges`` are the column chunks or pages that are read; ``cached`` has those that are not fetched.
    """

    groups: tuple[RowGroup, ...]
    requests: tuple[Range, ...]
    ranges: frozenset[Range] = frozenset()
    cached: Mapping[Range, bytes] = {}

    def sources(self, parts: list[tuple[int, bytes]]) -> Iterator[tuple[RowGroup, FileBytes]]:
        """Yields each row group with its bytes, from those that were fetched."""
        file = self.groups[0].file
        parts = sorted([*((part.start, body) for part, body in self.cached.items()), *parts], key=itemgetter(0))
        source = file.source or FileBytes.from_ranges(parts, file.file.size, file.footer)
        for group in self.groups:
            yield group, source


def batches(
    groups: Iterable[RowGroup], ids: frozenset[int], cached_bytes: Callable[[OpenFile, Range], bytes | None]
) -> Iterator[FetchBatch]:
    """Cuts row groups into batches of about ``MERGED_BYTES``, with the requests that are made."""
    together: list[RowGroup] = []
    ranges: list[Range] = []
    size = 0

    def batch() -> FetchBatch:
        gap = GAP_BYTES if together[0].picked is None else PAGE_GAP_BYTES
        bodies = ((range_, cached_bytes(together[0].file, range_)) for range_ in set(ranges))
        cached = {range_: body for range_, body in bodies if body is not None}
        missing = [range_ for range_ in ranges if range_ not in cached]
        return FetchBatch(tuple(together), tuple(coalesce(missing, gap)), frozenset(ranges), cached)

    for group in groups:
        if group.file.source is not None:
            if together:
                yield batch()
                together, ranges, size = [], [], 0
            yield FetchBatch((group,), ())
            continue
        group_ranges = group.ranges(ids)
        length = sum(range_.length for range_ in group_ranges)
        fits = together and together[0].file is group.file and (together[0].picked is None) == (group.picked is None)
        if together and (not fits or size + length > MERGED_BYTES):
            yield batch()
            together, ranges, size = [], [], 0
        together.append(group)
        ranges += group_ranges
        size += length
    if together:
        yield batch()


def hidden_rows(group: RowGroup, columns: RowGroupColumns) -> tuple[str, BitMap]:
    """The file of a row group, and the positions of the rows that its vector or a tombstone hides."""
    path = group.file.file.path
    if not group.tested_ids:
        return path, BitMap()
    keep = live_mask(group, columns.read(group.tested_ids))
    return path, BitMap() if keep is None else vector_of_mask(~keep, group.first)


def whole_groups(file: OpenFile, some: Sequence[RowGroup]) -> BitMap:
    """Positions of all rows in the row groups that need not be read, which are all but ``some``."""
    read_indexes = {group.index for group in some}
    footer = file.footer
    hidden = [(first, footer.rows(index)) for index, first in enumerate(footer.firsts) if index not in read_indexes]
    return BitMap(chain.from_iterable(range(first, first + rows) for first, rows in hidden))
