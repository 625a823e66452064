"""Keys in the order of their codes: in memory, or in a temporary file where there are more than memory is to hold."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile, gettempdir
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.units import MIB
from dolmen.errors import LimitError
from dolmen.rows.scan.key_codes import codes, from_integers, is_exact

Int64s: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_FENCE = 1024
"""Every so many codes of a file one is kept in memory."""

_SPAN = 128 * _FENCE
"""The most codes that are read from a file at once: 1 MB."""

_BLOCK_BYTES = MIB
"""Values stand in a file in blocks of about so many bytes, each of which is read as a whole."""


class Span(Protocol):
    """Keys with consecutive codes."""

    @property
    def codes(self) -> Int64s:
        """Ascending; equal codes are equal keys in types whose codes are exact."""

    @property
    def ts(self) -> Int64s:
        """The greatest timestamp of each key."""

    def take(self, places: Int64s) -> list[pa.Array]:
        """The keys at some places, by column; nothing where codes are exact."""


@dataclass(frozen=True)
class HeldKeys:
    """Keys in memory, which are one span."""

    codes: Int64s
    ts: Int64s
    arrays: tuple[pa.Array, ...]

    @classmethod
    def of(cls, arrays: Sequence[pa.Array], ts: Int64s) -> HeldKeys:
        """Keys in the order in which they come, from which ``merged`` makes others.

        Args:
            arrays: the columns, in the types of the lookup, without NULL.
            ts: the timestamp of each key.
        """
        return cls(codes(arrays), ts, () if is_exact([array.type for array in arrays]) else tuple(arrays))

    @classmethod
    def merge(cls, parts: Sequence[HeldKeys]) -> HeldKeys:
        """The keys of one or more parts in the order of their codes, each of them once."""
        found = np.concatenate([part.codes for part in parts])
        # Lists are in order, and so are codes that are the values themselves: a stable sort merges what is.
        order = np.argsort(found, kind=None if parts[0].arrays else "stable")
        found = found[order]
        arrays = [pa.chunked_array(column).combine_chunks() for column in zip(*(p.arrays for p in parts), strict=True)]
        new = np.append(found[:1] == found[:1], found[1:] != found[:-1])
        if arrays and not new.all():
            alike = np.flatnonzero(~new)  # keys that follow one of the same code: they may differ all the same
            new[alike] = ~_equal(arrays, order[alike], order[alike - 1])
        ts = np.concatenate([part.ts for part in parts])[order]
        if not new.all():
            firsts = np.flatnonzero(new)
            ts, found, order = np.maximum.reduceat(ts, firsts), found[firsts], order[firsts]
        return cls(found, ts, tuple(array.take(pa.array(order)) for array in arrays))

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        values: int = sum(array.nbytes for array in self.arrays)
        return self.codes.nbytes + self.ts.nbytes + values

    def take(self, places: Int64s) -> list[pa.Array]:
        """The keys at some places, by column."""
        picked = pa.array(places)
        return [array.take(picked) for array in self.arrays]

    def all(self, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], Int64s]:
        """All keys, by column, and the timestamp of each."""
        return list(self.arrays) or [from_integers(self.codes, types[0])], self.ts

    def may_hold(self, least: int, greatest: int, applied_through: int) -> bool:
        """Whether there are codes between these two with a timestamp greater than ``applied_through``."""
        first, last = np.searchsorted(self.codes, least, "left"), np.searchsorted(self.codes, greatest, "right")
        return bool((self.ts[first:last] > applied_through).any())


class StoredKeys:
    """Keys in a temporary file, which goes with this object: codes, timestamps, then blocks of values.

    Args:
        keys: merged; at least one.

    Raises:
        LimitError: there is no room for them.
    """

    def __init__(self, keys: HeldKeys) -> None:
        self.count = keys.count
        self._block_rows = max(1, _BLOCK_BYTES * keys.count // max(1, sum(array.nbytes for array in keys.arrays)))
        self._schema = pa.schema([(str(place), array.type) for place, array in enumerate(keys.arrays)])
        self._fences = keys.codes[::_FENCE].copy()
        self._greatest = int(keys.codes[-1])
        self._fence_ts = np.maximum.reduceat(keys.ts, np.arange(0, keys.count, _FENCE))
        self._blocks: list[tuple[int, int]] = []
        """Start and end of each block in the file."""
        self._file = self._write(keys)
        weakref.finalize(self, os.close, self._file)

    def _write(self, keys: HeldKeys) -> int:
        """Writes the file, which has no name any more, and returns its descriptor."""
        try:
            with TemporaryFile(prefix="dolmen-") as file:
                file.write(keys.codes.data)
                file.write(keys.ts.data)
                for start in range(0, self.count if keys.arrays else 0, self._block_rows):
                    columns = [array.slice(start, self._block_rows) for array in keys.arrays]
                    block = pa.RecordBatch.from_arrays(columns, schema=self._schema).serialize()
                    self._blocks.append((file.tell(), file.tell() + block.size))
                    file.write(block)
                file.flush()
                return os.dup(file.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise LimitError(
                f"there are more unresolved deletes by key than there is room for in {gettempdir()}: "
                "set TMPDIR to a directory that has more"
            ) from None

    def spans(self, ascending: Int64s) -> Iterator[tuple[Span, slice]]:
        """The spans in which some codes may be, and which of these may be in each: read one after the other.

        Args:
            ascending: the codes that are looked for; at least one.
        """
        first = max(0, int(np.searchsorted(self._fences, ascending[0], "left")) - 1)
        last = int(np.searchsorted(self._fences, ascending[-1], "right"))
        step = _SPAN // _FENCE
        for start in range(first, last, step):
            end = min(start + step, last)
            begin = np.searchsorted(ascending, self._fences[start], "left")
            stop = len(ascending)
            if end < len(self._fences):  # equal codes may stand on both sides of a fence
                stop = int(np.searchsorted(ascending, self._fences[end], "right"))
            if begin < stop:
                yield _StoredSpan(self, start * _FENCE, min(end * _FENCE, self.count)), slice(int(begin), stop)

    def all(self, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], Int64s]:
        """All keys, by column, and the timestamp of each."""
        ts = self.integers(self.count, 2 * self.count)
        if not self._blocks:
            return [from_integers(self.integers(0, self.count), types[0])], ts
        blocks = [self.block(number) for number in range(len(self._blocks))]
        return [pa.concat_arrays(column) for column in zip(*(block.columns for block in blocks), strict=True)], ts

    def may_hold(self, least: int, greatest: int, applied_through: int) -> bool:
        """Whether there may be codes between these two with a timestamp greater than ``applied_through``."""
        if greatest < int(self._fences[0]) or self._greatest < least:
            return False
        first = max(0, int(np.searchsorted(self._fences, least, "right")) - 1)
        last = np.searchsorted(self._fences, greatest, "right")
        return bool((self._fence_ts[first:last] > applied_through).any())

    def integers(self, start: int, end: int) -> Int64s:
        """Some of the integers that the file begins with."""
        return np.frombuffer(self._read(8 * start, 8 * end), np.int64)

    def take(self, places: Int64s) -> list[pa.Array]:
        """The keys at some ascending places, by column."""
        if not self._blocks:
            return []
        numbers = places // self._block_rows
        firsts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        found = [
            self.block(int(own[0] // self._block_rows)).take(pa.array(own % self._block_rows))
            for own in np.split(places, firsts[1:])
        ]
        return [pa.concat_arrays(column) for column in zip(*(block.columns for block in found), strict=True)]

    def block(self, number: int) -> pa.RecordBatch:
        """A block of values."""
        return pa.ipc.read_record_batch(pa.py_buffer(self._read(*self._blocks[number])), self._schema)

    def _read(self, start: int, end: int) -> bytes:
        body = os.pread(self._file, end - start, start)
        if len(body) != end - start:
            raise AssertionError(f"{len(body)} bytes of a temporary file at {start}, not {end - start}")
        return body


class _StoredSpan:
    """Some keys of a file, whose codes are read when it is made; all else when it is asked for."""

    def __init__(self, keys: StoredKeys, start: int, end: int) -> None:
        self._keys, self._start, self._end = keys, start, end
        self.codes = keys.integers(start, end)

    @property
    def ts(self) -> Int64s:
        return self._keys.integers(self._keys.count + self._start, self._keys.count + self._end)

    def take(self, places: Int64s) -> list[pa.Array]:
        return self._keys.take(places + self._start)


def _equal(arrays: Sequence[pa.Array], some: Int64s, others: Int64s) -> Mask:
    """Whether the tuples at some places are those at others."""
    same = np.ones(len(some), np.bool_)
    left, right = pa.array(some), pa.array(others)
    for array in arrays:
        same &= pc.equal(array.take(left), array.take(right)).to_numpy(zero_copy_only=False)
    return same
