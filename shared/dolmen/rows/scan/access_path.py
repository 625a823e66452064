"""Chooses how rows with listed keys are found: through the index, through Bloom filters, or by reading all rows.

A condition that lists keys (``id = 7``, ``id IN (...)``, for each column of a key) is TRUE only for rows of these keys.
The index has their positions; a Bloom filter proves that a row group has none of them. The way that would read least,
by the manifest and by footers, is used, and rows are tested in any case. Deletes by key are looked up the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap

from dolmen.base.units import KIB
from dolmen.commit.head import Context
from dolmen.entries.index.key_encoding import Keys, key_order
from dolmen.entries.index.table_index import FoundRows, IndexReader, TableIndex, encoding_of, expected_cost
from dolmen.entries.segments.segment_reader import FetchTally
from dolmen.entries.segments.tombstone_judge import FileTombstones
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.bloom_filters import false_positives
from dolmen.format.entries import DataFile, KeysTombstone
from dolmen.format.manifest import TableEntry
from dolmen.format.types import to_array
from dolmen.predicate.ast import And, Column, Compare, In, Literal, Or, Predicate
from dolmen.predicate.ast import columns as columns_of
from dolmen.rows.scan.bloom_probes import MOST_KEYS, FileProbe, KeyFilters, KeyProbes, filters_range
from dolmen.rows.scan.data_objects import GAP_BYTES, REQUEST_BYTES, DataFileFooter, FetchedFooter, Range
from dolmen.rows.scan.row_groups import Deletes, FilePlan, OpenFile, RowGroup, row_groups
from dolmen.rows.scan.tombstone_keys import KeysLookup

_LEAST_EXCLUDED_SHARE = 0.25  # filters that are expected to exclude a smaller share of files are not fetched

_MANY_FILES = 8
"""With at least this many files, half of them are expected to lack all keys, even if there are more keys than files."""

_PAGE_BYTES = 16 * KIB  # the approximate size of a page

_NEVER = np.iinfo(np.int64).max


@dataclass
class FilterUse:
    """Counts the files whose Bloom filters were used; ``excluded`` counts those without rows left to read or test.

    ``with_footer`` has the paths of files whose footers came with the filters.
    """

    files: int = 0
    excluded: int = 0
    requests: int = 0
    bytes: int = 0
    with_footer: set[str] = field(default_factory=set)

    def add(self, file: OpenFile) -> None:
        probe = file.probe
        if probe is None:
            return
        self.files += 1
        if probe.requested is not None:
            self.requests += 1
            self.bytes += probe.requested
        if probe.with_footer:
            self.with_footer.add(file.file.path)

    def judge(self, file: OpenFile, groups: Iterable[RowGroup], *, tests_only: bool) -> None:
        """Counts a file with these row groups; with ``tests_only`` nothing is read of row groups without tests."""
        if file.probe and file.probe.excluded and not any(group.tested_ids or not tests_only for group in groups):
            self.excluded += 1


@dataclass
class FilterChoice:
    """Chooses the files of a scan whose filters are used; ``output`` has the columns that are only returned."""

    context: Context
    entry: TableEntry
    where: Predicate | None
    deletes: Deletes
    output: frozenset[int]
    files: int
    probes: KeyProbes = field(default_factory=KeyProbes)

    def or_none(self) -> FilterChoice | None:
        """None without a key, for a single file, or if all rows are read."""
        reads_all = self.where is None and self.output
        return None if not self.entry.primary_key or self.files < 2 or reads_all else self

    def comes_with_footer(self, plan: FilePlan) -> bool:
        """True if the filters of a file are to be fetched together with its footer."""
        file = plan.file
        tail_bytes = file.footer[0] - file.filters
        if not file.filters or tail_bytes > GAP_BYTES:
            return False
        keys = self._keys(plan)
        if keys is None or keys > MOST_KEYS:
            return False
        excluded_share = self._excluded_share(keys, file, tail_bytes)
        if excluded_share < _LEAST_EXCLUDED_SHARE:
            return False
        rows_bytes = int(file.filters * min(1.0, self._share(plan))) + REQUEST_BYTES
        if file.size <= GAP_BYTES:  # else it would be fetched whole
            return file.filters > (1 - excluded_share) * rows_bytes
        return excluded_share * rows_bytes > tail_bytes

    def expected_cost(self, plan: FilePlan) -> int:
        """The expected cost of testing a file's rows, in bytes: fetched bytes, and ``REQUEST_BYTES`` per request."""
        file, columns = plan.file, self._share(plan)
        tail_bytes = file.size - file.footer[0]
        if self.comes_with_footer(plan):
            keys = self._keys(plan)
            assert keys is not None
            tail_bytes = file.size - file.filters
            remaining = 1 - self._excluded_share(keys, file, file.footer[0] - file.filters)
            return int(tail_bytes + REQUEST_BYTES + remaining * (file.filters * columns + REQUEST_BYTES))
        if file.size <= GAP_BYTES:
            return file.size + REQUEST_BYTES
        return int(tail_bytes + (file.size - tail_bytes) * columns) + 2 * REQUEST_BYTES

    def probe(self, file: OpenFile, found: FetchedFooter) -> FileProbe | None:
        """The filters of an opened file, if they came with its footer, are in the cache, or are worth a request."""
        keys = self._keys(file.plan)
        if keys is None or keys > MOST_KEYS:
            return None
        cache, key = self.context.cache, ("filters", file.file.path, *file.file.footer)
        cached: KeyFilters | None = cache.get(key)
        if cached is not None:
            return FileProbe(cached, self.probes)
        range_ = filters_range(found.footer)
        if found.body is not None or range_ is None:
            return None
        body, requested = found.filters, found.requested
        if body is None:
            if not self._is_worth(file, range_, keys):
                return None
            try:
                body = self.context.store.get(file.file.path, range_).body
            except ObjectNotFoundError as error:
                reason = "it is missing, and is a data file that a scan reads"
                raise CorruptionError(file.file.path, reason) from error
            requested = len(body)
        filters = KeyFilters.check(found.footer, range_.start, body)
        if filters is None:
            return None
        cache.put(key, filters, len(body))
        return FileProbe(filters, self.probes, requested, found.filters is not None)

    def _is_worth(self, file: OpenFile, range_: Range, keys: int) -> bool:
        excluded_share = self._excluded_share(keys, file.file, range_.length)
        if excluded_share < _LEAST_EXCLUDED_SHARE:
            return False
        lengths = [
            chunk.length
            for group in row_groups(file, self.where, self.deletes, self.entry.schema)
            for chunk in group.ranges(self.output)
        ]
        return bool(lengths) and excluded_share * (sum(lengths) + REQUEST_BYTES) > range_.length + REQUEST_BYTES

    def _keys(self, plan: FilePlan) -> int | None:
        """The number of values that the filters of a file are asked for; None if they can't exclude it."""
        ids = frozenset(self.entry.primary_key)
        if plan.needs_filter and self.where is not None:
            return _value_count(self.where, ids)
        if self.output:
            return None
        # All deletes must be excluded for rows not to be tested.
        tests = self.deletes.tests_of(plan)
        keys = [lookup.count if lookup.is_in_memory and ids & set(lookup.columns) else None for lookup in tests.lookups]
        return _total([*keys, *(_value_count(each.predicate, ids) for each in tests.predicates)])

    def _share(self, plan: FilePlan) -> float:
        """The share of the table's columns that is read of a file."""
        filtered: Collection[int] = columns_of(self.where) if plan.needs_filter and self.where is not None else ()
        ids = self.output.union(filtered, self.deletes.tests_of(plan).ids)
        return len(ids & self.entry.schema.by_id.keys()) / len(self.entry.schema.fields)

    def _excluded_share(self, keys: int, file: DataFile, filter_bytes: int) -> float:
        """The share of files like this one that filters are expected to exclude."""
        bits = 8 * filter_bytes // max(1, file.rows) // len(self.entry.primary_key)
        hit = keys / self.files if keys < self.files else 0.5 if self.files >= _MANY_FILES else 1.0
        return float((1 - false_positives(max(1, bits))) ** keys * (1 - hit))


