"""Finds the rows that a scan by primary key may want through the index, where that is expected to read less.

A condition that lists keys (``id = 7``, ``id IN (...)``, and the like for each column of a key) is TRUE for rows of
these keys alone. The index knows where they are, or that a file has none. The condition is tested on them nevertheless.

Finds the rows that deletes by primary key hide through the index, where that reads less than reading the keys.

The index knows the position of each row that has a key, so nothing is read of data files. What both ways would read is
estimated from the manifest alone.
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
from dolmen.entries.index.index_parts import IndexReader, IndexTally
from dolmen.entries.index.key_bytes import Keys, order
from dolmen.entries.index.table_index import TableIndex, encoding_of, expected_cost
from dolmen.entries.segments.tombstone_judge import FileTombstones
from dolmen.format.entries import KeysTombstone
from dolmen.format.manifest import TableEntry
from dolmen.format.types import to_array
from dolmen.predicate import And, Column, In, Predicate
from dolmen.predicate.ast import Compare, Literal
from dolmen.rows.scan.by_key.filter_choice import FilterChoice
from dolmen.rows.scan.by_key.keys_lookup import KeysLookup
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.read.byte_ranges import REQUEST_BYTES
from dolmen.rows.scan.read.footers import DataFileFooter
from dolmen.rows.scan.scan_deletes import Deletes

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


_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class IndexedDeletes:
    """Deletes of one version of a table by keys whose rows the index may know.

    Args:
        lookup: the keys.
        choice: estimates what it takes to read the keys of files.
    """

    context: Context
    entry: TableEntry
    lookup: KeysLookup
    choice: FilterChoice

    @classmethod
    def of(cls, context: Context, entry: TableEntry, deletes: Deletes, files: int) -> IndexedDeletes | None:
        """The deletes by primary key, if there are any and the table has an index.

        Args:
            files: the number of files that they are looked for in.
        """
        lookups = deletes.lookups.get(tuple(sorted(entry.primary_key)), ())
        if not entry.segments_of("index") or len(lookups) != 1 or not lookups[0].in_memory:
            return None
        choice = FilterChoice(context, entry, None, deletes, frozenset(), files)
        return cls(context, entry, lookups[0], choice)

    def find(self, plans: Sequence[FilePlan]) -> tuple[dict[str, BitMap], int]:
        """The positions of the rows that the deletes hide in files whose rows no other deletes may hide, by path.

        Args:
            plans: files, with all deletes that may hide rows of them. Of those that the result lacks, the keys have to
                be read: the index does not cover them, or that reads less.

        Returns:
            the positions, and the bytes that were fetched for them.

        Raises:
            CorruptionError: a part of the index is missing or damaged.
        """
        wanted = {plan.file.uuid: plan for plan in plans if self._is_by_key(plan)}
        if not self._pays(wanted.values()):
            return {}, 0
        reader = IndexReader(self.context.store, self.context.runtime, self.context.cache)
        index = TableIndex.of(self.entry, reader)
        known = {uuid: plan for uuid, plan in wanted.items() if uuid in index.covered}
        if not self._pays(known.values()):
            return {}, reader.tally.bytes
        found = {plan.file.path: BitMap() for plan in known.values()}
        arrays, ts = self.lookup.keys(-1)
        by_id = dict(zip(self.lookup.columns, arrays, strict=True))
        keys = encoding_of(self.entry).encode([by_id[id_] for id_ in self.entry.primary_key])
        ascending = order(keys)
        ts = ts[ascending]
        for hits in index.hits(keys[ascending]):
            through = np.array([known[u].file.applied_through if u in known else _NEVER for u in hits.uuids], np.int64)
            hidden = ts[hits.at] > through[hits.files]
            files, positions = hits.files[hidden], hits.positions[hidden]
            for number in np.unique(files).tolist():
                found[known[hits.uuids[number]].file.path].update(BitMap(positions[files == number]))
        return found, reader.tally.bytes

    def _is_by_key(self, plan: FilePlan) -> bool:
        """Whether all deletes that may hide rows of a file are among these."""
        tombstones = plan.tombstones
        if isinstance(tombstones, FileTombstones):
            return False
        return all(isinstance(each, KeysTombstone) and each.columns == self.lookup.columns for each in tombstones)

    def _pays(self, plans: Collection[FilePlan]) -> bool:
        """Whether the index is expected to read less than reading the keys of these files."""
        parts = self.entry.segments_of("index")
        own = sum(expected_cost(part, self.lookup.count, REQUEST_BYTES) for part in parts)
        return own < sum(self.choice.expected_cost(plan) for plan in plans)
