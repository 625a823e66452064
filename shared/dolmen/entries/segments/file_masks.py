"""Masks of the files of a table for which a predicate may be TRUE, or certainly is, judged by statistics all at once.

``dolmen.predicate.prune`` reasons; this module gives it the statistics of many files as columns. Where a comparison is
not exact in columns, it may have any outcome: a caller that needs more judges the remaining files one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.runtime import cached_property
from dolmen.format.types import Plain, to_mask, to_scalar
from dolmen.predicate.ast import Column, In, Predicate
from dolmen.predicate.constants import Domain, Op, domain_of, fit, grid, join, plain_of
from dolmen.predicate.prune import Fact, Spread, compare, outcomes, sorted_members

Mask = npt.NDArray[np.bool_]

_FEW_MEMBERS = 32
"""This many members of an IN are compared with the bounds one by one."""

_NO_NUMBERS = frozenset((Domain.BOOLEAN, Domain.TEXT, Domain.BYTES))
_SIGNED = frozenset((pa.int8(), pa.int16(), pa.int32(), pa.int64()))
_FUNCTIONS: dict[Op, Callable[..., pa.Array]] = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal
}  # fmt: skip


class StatsTable(Protocol):
    """Statistics of many files, a column for each of their parts."""

    def __len__(self) -> int:
        """How many files."""

    def column(self, name: str) -> pa.Array | None:
        """The column of this name, None if there is none."""

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """The column of integers of this name; -1 where it is NULL."""


def may_match_mask(where: Predicate, table: StatsTable) -> Mask:
    """Which files may hold rows for which the predicate is TRUE; decodes the bounds of its columns only.

    Files whose statistics are kept elsewhere (column ``odd``) have none here, so they are always among them.
    """
    return _mask(outcomes(where, _TableStatistics(table)).true, table)


def always_mask(where: Predicate, table: StatsTable) -> Mask:
    """Which files certainly hold no row for which the predicate is anything but TRUE."""
    possible = outcomes(where, _TableStatistics(table))
    return ~_mask(possible.false | possible.null, table)


def verdict_masks(predicates: Iterable[Predicate], table: StatsTable) -> Iterator[tuple[Mask, Mask]]:
    """For each predicate, ``may_match_mask`` and ``always_mask``."""
    statistics = _TableStatistics(table)
    for predicate in predicates:
        possible = outcomes(predicate, statistics)
        yield _mask(possible.true, table), ~_mask(possible.false | possible.null, table)


def in_range_mask(column: Column, least: Plain, greatest: Plain, domain: Domain, table: StatsTable) -> Mask:
    """Which files may hold values of a column between two others, neither NULL nor NaN.

    Args:
        least, greatest: of ``domain``; None = unknown.
    """
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
        """The spread of a column in each file. What is stored may be narrower than the type of ``column``."""
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
        """Whether there may be any ordinary value, NaN, NULL."""
        rows, nulls = self._table.numbers("rows"), self._table.numbers(f"nulls_{id_}")
        empty = (nulls >= 0) & (nulls >= rows)
        null = empty | (nulls != 0)
        if own is not None and not own.is_float:
            return ~empty, np.zeros(len(empty), np.bool_), null
        nans = self._table.numbers(f"nans_{id_}")
        return ~empty & ((nulls < 0) | (nans < 0) | (nulls + nans < rows)), ~empty & (nans != 0), null

    def members(self, spread: Spread, p: In, domain: Domain) -> tuple[Fact, Fact]:
        """Whether an ordinary value of a spread may be a member of an IN, and whether one may be none."""
        members, least, greatest = sorted_members(p, domain), spread.least, spread.greatest
        if not members or not isinstance(least, _End) or not isinstance(greatest, _End):
            return bool(members), True
        if len(members) <= _FEW_MEMBERS:
            found: Fact = False
            for member in members:
                found = found | ((least <= member) & (greatest >= member))
        elif (searched := _search_members(p, least, greatest)) is not None:
            found = searched
        else:  # between the least and the greatest member is near enough
            return (least <= members[-1]) & (greatest >= members[0]), True
        return found, ~(_mask(found, self._table) & least.equals(greatest))


class _End:
    """The least, or the greatest, value of a column in each of many files.

    ``<``, ``<=``, ``>`` and ``>=`` give where the comparison with a plain value, or with another column's end, may
    hold: also where the end is not known, or the comparison is not exact in columns.

    Args:
        own: domain of the column as a predicate knows it; bounds of a wider one are not used.
        domain: where it is compared.
    """

    def __init__(self, table: StatsTable, name: str, own: Domain, domain: Domain) -> None:
        self._table, self._name, self._own, self._domain = table, name, own, domain

    @cached_property
    def values(self) -> pa.Array | None:
        """The values, as they are compared; NULL = unknown. None if none is known, or they are not comparable here."""
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
        if self._domain.is_float:
            return _holds(values, op, pa.scalar(float(other), values.type))
        if self._domain is Domain.BOOLEAN:
            return _holds(values, op, pa.scalar(int(other), values.type))
        if self._domain in (Domain.TEXT, Domain.BYTES):
            return _holds(values, op, to_scalar(other, values.type))
        fitted = fit(op, other, grid(values.type, self._domain))
        if isinstance(fitted, bool):
            return fitted or to_mask(pc.is_null(values))
        op, raw = fitted
        return _holds(values, op, to_scalar(plain_of(raw, values.type), values.type))

    def equals(self, other: _End) -> Fact:
        """Where this and another end of the same column are known to be the same value."""
        if self.values is None or other.values is None:
            return False
        return to_mask(pc.equal(self.values, other.values).fill_null(False))

    @property
    def unknown(self) -> Fact:
        """Where the value is not known."""
        return True if self.values is None else bool(self.values.null_count) and to_mask(pc.is_null(self.values))

    def numbers(self) -> npt.NDArray[Any] | None:
        """The values as numbers, 0 where unknown; None for other values."""
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
    """Where some member of an IN may be between two ends, whatever the number of members; None if they are no numbers.

    A file may hold a member if the first one that is not below its least value is not above its greatest.
    """
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
    """Where a comparison holds, or one side is NULL: unknown."""
    return to_mask(_FUNCTIONS[op](ends, other).fill_null(True))
