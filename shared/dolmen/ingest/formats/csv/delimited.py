"""CSV and TSV: UTF-8, a header line, then one record per row.

- An empty field is NULL. A quoted empty field (``""``) is the empty string in a string column, no bytes in a binary
  one, and NULL in any other.
  Other texts that mean NULL can be given; they do unless they are quoted.
- Columns are matched by the header's names, exactly; a name missing, empty or there twice is an error. Where columns
  that the table does not have are ignored, their names may be anything, and their fields hold any UTF-8.
- Without a header, a record has the table's columns in their order (or, inferred, ``column_1`` and so on). Where what
  the table does not have is ignored, all records may have more fields than that, as many as the first one has.
- A record must have as many fields as the header. Empty lines are skipped, but in a file of one column, where they
  are rows of NULL: no writer's rows are lost.
- Quoted fields may hold delimiters, line ends and doubled quotes (see ``quoting``). A byte order mark is skipped.
- Line numbers count from 1 at the header, lines inside quoted fields included; row numbers count data rows from 1.
- Lists and structs are written as JSON in their cell; maps cannot be.
- A file without even a header is an error; one with nothing else has no rows.

Each block is first parsed straight into the declared types. If anything in it does not fit, the block is parsed
again as text, and ``text`` decides: that is what a cell means, and finds the place to blame.

Where bad rows are told one by one, a record with text after a closing quote is taken to end with that line; a quote
that is never closed still ends the reading, and so does a header that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import types as t

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.types import TextKind, type_of
from dolmen.ingest.formats.bad_rows import good_rows
from dolmen.ingest.formats.compression import ByteStream
from dolmen.ingest.formats.csv.headers import columns_by_name, columns_by_place
from dolmen.ingest.formats.csv.quoting import Records, last_record_end
from dolmen.ingest.formats.json.values import nested_parse
from dolmen.ingest.formats.options import BadRow, OnBadRow, ReadOptions
from dolmen.ingest.formats.text.blocks import Block, blocks
from dolmen.ingest.formats.text.cells import precision_check, text_cast, within_years
from dolmen.ingest.formats.text.decimals import may_be_tiny, native_decimal
from dolmen.ingest.formats.text.infer import NOTHING, TEXT, shape_of_cells
from dolmen.ingest.formats.text.times import TimeFormat
from dolmen.write.conform import Plan, conform_batch, plan_conform
from dolmen.write.lossless import Cast, Misfit

_LOWER_CASE = 0x20
_MARK = b"\xef\xbb\xbf"


def read(
    stream: ByteStream,
    schema: pa.Schema,
    name: str,
    block_bytes: int,
    options: ReadOptions,
    on_bad_row: OnBadRow | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a delimited file as batches of ``schema``, one per block of text that has any.

    Args:
        options: with a delimiter.
        on_bad_row: is told of each bad row, instead of an error.

    Raises:
        SchemaError: the header does not match the schema.
        RowError: a malformed record, or a cell that does not fit its column.
    """
    file = _DelimitedFile.open(stream, name, block_bytes, options, schema.names, go_on=on_bad_row is not None)
    if file is None:
        return
    converter = _DelimitedConverter(file, schema, options)
    convert = converter.convert if on_bad_row is None else partial(converter.convert_good, on_bad_row=on_bad_row)
    for batch in file.batches(convert):
        if batch.num_rows:
            yield batch


