"""The Bloom filters of data files, asked whether row groups may hold what a scan looks for.

Parquet's writer puts a filter for each key column of each row group between the column chunks and the footer. A filter
proves that a value is not in its row group; it proves nothing else. Nothing is concluded where a value has another
encoding in the file, or from bytes whose checksum differs: the row group is read then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.format.bloom_filters import Blocks, Hashes, decode, has_hashes, hashes_in_file, maybe_mask
from dolmen.format.types import Plain, to_array
from dolmen.predicate import Predicate
from dolmen.predicate.ast import And, Column, Compare, In, Literal, Or
from dolmen.rows.scan.by_key.keys_lookup import KeysLookup
from dolmen.rows.scan.read.byte_ranges import Range
from dolmen.rows.scan.read.footers import DataFileFooter

Mask = npt.NDArray[np.bool_]

MOST_KEYS = 65_536
"""More values than this are not looked up in filters."""


def filters_range(footer: DataFileFooter) -> Range | None:
    """The bytes of a file that hold its filters; None if it has none, or no checksum of them."""
    metadata, sums = footer.metadata, footer.sums
    if not sums or not sums.states:
        return None
    group = metadata.row_group(0)
    if all(group.column(leaf).bloom_filter_offset is None for leaf in range(metadata.num_columns)):
        return None
    part = sums.behind_chunks(metadata)
    return Range(part.start, part.end)


@dataclass(frozen=True)
class KeyFilters:
    """The filters of one file.

    Args:
        footer: the file's.
        start: the first byte of ``body`` in the file.
        body: as its checksum says.
    """

    footer: DataFileFooter
    start: int
    body: memoryview

    @classmethod
    def check(cls, footer: DataFileFooter, start: int, body: bytes) -> KeyFilters | None:
        """The filters in these bytes; None if they are not what was written: they must not decide then."""
        expected = filters_range(footer)
        if expected is None or expected != Range(start, start + len(body)) or footer.sums is None:
            return None
        if not footer.sums.behind_chunks(footer.metadata).states.fit(body):
            return None
        return cls(footer, start, memoryview(body))

    def blocks(self, group: int, id_: int) -> Blocks | None:
        """The filter of a column in a row group; None if it has none."""
        column = self.footer.columns.get(id_)
        if column is None or len(column.leaves) != 1:
            return None
        chunk = self.footer.metadata.row_group(group).column(column.leaves[0])
        if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
            return None
        first = chunk.bloom_filter_offset - self.start
        last = first + chunk.bloom_filter_length
        return decode(self.body[first:last]) if 0 <= first <= last <= len(self.body) else None


class KeyProbes:
    """The values that filters are asked for, of predicates and of lookups, hashed once for all files of a scan."""

    def __init__(self) -> None:
        self._hashed: dict[tuple[int, int, pa.DataType], tuple[object, tuple[Hashes, Mask] | None]] = {}

    def of_literals(self, p: Compare | In, arrow_type: pa.DataType) -> tuple[Hashes, Mask] | None:
        """The hashes of the values that a column is compared with, in a file where it has this type."""

        def values() -> pa.Array | None:
            literal = p.right if isinstance(p, Compare) else p
            assert isinstance(literal, (Literal, In))
            plain: list[Plain] = [literal.plain] if isinstance(literal, Literal) else literal.plain
            return to_array(plain, literal.arrow_type) if has_hashes(literal.arrow_type) else None

        key = (id(p), 0, arrow_type)
        if key not in self._hashed:
            array = values()
            self._hashed[key] = p, None if array is None else hashes_in_file(array, arrow_type)
        return self._hashed[key][1]

    def of_keys(self, lookup: KeysLookup, at: int, arrow_type: pa.DataType) -> tuple[Hashes, Mask] | None:
        """The hashes of one column of the keys of a lookup, those that no longer count for a file included."""
        key = (id(lookup), at, arrow_type)
        if key not in self._hashed:
            array = lookup.all_keys()[at]
            self._hashed[key] = lookup, hashes_in_file(array, arrow_type)
        return self._hashed[key][1]


@dataclass
class FileProbe:
    """The filters of one file, with what a scan asks them for.

    Args:
        requested: bytes that were fetched to have the filters; None if none were.
        with_footer: whether the footer came with them.

    Attributes:
        excluded: row groups that the filters excluded, or freed from all their tests.
    """

    filters: KeyFilters
    probes: KeyProbes
    requested: int | None = None
    with_footer: bool = False
    excluded: int = field(default=0, init=False)

    def may_match(self, group: int, p: Predicate) -> bool:
        """Whether a predicate may be TRUE for a row of a row group."""
        match p:
            case And():
                return all(self.may_match(group, arg) for arg in p.args)
            case Or():
                return any(self.may_match(group, arg) for arg in p.args)
            case Compare(op="=", left=Column() as column, right=Literal()) | In(column=Column() as column):
                assert isinstance(p, (Compare, In))
                mask = self._mask(group, column.id, p)
                return mask is None or bool(mask.any())
            case _:
                return True

    def may_hold(self, group: int, lookup: KeysLookup) -> bool:
        """Whether a row of a row group may have one of a lookup's keys."""
        if not lookup.in_memory or lookup.count > MOST_KEYS:
            return True
        found = [self._mask(group, id_, (lookup, at)) for at, id_ in enumerate(lookup.columns)]
        known = [mask for mask in found if mask is not None]
        return not known or bool(reduce(and_, known).any())

    def _mask(self, group: int, id_: int, asked: Compare | In | tuple[KeysLookup, int]) -> Mask | None:
        """A mask of the values that may be in a column; None if the filter says nothing of them."""
        blocks = self.filters.blocks(group, id_)
        if blocks is None:
            return None
        own = self.filters.footer.columns[id_].type
        hashed = (
            self.probes.of_keys(asked[0], asked[1], own)
            if isinstance(asked, tuple)
            else self.probes.of_literals(asked, own)
        )
        return None if hashed is None else maybe_mask(blocks, hashed[0]) & hashed[1]


def values_asked(p: Predicate, ids: frozenset[int]) -> int | None:
    """The number of values of which a row must have one for a predicate to be TRUE; None if it need have none.

    Args:
        ids: columns with filters.
    """
    match p:
        case And():
            return min((n for n in (values_asked(arg, ids) for arg in p.args) if n is not None), default=None)
        case Or():
            return _total(values_asked(arg, ids) for arg in p.args)
        case Compare(op="=", left=Column() as column, right=Literal()) if column.id in ids:
            return 1
        case In(column=Column() as column) if column.id in ids:
            return len(p.values)
        case _:
            return None


def tests_asked(predicates: Iterable[Predicate], lookups: Iterable[KeysLookup], ids: frozenset[int]) -> int | None:
    """The same for deletes, of which each must be excluded for rows not to be tested; None if one can't be."""
    keys = [lookup.count if lookup.in_memory and ids & set(lookup.columns) else None for lookup in lookups]
    return _total([*keys, *(values_asked(p, ids) for p in predicates)])


def _total(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total or None
