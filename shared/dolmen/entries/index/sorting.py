"""Brings entries into the order of their keys: sorts what fits into memory, and merges what was sorted before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np

from dolmen.base.units import MIB
from dolmen.entries.index.key_bytes import Keys, order
from dolmen.entries.index.pages import LeafPage, Places

RUN_BYTES = 64 * MIB
"""Entries that are sorted at once."""
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 4 * MIB


class _KeyRun(NamedTuple):
    """Sorted entries in a file: all keys, and behind them all places."""

    dtype: np.dtype[np.generic]
    rows: int
    offset: int


class EntrySorter:
    """Entries in any order, sorted in runs of a bounded size, which wait in an unnamed temporary file.

    Args:
        run_bytes: how much of them is in memory at once, about half of what sorting takes.
    """

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        self._run_bytes, self._bytes = run_bytes, 0
        self._waiting: list[tuple[Keys, Places]] = []
        self._runs: list[_KeyRun] = []
        self._file: IO[bytes] | None = None

    def add(self, keys: Keys, places: Places) -> None:
        """Adds entries in any order."""
        self._waiting.append((keys, places))
        self._bytes += keys.nbytes + places.nbytes
        if self._bytes >= self._run_bytes:
            self._spill()

    def sorted(self) -> Iterator[LeafPage]:
        """All entries in the order of their keys, block by block. To be called once."""
        if not self._runs:
            if self._waiting:
                yield self._run()
            return
        if self._waiting:
            self._spill()
        assert self._file is not None
        with self._file:
            yield from merge([self._read(run) for run in self._runs])

    def _run(self) -> LeafPage:
        keys = np.concatenate([keys for keys, _ in self._waiting])
        places = np.concatenate([places for _, places in self._waiting])
        self._waiting, self._bytes = [], 0
        found = order(keys)
        return LeafPage(keys[found], places[found])

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - ``sorted`` closes it
        run = self._run()
        self._runs.append(_KeyRun(run.keys.dtype, len(run.keys), self._file.tell()))
        self._file.write(run.keys.tobytes())
        self._file.write(run.places.tobytes())

    def _read(self, run: _KeyRun) -> Iterator[LeafPage]:
        assert self._file is not None
        width = run.dtype.itemsize
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // width))
        for start in range(0, run.rows, rows):
            count = min(rows, run.rows - start)
            self._file.seek(run.offset + start * width)
            keys = np.frombuffer(self._file.read(count * width), run.dtype)
            self._file.seek(run.offset + run.rows * width + start * 8)
            yield LeafPage(keys, np.frombuffer(self._file.read(count * 8), np.uint64))


@dataclass(slots=True)
class _Source:
    """The rest of a block, and the blocks behind it."""

    block: LeafPage
    rest: Iterator[LeafPage]

    def take(self, greatest: Keys) -> tuple[LeafPage, bool]:
        """Takes the entries up to a key; says whether there are more behind them."""
        end = int(np.searchsorted(self.block.keys, greatest, "right")[0])
        taken = LeafPage(self.block.keys[:end], self.block.places[:end])
        self.block = LeafPage(self.block.keys[end:], self.block.places[end:])
        if len(self.block.keys) == 0:
            following = next(self.rest, None)
            if following is None:
                return taken, False
            self.block = following
        return taken, True


def merge(sorted_blocks: Sequence[Iterator[LeafPage]]) -> Iterator[LeafPage]:
    """Merges streams of blocks, each in the order of its keys; holds a block or two of each stream in memory."""
    sources = [_Source(block, blocks) for blocks in sorted_blocks if (block := next(blocks, None)) is not None]
    while sources:
        bound = min((source.block.keys[-1:] for source in sources), key=lambda last: last[0])
        parts, left = [], []
        for source in sources:
            taken, more = source.take(bound)
            if len(taken.keys):
                parts.append(taken)
            if more:
                left.append(source)
        sources = left
        if len(parts) == 1:
            yield parts[0]
        else:
            keys = np.concatenate([part.keys for part in parts])
            found = np.argsort(keys, kind="stable")  # quick where sorted parts follow each other
            yield LeafPage(keys[found], np.concatenate([part.places for part in parts])[found])


def large_blocks(leaves: Iterable[LeafPage], rows: int = _BLOCK_ROWS) -> Iterator[LeafPage]:
    """Joins neighbouring leaves into blocks of about ``rows`` entries, or 4 MB."""
    waiting: list[LeafPage] = []
    for leaf in leaves:
        waiting.append(leaf)
        if sum(len(each.keys) for each in waiting) >= rows or sum(each.nbytes for each in waiting) >= _BLOCK_BYTES:
            yield _join(waiting)
            waiting = []
    if waiting:
        yield _join(waiting)


def renumber(leaves: Iterable[LeafPage], numbers: Sequence[int]) -> Iterator[LeafPage]:
    """The entries with other numbers of files, without those of some files.

    Args:
        numbers: the new number of each file; -1 leaves its entries out.
    """
    table = np.array(numbers, np.int64)
    for leaf in leaves:
        files = table[(leaf.places >> np.uint64(32)).astype(np.int64)]
        positions = leaf.places & np.uint64(0xFFFFFFFF)
        live = files >= 0
        if live.any():
            yield LeafPage(leaf.keys[live], (files[live].astype(np.uint64) << np.uint64(32)) | positions[live])


def _join(leaves: Sequence[LeafPage]) -> LeafPage:
    return LeafPage(np.concatenate([leaf.keys for leaf in leaves]), np.concatenate([leaf.places for leaf in leaves]))