class IndexedRows(Struct, frozen=True):
    """The rows of some keys, hidden rows included, in the files (uuids) that the index has ``covered_files``.

    ``footers``: by uuid, of the row groups with these rows, if the index has their locations.
    """

    covered: frozenset[str]
    rows: dict[str, FoundRows]
    footers: dict[str, DataFileFooter]
    tally: FetchTally

    @classmethod
    def find(cls, index: TableIndex, keys: Keys, files: Sequence[FilePlan]) -> IndexedRows:
        """Looks distinct keys up, in ascending order. Does not read the index if it covers none of the files."""
        is_covered = any(plan.file.uuid in index.covered_files for plan in files)
        rows = index.find(keys) if is_covered else {}
        footers = {}
        for uuid, file in ((plan.file.uuid, plan.file) for plan in files if plan.file.uuid in rows):
            chunks = index.chunk_locations(uuid)
            if chunks is not None and int(chunks.rows.sum()) == file.rows:
                groups = chunks.groups_at(rows[uuid].positions.astype(np.int64))
                if groups:
                    footers[uuid] = DataFileFooter.of_locations(chunks, groups)
        return cls(index.covered_files, rows, footers, index.reader.tally)

    def has_none_of(self, plan: FilePlan) -> bool:
        """True if a file certainly has no row of the keys."""
        return plan.file.uuid in self.covered and plan.file.uuid not in self.rows


