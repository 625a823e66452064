"""Finds the rows that a scan by primary key may want through the index, where that is expected to read less.

A condition that lists keys (``id = 7``, ``id IN (...)``, and the like for each column of a key) is TRUE for rows of
these keys alone. The index knows where they are, or that a file has none. The condition is tested on them nevertheless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.units import KIB
from dolmen.commit.context import Context
from dolmen.entries.index.key_bytes import Keys, order
from dolmen.entries.index.parts import IndexReader, IndexTally
from dolmen.entries.index.table_index import TableIndex, encoding_of, expected_cost
from dolmen.format.manifest import TableEntry
from dolmen.format.values import to_array
from dolmen.predicate import And, Column, In, Predicate
from dolmen.predicate.ast import Compare, Literal
from dolmen.rows.scan.filter_choice import FilterChoice
from dolmen.rows.scan.footers import DataFileFooter
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.ranges import REQUEST_BYTES

MOST_KEYS = 65_536
"""More keys than this are not looked up."""
_PAGE_BYTES = 16 * KIB
"""About the bytes of a page."""


@dataclass(frozen=True)
class IndexedRows:
    """The rows of some keys, as the index knows them.

    Args:
        covered: uuids of the files that it knows.
        places: by uuid, the positions of rows in those of them that have some, hidden rows included.
        footers: of files whose column chunks' places it knows, for the row groups with these rows.
        tally: what was fetched.
    """

    covered: frozenset[str]
    places: dict[str, BitMap]
    footers: dict[str, DataFileFooter]
    tally: IndexTally

    def has_none_of(self, plan: FilePlan) -> bool:
        """Whether a file certainly has no row of the keys."""
        return plan.file.uuid in self.covered and plan.file.uuid not in self.places


def indexed_rows(
    context: Context, entry: TableEntry, choice: FilterChoice | None, files: Sequence[FilePlan]
) -> IndexedRows | None:
    """Asks the index; None if the condition lists no keys, or reading the files is expected to read less.

    Args:
        choice: of the scan's condition.
        files: those that statistics leave.

    Raises:
        CorruptionError: a part of the index is missing or damaged.
    """
    if choice is None or choice.where is None or not entry.segments_of("index"):
        return None
    keys = listed_keys(choice.where, entry)
    if keys is None or not _pays(entry, choice, len(keys), files):
        return None
    reader = IndexReader(context.store, context.runtime, context.cache)
    index = TableIndex.of(entry, reader)
    if not _pays(entry, choice, len(keys), [plan for plan in files if plan.file.uuid in index.covered]):
        return None
    places = index.find(keys)
    return IndexedRows(index.covered, places, footers_of_rows(index, files, places), reader.tally)


def footers_of_rows(
    index: TableIndex, files: Iterable[FilePlan], places: Mapping[str, BitMap]
) -> dict[str, DataFileFooter]:
    """The parts of footers that reading some rows of files needs, by uuid, as far as the index says where chunks are.

    Args:
        places: by uuid, the positions of the rows.
    """
    found = {}
    for uuid, file in ((plan.file.uuid, plan.file) for plan in files if plan.file.uuid in places):
        chunks = index.chunk_places(uuid)
        if chunks is not None and int(chunks.rows.sum()) == file.rows:
            groups = chunks.groups_at(np.array(places[uuid], np.int64))
            if groups:
                found[uuid] = DataFileFooter.of_places(chunks, groups)
    return found


def listed_keys(where: Predicate, entry: TableEntry) -> Keys | None:
    """The encoded keys that a row must have one of for a condition to be TRUE, ascending; None if it lists none."""
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
    return encoded[order(encoded)]


def _pays(entry: TableEntry, choice: FilterChoice, keys: int, files: Collection[FilePlan]) -> bool:
    """Whether asking the index, and reading pages with the keys, is expected to read less than these files."""
    otherwise = sum(choice.expected_cost(plan) for plan in files)
    own = sum(expected_cost(part, keys, REQUEST_BYTES) for part in entry.segments_of("index"))
    footers = sum(plan.file.footer[1] for plan in files)
    opened = min(1.0, keys / max(1, len(files))) * (footers + len(files) * REQUEST_BYTES)
    columns = len(choice.output | set(entry.primary_key))
    return own + opened + keys * columns * _PAGE_BYTES < otherwise
