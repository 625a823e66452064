"""CSV and TSV: UTF-8, a header line, then one record per row.

- An empty field is NULL. A quoted empty field (``""``) is the empty string in a string column, and NULL in any other.
- Columns are matched by the header's names, exactly; a name missing, empty or there twice is an error.
- A record must have as many fields as the header. Empty lines are skipped, but in a file of one column, where they
  are rows of NULL: no writer's rows are lost.
- Quoted fields may hold delimiters, line ends and doubled quotes (see ``quoting``). A byte order mark is skipped.
- Line numbers count from 1 at the header, lines inside quoted fields included; row numbers count data rows from 1.
- Lists and structs are written as JSON in their cell; maps cannot be.
- A file without even a header is an error; one with nothing else has no rows.

Each block is first parsed straight into the declared types. If anything in it does not fit, the block is parsed
again as text, and ``text`` decides: that is what a cell means, and finds the place to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import types as t

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.blocks import Block, blocks
from dolmen.ingest.compression import ByteStream
from dolmen.ingest.infer import NOTHING, TEXT, shape_of_cells
from dolmen.ingest.json_text import nested_parse
from dolmen.ingest.quoting import Records, last_record_end
from dolmen.ingest.text import precision_check, text_cast
from dolmen.write.conform import Plan, conform_batch, plan_conform
from dolmen.write.lossless import Cast, Misfit

_LOWER_CASE = 0x20


def read(
    stream: ByteStream, schema: pa.Schema, name: str, block_bytes: int, delimiter: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a delimited file as batches of ``schema``, one per block of text that has any.

    Raises:
        SchemaError: the header does not match the schema.
        RowError: a malformed record, or a cell that does not fit its column.
    """
    file = _File.open(stream, name, block_bytes, delimiter)
    for batch in file.batches(_Converter(file, schema).convert):
        if batch.num_rows:
            yield batch


def infer(stream: ByteStream, name: str, block_bytes: int, delimiter: str) -> pa.Schema:
    """The types that hold every cell of the file, by its header's names. Raises as ``read`` does."""
    file = _File.open(stream, name, block_bytes, delimiter)
    shapes = [NOTHING] * len(file.names)
    for strings in file.batches(file.strings):
        shapes = [
            shape if shape == TEXT else shape.join(shape_of_cells(cells))
            for cells, shape in zip(strings.columns, shapes, strict=True)
        ]
    return pa.schema([pa.field(column, shape.arrow_type) for column, shape in zip(file.names, shapes, strict=True)])