def indexed_rows(
    context: Context, entry: TableEntry, choice: FilterChoice | None, files: Sequence[FilePlan]
) -> IndexedRows | None:
    """Finds the rows that a condition lists by key; None if it lists none, or reading the files would take less."""
    if choice is None or choice.where is None or not entry.segments_of("index"):
        return None
    keys = listed_keys(choice.where, entry)
    if keys is None or not _pays(entry, choice, len(keys), files):
        return None
    # Its parts tell which files the index covers.
    index = TableIndex.of(entry, IndexReader(context.store, context.runtime, context.cache))
    if not _pays(entry, choice, len(keys), [plan for plan in files if plan.file.uuid in index.covered_files]):
        return None
    return IndexedRows.find(index, keys, files)


def listed_keys(where: Predicate, entry: TableEntry) -> Keys | None:
    """The encoded keys that a condition lists, ascending: it is TRUE only for their rows. None if it lists none."""
    lists: dict[int, pa.Array] = {}
    for term in where.args if isinstance(where, And) else (where,):
        match term:
            case Compare(op="=", left=Column(id=id_), right=Literal() as literal):
                values = to_array([literal.plain], literal.arrow_type)
            case In(column=Column(id=id_)):
                values = to_array(term.plain, term.arrow_type)
            case _:
                continue
        if id_ in entry.primary_key and values.type == entry.schema.by_id[id_].arrow_type:
            lists.setdefault(id_, values.drop_null().unique())
    arrays = [lists[id_] for id_ in entry.primary_key if id_ in lists]
    count = prod(len(array) for array in arrays)
    if not arrays or len(arrays) < len(entry.primary_key) or not 0 < count <= MOST_KEYS:
        return None
    grid = np.indices([len(array) for array in arrays]).reshape(len(arrays), -1)
    encoded = encoding_of(entry).encode([array.take(pa.array(at)) for array, at in zip(arrays, grid, strict=True)])
    return encoded[key_order(encoded)]


def _pays(entry: TableEntry, choice: FilterChoice, keys: int, files: Collection[FilePlan]) -> bool:
    """True if asking the index, and reading pages with the keys, is expected to read less than these files."""
    otherwise = sum(choice.expected_cost(plan) for plan in files)
    own = sum(expected_cost(part, keys, REQUEST_BYTES) for part in entry.segments_of("index"))
    footers = sum(plan.file.footer[1] for plan in files)
    opened = min(1.0, keys / max(1, len(files))) * (footers + len(files) * REQUEST_BYTES)
    columns = len(choice.output | set(entry.primary_key))
    return own + opened + keys * columns * _PAGE_BYTES < otherwise


