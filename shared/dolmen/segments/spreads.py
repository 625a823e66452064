"""Bounds of a column in many files at once, and how they compare with values: the vectorised half of pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.values import to_scalar
from dolmen.predicate.domain import Domain, Op, domain_of, fit, grid, plain_of

Mask = npt.NDArray[np.bool_]

_NUMBERS = (Domain.EXACT, Domain.FLOAT32, Domain.FLOAT64)


class StatsTable(Protocol):
    """Statistics of many files, a column for each of their parts."""

    def __len__(self) -> int:
        """How many files."""

    def column(self, name: str) -> pa.Array | None:
        """The column of this name, None if there is none."""

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """The column of integers of this name; -1 where it is NULL."""


@dataclass(frozen=True)
class Spread:
    """What may be in one column, file by file.

    Args:
        least, greatest: bounds of ordinary values in a stored type; NULL = unknown. None = unknown for all.
        ordinary, nan, null: whether there may be any ordinary value, NaN, NULL.
    """

    least: pa.Array | None
    greatest: pa.Array | None
    ordinary: Mask
    nan: Mask
    null: Mask


def spread(table: StatsTable, id_: int, bound: pa.DataType) -> Spread:
    """The spread of a column.

    Args:
        bound: the type by which a predicate knows the column; what is stored may be narrower.
    """
    rows, nulls, nans = (table.numbers(name) for name in ("rows", f"nulls_{id_}", f"nans_{id_}"))
    own = domain_of(bound)
    if own is not None and not own.is_float:
        nans = np.zeros_like(nulls)
    empty = (nulls >= 0) & (nulls >= rows)
    ordinary = ~empty & ((nulls < 0) | (nans < 0) | (nulls + nans < rows))
    least, greatest = table.column(f"min_{id_}"), table.column(f"max_{id_}")
    if least is None or greatest is None or domain_of(least.type) is not own:
        least = greatest = None
    return Spread(least, greatest, ordinary, ~empty & (nans != 0), empty | (nulls != 0))


def compared(ends: pa.Array | None, op: Op, value: Any, domain: Domain, count: int) -> tuple[Mask, Mask]:
    """Where ``end op value`` is true, and where it is not known: the end is, or it can't be said here.

    Args:
        value: of ``domain``, not NaN; plain.
        domain: where the comparison takes place.
    """
    if ends is None:
        return np.zeros(count, np.bool_), np.ones(count, np.bool_)
    unknown = _mask(pc.is_null(ends, nan_is_null=True))
    own = domain_of(ends.type)
    if own is None or (own is not domain and not _comparable(own, ends.type, domain)):
        return np.zeros(count, np.bool_), np.ones(count, np.bool_)
    if domain.is_float:
        numbers = ends.cast(pa.float64(), safe=False)
        return _holds(numbers, op, pa.scalar(float(value), pa.float64())), unknown
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        if domain is Domain.BOOLEAN:
            return _holds(ends.cast(pa.int8()), op, pa.scalar(int(value), pa.int8())), unknown
        return _holds(ends, op, to_scalar(value, ends.type)), unknown
    if isinstance(value, float) and not np.isfinite(value):
        return np.zeros(count, np.bool_), np.ones(count, np.bool_)
    fitted = fit(op, value, grid(ends.type, domain))
    if isinstance(fitted, bool):
        return np.full(count, fitted) & ~unknown, unknown
    op, raw = fitted
    return _holds(ends, op, to_scalar(plain_of(raw, ends.type), ends.type)), unknown


def _comparable(own: Domain, arrow_type: pa.DataType, domain: Domain) -> bool:
    """Whether values of a type are taken into a wider domain here as exactly as one by one."""
    if own is Domain.DATE:
        return domain is Domain.NAIVE
    if domain is Domain.FLOAT64:
        return own is Domain.FLOAT32 or bool(pa.types.is_integer(arrow_type))
    return False


_FUNCTIONS = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal
}  # fmt: skip


def _holds(left: pa.Array, op: Op, right: pa.Scalar) -> Mask:
    return _mask(_FUNCTIONS[op](left, right).fill_null(False))


def _mask(array: pa.Array) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask
