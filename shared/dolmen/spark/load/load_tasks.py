"""The tasks of a load: they turn rows of landing files into data files.

Into a table without a sort key each task writes data files straight from the rows that it reads. For a table with a
sort key there are three steps, between which Spark carries sorted runs as bytes and never looks at a row.

1. ``read_runs``: files become sorted runs of some megabytes, with samples of their keys.
2. ``cut_runs``: each run is cut at the bounds that the driver planned from the samples.
3. ``write_ranges``: the pieces of one range after the other, in order, are merged and written.

Tasks load a file whole or not at all. They keep the rows of a small file until they have seen its end, and yield those
of a large one while they read it: if its end turns out to be bad, the result of the whole job is not used.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.base.runtime import shared_runtime
from dolmen.base.units import MIB
from dolmen.errors import StoreUnavailableError
from dolmen.format.entries import DataFile
from dolmen.format.ingest_properties import FileKind
from dolmen.format.layout import build_decoders
from dolmen.format.manifest import TableEntry
from dolmen.format.types import integer_form
from dolmen.ingest.announcements import Drop
from dolmen.ingest.formats.formats import SourceFile, detect_file, read
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.landing import Landing
from dolmen.rows.write.row_order import RowOrder
from dolmen.rows.write.runs import WriteOptions, cut, sort_columns
from dolmen.spark.tasks import ipc_bytes, open_to_write, table_from_ipc
from dolmen.spark.write.write_tasks import WriteTask, decode_entry

Batches: TypeAlias = Iterator[pa.RecordBatch]
Key: TypeAlias = list[list[Any]]
"""The sort key of a row: for each column a rank (values, then NaN, then NULL) and a value that JSON can hold."""
MOST_CHARACTERS = 200
"""Texts are compared by their first characters. That is also an order, but more rows are equal in it."""
RUN_BYTES = 32 * MIB  # bytes of rows that are sorted together, in Arrow memory
RANGE_BYTES = 64 * MIB  # bytes of the rows of a range, which are merged in memory
_RUN_ROWS = 1 << 20
RUNS = "number INT, report BINARY, sample BINARY, run BINARY"
"""Either a report on a file, or a sorted run with a sample of its keys. A run with the number of a drop counts only if
that file can be read."""
PIECES = "lane INT, range INT, rows BINARY"  # sorted rows of a range. One task writes all ranges of a lane.


class FileReport(msgspec.Struct, frozen=True):
    """The report of a task on the file of a drop; unless it ``is_whole``, the task cannot read the file."""

    drop: int
    rows: int
    is_whole: bool


build_decoders(FileReport)


DropRows: TypeAlias = tuple[int | None, pa.RecordBatch]
"""Rows of drops. They count only if the drop with this number can be read; None if they count in any case."""


class DropReader(Struct, frozen=True):
    """The files that a job reads into the table ``entry``; ``groups`` has the numbers of each task's drops.

    Up to ``buffered_bytes`` of a file's rows are kept until its end is read.
    """

    landing: Landing
    entry: bytes
    format: FileKind | None
    options: ReadOptions
    drops: tuple[Drop, ...]
    groups: tuple[tuple[int, ...], ...]
    buffered_bytes: int

    def rows(self, group: int, reports: list[FileReport]) -> Iterator[DropRows]:
        """Yields the rows of a group's files, and adds a report on each. Raises StoreUnavailableError."""
        schema = decode_entry(self.entry).schema.arrow
        for number in self.groups[group]:
            yield from self._rows_of(schema, number, reports)

    def _rows_of(self, schema: pa.Schema, number: int, reports: list[FileReport]) -> Iterator[DropRows]:
        buffered: list[pa.RecordBatch] | None = []
        size = rows = 0
        batches = self._batches(schema, self.drops[number])
        while True:
            try:
                batch = next(batches, None)
            except StoreUnavailableError:
                raise
            except Exception:  # noqa: BLE001 - ingest finds any error again, and decides about the file
                reports.append(FileReport(number, 0 if buffered is not None else rows, False))
                return
            if batch is None:
                break
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if buffered is None:
                yield number, batch
                continue
            buffered.append(batch)
            if size > self.buffered_bytes:
                yield from ((number, each) for each in buffered)
                buffered = None
        yield from ((None, each) for each in buffered or ())
        reports.append(FileReport(number, rows, True))

    def _batches(self, schema: pa.Schema, drop: Drop) -> Iterator[pa.RecordBatch]:
        """Yields a file's batches. Opens the file for the first one, where all errors of a file are caught."""
        landing_path = self.landing.path_of(drop)
        assert landing_path is not None
        format = detect_file(lambda: self.landing.open(drop), landing_path.path, self.format)
        source = SourceFile(lambda: self.landing.open(drop), format, landing_path.path, self.options)
        yield from self.landing.runtime.ahead(read(source, schema))


