"""Finds out which of many keys a table has: what an insert asks before it is committed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.entries.index.key_runs import KeyRun, KeyRuns
from dolmen.format.manifest import TableEntry
from dolmen.format.values import to_json, to_plain
from dolmen.predicate import And, Column, Compare, In, Literal, Or, Predicate
from dolmen.rows.scan.lookup import KeySearch
from dolmen.rows.scan.view import View

LISTED = 10_000
"""The most keys that a predicate lists one by one, so that filters are asked for them; of more it has ranges."""
_RANGES = 256


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
