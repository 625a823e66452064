"""The order of key tuples: that of pyarrow's ``sort_indices``, and found sooner where long lists of text are sorted."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Places: TypeAlias = npt.NDArray[Any]

_MANY = 1 << 12
"""Shorter lists of text are left to pyarrow."""
_PREFIX_BYTES = 8


def order_of(keys: pa.Table) -> Places:
    """The places of the rows in ascending order of all columns; equal rows stay in their order. No key is NULL."""
    if keys.num_columns == 1 and keys.num_rows >= _MANY and keys.schema.types[0] in (pa.string(), pa.binary()):
        values = keys.column(0).combine_chunks()
        if isinstance(values, pa.Array):  # else there are more than 2 GB of text
            return _order_of_texts(values)
    by = [(name, "ascending") for name in keys.column_names]
    order: Places = pc.sort_indices(keys, sort_keys=by).to_numpy()
    return order


def order_by_heads(heads: npt.NDArray[np.uint64], order_tied: Callable[[Places], Places]) -> Places:
    """The places of keys in ascending order; equal ones stay in their order if ``order_tied`` leaves them so.

    Args:
        heads: the bytes in which keys may differ first, as a number for each key.
        order_tied: the order of the keys at some places: of all whose heads are not unique.
    """
    order: Places = np.argsort(heads, kind="stable")
    heads = heads[order]
    same = heads[1:] == heads[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):  # all that begin alike are neighbours, and stay so when they are sorted as a whole
        places = order[tied]
        order[tied] = places[order_tied(places)]
    return order


def last_of_equals(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row of a sorted table is the last of those that are equal to it."""
    last = np.ones(keys.num_rows, bool)
    if keys.num_rows > 1:
        same = [pc.equal(column[:-1], column[1:]) for column in keys.columns]
        last[:-1] = ~reduce(pc.and_, same).to_numpy()
    return last


def _order_of_texts(values: pa.Array) -> Places:
    """Sorts by the first bytes that may differ, as one number for each text, and then those whose numbers are equal.

    Pyarrow compares text by text, which for 1,000,000 UUIDs takes three times as long.
    """
    ends = pc.min_max(values.cast(pa.binary()))
    prefixes = _prefixes(values, _shared_bytes(ends["min"].as_py(), ends["max"].as_py()))
    return order_by_heads(prefixes, lambda tied: pc.sort_indices(values.take(pa.array(tied))).to_numpy())


def _shared_bytes(one: bytes, other: bytes) -> int:
    """The number of bytes with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _prefixes(values: pa.Array, skipped: int) -> npt.NDArray[np.uint64]:
    """The first bytes of each text behind ``skipped`` ones, as a big-endian number; zeros stand behind its end."""
    _, places, text = values.buffers()
    found = np.zeros((len(values), _PREFIX_BYTES), np.uint8)
    if text is not None and text.size:
        data = np.frombuffer(text, np.uint8)
        offsets = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        starts, ends = offsets[:-1] + skipped, offsets[1:]
        least = int((ends - starts).min())
        for place in range(_PREFIX_BYTES):
            at = starts + place
            byte = data.take(at, mode="clip")
            found[:, place] = byte if place < least else np.where(at < ends, byte, 0)
    return found.view(">u8").ravel().astype(np.uint64)