class SortKeys:
    def __init__(self, rows: pa.Table, entry: TableEntry) -> None:
        self._columns = []
        for column in RowOrder(entry).keys(rows.columns):
            integers = integer_form(column.type)  # of times: Python knows no year 10000
            self._columns.append(column.cast(integers) if integers else column)
        self._rows = rows.num_rows

    def at(self, row: int) -> Key:
        return [_value(column[row]) for column in self._columns]

    def cuts(self, bounds: Sequence[Key]) -> list[tuple[int, int, int]]:
        """Cuts sorted rows at bounds: (number of the range, first row, end) of each range that has rows."""
        if not self._rows:
            return []
        first, last = bisect_right(bounds, self.at(0)), bisect_right(bounds, self.at(self._rows - 1))
        ends = [0]
        for bound in bounds[first:last]:
            ends.append(bisect_left(range(self._rows), bound, lo=ends[-1], key=self.at))
        ends.append(self._rows)
        return [(first + index, *each) for index, each in enumerate(pairwise(ends)) if each[0] < each[1]]


class Ranges(Struct, frozen=True):
    """Bounds of key ranges, ascending (range i begins with bound i - 1), and the part that each range belongs to."""

    bounds: tuple[Key, ...]
    parts: tuple[int, ...]

    @classmethod
    def of(cls, samples: Iterable[tuple[Key, float]], parts: int, pieces: int) -> Ranges:
        """Cuts for ``parts`` parts of ``pieces`` ranges each, by keys and the bytes that each represents."""
        ordered = sorted(samples)
        total, count = sum(weight for _, weight in ordered), parts * pieces
        bounds, of = list[Key](), [0]
        passed, number = 0.0, 1
        for key, weight in ordered:
            if number < count and passed >= total * number / count and (not bounds or key > bounds[-1]):
                number = min(count - 1, int(passed * count / total))
                bounds.append(key)
                of.append(number // pieces)
                number += 1
            passed += weight
        return cls(tuple(bounds), tuple(of))


def _value(scalar: pa.Scalar) -> list[Any]:
    if not scalar.is_valid:
        return [2, 0]
    value = scalar.as_py()
    if isinstance(value, float):
        return [1, 0] if math.isnan(value) else [0, value]
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()  # all of one scale
        return [0, int("".join(map(str, digits))) * (-1 if sign else 1)]
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return [0, value[:MOST_CHARACTERS] if isinstance(value, str) else int(value)]


@dataclass(frozen=True)
class LoadTask(WriteTask):
    """A task that writes rows in the table's types into files of ``file_bytes``."""

    file_bytes: int = 0

    def load(self, rows: Batches) -> list[DataFile]:
        store = open_to_write(self.url, shared_runtime())
        return self.put(store, rows, WriteOptions(file_bytes=self.file_bytes))


class TaskFiles(msgspec.Struct, frozen=True):
    files: list[DataFile]
    reports: list[FileReport] = []


def write_groups(read: DropReader, task: LoadTask) -> Callable[[Batches], Iterator[TaskFiles]]:
    """Numbers of groups become the data files with their rows."""

    def run(batches: Batches) -> Iterator[TaskFiles]:
        for group in _numbers(batches):
            reports: list[FileReport] = []
            files = task.load(batch for _, batch in read.rows(group, reports))
            yield TaskFiles(files, reports)

    return run


class Sample(Struct, frozen=True):
    """SortKeys of a run, each for ``weight`` bytes of its rows; ``stored`` is the size of the run compressed."""

    keys: list[Any]
    weight: float
    stored: int

    def encode(self) -> bytes:
        """As bytes, by ``json``: keys have integers of any size, and infinite floats."""
        return json.dumps([self.keys, self.weight, self.stored]).encode()

    @classmethod
    def decode(cls, body: bytes | bytearray) -> Sample:
        return cls(*json.loads(body))


def read_runs(read: DropReader, sample_bytes: int) -> Callable[[Batches], Batches]:
    """For ``map_in_tasks``: numbers of groups become sorted runs, with a key for each ``sample_bytes``."""

    def run(batches: Batches) -> Batches:
        entry = decode_entry(read.entry)
        for group in _numbers(batches):
            reports: list[FileReport] = []
            for drop, rows in groupby(read.rows(group, reports), key=lambda each: each[0]):
                for columns in cut((batch for _, batch in rows), entry.schema.arrow, RUN_BYTES, _RUN_ROWS):
                    yield _run(columns, entry, drop, sample_bytes)
            for report in reports:
                yield _run_row(report.drop, report=msgspec.json.encode(report))

    return run


def _run(columns: list[pa.ChunkedArray], entry: TableEntry, drop: int | None, sample_bytes: int) -> pa.RecordBatch:
    rows = _sort(columns, entry)
    keys = SortKeys(rows, entry)
    count = min(rows.num_rows, max(1, rows.nbytes // sample_bytes))
    body = ipc_bytes(rows, "lz4")
    some = [keys.at((2 * number + 1) * rows.num_rows // (2 * count)) for number in range(count)]
    return _run_row(drop, sample=Sample(some, max(rows.nbytes, 1) / count, len(body)).encode(), run=body)


def _run_row(
    drop: int | None, *, report: bytes | None = None, sample: bytes | None = None, run: bytes | None = None
) -> pa.RecordBatch:
    bodies = [pa.array([body], pa.binary()) for body in (report, sample, run)]
    return pa.record_batch([pa.array([drop], pa.int32()), *bodies], ["number", "report", "sample", "run"])


def cut_runs(entry: bytes, ranges: Ranges, lanes: tuple[int, ...]) -> Callable[[Batches], Batches]:
    """For ``map_in_tasks``: sorted runs become pieces of one range each, in the lanes of their parts."""

    def run(batches: Batches) -> Batches:
        table = decode_entry(entry)
        for body in (body for batch in batches for body in batch.column(0)):
            rows = table_from_ipc(body.as_buffer())
            cuts = SortKeys(rows, table).cuts(ranges.bounds)
            columns = [
                pa.array([lanes[ranges.parts[number]] for number, _, _ in cuts], pa.int32()),
                pa.array([number for number, _, _ in cuts], pa.int32()),
                pa.array([ipc_bytes(rows.slice(start, end - start), "lz4") for _, start, end in cuts], pa.binary()),
            ]
            yield pa.record_batch(columns, ["lane", "range", "rows"])

    return run


def write_ranges(task: LoadTask) -> Callable[[Batches], Iterator[TaskFiles]]:
    """Pieces, ordered by lane and range, become data files of their own for each lane."""

    def run(batches: Batches) -> Iterator[TaskFiles]:
        for _, pieces in groupby(_pieces(batches), key=lambda piece: piece[0]):
            yield TaskFiles(task.load(_merge_pieces(pieces, task.table_entry)))

    return run


def _merge_pieces(pieces: Iterable[tuple[int, int, pa.Table]], entry: TableEntry) -> Batches:
    """Yields the rows of one range after the other, each in order.

    If a range is far larger than planned, because many rows have one key, as many as fit are sorted at a time.
    """
    for _, of_range in groupby(pieces, key=lambda piece: piece[1]):
        tables: list[pa.Table] = []
        size = 0
        for _, _, rows in of_range:
            if tables and size + rows.nbytes > 2 * RANGE_BYTES:
                yield from _sort_together(tables, entry)
                size = 0
            tables.append(rows)
            size += rows.nbytes
        yield from _sort_together(tables, entry)


def _sort_together(tables: list[pa.Table], entry: TableEntry) -> Batches:
    columns = pa.concat_tables(tables).columns
    tables.clear()
    yield from _sort(columns, entry).to_batches()


def _sort(columns: list[pa.ChunkedArray], entry: TableEntry) -> pa.Table:
    sort_columns(columns, RowOrder(entry).keys(columns))
    return pa.table(columns, entry.schema.arrow)


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _pieces(batches: Batches) -> Iterator[tuple[int, int, pa.Table]]:
    for batch in batches:
        lanes, ranges = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        for lane, number, body in zip(lanes, ranges, batch.column(2), strict=True):
            yield lane, number, table_from_ipc(body.as_buffer())
