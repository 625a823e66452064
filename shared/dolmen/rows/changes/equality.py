"""Compares rows with rows, bit by bit: NaN equals itself, -0.0 is not 0.0, NULL equals NULL, and so within lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]


def equal_rows(first: Sequence[pa.Array], second: Sequence[pa.Array]) -> Mask:
    """A mask of the places at which two groups of columns have the same row.

    Args:
        first, second: columns of the same types and of equal length.
    """
    mask = np.ones(len(first[0]) if first else 0, np.bool_)
    for one, other in zip(first, second, strict=True):
        mask &= _equal(one, other)
    return mask


def _equal(first: pa.Array, second: pa.Array) -> Mask:
    same = _equal_values(first, second)
    if first.null_count or second.null_count:
        nulls, others = _nulls(first), _nulls(second)
        same = np.where(nulls | others, nulls & others, same)
    return same


def _equal_values(first: pa.Array, second: pa.Array) -> Mask:
    """The same for values that are not NULL; anything at the places of the others."""
    kind = first.type
    if t.is_struct(kind):
        return equal_rows(first.flatten(), second.flatten())
    if t.is_list(kind) or t.is_map(kind):
        return _equal_lists(first, second)
    if t.is_floating(kind):
        bits = pa.int32() if t.is_float32(kind) else pa.int64()
        first, second = first.view(bits), second.view(bits)
    return _mask(pc.fill_null(pc.equal(first, second), False))


def _equal_lists(first: pa.Array, second: pa.Array) -> Mask:
    starts, lengths = _spans(first)
    others, other_lengths = _spans(second)
    same: Mask = lengths == other_lengths
    rows = np.flatnonzero(same & (lengths > 0))
    if len(rows):
        counts = lengths[rows]
        each = equal_rows(
            _elements(first, _places(starts[rows], counts)), _elements(second, _places(others[rows], counts))
        )
        same[rows] = np.logical_and.reduceat(each, np.cumsum(counts) - counts)
    return same


def _spans(array: pa.Array) -> tuple[Places, Places]:
    """Where each list begins among the elements, and how long it is; a NULL has none."""
    ends = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[_nulls(array)] = 0
    return ends[:-1], lengths


def _places(starts: Places, lengths: Places) -> Places:
    """The places of the elements of some lists, one list after the other."""
    firsts = np.cumsum(lengths) - lengths
    places: Places = np.repeat(starts - firsts, lengths) + np.arange(int(lengths.sum()))
    return places


def _elements(array: pa.Array, places: Places) -> list[pa.Array]:
    columns = [array.keys, array.items] if t.is_map(array.type) else [array.values]
    return [column.take(pa.array(places)) for column in columns]


def _nulls(array: pa.Array) -> Mask:
    return _mask(array.is_null())


def _mask(array: pa.BooleanArray) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask
