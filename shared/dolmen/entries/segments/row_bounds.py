"""Judges the rows of one file, segment or row group, or of many files at once, by statistics alone.

``dolmen.predicate.prune`` reasons; ``RowBounds`` gives it the bounds of one file, and a ``StatsTable`` columns with the
bounds of many. Where columns cannot compare exactly, any outcome is possible: a caller that needs more judges these
files one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.runtime import cached_property
from dolmen.errors import CorruptionError, PredicateError
from dolmen.format.del_object import check_blob
from dolmen.format.entries import Blob, Bounds, DataFile, KeysTombstone, Tombstone, bounds, constant_bounds
from dolmen.format.manifest import Segment
from dolmen.format.schema import Field, Schema
from dolmen.format.types import Plain, to_mask, to_scalar
from dolmen.predicate.ast import Column, In, Predicate, columns
from dolmen.predicate.ast import from_json as predicate_from_json
from dolmen.predicate.bind import days_to_timestamps
from dolmen.predicate.domains import Domain, Op, domain_of, fit, grid, join, kernel, plain_of
from dolmen.predicate.prune import Fact, Spread, StatsVerdict, compare, judge, outcomes, sorted_members

Mask = npt.NDArray[np.bool_]

_FEW_MEMBERS = 32  # up to this number of members of an IN, the bounds are compared with each

_NO_NUMBERS = frozenset((Domain.BOOLEAN, Domain.TEXT, Domain.BYTES))
_SIGNED = frozenset((pa.int8(), pa.int16(), pa.int32(), pa.int64()))


class StatsTable(Protocol):
    """Statistics of many files, a column for each of their parts."""

    def __len__(self) -> int:
        """The number of files."""

    def column(self, name: str) -> pa.Array | None:
        """The column of this name; None if there is none."""

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """The column of integers of this name; -1 where it is NULL."""


def may_match_mask(where: Predicate, table: StatsTable) -> Mask:
    """A mask of the files that may have rows for which the predicate is TRUE. Decodes only bounds of its columns."""
    return _mask(outcomes(where, _TableStatistics(table)).true, table)


def always_mask(where: Predicate, table: StatsTable) -> Mask:
    """A mask of the files whose rows certainly all match the predicate."""
    possible = outcomes(where, _TableStatistics(table))
    return ~_mask(possible.false | possible.null, table)


def verdict_masks(predicates: Iterable[Predicate], table: StatsTable) -> Iterator[tuple[Mask, Mask]]:
    """For each predicate, ``may_match_mask`` and ``always_mask``."""
    statistics = _TableStatistics(table)
    for predicate in predicates:
        possible = outcomes(predicate, statistics)
        yield _mask(possible.true, table), ~_mask(possible.false | possible.null, table)


def in_range_mask(column: Column, least: Plain, greatest: Plain, domain: Domain, table: StatsTable) -> Mask:
    """A mask of the files that may have values of a column from ``least`` to ``greatest`` (None = unknown)."""
    spread = _TableStatistics(table).spread(column, domain)
    return _mask(compare(spread, "=", Spread(least, greatest, True, False, False)).true, table)


def _mask(fact: Fact, table: StatsTable) -> Mask:
    return fact if isinstance(fact, np.ndarray) else np.full(len(table), fact)


class _TableStatistics:
    """Statistics of many files, as ``dolmen.predicate.prune`` asks for them."""

    def __init__(self, table: StatsTable) -> None:
        self._table = table
        self._counts: dict[int, tuple[Mask, Mask, Mask]] = {}
        self._ends: dict[tuple[int, Domain], tuple[_End, _End]] = {}

    def spread(self, column: Column, domain: Domain | None) -> Spread:
        """The spread of a column in each file. The stored type may be narrower than that of ``column``."""
        own = domain_of(column.arrow_type)
        counts = self._counts.get(column.id)
        if counts is None:
            counts = self._counts[column.id] = self._count(column.id, own)
        if own is None or domain is None:
            return Spread(None, None, *counts)
        ends = self._ends.get((column.id, domain))
        if ends is None:
            least, greatest = (_End(self._table, f"{end}_{column.id}", own, domain) for end in ("min", "max"))
            ends = self._ends[column.id, domain] = least, greatest
        return Spread(*ends, *counts)

    def _count(self, id_: int, own: Domain | None) -> tuple[Mask, Mask, Mask]:
        """Whether there may be an ordinary value, NaN, NULL."""
        rows, nulls = self._table.numbers("rows"), self._table.numbers(f"nulls_{id_}")
        empty = (nulls >= 0) & (nulls >= rows)
        null = empty | (nulls != 0)
        if own is not None and not own.is_float:
            return ~empty, np.zeros(len(empty), np.bool_), null
        nans = self._table.numbers(f"nans_{id_}")
        return ~empty & ((nulls < 0) | (nans < 0) | (nulls + nans < rows)), ~empty & (nans != 0), null

    def members(self, spread: Spread, p: In, domain: Domain) -> tuple[Fact, Fact]:
        """See ``dolmen.predicate.prune.Statistics``."""
        members, least, greatest = sorted_members(p, domain), spread.least, spread.greatest
        if not members or not isinstance(least, _End) or not isinstance(greatest, _End):
            return bool(members), True
        if len(members) <= _FEW_MEMBERS:
            has_member: Fact = False
            for member in members:
                has_member = has_member | ((least <= member) & (greatest >= member))
        elif (searched := _search_members(p, least, greatest)) is not None:
            has_member = searched
        else:  # between the least and the greatest member is near enough
            return (least <= members[-1]) & (greatest >= members[0]), True
        return has_member, ~(_mask(has_member, self._table) & least.equals(greatest))


class _End:
    """The least, or the greatest, value of a column in each of many files.

    A comparison with a plain value, or with another column's end, gives a mask of the files for which it may hold: also
    where the end is unknown, or columns cannot compare exactly.

    Args:
        own: the column's domain in the predicate; bounds of a wider one are not used.
        domain: the domain of the comparison.
    """

    def __init__(self, table: StatsTable, name: str, own: Domain, domain: Domain) -> None:
        self._table, self._name, self._own, self._domain = table, name, own, domain

    @cached_property
    def values(self) -> pa.Array | None:
        """The values in the domain of the comparison, NULL if unknown; None if they cannot be compared as a column."""
        values, domain = self._table.column(self._name), self._domain
        if values is None or join(domain_of(values.type), self._own) is not self._own:
            return None  # of a wider type than the predicate was bound to
        if domain is Domain.BOOLEAN:
            return values.cast(pa.int8())
        if domain.is_float:
            if not self._own.is_float and not (domain is Domain.FLOAT64 and pa.types.is_integer(values.type)):
                return None
            values = values.cast(pa.float64(), safe=False)
            return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
        return values

    def __lt__(self, other: Any) -> Fact:
        return self._may("<", other)

    def __le__(self, other: Any) -> Fact:
        return self._may("<=", other)

    def __gt__(self, other: Any) -> Fact:
        return self._may(">", other)

    def __ge__(self, other: Any) -> Fact:
        return self._may(">=", other)

    def _may(self, op: Op, other: Any) -> Fact:
        values = self.values
        if values is None:
            return True
        if isinstance(other, _End):
            others = other.values
            if others is None or (values.type != others.type and not {values.type, others.type} <= _SIGNED):
                return True
            return _holds(values, op, others)
        if self._domain.is_float or self._domain is Domain.BOOLEAN:
            return _holds(values, op, pa.scalar(float(other) if self._domain.is_float else int(other), values.type))
        if self._domain in (Domain.TEXT, Domain.BYTES):
            return _holds(values, op, to_scalar(other, values.type))
        fitted = fit(op, other, grid(values.type, self._domain))
        if isinstance(fitted, bool):
            return fitted or to_mask(pc.is_null(values))
        op, raw = fitted
        return _holds(values, op, to_scalar(plain_of(raw, values.type), values.type))

    def equals(self, other: _End) -> Fact:
        """A mask of the files in which this and another end of the same column are certainly equal."""
        if self.values is None or other.values is None:
            return False
        return to_mask(pc.equal(self.values, other.values).fill_null(False))

    @property
    def unknown(self) -> Fact:
        return True if self.values is None else bool(self.values.null_count) and to_mask(pc.is_null(self.values))

    def numbers(self) -> npt.NDArray[Any] | None:
        """The values as numbers, 0 if unknown; None for other values."""
        values = self.values
        if values is None or self._domain in _NO_NUMBERS or pa.types.is_decimal(values.type):
            return None
        if pa.types.is_temporal(values.type):
            values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
        numbers: npt.NDArray[Any] = values.fill_null(0).to_numpy()
        return numbers

    def numbers_of(self, p: In) -> npt.NDArray[Any]:
        """The members of an IN that ``numbers`` may have, ascending; made once."""
        assert self.values is not None
        arrow_type, domain = self.values.type, self._domain
        found: npt.NDArray[Any] | None = p.prepared.get((arrow_type, domain, "numbers"))
        if found is None:
            members = sorted_members(p, domain)
            if domain.is_float:
                found = np.array(members, np.float64)
            else:
                fitted = (fit("=", member, grid(arrow_type, domain)) for member in members)
                numbers = [each[1] for each in fitted if isinstance(each, tuple)]
                found = np.array(numbers, np.uint64 if arrow_type == pa.uint64() else np.int64)
            p.prepared[arrow_type, domain, "numbers"] = found
        return found


def _search_members(p: In, least: _End, greatest: _End) -> Fact | None:
    """A mask of the files with a member of an IN between two ends; None if they are not numbers."""
    low, high = least.numbers(), greatest.numbers()
    if low is None or high is None:
        return None
    members = least.numbers_of(p)
    if not len(members):
        return False
    first = np.searchsorted(members, low)
    first[least.unknown] = 0
    reached: Mask = members[np.minimum(first, len(members) - 1)] <= high
    return (first < len(members)) & (reached | greatest.unknown)


def _holds(ends: pa.Array, op: Op, other: pa.Array | pa.Scalar) -> Mask:
    """A mask of the files for which a comparison holds, or may hold because one side is NULL (unknown)."""
    return to_mask(kernel(op)(ends, other).fill_null(True))


T = TypeVar("T")


class RowBounds(Struct, frozen=True):
    """Bounds of some rows that are judged together, by the id of the column; a column without them is unknown.

    Tombstones up to ``applied_through`` hide none of the rows.
    """

    columns: Mapping[int, Bounds]
    rows: int
    applied_through: int = 0

    @classmethod
    def of(cls, file: DataFile | Segment, schema: Schema, ids: Collection[int]) -> RowBounds:
        """The bounds of some columns in a file, or in all files of a segment, if the schema still has them."""
        fields = schema.by_id
        bounds = {id_: column_bounds(file, fields[id_]) for id_ in ids if id_ in fields}
        return cls(bounds, file.rows, file.applied_through)

    def judge(self, predicate: Predicate) -> StatsVerdict:
        """Judges whether a predicate is TRUE for all, some or none of the rows."""
        return judge(predicate, self.columns, self.rows)

    def one_tuple(self, ids: Iterable[int]) -> tuple[Plain, ...] | None:
        """The tuple of values that all rows have; None if they may differ. Bounds that were cut are never equal."""
        values: list[Plain] = []
        for id_ in ids:
            own = self.columns.get(id_)
            if own is None or own.min is None or own.nulls != 0 or own.min != own.max:
                return None
            values.append(own.min)
        return tuple(values)


def undecided_deletes(judged: Iterable[tuple[T, StatsVerdict]]) -> list[T] | None:
    """The deletes that may hide some of the judged rows; None if one of them hides all."""
    found: list[T] = []
    for delete, verdict in judged:
        if verdict is StatsVerdict.ALWAYS:
            return None
        if verdict is StatsVerdict.MAYBE:
            found.append(delete)
    return found


def may_hold_matches(file: DataFile | Segment, predicate: Predicate, schema: Schema) -> bool:
    """Whether a file, or some file of a segment, may have a row for which a predicate is TRUE."""
    return RowBounds.of(file, schema, columns(predicate)).judge(predicate) is not StatsVerdict.NEVER


def column_bounds(file: DataFile | Segment, field: Field) -> Bounds:
    """Bounds of one column in a file, or in all files of a segment. All rows older than the column have one value."""
    stats = file.stats.get(field.id)
    if stats is None and 0 < greatest_ts(file) < field.added_ts:
        return constant_bounds(field.initial_default, field.arrow_type, file.rows)
    return bounds(stats, field.arrow_type)


def greatest_ts(file: DataFile | Segment) -> int:
    """Commit timestamp of the youngest row of a file, or of all files of a segment."""
    return file.greatest if isinstance(file, Segment) else file.greatest_row_ts


def inline_predicate(tombstone: Tombstone, schema: Schema) -> Predicate | None:
    """The predicate of a ``where`` tombstone, if its entry has it; None for other tombstones."""
    if isinstance(tombstone, KeysTombstone) or tombstone.predicate is None:
        return None
    return days_to_timestamps(_predicate(msgspec.json.encode(tombstone.predicate)), schema.widened_types)


def recorded_predicate(body: bytes, blob: Blob) -> Predicate:
    """The predicate in the blob of a ``where`` tombstone. Raises CorruptionError."""
    try:
        return predicate_from_json(check_blob(body, blob))
    except PredicateError as error:
        raise CorruptionError(blob.object, f"predicate at byte {blob.offset}: {error}") from error


@lru_cache(16_384)
def _predicate(document: bytes) -> Predicate:
    """Decodes a predicate; cached, because scans and resolutions judge the same few tombstones repeatedly."""
    return predicate_from_json(document)
