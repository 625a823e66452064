"""The keys of many rows, sorted in runs of a bounded size, of which all but one wait in unnamed temporary files."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.entries.index.key_bytes import KeyEncoding, Keys, no_keys, order
from dolmen.entries.index.pages import LeafPage
from dolmen.entries.index.sorting import merge

RUN_BYTES = 32 * MIB
"""Keys that are sorted at once: as values, and as the bytes that they are compared by."""
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class KeyRun:
    """Some keys in ascending order, in memory.

    Args:
        values: a column for each column of the key.
        encoded: the same keys as bytes.
    """

    values: pa.RecordBatch
    encoded: Keys

    def values_of(self, keys: Keys) -> pa.RecordBatch:
        """The values of those of some keys that are in this run."""
        at = np.minimum(np.searchsorted(self.encoded, keys), len(self.encoded) - 1)
        return self.values.take(pa.array(at[self.encoded[at] == keys]))


class KeyRuns:
    """Keys of rows, added in any order and read as often as needed, in bounded memory.

    Args:
        schema: the columns of the key, in its order.
        run_bytes: how much of them is sorted at once, about a quarter of what that takes.
    """

    def __init__(self, schema: pa.Schema, run_bytes: int = RUN_BYTES) -> None:
        self.encoding = KeyEncoding.of(schema.types)
        self._schema, self._run_bytes = schema, run_bytes
        self._waiting: list[tuple[pa.RecordBatch, Keys]] = []
        self._rows = self._width = self._bytes = 0
        self._files: list[IO[bytes]] = []
        self._last: KeyRun | None = None

    def add(self, keys: pa.RecordBatch) -> None:
        """Adds the keys of some rows, none of which has a NULL. Not after they have been read."""
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
        """All keys, run by run. Keys are in order within a run."""
        if self._waiting:
            self._last = self._sort()
        for file in self._files:
            blocks = list(self._blocks(file))
            [values] = pa.Table.from_batches([part for part, _ in blocks]).combine_chunks().to_batches()
            yield KeyRun(values, np.concatenate([encoded for _, encoded in blocks]))
        if self._last is not None:
            yield self._last

    def repeated(self, most: int) -> tuple[int, pa.Table]:
        """The number of keys that several rows have, and the values of the first of them.

        Args:
            most: the most keys whose values are returned.
        """
        count, first = 0, no_keys(self.encoding.width)
        for keys in self._repeated():
            count += len(keys)
            first = np.concatenate([first, keys[: most - len(first)]])
        if not count:
            return 0, self._schema.empty_table()
        found = pa.Table.from_batches([run.values_of(first) for run in self.runs()], self._schema)
        return count, found.group_by(found.column_names, use_threads=False).aggregate([])

    def _repeated(self) -> Iterator[Keys]:
        """The keys that several rows have, each once, block by block."""
        last, known = no_keys(self.encoding.width), False
        for block in self._in_order():
            keys = np.concatenate([last, block])
            same: npt.NDArray[np.bool_] = keys[1:] == keys[:-1]
            if not len(same):
                last = keys
                continue
            yield keys[1:][same & ~np.concatenate([[known], same[:-1]])]
            last, known = keys[-1:], bool(same[-1])

    def _in_order(self) -> Iterator[Keys]:
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
        found = order(encoded)
        [batch] = values.take(pa.array(found)).combine_chunks().to_batches()
        self._waiting, self._rows, self._width, self._bytes = [], 0, 0, 0
        return KeyRun(batch, encoded[found])

    def _spill(self) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        weakref.finalize(self, file.close)
        run = self._sort()
        with pa.ipc.new_file(file, self._schema) as writer:
            writer.write_table(pa.Table.from_batches([run.values]), _BLOCK_ROWS)
        self._files.append(file)

    def _blocks(self, file: IO[bytes]) -> Iterator[tuple[pa.RecordBatch, Keys]]:
        """The keys of a run in a file, in blocks. Runs may be read at the same time, but each once at a time."""
        stored = pa.ipc.open_file(file)
        for number in range(stored.num_record_batches):
            part = stored.get_batch(number)
            for start, encoded in self.encoding.encode_blocks(part.columns):
                yield part.slice(start, len(encoded)), encoded
