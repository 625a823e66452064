"""Sorts more rows than fit into memory: in the order that statistics promise, with spills where they overlap.

Batches come with a lower bound of their own keys and all later keys. Rows below that bound can be written at once, so
rows that are nearly in order only pass through memory. When the rows held outgrow the memory and cannot go, they are
sorted and written to a temporary directory as a run. In the end the runs' batches are merged in the same way, with
exact bounds, so that at most one batch of each run is held. Each row is sorted twice and written to disk at most once
(once more for every factor of ``FAN_IN`` runs).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.base.runtime import Runtime, cached_property
from dolmen.rows.write.parquet_object import sort_columns

Bound: TypeAlias = tuple[pa.Scalar, ...]
"""Values of the first columns of the sort key, at least one. No later row has a lesser key."""

FAN_IN = 64
"""The number of runs that are merged at once. One batch of each may be held."""


class Sorter:
    """Sorts rows by a sort key: ascending, NaN after other values, NULLs last.

    Args:
        most_bytes: size of the rows that are sorted at once, as Arrow; about three times as much is in memory.
        directory: where runs are written; the system's temporary directory by default.
    """

    def __init__(
        self, runtime: Runtime, schema: pa.Schema, key: Sequence[str], most_bytes: int, directory: str | None = None
    ) -> None:
        self._runtime, self._schema, self._key = runtime, schema, key
        self._most_bytes, self._directory = most_bytes, directory
        self.spilled_bytes = 0

    def sort(self, items: Iterable[tuple[Bound | None, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order. Each batch has a lower bound of its own and all later keys; None if unknown."""
        with ExitStack() as stack:
            runs: list[_SortedRun] = []
            buffered: list[pa.RecordBatch] = []
            size = 0
            for bound, batch in items:
                if buffered and size + batch.nbytes > self._most_bytes:
                    rows = self._sort(buffered)
                    if not runs and bound is not None:  # otherwise rows of the runs come first
                        ready = self._up_to(rows, bound)
                        yield from rows.slice(0, ready).to_batches()
                        rows = _rest(rows, ready)
                    if rows.nbytes > self._most_bytes // 2:
                        runs = self._spill(rows.to_batches(), runs, stack)
                        rows = rows.slice(0, 0)
                    buffered, size = rows.to_batches(), rows.nbytes
                    del rows
                buffered.append(batch)
                size += batch.nbytes
            if buffered and not runs:
                yield from self._sort(buffered).to_batches()
            elif runs:
                runs = self._spill(self._sort(buffered).to_batches(), runs, stack)
                buffered.clear()
                yield from self._merge(runs)

    def _spill(self, batches: Iterable[pa.RecordBatch], runs: list[_SortedRun], stack: ExitStack) -> list[_SortedRun]:
        """Returns the runs with one more; if they are too many to merge at once, they become one first."""
        if len(runs) == FAN_IN:
            merged = self._write(self._merge(runs), stack)
            for run in runs:
                run.remove()
            runs = [merged]
        return [*runs, self._write(batches, stack)]

    def _write(self, batches: Iterable[pa.RecordBatch], stack: ExitStack) -> _SortedRun:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dolmen-", dir=self._directory))
        run = _SortedRun.write(
            Path(directory) / "run.arrow", batches, self._schema, self._key, self._most_bytes // (2 * FAN_IN)
        )
        self.spilled_bytes += run.path.stat().st_size
        return run

    def _merge(self, runs: Sequence[_SortedRun]) -> Iterator[pa.RecordBatch]:
        """Merges sorted runs. One part is sorted while the one before it is written."""
        for rows in self._runtime.map(self._sort, self._parts(runs), ahead=2):
            yield from rows.to_batches()

    def _parts(self, runs: Sequence[_SortedRun]) -> Iterator[list[pa.RecordBatch]]:
        """Divides the rows of sorted runs into consecutive parts, each in no order."""
        firsts = pa.concat_tables(run.firsts for run in runs)
        sources = [(run, index) for run in runs for index in range(run.firsts.num_rows)]
        buffered: list[pa.RecordBatch] = []
        size = 0
        for position in pc.sort_indices(firsts, [(name, "ascending") for name in self._key]).to_pylist():
            run, index = sources[position]
            batch = run.read(index)
            if buffered and size + batch.nbytes > self._most_bytes // 2:  # several parts are under way at once
                bound = tuple(column[position] for column in firsts.columns)
                ready = [self._up_to(each, bound) for each in buffered]
                yield [each.slice(0, count) for each, count in zip(buffered, ready, strict=True)]
                buffered = [each.slice(n) for each, n in zip(buffered, ready, strict=True) if n < each.num_rows]
                size = sum(each.nbytes for each in buffered)
            buffered.append(batch)
            size += batch.nbytes
        yield buffered

    def _sort(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """Sorts the rows of all batches. Empties the list, so that memory is freed while sorting."""
        columns = pa.Table.from_batches(batches, self._schema).columns
        batches.clear()
        sort_columns(columns, self._schema, self._key)
        return pa.table(columns, self._schema)

    def _up_to(self, rows: pa.Table | pa.RecordBatch, bound: Bound) -> int:
        """Counts the sorted rows that can be written when no later row is less than ``bound``."""
        start, end = 0, rows.num_rows
        for name, value in zip(self._key, bound, strict=False):
            less, equal = _count_less_and_equal(rows[name].slice(start, end - start), value)
            start, end = start + less, start + less + equal
        # Rows with equal keys may go in any order. But a bound of fewer columns leaves room for others between.
        return end if len(bound) == len(self._key) else start


@dataclass(frozen=True)
class _SortedRun:
    """Sorted rows in a file, and the key of the first row of each of its batches."""

    path: Path
    firsts: pa.Table

    @classmethod
    def write(
        cls, path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: Sequence[str], batch_bytes: int
    ) -> _SortedRun:
        firsts: list[pa.RecordBatch] = []
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
            for batch in batches:
                step = max(1, batch.num_rows * batch_bytes // max(1, batch.nbytes))
                for start in range(0, batch.num_rows, step):
                    piece = batch.slice(start, step)
                    writer.write_batch(piece)
                    firsts.append(
                        piece.select(list(key)).slice(0, 1).take(pa.array([0]))
                    )  # a copy, without the batch's memory
        return cls(path, pa.Table.from_batches(firsts, pa.schema([schema.field(name) for name in key])))

    @cached_property
    def _reader(self) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.OSFile(str(self.path)))

    def read(self, index: int) -> pa.RecordBatch:
        return self._reader.get_batch(index)

    def remove(self) -> None:
        """Deletes the file, to free disk space before the directory goes."""
        self.path.unlink()


def _rest(rows: pa.Table, start: int) -> pa.Table:
    """The rows from ``start`` on, copied where that frees enough memory."""
    rest = rows.slice(start)
    if start and rest.num_rows and rows.column(0).num_chunks == 1:
        return rest.take(pa.array(np.arange(rest.num_rows)))
    return rest


def _count_less_and_equal(column: pa.ChunkedArray | pa.Array, value: pa.Scalar) -> tuple[int, int]:
    """Counts the values of a sorted column that come before ``value``, and those that equal it."""
    floating = pa.types.is_floating(column.type)
    nans = pc.sum(pc.is_nan(column), min_count=0).as_py() if floating else 0
    values = len(column) - column.null_count - nans
    if not value.is_valid:
        return values + nans, column.null_count
    if floating and np.isnan(value.as_py()):
        return values, nans
    return (
        pc.sum(pc.less(column, value), min_count=0).as_py(),
        pc.sum(pc.equal(column, value), min_count=0).as_py(),
    )
