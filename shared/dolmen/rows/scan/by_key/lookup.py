"""Looks rows up by primary key: through the index where it covers files, and through statistics elsewhere.

Finds out which of many keys a table has: what an insert asks before it is committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from dolmen.base.cached import cached_property
from dolmen.entries.index.index_parts import IndexReader
from dolmen.entries.index.key_bytes import KeyEncoding, order
from dolmen.entries.index.key_bytes import Keys as EncodedKeys
from dolmen.entries.index.sorting import KeyRun, KeyRuns
from dolmen.entries.index.table_index import Hits, TableIndex, encoding_of
from dolmen.format.arrow_arrays import to_boolean_array
from dolmen.format.keys import Keys
from dolmen.format.manifest import TableEntry
from dolmen.format.types import to_json, to_plain
from dolmen.predicate import And, Column, Compare, In, Literal, Or, Predicate
from dolmen.rows.scan.by_key.key_access import footers_of_rows
from dolmen.rows.scan.plan import ScanPlan, View, plan
from dolmen.rows.scan.read.footers import DataFileFooter
from dolmen.rows.scan.read.reading import PlanReader, RowGroupColumns
from dolmen.rows.scan.read.row_groups import RowGroup, column_of, row_mask

LISTED = 10_000
"""The most keys that a predicate lists one by one, so that filters are asked for them; of more it has ranges."""

_RANGES = 256


@dataclass(frozen=True)
class FoundRows:
    """The rows of one file that the index found.

    Args:
        positions: of the rows, ascending, hidden ones included.
        keys: of each row the place of its key among the sorted keys.
    """

    positions: npt.NDArray[np.uint32]
    keys: npt.NDArray[np.int64]

    @cached_property
    def bitmap(self) -> BitMap:
        """The positions."""
        return BitMap(self.positions)


@dataclass(frozen=True)
class LookupPlan:
    """The files and positions that a look-up reads.

    Args:
        scan: the files; those that the index covers are there only if it has rows of them.
        places: by the uuid of a covered file, its rows with the keys.
        covered: number of live files that the index covers.
        footers: of files whose column chunks' places the index has, for the row groups with these rows.
    """

    scan: ScanPlan
    places: dict[str, FoundRows]
    covered: int
    footers: dict[str, DataFileFooter]


class KeySearch:
    """A search for the rows of one version of a table that have one of some encoded keys.

    Args:
        view: the table, and the version of it.
        encoded: the keys, distinct and in ascending order; at least one.
        values: of each column of the primary key, by id, the values of these keys.
        where: a predicate that is TRUE for all rows with these keys, by which files and row groups are left out.
        columns: names of the result's columns; all by default.
        with_commit_ts: adds the column ``_commit_ts``.
        filter_rows: tests rows against the predicate before their keys are compared, which pays for few values.
        newer_than: a commit timestamp: leaves out files all of whose rows are of this time or before.
    """

    def __init__(
        self,
        view: View,
        encoded: EncodedKeys,
        values: Mapping[int, pa.Array],
        where: Predicate,
        columns: Sequence[str] | None = None,
        *,
        with_commit_ts: bool = False,
        filter_rows: bool = True,
        newer_than: int = -1,
    ) -> None:
        self._view, self._encoded, self._values, self._where, self._columns = view, encoded, values, where, columns
        self._filter_rows = filter_rows
        self._with_commit_ts, self._newer_than = with_commit_ts, newer_than
        self._entry = view.entry()
        self.encoding: KeyEncoding = encoding_of(self._entry)

    def plan(self) -> LookupPlan:
        """Finds out what has to be read: asks statistics which files may have the keys, and the index about those that
        it covers."""
        context = self._view.context
        scan = plan(
            self._view,
            columns=self._columns,
            where=self._where,
            with_commit_ts=self._with_commit_ts,
            newer_than=self._newer_than,
        )
        if not scan.files:
            return LookupPlan(scan, {}, 0, {})
        index = TableIndex.of(self._entry, IndexReader(context.store, context.runtime, context.cache))
        covered = [file for file in scan.files if file.file.uuid in index.covered]
        places = _by_file(index.hits(self._encoded)) if covered else {}
        files = [file for file in scan.files if file.file.uuid not in index.covered or file.file.uuid in places]
        footers = footers_of_rows(index, files, {uuid: rows.bitmap for uuid, rows in places.items()})
        return LookupPlan(replace(scan, files=tuple(files)), places, len(covered), footers)

    def batches(self, found: LookupPlan) -> Iterator[pa.RecordBatch]:
        """The rows, in any order. The key decides about each, and not the predicate, which may be TRUE for others."""
        scan = found.scan
        reader = PlanReader(self._view.context, scan, self._view.pending, footers=found.footers)
        keys = [self._entry.schema.by_id[id_] for id_ in self._entry.primary_key]
        key_ids = frozenset(self._entry.primary_key)
        ids = scan.output_ids | key_ids

        def groups() -> Iterator[RowGroup]:
            for group in reader.groups():
                rows = found.places.get(group.file.file.uuid)
                if rows is None:
                    yield group if self._filter_rows else replace(group, filter=None)
                    continue
                picked = group.rows_at(rows.bitmap)
                if len(picked):
                    yield replace(group, filter=None).pick(picked, key_ids)  # the positions say which rows match

        def work(group: RowGroup, columns: RowGroupColumns) -> pa.RecordBatch | None:
            keep = row_mask(group, columns.read(group.tests))
            chosen = pa.array(np.arange(group.rows)) if keep is None else pc.indices_nonzero(to_boolean_array(keep))
            if not len(chosen):
                return None
            if group.picked is not None:
                return self._batch(scan, group, columns, chosen, found.places[group.file.file.uuid])
            arrays = columns.read(ids)
            wanted = self._is_wanted([column_of(group, field, arrays).take(chosen) for field in keys])
            chosen = chosen.filter(pa.array(wanted))
            output = [column_of(group, field, arrays).take(chosen) for field in scan.output]
            return pa.record_batch(output, scan.schema)

        for batch in reader.read(work, groups(), ids):
            if batch is not None and batch.num_rows:
                yield batch

    def _batch(
        self, scan: ScanPlan, group: RowGroup, columns: RowGroupColumns, chosen: pa.Array, rows: FoundRows
    ) -> pa.RecordBatch:
        """The rows of a row group that the index found, whose keys need not be read."""
        own = rows.keys[np.searchsorted(rows.positions, group.positions)]
        keys = pa.array(own).take(chosen)
        arrays = columns.read(scan.output_ids - self._values.keys())
        output = [
            self._values[field.id].take(keys).cast(field.arrow_type)
            if field.id in self._values
            else column_of(group, field, arrays).take(chosen)
            for field in scan.output
        ]
        return pa.record_batch(output, scan.schema)

    def _is_wanted(self, arrays: list[pa.Array]) -> npt.NDArray[np.bool_]:
        """Which rows have one of the keys; digests stand for long keys on both sides."""
        wanted = np.zeros(len(arrays[0]), np.bool_)
        for start, keys in self.encoding.encode_blocks(arrays):
            at = np.minimum(np.searchsorted(self._encoded, keys), len(self._encoded) - 1)
            wanted[start : start + len(keys)] = self._encoded[at] == keys
        return wanted


class Lookup:
    """Rows of one version of a table by their primary key.

    Args:
        view: the table, and the version of it.
        keys: distinct tuples of the primary key's columns.
        columns: names of the result's columns; all by default.
        with_commit_ts: adds the column ``_commit_ts``.
    """

    def __init__(
        self, view: View, keys: Keys, columns: Sequence[str] | None = None, *, with_commit_ts: bool = False
    ) -> None:
        self._view, self._columns, self._with_commit_ts = view, columns, with_commit_ts
        entry = view.entry()
        values = {id_: keys[str(id_)].combine_chunks() for id_ in entry.primary_key}
        encoded = encoding_of(entry).encode(list(values.values()))
        self._search: KeySearch | None = None
        if len(encoded):
            ascending = order(encoded)
            values = {id_: array.take(pa.array(ascending)) for id_, array in values.items()}
            where = where_key_in(entry, keys)
            self._search = KeySearch(view, encoded[ascending], values, where, columns, with_commit_ts=with_commit_ts)

    def to_arrow(self) -> pa.Table:
        """All rows with these keys, in any order.

        Raises:
            CorruptionError: an object is missing or damaged.
        """
        with self._view.reading():
            if self._search is None:
                nothing = plan(self._view, columns=self._columns, limit=0, with_commit_ts=self._with_commit_ts)
                return nothing.schema.empty_table()
            found = self._search.plan()
            return pa.Table.from_batches(self._search.batches(found), found.scan.schema)


def _by_file(hits: Iterable[Hits]) -> dict[str, FoundRows]:
    """Entries of the index by the uuid of their file. A file that two parts cover has each of them twice."""
    parts: dict[str, list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]] = defaultdict(list)
    for some in hits:
        for number in np.unique(some.files).tolist():
            own = some.files == number
            parts[some.uuids[number]].append((some.positions[own], some.at[own]))
    found = {}
    for uuid, pieces in parts.items():
        positions, first = np.unique(np.concatenate([piece[0] for piece in pieces]), return_index=True)
        found[uuid] = FoundRows(positions, np.concatenate([piece[1] for piece in pieces])[first])
    return found


def where_key_in(entry: TableEntry, keys: Keys) -> Predicate:
    """A predicate that is TRUE for all rows with these keys; for keys of several columns also for others."""
    terms = []
    for id_ in entry.primary_key:
        field = entry.schema.by_id[id_]
        values = pc.unique(keys[str(id_)])
        values = values.take(pc.array_sort_indices(values))
        type_ = str(field.arrow_type)
        terms.append(In(Column(id_, type_), type_, tuple(to_json(value) for value in to_plain(values))))
    return terms[0] if len(terms) == 1 else And(tuple(terms))


def existing_keys(view: View, keys: KeyRuns, newer_than: int, most: int) -> tuple[int, pa.Table | None]:
    """The number of keys that visible rows of a table have, and the values of the first of them.

    Reads the key columns of files that may have one of the keys, by statistics, filters and the index.

    Args:
        keys: distinct, of the table's primary key.
        newer_than: a commit timestamp: rows of this time or before are known to have none of the keys.
        most: the most keys whose values are returned.

    Raises:
        CorruptionError: an object is missing or damaged.
    """
    entry = view.entry()
    names = [entry.schema.by_id[id_].name for id_ in entry.primary_key]
    count, found = 0, list[pa.RecordBatch]()
    for run in keys.runs():
        there = _find(view, entry, names, run, newer_than)
        new = int(np.count_nonzero(there))
        if new and count < most:
            found.append(run.values.take(pa.array(np.flatnonzero(there)[: most - count])))
        count += new
    return count, pa.Table.from_batches(found) if found else None


def _find(view: View, entry: TableEntry, names: list[str], run: KeyRun, newer_than: int) -> npt.NDArray[np.bool_]:
    there = np.zeros(len(run.encoded), np.bool_)
    listed = len(there) <= LISTED
    where = _where_key_among(entry, run.values, listed=listed)
    values = dict(zip(entry.primary_key, run.values.columns, strict=True))
    search = KeySearch(view, run.encoded, values, where, names, filter_rows=listed, newer_than=newer_than)
    plan = search.plan()
    if plan.scan.files:
        for batch in search.batches(plan):
            for _, keys in search.encoding.encode_blocks(batch.columns):
                there[np.searchsorted(run.encoded, keys)] = True
    return there


def _where_key_among(entry: TableEntry, values: pa.RecordBatch, *, listed: bool) -> Predicate:
    """A predicate that is TRUE for all rows with these keys, and may be for others."""
    terms: list[Predicate] = []
    for id_, array in zip(entry.primary_key, values.columns, strict=True):
        distinct = pc.unique(array)
        distinct = distinct.take(pc.array_sort_indices(distinct))
        column = Column(id_, str(array.type))
        if listed:
            terms.append(In(column, column.type, tuple(to_json(value) for value in to_plain(distinct))))
        else:
            terms.append(_ranges(column, distinct))
    return terms[0] if len(terms) == 1 else And(tuple(terms))


def _ranges(column: Column, values: pa.Array) -> Predicate:
    """A predicate that is TRUE for these values, which are in order, and for others in between."""
    step = -(-len(values) // _RANGES)
    first = np.arange(0, len(values), step)
    last = np.minimum(first + step, len(values)) - 1
    ends = (to_plain(values.take(pa.array(places))) for places in (first, last))
    between = [
        And(
            (
                Compare(">=", column, Literal(column.type, to_json(least))),
                Compare("<=", column, Literal(column.type, to_json(greatest))),
            )
        )
        for least, greatest in zip(*ends, strict=True)
    ]
    return between[0] if len(between) == 1 else Or(tuple(between))
