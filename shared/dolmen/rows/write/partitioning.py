"""Divides a stream of rows by partition in bounded memory, so that each data file has rows of one partition.

Rows are collected. When they outgrow the memory, a partition that has most of them is written at once, as in a load
that is in the order of its partitions; otherwise all go to a temporary directory, by partition. In the end the largest
partitions are written one after the other, and the rows of all others together: compaction divides those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import pc
from dolmen.base.runtime import Runtime
from dolmen.base.temporary_files import BatchFile
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.format.types import Plain, to_plain
from dolmen.rows.write.runs import WriteOptions, cut

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]

_COLLECTED_RUNS = 8  # when the collected rows are larger than this many runs, some of them are written


class Piece(NamedTuple):
    """Rows for one run, as columns, and their partition; None: they are of several. ``is_alone``: there are no more."""

    partition: Partition | None
    columns: list[pa.ChunkedArray]
    is_alone: bool


class _Collected(Struct):
    """The rows of one partition: parts in memory, and batches on disk: a file, and the number in it."""

    rows: int = 0
    bytes: int = 0
    parts: list[pa.Table] = field(default_factory=list)
    spilled: list[tuple[BatchFile, int]] = field(default_factory=list)


class RowDivision:
    """Divides rows by partition.

    Args:
        most_partitions: the most of them that get files of their own, less one for the rows of the others.
    """

    def __init__(
        self, spec: PartitionSpec, schema: pa.Schema, options: WriteOptions, most_partitions: int, runtime: Runtime
    ) -> None:
        self._runtime = runtime
        self._spec, self._schema, self._options = spec, schema, options
        self._most_partitions, self._memory_bytes = most_partitions, _COLLECTED_RUNS * options.run_bytes
        self._collected: dict[Partition, _Collected] = {}
        self._bytes = 0

    def divide(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        """Yields all rows in pieces. Those of a partition follow each other, and keep their order."""
        pieces = cut(batches, self._schema, self._options.run_bytes, self._options.run_rows)
        for parts in self._runtime.compute(self._divide_piece, pieces):
            for partition, rows in parts:
                self._collect(partition, rows)
            del parts
            if self._bytes > self._memory_bytes:
                yield from self._make_room()
        largest = sorted(self._collected, key=lambda each: -self._collected[each].rows)
        alone = len(largest) if len(largest) <= self._most_partitions else max(0, self._most_partitions - 1)
        own, others = (sorted(some, key=_rank) for some in (largest[:alone], largest[alone:]))
        for partition in own:
            yield from self._pieces(partition, self._take(partition))
        yield from self._pieces(None, (batch for partition in others for batch in self._take(partition)))

    def _divide_piece(self, columns: list[pa.ChunkedArray]) -> list[tuple[Partition, pa.Table]]:
        """The rows of each partition, in their order."""
        rows = pa.table(columns, self._schema)
        columns.clear()
        partitions, numbers = _number(self._spec.values(rows))
        if len(partitions) == 1:
            return [(partitions[0], rows)]
        if (numbers[1:] < numbers[:-1]).any():
            kind = np.uint16 if len(partitions) <= 1 << 16 else np.int64  # numpy sorts short integers by radix
            order = pa.array(np.argsort(numbers.astype(kind), kind="stable").astype(np.uint32))  # half of int64
            rows = pa.table([column.combine_chunks().take(order) for column in rows.columns], self._schema)
        counts = np.bincount(numbers, minlength=len(partitions))
        starts = np.cumsum(counts) - counts
        slices = zip(partitions, starts.tolist(), counts.tolist(), strict=True)
        return [(partition, rows.slice(start, count)) for partition, start, count in slices]

    def _collect(self, partition: Partition, rows: pa.Table) -> None:
        into = self._collected.setdefault(partition, _Collected())
        into.parts.append(rows)
        into.rows += rows.num_rows
        size_bytes = rows.nbytes
        into.bytes += size_bytes
        self._bytes += size_bytes

    def _make_room(self) -> Iterator[Piece]:
        largest = max(self._collected, key=lambda each: self._collected[each].bytes)
        if self._collected[largest].bytes > self._memory_bytes // 2:
            yield from self._pieces(largest, self._take(largest))
        else:
            self._spill()

    def _pieces(self, partition: Partition | None, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        pieces = cut(batches, self._schema, self._options.run_bytes, self._options.run_rows)
        columns, number = next(pieces, None), 0
        while columns is not None:
            following = next(pieces, None)
            yield Piece(partition, columns, is_alone=following is None and not number)
            columns, number = following, number + 1

    def _take(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        collected = self._collected.pop(partition)
        self._bytes -= collected.bytes
        for file, number in collected.spilled:
            yield file.read(number)
        for part in collected.parts:
            yield from part.to_batches()

    def _spill(self) -> None:
        """Writes the rows in memory to a temporary file."""
        file = BatchFile(self._schema, "there are more rows of different partitions", compression="lz4")
        for collected in self._collected.values():
            for part in collected.parts:
                collected.spilled += [(file, file.write(batch)) for batch in part.to_batches()]
            collected.parts, collected.bytes = [], 0
        file.finish()
        self._bytes = 0


def _rank(partition: Partition) -> list[tuple[bool, Any]]:
    return [(value is None, value) for value in partition]


def _number(terms: list[pa.Array]) -> tuple[list[Partition], Numbers]:
    """The partitions of some rows, and the number of each row's partition among them."""
    numbers: Numbers = np.zeros(1, np.int32)
    values: list[Partition] = [()]
    for term in terms:
        coded = pc.dictionary_encode(term, null_encoding="encode")
        own: list[Plain] = to_plain(coded.dictionary)
        if len(values) == 1:
            numbers, values = coded.indices.to_numpy(), [(*values[0], each) for each in own]
        else:
            codes = numbers.astype(np.int64) * len(own) + coded.indices.to_numpy()
            found, numbers = np.unique(codes, return_inverse=True)
            pairs = zip(*(each.tolist() for each in np.divmod(found, len(own))), strict=True)
            values = [(*values[before], own[after]) for before, after in pairs]
    return values, numbers
