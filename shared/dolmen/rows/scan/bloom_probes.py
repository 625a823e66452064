"""The Bloom filters of a file, and the values that a scan asks them for.

A Bloom filter proves that a key is not in its row group, and nothing else. If a value has another encoding in the file,
or a checksum differs, the filter proves nothing and the row group is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from dolmen.format.bloom_filters import Blocks, Hashes, decode, has_hashes, hashes_in_file, may_contain_mask
from dolmen.format.types import Mask, Plain, to_array
from dolmen.predicate.ast import And, Column, Compare, In, Literal, Or, Predicate
from dolmen.rows.scan.data_objects import DataFileFooter, Range

MOST_KEYS = 65_536  # more values than this are not looked up in filters


def filters_range(footer: DataFileFooter) -> Range | None:
    """The bytes of a file's filters; None if it has none, or no checksum of them."""
    metadata, sums = footer.metadata, footer.sums
    if not sums or not sums.states:
        return None
    group = metadata.row_group(0)
    if all(group.column(leaf).bloom_filter_offset is None for leaf in range(metadata.num_columns)):
        return None
    part = sums.behind_chunks(metadata)
    return Range(part.start, part.end)


class KeyFilters(Struct, frozen=True):
    """The verified filters of one file; ``start`` is their offset in it."""

    footer: DataFileFooter
    start: int
    body: memoryview

    @classmethod
    def check(cls, footer: DataFileFooter, start: int, body: bytes) -> KeyFilters | None:
        """The filters in these bytes; None if they are damaged."""
        expected = filters_range(footer)
        if expected is None or expected != Range(start, start + len(body)) or footer.sums is None:
            return None
        if not footer.sums.behind_chunks(footer.metadata).states.match(body):
            return None
        return cls(footer, start, memoryview(body))

    def blocks(self, group: int, id_: int) -> Blocks | None:
        """The filter of a column in a row group; None without one."""
        column = self.footer.columns.get(id_)
        if column is None or len(column.leaves) != 1:
            return None
        chunk = self.footer.metadata.row_group(group).column(column.leaves[0])
        if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
            return None
        first = chunk.bloom_filter_offset - self.start
        last = first + chunk.bloom_filter_length
        return decode(self.body[first:last]) if 0 <= first <= last <= len(self.body) else None


class ListedKeys(Protocol):
    """A lookup of deleted keys, or others, whose values filters can be asked for."""

    @property
    def columns(self) -> tuple[int, ...]: ...

    @property
    def count(self) -> int: ...

    @property
    def is_in_memory(self) -> bool: ...

    def all_keys(self) -> Sequence[pa.Array]: ...


class KeyProbes:
    """The values that filters are asked for, of predicates and of lookups, hashed once for all files of a scan."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[int, int, pa.DataType], tuple[object, tuple[Hashes, Mask] | None]] = {}

    def hashes(self, source: Compare | In | ListedKeys, at: int, arrow_type: pa.DataType) -> tuple[Hashes, Mask] | None:
        """The hashes of a predicate's values, or of one column of a lookup's keys, in files where it has this type."""
        key = (id(source), at, arrow_type)
        if key not in self._hashes:
            values = _literals(source) if isinstance(source, (Compare, In)) else source.all_keys()[at]
            self._hashes[key] = source, None if values is None else hashes_in_file(values, arrow_type)
        return self._hashes[key][1]


def _literals(p: Compare | In) -> pa.Array | None:
    """The values that a column is compared with; None if filters can't be asked for them."""
    literal = p.right if isinstance(p, Compare) else p
    assert isinstance(literal, (Literal, In))
    plain: list[Plain] = [literal.plain] if isinstance(literal, Literal) else literal.plain
    return to_array(plain, literal.arrow_type) if has_hashes(literal.arrow_type) else None


@dataclass
class FileProbe:
    """The filters of one file, as a scan uses them."""

    filters: KeyFilters
    probes: KeyProbes
    requested: int | None = None  # the number of bytes that were fetched for the filters; None if they were cached
    with_footer: bool = False  # whether the footer came with the filters, in the same request
    # counts row groups that the filters excluded, or that need no test because of the filters
    excluded: int = field(default=0, init=False)

    def may_match(self, group: int, p: Predicate) -> bool:
        """True if a predicate may be TRUE for a row of a row group."""
        match p:
            case And():
                return all(self.may_match(group, arg) for arg in p.args)
            case Or():
                return any(self.may_match(group, arg) for arg in p.args)
            case Compare(op="=", left=Column() as column, right=Literal()) | In(column=Column() as column):
                assert isinstance(p, (Compare, In))
                mask = self._mask(group, column.id, p, 0)
                return mask is None or bool(mask.any())
            case _:
                return True

    def may_hold(self, group: int, lookup: ListedKeys) -> bool:
        """True if a row of a row group may have one of a lookup's keys."""
        if not lookup.is_in_memory or lookup.count > MOST_KEYS:
            return True
        column_masks = [self._mask(group, id_, lookup, at) for at, id_ in enumerate(lookup.columns)]
        masks = [mask for mask in column_masks if mask is not None]
        return not masks or bool(reduce(and_, masks).any())

    def _mask(self, group: int, id_: int, source: Compare | In | ListedKeys, at: int) -> Mask | None:
        """A mask of the values that may be in a column; None if the filter proves nothing about them."""
        blocks = self.filters.blocks(group, id_)
        if blocks is None:
            return None
        hashes = self.probes.hashes(source, at, self.filters.footer.columns[id_].type)
        return None if hashes is None else may_contain_mask(blocks, hashes[0]) & hashes[1]