class IndexedDeletes(Struct, frozen=True):
    """Deletes of one version of a table by keys whose rows the index may have."""

    context: Context
    entry: TableEntry
    lookup: KeysLookup
    choice: FilterChoice

    @classmethod
    def of(cls, context: Context, entry: TableEntry, deletes: Deletes, files: int) -> IndexedDeletes | None:
        """The deletes by primary key, if there are any and the table has an index; ``files`` is a count."""
        lookups = deletes.lookups.get(tuple(sorted(entry.primary_key)), ())
        if not entry.segments_of("index") or len(lookups) != 1 or not lookups[0].is_in_memory:
            return None
        choice = FilterChoice(context, entry, None, deletes, frozenset(), files)
        return cls(context, entry, lookups[0], choice)

    def find(self, plans: Sequence[FilePlan]) -> tuple[dict[str, BitMap], int]:
        """Finds the rows that the deletes hide in files whose rows no other deletes may hide.

        Returns their positions by path, and the bytes that were fetched for them. If a file is missing, its keys have
        to be read: the index does not cover it, or that reads less.
        """
        by_key = {plan.file.uuid: plan for plan in plans if self._is_by_key(plan)}
        if not self._pays(by_key.values()):
            return {}, 0
        reader = IndexReader(self.context.store, self.context.runtime, self.context.cache)
        index = TableIndex.of(self.entry, reader)
        covered = {uuid: plan for uuid, plan in by_key.items() if uuid in index.covered_files}
        if not self._pays(covered.values()):
            return {}, reader.tally.bytes
        found = {plan.file.path: BitMap() for plan in covered.values()}
        through = {uuid: plan.file.applied_through for uuid, plan in covered.items()}
        arrays, ts = self.lookup.keys(-1)
        by_id = dict(zip(self.lookup.columns, arrays, strict=True))
        keys = encoding_of(self.entry).encode([by_id[id_] for id_ in self.entry.primary_key])
        ascending = key_order(keys)
        ts = ts[ascending]
        # There may be millions of keys: the rows are not collected, but added to bitmaps page by page.
        for matches in index.matches(keys[ascending]):
            applied = np.array([through.get(uuid, _NEVER) for uuid in matches.uuids], np.int64)
            hidden = ts[matches.keys] > applied[matches.files]
            files, positions = matches.files[hidden], matches.positions[hidden]
            for number in np.unique(files).tolist():
                found[covered[matches.uuids[number]].file.path].update(BitMap(positions[files == number]))
        return found, reader.tally.bytes

    def _is_by_key(self, plan: FilePlan) -> bool:
        """True if all deletes that may hide rows of a file are among these."""
        tombstones = plan.tombstones
        if isinstance(tombstones, FileTombstones):
            return False
        return all(isinstance(each, KeysTombstone) and each.columns == self.lookup.columns for each in tombstones)

    def _pays(self, plans: Collection[FilePlan]) -> bool:
        """True if the index is expected to read less than reading the keys of these files."""
        parts = self.entry.segments_of("index")
        index_cost = sum(expected_cost(part, self.lookup.count, REQUEST_BYTES) for part in parts)
        return index_cost < sum(self.choice.expected_cost(plan) for plan in plans)


def _value_count(p: Predicate, ids: frozenset[int]) -> int | None:
    """The number of values in columns with filters such that the predicate is TRUE only for rows with one of them."""
    match p:
        case And():
            return min((n for n in (_value_count(arg, ids) for arg in p.args) if n is not None), default=None)
        case Or():
            return _total(_value_count(arg, ids) for arg in p.args)
        case Compare(op="=", left=Column() as column, right=Literal()) if column.id in ids:
            return 1
        case In(column=Column() as column) if column.id in ids:
            return len(p.values)
        case _:
            return None


def _total(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total or None
