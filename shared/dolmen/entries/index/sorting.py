"""Sorts entries and keys in bounded memory: in runs, of which all but one wait in unnamed temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base.temporary_files import BatchFile, explaining_full_disk
from dolmen.base.units import MIB
from dolmen.entries.index.key_encoding import KeyEncoding, Keys, key_order, no_keys
from dolmen.entries.index.pages import Addresses, LeafPage

RUN_BYTES = 64 * MIB  # entries that are sorted at once

_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 4 * MIB

KEY_RUN_BYTES = 32 * MIB  # keys that are sorted at once: as values, and as bytes


class _StoredRun(NamedTuple):
    """Sorted entries in a file: all keys, and behind them all addresses."""

    dtype: np.dtype[np.generic]
    rows: int
    offset: int


class EntrySorter:
    """Sorts entries, in runs of ``run_bytes``, about half of the memory that sorting takes."""

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        self._run_bytes, self._bytes = run_bytes, 0
        self._waiting: list[tuple[Keys, Addresses]] = []
        self._runs: list[_StoredRun] = []
        self._file: IO[bytes] | None = None

    def add(self, keys: Keys, addresses: Addresses) -> None:
        self._waiting.append((keys, addresses))
        self._bytes += keys.nbytes + addresses.nbytes
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
        addresses = np.concatenate([addresses for _, addresses in self._waiting])
        self._waiting, self._bytes = [], 0
        order = key_order(keys)
        return LeafPage(keys[order], addresses[order])

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - ``sorted`` closes it
        run = self._run()
        self._runs.append(_StoredRun(run.keys.dtype, len(run.keys), self._file.tell()))
        with explaining_full_disk("the index has more entries"):
            self._file.write(run.keys.tobytes())
            self._file.write(run.addresses.tobytes())
            self._file.flush()

    def _read(self, run: _StoredRun) -> Iterator[LeafPage]:
        assert self._file is not None
        width = run.dtype.itemsize
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // width))
        for start in range(0, run.rows, rows):
            count = min(rows, run.rows - start)
            self._file.seek(run.offset + start * width)
            keys = np.frombuffer(self._file.read(count * width), run.dtype)
            self._file.seek(run.offset + run.rows * width + start * 8)
            yield LeafPage(keys, np.frombuffer(self._file.read(count * 8), np.uint64))


class _Source(Struct):
    """The rest of a block, and the blocks after it."""

    block: LeafPage
    rest: Iterator[LeafPage]

    def take(self, greatest: Keys) -> tuple[LeafPage, bool]:
        """Takes the entries up to a key; returns them, and whether there are more."""
        end = int(np.searchsorted(self.block.keys, greatest, "right")[0])
        first = LeafPage(self.block.keys[:end], self.block.addresses[:end])
        self.block = LeafPage(self.block.keys[end:], self.block.addresses[end:])
        if len(self.block.keys) == 0:
            following = next(self.rest, None)
            if following is None:
                return first, False
            self.block = following
        return first, True


def merge(sorted_blocks: Sequence[Iterator[LeafPage]]) -> Iterator[LeafPage]:
    """Merges streams of blocks, each in the order of its keys, with a block or two of each stream in memory."""
    sources = [_Source(block, blocks) for blocks in sorted_blocks if (block := next(blocks, None)) is not None]
    while sources:
        bound = min((source.block.keys[-1:] for source in sources), key=lambda last: last[0])
        parts, unfinished = [], []
        for source in sources:
            part, has_more = source.take(bound)
            if len(part.keys):
                parts.append(part)
            if has_more:
                unfinished.append(source)
        sources = unfinished
        if len(parts) == 1:
            yield parts[0]
        else:
            keys = np.concatenate([part.keys for part in parts])
            order = np.argsort(keys, kind="stable")  # quick where sorted parts follow each other
            yield LeafPage(keys[order], np.concatenate([part.addresses for part in parts])[order])


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
    """The entries with new numbers of files, by the old ones; -1 leaves a file's entries out."""
    table = np.array(numbers, np.int64)
    for leaf in leaves:
        files = table[(leaf.addresses >> np.uint64(32)).astype(np.int64)]
        positions = leaf.addresses & np.uint64(0xFFFFFFFF)
        live = files >= 0
        if live.any():
            yield LeafPage(leaf.keys[live], (files[live].astype(np.uint64) << np.uint64(32)) | positions[live])


def _join(leaves: Sequence[LeafPage]) -> LeafPage:
    return LeafPage(np.concatenate([leaf.keys for leaf in leaves]), np.concatenate([leaf.addresses for leaf in leaves]))


