"""Blocks of delimited text as batches of a table's types, and the places of rows that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.errors import RowError, SchemaError
from dolmen.ingest.formats.bad_rows import good_rows
from dolmen.ingest.formats.csv.file import DelimitedFile, no_rows, with_count
from dolmen.ingest.formats.csv.native import SUSPECTS, cell_cast, native_type, without_doubts
from dolmen.ingest.formats.csv.quoting import Records
from dolmen.ingest.formats.options import BadRow, OnBadRow, ReadOptions, mark_name
from dolmen.ingest.formats.text.blocks import Block
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform


@dataclass(frozen=True)
class _AskedTypes:
    """The types as which pyarrow parses the columns, and the conversions that are left to do."""

    types: dict[str, pa.DataType]
    plan: CastPlan


class DelimitedConverter:
    """Blocks of a file as batches of a schema."""

    def __init__(self, file: DelimitedFile, schema: pa.Schema, options: ReadOptions) -> None:
        self._file = file
        times = options.times
        self._defaults = options.defaults
        self._find_cast = partial(cell_cast, times=times, ignore_extra=options.ignore_extra)
        native = {field.name: kind for field in schema if (kind := native_type(field.type, times)) is not None}
        names = set(schema.names)
        self._marked = [column for column in file.kept if mark_name(column) in names]
        self._placeholders = pa.array(options.placeholders, pa.string())
        self._placed = [text.encode() for text in options.placeholders] if self._marked else []
        self._suspects = [suspect for suspect in SUSPECTS if any(map(suspect.concerns, native.values()))]
        try:
            self._text = self._ask({}, schema, [mark_name(column) for column in self._marked])
            self._asked = {
                doubts: self._ask(without_doubts(native, doubts), schema)
                for size in range(len(self._suspects) + 1)
                for doubts in combinations(self._suspects, size)
            }
        except SchemaError as error:
            raise SchemaError(f"file {file.name!r}: {error}", column=error.column) from None

    def _ask(self, native: dict[str, pa.DataType], schema: pa.Schema, marks: Sequence[str] = ()) -> _AskedTypes:
        types = {column: native.get(column, pa.string()) for column in self._file.kept}
        own = pa.schema(types | dict.fromkeys(marks, pa.int8()))
        return _AskedTypes(types, plan_conform(own, schema, self._find_cast, self._defaults))

    def convert(self, block: Block, row: int) -> tuple[pa.RecordBatch, int]:
        """The block's rows, and how many. Raises RowError for the first that is malformed or does not fit."""
        return with_count(self._convert(block, row))

    def convert_good(self, block: Block, row: int, on_bad_row: OnBadRow) -> tuple[pa.RecordBatch, int]:
        """The block's good rows, and the number of all its rows. The bad ones go to ``on_bad_row``."""
        if block.fault is not None:
            line = block.line_at(block.fault.offset)
            on_bad_row(BadRow(block.fault.reason, row, line, None, block.data.rstrip(b"\r\n")))
            return no_rows(self._text.plan.target), 1
        try:
            return self.convert(block, row)
        except RowError:
            rows = _DelimitedRows(block, row, self._file.records(block), self._convert)
        made = good_rows(rows, row, on_bad_row)
        return pa.concat_batches(made) if made else no_rows(self._text.plan.target), len(rows)

    def _convert(self, block: Block, row: int) -> pa.RecordBatch:
        asked = self._asked[tuple(suspect for suspect in self._suspects if suspect.is_in(block.data))]
        if not any(text in block.data for text in self._placed):
            try:
                return conform_batch(self._file.parse(block.data, asked.types), asked.plan, first_row=row)
            except (pa.ArrowInvalid, UnicodeDecodeError, RowError):
                pass  # the text says what is wrong, if anything is
        try:
            strings = self._file.strings(block, row)
        except RowError as error:
            self._convert_before(error, block, row)
            raise
        try:
            return conform_batch(self._mark(strings), self._text.plan, first_row=row)
        except RowError as error:
            line = block.line_at(self._start(block, error, row))
            raise RowError(error.reason, file=self._file.name, line=line, row=error.row, column=error.column) from None

    def _mark(self, strings: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as text, with NULL and a mark for each placeholder."""
        columns = dict(zip(strings.schema.names, strings.columns, strict=True))
        for column in self._marked:
            placed = pc.is_in(columns[column], self._placeholders)
            columns[column] = pc.if_else(placed, pa.scalar(None, pa.string()), columns[column])
            columns[mark_name(column)] = pc.if_else(placed, pa.scalar(0, pa.int8()), pa.scalar(None, pa.int8()))
        return pa.RecordBatch.from_pydict(columns) if self._marked else strings

    def _convert_before(self, error: RowError, block: Block, row: int) -> None:
        """Raises RowError if a row above the malformed one does not fit: the first fault is the one to report."""
        if start := self._start(block, error, row):
            self._convert(Block(block.data[:start], block.line), row)

    def _start(self, block: Block, error: RowError, row: int) -> int:
        """The offset of the faulty row in the block."""
        return int(self._file.records(block).starts[(error.row or row) - row])


@dataclass(frozen=True)
class _DelimitedRows:
    """The rows of a block that has bad ones."""

    block: Block
    first_row: int
    records: Records
    convert_block: Callable[[Block, int], pa.RecordBatch]

    def __len__(self) -> int:
        return len(self.records.starts)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """Some of the rows. Raises RowError for the first that is bad."""
        begin, end = int(self.records.starts[start]), int(self.records.ends[stop - 1])
        batch = self.convert_block(Block(self.block.data[begin:end], self.block.line_at(begin)), self.first_row + start)
        assert batch.num_rows == stop - start
        return batch

    def text(self, place: int) -> bytes:
        """A record, without its line end."""
        return self.block.data[self.records.starts[place] : self.records.ends[place]].rstrip(b"\r\n")