@dataclass(frozen=True)
class _File:
    """An open file whose header has been read."""

    name: str
    names: list[str]
    blocks: Iterator[Block]
    delimiter: str

    @classmethod
    def open(cls, stream: ByteStream, name: str, block_bytes: int, delimiter: str) -> _File:
        rest = blocks(stream, partial(last_record_end, delimiter=delimiter), name, block_bytes)
        for block in rest:
            records = Records.of(block.data, delimiter, blank_lines_count=False)
            if len(records.starts):
                start, end = int(records.starts[0]), int(records.ends[0])
                header = Block(block.data[start:end], block.line_at(start))
                body = Block(block.data[end:], block.line_at(end))
                return cls(name, _column_names(header, delimiter, name), chain([body], rest), delimiter)
        raise InputError(f"file {name!r} is empty: it needs at least a line with the names of its columns")

    def batches(self, convert: Callable[[Block, int], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each block converted, given the 1-based number of its first row."""
        row = 1
        try:
            for block in self.blocks:
                batch = convert(block, row)
                row += batch.num_rows
                yield batch
        except RowError as error:
            if error.row is not None:
                raise
            raise RowError(error.reason, file=error.file, line=error.line, row=row) from None  # a record never ends

    def parse(self, data: bytes, types: dict[str, pa.DataType]) -> pa.RecordBatch:
        """The rows of a block with its columns as ``types``. Raises pa.ArrowInvalid for whatever is wrong."""
        if not data or (data.isspace() and len(self.names) > 1 and not data.strip(b"\r\n")):
            return pa.RecordBatch.from_pylist([], pa.schema([(column, types[column]) for column in self.names]))
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=self.names, block_size=len(data) + 1),
            csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=b'"' in data,
                ignore_empty_lines=len(self.names) > 1,
            ),
            csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        return batch

    def strings(self, block: Block, row: int) -> pa.RecordBatch:
        """The rows of a block as text. Raises RowError for its first malformed record."""
        try:
            return self.parse(block.data, dict.fromkeys(self.names, pa.string()))
        except pa.ArrowInvalid as error:
            raise self._malformed(block, row, error) from None

    def records(self, block: Block) -> Records:
        """Where the block's rows are."""
        return Records.of(block.data, self.delimiter, blank_lines_count=len(self.names) == 1)

    def _malformed(self, block: Block, row: int, error: pa.ArrowInvalid) -> RowError:
        records = self.records(block)
        faults: list[tuple[int, int, str | None, str]] = []
        ragged = np.flatnonzero(records.fields != len(self.names))
        if len(ragged):
            record = int(ragged[0])
            found = int(records.fields[record])
            reason = f"{found} {'field' if found == 1 else 'fields'} where the header has {len(self.names)}"
            faults.append((record, int(records.starts[record]), None, reason))
        try:
            block.data.decode()
        except UnicodeDecodeError as undecodable:
            record, field = records.place(undecodable.start)
            column = self.names[field] if field < len(self.names) else None
            faults.append((record, undecodable.start, column, f"not UTF-8: {undecodable.reason}"))
        if not faults:
            return RowError(f"the text cannot be parsed: {error}", file=self.name, line=block.line, row=row)
        record, offset, column, reason = min(faults, key=lambda fault: fault[:2])
        return RowError(reason, file=self.name, line=block.line_at(offset), row=row + record, column=column)


@dataclass(frozen=True)
class _Asked:
    """As which types pyarrow is to parse the columns, and what is left to do then."""

    types: dict[str, pa.DataType]
    plan: Plan


class _Converter:
    """Blocks of a file as batches of a schema."""

    def __init__(self, file: _File, schema: pa.Schema) -> None:
        self._file = file
        types = {field.name: field.type for field in schema}
        native = {name: kind for name, kind in types.items() if _is_parsed_natively(kind)}
        wary = {name: kind for name, kind in native.items() if not t.is_integer(kind)}
        try:
            self._text = self._ask({}, schema)
            self._native, self._wary = self._ask(native, schema), self._ask(wary, schema)
        except SchemaError as error:
            raise SchemaError(f"file {file.name!r}: {error}") from None

    def _ask(self, native: dict[str, pa.DataType], schema: pa.Schema) -> _Asked:
        types = {column: native.get(column, pa.string()) for column in self._file.names}
        return _Asked(types, plan_conform(pa.schema(types), schema, _cell_cast))

    def convert(self, block: Block, row: int) -> pa.RecordBatch:
        """The block's rows. Raises RowError for the first that is malformed or does not fit."""
        asked = self._wary if _may_be_hexadecimal(block.data) else self._native
        try:
            return conform_batch(self._file.parse(block.data, asked.types), asked.plan, first_row=row)
        except (pa.ArrowInvalid, RowError):
            pass  # the text says what is wrong, if anything is
        try:
            strings = self._file.strings(block, row)
        except RowError as error:
            self._convert_before(error, block, row)
            raise
        try:
            return conform_batch(strings, self._text.plan, first_row=row)
        except RowError as error:
            line = block.line_at(self._start(block, error, row))
            raise RowError(error.reason, file=self._file.name, line=line, row=error.row, column=error.column) from None

    def _convert_before(self, error: RowError, block: Block, row: int) -> None:
        """Raises RowError if a row above the malformed one does not fit: the first fault is the one to report."""
        if start := self._start(block, error, row):
            self.convert(Block(block.data[:start], block.line), row)

    def _start(self, block: Block, error: RowError, row: int) -> int:
        """Where in the block the row to blame begins."""
        return int(self._file.records(block).starts[(error.row or row) - row])


def _is_parsed_natively(target: pa.DataType) -> bool:
    """Whether pyarrow's CSV reader understands text of this type as ``text`` defines it, or refuses it."""
    return bool(
        t.is_string(target)
        or t.is_boolean(target)
        or t.is_integer(target)
        or t.is_floating(target)
        or t.is_decimal(target)
        or t.is_date(target)
        or t.is_timestamp(target)
    )


def _may_be_hexadecimal(data: bytes) -> bool:
    """Whether there is a 0x anywhere, which pyarrow would take for the beginning of an integer."""
    if b"x" not in data and b"X" not in data:
        return False
    array = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(array[1:] | _LOWER_CASE == ord("x"))
    return bool((array[marks] == ord("0")).any())


def _cell_cast(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """The cast of cells, parsed to ``target`` already or text (see ``lossless.FindCast``)."""
    if source == target:
        return _not_infinite if t.is_floating(target) else precision_check(target)
    return text_cast(target, empty_is_null=True, parse=nested_parse(target) if t.is_nested(target) else None)


def _not_infinite(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():
        raise Misfit("infinite, or too large a number: its text tells")
    return values


def _column_names(header: Block, delimiter: str, name: str) -> list[str]:
    where = f"file {name!r}, line {header.line}"
    try:
        header.data.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: {error.reason}", file=name, line=header.line) from None
    count = Records.of(header.data, delimiter, blank_lines_count=True).fields[0]
    places = [str(place) for place in range(count)]
    cells = csv.read_csv(
        pa.BufferReader(header.data),
        csv.ReadOptions(column_names=places, block_size=len(header.data) + 1),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False),
    )
    names: list[str] = [column[0].as_py() for column in cells.columns]
    for place, column in enumerate(names, 1):
        if not column:
            hint = " (an index that pandas wrote? leave it out with index=False)" if place == 1 else ""
            raise SchemaError(f"{where}: column {place} has no name{hint}")
        if names.index(column) != place - 1:
            raise SchemaError(f"{where}: column {column!r} is there twice")
    return names