def infer(stream: ByteStream, name: str, block_bytes: int, options: ReadOptions) -> pa.Schema:
    """The types that hold every cell of the file, by its header's names. Raises as ``read`` does."""
    file = _DelimitedFile.open(stream, name, block_bytes, options, None)
    if file is None:
        raise InputError(f"file {name!r} is empty: it needs at least a line to infer columns from")
    shapes = [NOTHING] * len(file.names)
    times = options.times
    for strings in file.batches(lambda block, row: _whole(file.strings(block, row))):
        shapes = [
            shape if shape == TEXT else shape.join(shape_of_cells(cells, times))
            for cells, shape in zip(strings.columns, shapes, strict=True)
        ]
    return pa.schema([pa.field(column, shape.arrow_type) for column, shape in zip(file.kept, shapes, strict=True)])


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _whole(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    return batch, batch.num_rows


@dataclass(frozen=True)
class _DelimitedFile:
    """An open file whose columns are known.

    Args:
        names: of all columns; None for one that is ignored.
        said_by: what says how many fields a record has.
    """

    name: str
    names: Sequence[str | None]
    said_by: str
    blocks: Iterator[Block]
    delimiter: str
    nulls: tuple[str, ...]

    @classmethod
    def open(
        cls,
        stream: ByteStream,
        name: str,
        block_bytes: int,
        options: ReadOptions,
        wanted: list[str] | None,
        *,
        go_on: bool = False,
    ) -> _DelimitedFile | None:
        """Reads as far as the columns are known.

        Args:
            wanted: the table's columns; None to infer them.
            go_on: whether broken records are blocks of their own (see ``blocks``).

        Returns:
            None for a file without a record, if it needs none.
        """
        delimiter = options.delimiter
        assert delimiter is not None
        nulls, ignored = options.nulls, options.ignore_extra and wanted is not None
        rest = blocks(stream, partial(last_record_end, delimiter=delimiter), name, block_bytes, go_on=go_on)
        if not (options.header or ignored or wanted is None):
            return cls(name, wanted, "the table", rest, delimiter, nulls)
        for block in rest:
            records = Records.of(block.data, delimiter, blank_lines_count=False)
            if not len(records.starts):
                continue
            start = int(records.starts[0])
            if not options.header:
                names, said_by = columns_by_place(int(records.fields[0]), wanted)
                body = Block(block.data[start:], block.line_at(start), block.fault)
                return cls(name, names, said_by, chain([body], rest), delimiter, nulls)
            if block.fault is not None:
                raise RowError(block.fault.reason, file=name, line=block.line_at(block.fault.offset))
            end = int(records.ends[0])
            header = Block(block.data[start:end], block.line_at(start))
            body = Block(block.data[end:], block.line_at(end))
            names = columns_by_name(header, delimiter, name, wanted if ignored else None)
            if wanted is not None and len(names) == 1 and names[0] is not None and names[0] not in wanted:
                for sign in ";|\t,":
                    if sign != delimiter and sign in names[0]:
                        raise SchemaError(
                            f"file {name!r}, line {header.line}: no column {names[0]!r} in the table; {sign!r} seems "
                            "to separate its fields: say so (--delimiter, or the setting ingest_delimiter)"
                        )
            return cls(name, names, "the header", chain([body], rest), delimiter, nulls)
        if options.header:
            raise InputError(f"file {name!r} is empty: it needs at least a line with the names of its columns")
        return None

    @property
    def kept(self) -> list[str]:
        """The columns that are read."""
        return [column for column in self.names if column is not None]

    def batches(self, convert: Callable[[Block, int], tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
        """Each block converted, given the 1-based number of its first row; with it comes how many rows it has."""
        row = 1
        try:
            for block in self.blocks:
                batch, rows = convert(block, row)
                row += rows
                yield batch
        except RowError as error:
            if error.row is not None:
                raise
            raise RowError(error.reason, file=error.file, line=error.line, row=row) from None  # a record never ends

    def parse(self, data: bytes, types: dict[str, pa.DataType]) -> pa.RecordBatch:
        """The rows of a block, its columns as ``types``. Raises ArrowInvalid or UnicodeDecodeError."""
        several = len(self.names) > 1
        if not data or (data.isspace() and several and not data.strip(b"\r\n")):
            return _nothing(pa.schema(list(types.items())))
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"  # else pyarrow takes an empty last field for a quoted one if the one before it is quoted
        marked = data.startswith(_MARK)
        if marked:
            data = b"\n" + data  # in the middle of a file it is text, and pyarrow would skip it
        names: list[str] = list(filter(None, self.names))
        included = None
        if len(names) < len(self.names):
            if not data.isascii():
                data.decode()  # pyarrow does not look at what is left out
            names = [f"\0{place}" if column is None else column for place, column in enumerate(self.names)]
            included = list(types)
        table = csv.read_csv(
            pa.BufferReader(_copy_to_arrow(data)),
            csv.ReadOptions(column_names=names, block_size=len(data) + 1),
            csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in data, ignore_empty_lines=several),
            csv.ConvertOptions(
                column_types=types,
                include_columns=included,
                null_values=self.nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        return batch.slice(1) if marked and not several else batch

    def strings(self, block: Block, row: int) -> pa.RecordBatch:
        """The rows of a block as text. Raises RowError for its first malformed record."""
        try:
            return self.parse(block.data, dict.fromkeys(self.kept, pa.string()))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise self._malformed(block, row, error) from None

    def records(self, block: Block) -> Records:
        """The places of the block's rows."""
        return Records.of(block.data, self.delimiter, blank_lines_count=len(self.names) == 1)

    def _malformed(self, block: Block, row: int, error: ValueError) -> RowError:
        records = self.records(block)
        faults: list[tuple[int, int, str | None, str]] = []
        ragged = np.flatnonzero(records.fields != len(self.names))
        if len(ragged):
            record = int(ragged[0])
            found = int(records.fields[record])
            fields = "field" if found == 1 else "fields"
            reason = f"{found} {fields} where {self.said_by} has {len(self.names)}"
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
class _AskedTypes:
    """The types as which pyarrow parses the columns, and the conversions that are left to do."""

    types: dict[str, pa.DataType]
    plan: Plan


class _DelimitedConverter:
    """Blocks of a file as batches of a schema."""

    def __init__(self, file: _DelimitedFile, schema: pa.Schema, options: ReadOptions) -> None:
        self._file = file
        times = options.times
        self._find_cast = partial(_cell_cast, times=times, ignore_extra=options.ignore_extra)
        native = {field.name: kind for field in schema if (kind := _native_type(field.type, times)) is not None}
        self._suspects = [suspect for suspect in _SUSPECTS if any(map(suspect.concerns, native.values()))]
        try:
            self._text = self._ask({}, schema)
            self._asked = {
                doubts: self._ask(_without(native, doubts), schema)
                for size in range(len(self._suspects) + 1)
                for doubts in combinations(self._suspects, size)
            }
        except SchemaError as error:
            raise SchemaError(f"file {file.name!r}: {error}") from None

    def _ask(self, native: dict[str, pa.DataType], schema: pa.Schema) -> _AskedTypes:
        types = {column: native.get(column, pa.string()) for column in self._file.kept}
        return _AskedTypes(types, plan_conform(pa.schema(types), schema, self._find_cast))

    def convert(self, block: Block, row: int) -> tuple[pa.RecordBatch, int]:
        """The block's rows, and how many. Raises RowError for the first that is malformed or does not fit."""
        return _whole(self._convert(block, row))

    def convert_good(self, block: Block, row: int, on_bad_row: OnBadRow) -> tuple[pa.RecordBatch, int]:
        """The block's good rows, and how many there are with the bad ones, which are told."""
        if block.fault is not None:
            line = block.line_at(block.fault.offset)
            on_bad_row(BadRow(block.fault.reason, row, line, None, block.data.rstrip(b"\r\n")))
            return _nothing(self._text.plan.target), 1
        try:
            return self.convert(block, row)
        except RowError:
            rows = _DelimitedRows(block, row, self._file.records(block), self._convert)
        made = good_rows(rows, row, on_bad_row)
        return pa.concat_batches(made) if made else _nothing(self._text.plan.target), len(rows)

    def _convert(self, block: Block, row: int) -> pa.RecordBatch:
        asked = self._asked[tuple(suspect for suspect in self._suspects if suspect.is_in(block.data))]
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
            return conform_batch(strings, self._text.plan, first_row=row)
        except RowError as error:
            line = block.line_at(self._start(block, error, row))
            raise RowError(error.reason, file=self._file.name, line=line, row=error.row, column=error.column) from None

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


def _native_type(target: pa.DataType, times: TimeFormat | None) -> pa.DataType | None:
    """The type as which pyarrow's CSV reader reads the cells of a column; None = as text."""
    if times is not None and times.parser(target) is not None:
        asked = times.parser_type(target)
        return asked if asked is not None and t.is_integer(asked) else None
    if not _is_parsed_natively(target):
        return None
    return native_decimal(target) if t.is_decimal(target) else target


NATIVE: dict[TextKind, bool] = {
    "string": True,
    "bool": True,
    "integer": True,
    "float": True,
    "decimal": True,
    "date": True,
    "timestamp": True,
    "time": False,
    "base64": False,
    "json": False,
}
"""Whether pyarrow's CSV reader understands text of a grammar (``ColumnType.text``) as dolmen does, or refuses it."""


def _is_parsed_natively(target: pa.DataType) -> bool:
    found = type_of(target)
    return found is not None and found.text is not None and NATIVE[found.text]


@dataclass(frozen=True)
class _Suspect:
    """Text that pyarrow's CSV reader may take for more than ``text`` does: columns are then asked for as text.

    Args:
        concerns: whether it does so where it reads values of this type.
        is_in: whether a block of text may hold some; seldom wrong, and cheap.
    """

    concerns: Callable[[pa.DataType], bool]
    is_in: Callable[[bytes], bool]


def _without(native: dict[str, pa.DataType], doubts: Sequence[_Suspect]) -> dict[str, pa.DataType]:
    return {name: kind for name, kind in native.items() if not any(doubt.concerns(kind) for doubt in doubts)}


def _may_be_hexadecimal(data: bytes) -> bool:
    """Whether there is a 0x anywhere, which pyarrow would take for the beginning of an integer."""
    if b"x" not in data and b"X" not in data:
        return False
    array = np.frombuffer(data, np.uint8)
    return bool(((array[1:] | _LOWER_CASE == ord("x")) & (array[:-1] == ord("0"))).any())


def _may_have_payload(data: bytes) -> bool:
    """Whether there is a nan(1) anywhere, which pyarrow would take for NaN."""
    return b"(" in data and _PAYLOAD.search(data) is not None


def _may_be_hour_alone(data: bytes) -> bool:
    """Whether there is a 2024-02-29T13 anywhere, which pyarrow would take for 13:00."""
    array = np.frombuffer(data + b"\n\n\n", np.uint8)
    marks = np.flatnonzero((array[1:-3] == ord("T")) | (array[1:-3] == ord(" "))) + 1
    if not len(marks):
        return False
    digits = (array - ord("0")) < 10  # unsigned: what is below 0 is far above
    return bool((digits[marks - 1] & digits[marks + 1] & digits[marks + 2] & (array[marks + 3] != ord(":"))).any())


_PAYLOAD = re.compile(rb"[nN]\(")
_SUSPECTS = (
    _Suspect(lambda kind: bool(t.is_integer(kind) or t.is_decimal(kind)), _may_be_hexadecimal),
    _Suspect(t.is_decimal, may_be_tiny),
    _Suspect(t.is_floating, _may_have_payload),
    _Suspect(t.is_timestamp, _may_be_hour_alone),
)


def _cell_cast(
    source: pa.DataType, target: pa.DataType, *, times: TimeFormat | None, ignore_extra: bool
) -> Cast | None:
    """The cast of cells, parsed to ``target`` or to numbers already, or text (see ``lossless.FindCast``)."""
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        if t.is_timestamp(target) or t.is_date(target):
            return within_years
        return _not_infinite if t.is_floating(target) else precision_check(target)
    if times is not None and (numbers := times.number_cast(source, target)) is not None:
        return numbers
    if t.is_nested(target):
        return text_cast(target, empty_is_null=True, parse=nested_parse(target, times, ignore_extra))
    return text_cast(target, empty_is_null=True, parse=times.parser(target) if times is not None else None)


def _not_infinite(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():
        raise Misfit("infinite, or too large a number: its text tells")
    return values


def _copy_to_arrow(data: bytes) -> pa.Buffer:
    """Copies bytes into Arrow's memory: its threads may free a block late, which would need Python's interpreter."""
    copy = pa.allocate_buffer(len(data))
    pa.FixedSizeBufferWriter(copy).write(data)
    return copy
