"""Chooses the files whose Bloom filters are fetched: those where this is expected to read less than reading the rows.

All of it follows from the manifest and from footers. A file whose filters are near its footer (``DataFile.filters``)
gives both in one request; so a file that has none of the keys costs one request and about a byte a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from dolmen.commit.context import Context
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.bloom_filters import false_positives
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.predicate import Predicate
from dolmen.predicate import columns as columns_of
from dolmen.rows.scan.by_key.key_filters import (
    MOST_KEYS,
    FileProbe,
    KeyFilters,
    KeyProbes,
    filters_place,
    tests_asked,
    values_asked,
)
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.read.byte_ranges import GAP_BYTES, REQUEST_BYTES, Range
from dolmen.rows.scan.read.footers import FetchedFooter
from dolmen.rows.scan.read.row_groups import OpenFile, RowGroup, row_groups
from dolmen.rows.scan.scan_deletes import Deletes

_LEAST_SPARED = 0.25
"""Filters that are expected to exclude a smaller share of files are left where they are."""

_MANY_FILES = 8
"""From so many files on, half of them are expected to have none of the keys, though there are more keys than files."""


@dataclass
class FilterUse:
    """Counts the Bloom filters that were asked, and what they took.

    Args:
        files: files whose filters were asked.
        excluded: those of which no row had to be read or tested, thanks to them.
        requests, bytes: fetched for them. A request that brought the footer, too, is counted here with all its bytes.
        with_footer: paths of the files whose footers came so.
    """

    files: int = 0
    excluded: int = 0
    requests: int = 0
    bytes: int = 0
    with_footer: set[str] = field(default_factory=set)

    def add(self, file: OpenFile) -> None:
        """Counts what an opened file took."""
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
        """Counts a file whose row groups are known.

        Args:
            tests_only: nothing is read of row groups without tests.
        """
        if file.probe and file.probe.excluded and not any(group.tests or not tests_only for group in groups):
            self.excluded += 1


@dataclass
class FilterChoice:
    """Chooses for the files of one scan.

    Args:
        entry: the table's.
        where: the scan's predicate.
        deletes: those that its files are checked against.
        output: ids of the columns that are read beside those that decide about rows.
        files: the number of files that are asked.
    """

    context: Context
    entry: TableEntry
    where: Predicate | None
    deletes: Deletes
    output: frozenset[int]
    files: int
    probes: KeyProbes = field(default_factory=KeyProbes)

    @classmethod
    def of(
        cls,
        context: Context,
        entry: TableEntry,
        where: Predicate | None,
        deletes: Deletes,
        output: frozenset[int],
        files: int,
    ) -> FilterChoice | None:
        """The choice for so many files; None where there is none: no key, one file, or all rows are wanted."""
        if not entry.primary_key or files < 2 or (where is None and output):
            return None
        return cls(context, entry, where, deletes, output, files)

    def comes_with_footer(self, plan: FilePlan) -> bool:
        """Whether the filters of a file are to be fetched together with its footer."""
        file = plan.file
        behind = file.footer[0] - file.filters
        if not file.filters or behind > GAP_BYTES:
            return False
        keys = self._keys(plan)
        if keys is None or keys > MOST_KEYS:
            return False
        spared = self._spared(keys, file, behind)
        if spared < _LEAST_SPARED:
            return False
        columns = len(self._ids(plan) & self.entry.schema.by_id.keys()) / len(self.entry.schema.fields)
        rows_bytes = int(file.filters * min(1.0, columns)) + REQUEST_BYTES
        if file.size <= GAP_BYTES:  # else it would be fetched whole
            return file.filters > (1 - spared) * rows_bytes
        return spared * rows_bytes > behind

    def expected_cost(self, plan: FilePlan) -> int:
        """Bytes that testing the rows of a file is expected to fetch, with those that the requests are worth."""
        file = plan.file
        columns = len(self._ids(plan) & self.entry.schema.by_id.keys()) / len(self.entry.schema.fields)
        behind = file.size - file.footer[0]
        if self.comes_with_footer(plan):
            keys = self._keys(plan)
            assert keys is not None
            behind = file.size - file.filters
            left = 1 - self._spared(keys, file, file.footer[0] - file.filters)
            return int(behind + REQUEST_BYTES + left * (file.filters * columns + REQUEST_BYTES))
        if file.size <= GAP_BYTES:
            return file.size + REQUEST_BYTES
        return int(behind + (file.size - behind) * columns) + 2 * REQUEST_BYTES

    def probe(self, file: OpenFile, found: FetchedFooter) -> FileProbe | None:
        """The filters of an opened file, if they came with its footer, are in the cache, or are worth a request.

        Raises:
            CorruptionError: the file is not there, or shorter than it was.
        """
        keys = self._keys(file.plan)
        if keys is None or keys > MOST_KEYS:
            return None
        entry, cache, key = file.file, self.context.cache, ("filters", file.file.path, 0)
        kept: KeyFilters | None = cache.get(key)
        if kept is not None:
            return FileProbe(kept, self.probes)
        place = filters_place(found.footer)
        if found.body is not None or place is None:
            return None
        body, requested = found.filters, found.requested
        if body is None:
            if not self._is_worth(file, place, keys):
                return None
            body = self._fetch(entry, place)
            requested = len(body)
        filters = KeyFilters.check(found.footer, place.start, body)
        if filters is None:
            return None
        cache.put(key, filters, len(body))
        return FileProbe(filters, self.probes, requested, found.filters is not None)

    def _is_worth(self, file: OpenFile, place: Range, keys: int) -> bool:
        spared = self._spared(keys, file.file, place.length)
        if spared < _LEAST_SPARED:
            return False
        wanted = [
            found.length
            for group in row_groups(file, self.where, self.deletes, self.entry.schema)
            for found in file.footer.ranges(group.index, self.output | group.tests)
        ]
        return bool(wanted) and spared * (sum(wanted) + REQUEST_BYTES) > place.length + REQUEST_BYTES

    def _fetch(self, file: DataFile, place: Range) -> bytes:
        try:
            body = self.context.store.get(file.path, place).body
        except ObjectNotFoundError as error:
            raise CorruptionError(file.path, "it is missing, and is a data file that a scan reads") from error
        return body

    def _keys(self, plan: FilePlan) -> int | None:
        """The number of values that the filters of a file are asked for; None if they can't exclude it."""
        ids = frozenset(self.entry.primary_key)
        if plan.filter and self.where is not None:
            return values_asked(self.where, ids)
        if self.output:
            return None
        tests = self.deletes.tests_of(plan)
        return tests_asked([each.predicate for each in tests.predicates], tests.lookups, ids)

    def _ids(self, plan: FilePlan) -> frozenset[int]:
        filtered: Collection[int] = columns_of(self.where) if plan.filter and self.where is not None else ()
        return self.output.union(filtered, self.deletes.tests_of(plan).ids)

    def _spared(self, keys: int, file: DataFile, filter_bytes: int) -> float:
        """The share of files like this one that filters are expected to exclude."""
        bits = 8 * filter_bytes // max(1, file.rows) // len(self.entry.primary_key)
        hit = keys / self.files if keys < self.files else 0.5 if self.files >= _MANY_FILES else 1.0
        return float((1 - false_positives(max(1, bits))) ** keys * (1 - hit))
