"""Looks rows up by primary key: through the index in files that it covers, and by statistics in the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.entries.index.key_encoding import KeyEncoding, key_order
from dolmen.entries.index.key_encoding import Keys as EncodedKeys
from dolmen.entries.index.sorting import KeyRun, KeyRuns
from dolmen.entries.index.table_index import FoundRows, IndexReader, TableIndex, encoding_of
from dolmen.entries.segments.segment_reader import FetchTally
from dolmen.format.del_object import Keys
from dolmen.format.manifest import TableEntry
from dolmen.format.types import Mask, one_array, to_boolean_array, to_json, to_plain
from dolmen.predicate.ast import And, Column, Compare, In, Literal, Predicate
from dolmen.predicate.bind import conjunction, disjunction
from dolmen.rows.scan.access_path import IndexedRows
from dolmen.rows.scan.plan import ScanPlan, View, plan
from dolmen.rows.scan.plan_reader import PlanReader, RowGroupColumns
from dolmen.rows.scan.row_groups import RowGroup, column_of, row_mask

MOST_LISTED_KEYS = 10_000
"""The most keys that a predicate lists one by one, so that filters are asked for them; for more it has ranges."""

_MOST_RANGES = 256


class KeySearch:
    """A search for the rows of one version of a table that have one of some keys, distinct and ascending.

    Args:
        values: by id of the columns of the primary key, the values of these keys.
        where: a predicate that is TRUE for all rows with these keys, to leave out files and row groups.
        filter_rows: tests rows against the predicate before their keys are compared, which pays for few values.
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

    def plan(self) -> tuple[ScanPlan, IndexedRows]:
        """Plans the files that may have the keys by statistics, and finds rows in those that the index covers."""
        context = self._view.context
        scan = plan(
            self._view,
            columns=self._columns,
            where=self._where,
            with_commit_ts=self._with_commit_ts,
            newer_than=self._newer_than,
        )
        if not scan.files:
            return scan, IndexedRows(frozenset(), {}, {}, FetchTally())
        index = TableIndex.of(self._entry, IndexReader(context.store, context.runtime, context.cache))
        found = IndexedRows.find(index, self._encoded, scan.files)
        files = (each for each in scan.files if not found.has_none_of(each))
        # The positions say which rows match.
        exact = (replace(each, needs_filter=False) if each.file.uuid in found.rows else each for each in files)
        return replace(scan, files=tuple(exact)), found

    def batches(self, scan: ScanPlan, found: IndexedRows) -> Iterator[pa.RecordBatch]:
        """Yields the rows, in any order, by comparing keys: the predicate may be TRUE for other rows."""
        view = self._view
        reader = PlanReader(view.context, scan, view.pending, caches_bytes=True, footers=found.footers)
        keys = [self._entry.schema.by_id[id_] for id_ in self._entry.primary_key]
        key_ids = frozenset(self._entry.primary_key)
        ids = scan.output_ids | key_ids

        def groups() -> Iterator[RowGroup]:
            for group in reader.groups(found.rows):
                rows = found.rows.get(group.file.file.uuid)
                if rows is None:
                    yield group if self._filter_rows else replace(group, where=None)
                    continue
                row_indexes = group.rows_at(rows.bitmap)
                if len(row_indexes):
                    yield group.pick(row_indexes, key_ids)

        def work(group: RowGroup, columns: RowGroupColumns) -> pa.RecordBatch | None:
            keep = row_mask(group, columns.read(group.tested_ids))
            chosen = None if keep is None else pc.indices_nonzero(to_boolean_array(keep))
            if chosen is not None and not len(chosen):
                return None
            if group.picked is not None:
                return self._batch(scan, group, columns, chosen, found.rows[group.file.file.uuid])
            if chosen is None:
                chosen = pa.array(np.arange(group.rows))
            arrays = columns.read(ids)
            has_key = self._has_key([column_of(group, field, arrays).take(chosen) for field in keys])
            chosen = chosen.filter(pa.array(has_key))
            output = [column_of(group, field, arrays).take(chosen) for field in scan.output]
            return pa.record_batch(output, scan.schema)

        yield from (batch for batch in reader.read(work, groups(), ids) if batch is not None and batch.num_rows)

    def _batch(
        self, scan: ScanPlan, group: RowGroup, columns: RowGroupColumns, chosen: pa.Array | None, rows: FoundRows
    ) -> pa.RecordBatch:
        """The ``chosen`` rows of a row group that the index found, or all of them, without reading their keys."""
        keys = pa.array(rows.keys[np.searchsorted(rows.positions, group.positions)])
        arrays = columns.read(scan.output_ids - self._values.keys())
        output = [
            self._values[field.id].take(keys).cast(field.arrow_type)
            if field.id in self._values
            else column_of(group, field, arrays)
            for field in scan.output
        ]
        batch = pa.record_batch(output, scan.schema)
        return batch if chosen is None else batch.take(chosen)

    def _has_key(self, arrays: list[pa.Array]) -> Mask:
        """A mask of the rows that have one of the keys. Long keys are compared by their digests."""
        has_key = np.zeros(len(arrays[0]), np.bool_)
        for start, keys in self.encoding.encode_blocks(arrays):
            at = np.minimum(np.searchsorted(self._encoded, keys), len(self._encoded) - 1)
            has_key[start : start + len(keys)] = self._encoded[at] == keys
        return has_key