class KeyRun(Struct, frozen=True):
    """Some keys in ascending order, in memory: their values, and the same keys as bytes."""

    values: pa.RecordBatch
    encoded: Keys

    def values_of(self, keys: Keys) -> pa.RecordBatch:
        """The values of those keys that are in this run."""
        at = np.minimum(np.searchsorted(self.encoded, keys), len(self.encoded) - 1)
        return self.values.take(pa.array(at[self.encoded[at] == keys]))


class KeyRuns:
    """Sorts keys of rows, which can be read as often as needed. A run takes a quarter of the memory of sorting."""

    def __init__(self, schema: pa.Schema, run_bytes: int = KEY_RUN_BYTES) -> None:
        self.encoding = KeyEncoding.of(schema.types)
        self._schema, self._run_bytes = schema, run_bytes
        self._waiting: list[tuple[pa.RecordBatch, Keys]] = []
        self._rows = self._width = self._bytes = 0
        self._files: list[BatchFile] = []
        self._last: KeyRun | None = None

    def add(self, keys: pa.RecordBatch) -> None:
        """Adds the keys of some rows, without NULL. Not after they have been read."""
        assert self._last is None, "the keys have been read"
        for start, encoded in self.encoding.encode_blocks(keys.columns):
            part = keys.slice(start, len(encoded))
            width = max(self._width, encoded.dtype.itemsize)
            as_bytes, as_values = (self._rows + len(encoded)) * width, self._bytes + part.nbytes
            if self._waiting and max(as_bytes, as_values) > self._run_bytes:
                self._spill()
                width = encoded.dtype.itemsize
            self._waiting.append((part, encoded))
            self._rows, self._width, self._bytes = self._rows + len(encoded), width, self._bytes + part.nbytes

    def runs(self) -> Iterator[KeyRun]:
        """All keys, run by run."""
        if self._waiting:
            self._last = self._sort()
        for file in self._files:
            blocks = list(self._blocks(file))
            [values] = pa.Table.from_batches([part for part, _ in blocks]).combine_chunks().to_batches()
            yield KeyRun(values, np.concatenate([encoded for _, encoded in blocks]))
        if self._last is not None:
            yield self._last

    def repeated_rows(self, most: int) -> tuple[int, pa.Table]:
        """The number of keys that several rows have, and the values of the first ``most`` of them."""
        count, first = 0, no_keys(self.encoding.width)
        for keys in self._repeated_keys():
            count += len(keys)
            first = np.concatenate([first, keys[: most - len(first)]])
        if not count:
            return 0, self._schema.empty_table()
        rows = pa.Table.from_batches([run.values_of(first) for run in self.runs()], self._schema)
        return count, rows.group_by(rows.column_names, use_threads=False).aggregate([])

    def _repeated_keys(self) -> Iterator[Keys]:
        """The keys that several rows have, each once, block by block."""
        last, is_repeated = no_keys(self.encoding.width), False
        for block in self._ordered_keys():
            keys = np.concatenate([last, block])
            same: npt.NDArray[np.bool_] = keys[1:] == keys[:-1]
            if not len(same):
                last = keys
                continue
            yield keys[1:][same & ~np.concatenate([[is_repeated], same[:-1]])]
            last, is_repeated = keys[-1:], bool(same[-1])

    def _ordered_keys(self) -> Iterator[Keys]:
        """All keys in order, block by block."""
        if not self._files:
            yield from (run.encoded for run in self.runs())
            return
        if self._waiting:
            self._last = self._sort()
        encoded = [(keys for _, keys in self._blocks(file)) for file in self._files]
        if self._last is not None:
            encoded.append(keys for keys in [self._last.encoded])
        for page in merge([(LeafPage(keys, np.zeros(len(keys), np.uint64)) for keys in each) for each in encoded]):
            yield page.keys

    def _sort(self) -> KeyRun:
        encoded = np.concatenate([keys for _, keys in self._waiting])
        values = pa.Table.from_batches([part for part, _ in self._waiting]).combine_chunks()
        order = key_order(encoded)
        [batch] = values.take(pa.array(order)).combine_chunks().to_batches()
        self._waiting, self._rows, self._width, self._bytes = [], 0, 0, 0
        return KeyRun(batch, encoded[order])

    def _spill(self) -> None:
        file = BatchFile(self._schema, "there are more keys of rows")
        values = self._sort().values
        for start in range(0, values.num_rows, _BLOCK_ROWS):
            file.write(values.slice(start, _BLOCK_ROWS))
        self._files.append(file.finish())

    def _blocks(self, file: BatchFile) -> Iterator[tuple[pa.RecordBatch, Keys]]:
        """The keys of a run in a file, block by block."""
        for part in file:
            for start, encoded in self.encoding.encode_blocks(part.columns):
                yield part.slice(start, len(encoded)), encoded