class Lookup:
    """Rows of one version of a table by distinct values of their primary key.

    ``where`` is a predicate that is TRUE for all of them; None without keys.
    """

    def __init__(self, view: View, keys: Keys, columns: Sequence[str] | None = None) -> None:
        self._view, self._columns = view, columns
        entry = view.entry()
        values = {id_: one_array(keys[str(id_)]) for id_ in entry.primary_key}
        encoded = encoding_of(entry).encode(list(values.values()))
        if len(encoded) > 1:
            ascending = key_order(encoded)
            values = {id_: array.take(pa.array(ascending)) for id_, array in values.items()}
            encoded = encoded[ascending]
        self._values, self._encoded = values, encoded
        self.where = where_key_in(values) if len(encoded) else None

    def to_arrow(self, *, with_commit_ts: bool = False) -> pa.Table:
        """All rows with these keys, in any order. Raises CorruptionError."""
        view, columns = self._view, self._columns
        with view.reading():
            if self.where is None:
                return plan(view, columns=columns, limit=0, with_commit_ts=with_commit_ts).schema.empty_table()
            search = KeySearch(view, self._encoded, self._values, self.where, columns, with_commit_ts=with_commit_ts)
            scan, found = search.plan()
            return pa.Table.from_batches(search.batches(scan, found), scan.schema)


def existing_keys(view: View, keys: KeyRuns, newer_than: int, most: int) -> tuple[int, pa.Table | None]:
    """The number of these keys that visible rows of a table have, and the values of at most ``most`` of them.

    Rows of commits up to the timestamp ``newer_than`` are known to have none of the keys.
    """
    entry = view.entry()
    names = entry.schema.names_of(entry.primary_key)
    count, found = 0, list[pa.RecordBatch]()
    for run in keys.runs():
        is_found = _find_keys(view, entry, names, run, newer_than)
        new_count = int(np.count_nonzero(is_found))
        if new_count and count < most:
            found.append(run.values.take(pa.array(np.flatnonzero(is_found)[: most - count])))
        count += new_count
    return count, pa.Table.from_batches(found) if found else None


def _find_keys(view: View, entry: TableEntry, names: list[str], run: KeyRun, newer_than: int) -> Mask:
    is_found = np.zeros(len(run.encoded), np.bool_)
    listed = len(is_found) <= MOST_LISTED_KEYS
    values = dict(zip(entry.primary_key, run.values.columns, strict=True))
    where = where_key_in(values, MOST_LISTED_KEYS, ranges=_MOST_RANGES)
    search = KeySearch(view, run.encoded, values, where, names, filter_rows=listed, newer_than=newer_than)
    scan, found = search.plan()
    if scan.files:
        for batch in search.batches(scan, found):
            for _, keys in search.encoding.encode_blocks(batch.columns):
                is_found[np.searchsorted(run.encoded, keys)] = True
    return is_found


def where_key_in(
    values: Mapping[int, pa.Array | pa.ChunkedArray], most: int | None = None, *, ranges: int = 1
) -> Predicate:
    """A predicate that is TRUE for all rows with some keys; for keys of several columns also for others.

    It lists the values of each column of the key, which are given by id. Of a column with more than ``most`` it has up
    to this number of ``ranges``: a filter of rows takes time for each, so several are for finding files only.
    """
    terms: list[Predicate] = []
    for id_, array in values.items():
        column, distinct = Column(id_, str(array.type)), pc.unique(array) if len(array) > 1 else one_array(array)
        if most is None or len(distinct) <= most:
            if len(distinct) > 1:
                distinct = distinct.take(pc.array_sort_indices(distinct))
            terms.append(In(column, column.type, tuple(to_json(value) for value in to_plain(distinct))))
        else:
            terms.append(_ranges(column, distinct, ranges))
    return conjunction(terms)


def _ranges(column: Column, values: pa.Array, most: int) -> Predicate:
    """A predicate that is TRUE for these values, and for others in between."""
    if most > 1:
        values = values.take(pc.array_sort_indices(values))
    else:
        ends = pc.min_max(values)
        values = pa.array([ends["min"], ends["max"]], values.type)
    step = -(-len(values) // most)
    first = np.arange(0, len(values), step)
    last = np.minimum(first + step, len(values)) - 1
    bounds = (
        [Literal(column.type, to_json(end)) for end in to_plain(values.take(pa.array(at)))] for at in (first, last)
    )
    return disjunction(
        And((Compare(">=", column, least), Compare("<=", column, greatest)))
        for least, greatest in zip(*bounds, strict=True)
    )
