"""CSV and TSV: a header line, then one record per row, in the dialect of ``ReadOptions``.

- An empty field is NULL. A quoted empty field (``""``) is the empty string in a string column, no bytes in a binary
  one, and NULL in any other. ``ReadOptions.nulls`` lists the unquoted texts that mean NULL.
- Columns are matched by the header's names, in any case; a name that is missing, empty or repeated is an error. If
  columns that the table lacks are ignored, their names are not checked, and their fields hold any UTF-8.
- Without a header, a record has the table's columns in their order (or, inferred, ``column_1`` and so on). If extra
  fields are ignored, the first record may have more fields than the table; the other records must have as many as it.
- A record must have as many fields as the header; with ``ragged="fill"`` it may have fewer, and the missing ones are
  NULL. Empty lines are skipped, except in a file of one column: there each is a row with NULL, as writers mean it.
- With ``trim``, the spaces around fields and their quotes are removed first.
- Quoted fields may hold delimiters, line ends and doubled quotes (see ``csv_records``). A byte order mark is skipped.
- Line numbers count all lines of the file from 1, including skipped ones and those in quoted fields. Row numbers count
  data rows from 1.
- Lists and structs are written as JSON in their cell; maps cannot be.
- A file without a header is an error; a file with nothing else has no rows.

Each block is first parsed straight into the declared types, after ``csv_for_pyarrow`` has rewritten what pyarrow does
not know. If anything does not fit, the block is parsed again as text; then ``cells`` parses each cell, and errors name
the cell that does not fit.

If bad rows are reported one by one, a record with text after a closing quote is assumed to end with that line. A quote
that is never closed still ends the reading, and so does a header that cannot be read.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyarrow import csv
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.base.units import HOUR_US, KIB, MINUTE_US
from dolmen.errors import InputError, RowError, RowProblem, SchemaError
from dolmen.format.types import TextKind, type_of
from dolmen.ingest.formats.cell_notation import CellNotation
from dolmen.ingest.formats.cells import check_years, may_be_tiny, native_decimal, precision_check, text_cast
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.delimited.csv_for_pyarrow import (
    blank_comments,
    columns_by_name,
    columns_by_position,
    end_line,
    fill_records,
    parse_options,
    protect_nulls,
    trim_fields,
    unused_text,
    without_comments,
)
from dolmen.ingest.formats.delimited.csv_records import Records, Signs, last_record_end
from dolmen.ingest.formats.infer import NOTHING, TEXT, TextShape, shape_of_cells
from dolmen.ingest.formats.json.json_values import unparsed_cast
from dolmen.ingest.formats.source_file import (
    BadRow,
    ByteStream,
    OnBadRow,
    ReadOptions,
    SourceFile,
    good_rows,
    is_mark,
    mark_name,
)
from dolmen.ingest.formats.text_blocks import Block, BrokenRecord, blocks, count_lines, pieces, undecodable_reason
from dolmen.rows.write.casts import Cast, Misfit
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform

_MAX_FILLED = 4_000_000  # the most fields of a block after short records are filled
_HEAD_BYTES = 64 * KIB  # mostly, the header is in them
_LOWER_CASE = 0x20
_PAYLOAD = re.compile(rb"[nN]\(")


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``, one per block of text that has any. Raises as ``formats.read`` does."""
    with source.text() as stream:
        columns = [name for name in schema.names if not is_mark(name)]
        file = DelimitedFile.open(stream, source, columns, isolate_broken=on_bad_row is not None)
        if file is not None:
            converter = _DelimitedConverter(file, schema, source.options, on_bad_row)
            yield from (batch for batch in file.batches(converter.convert) if batch.num_rows)


def infer(source: SourceFile) -> pa.Schema:
    """The types that hold every cell of the file, under its header's names. Raises as ``read`` does."""
    return pa.schema([(name, shape.arrow_type) for name, shape in _shapes(source).items()])


def survey(source: SourceFile, skip_bad_rows: bool) -> pa.Schema:
    """The types that hold every cell, under the header's names; null for an empty column. Empty without a header."""
    if not source.options.dialect.header:
        return pa.schema([])
    shapes = _shapes(source, (lambda _: None) if skip_bad_rows else None)
    return pa.schema([(name, pa.null() if shape == NOTHING else shape.arrow_type) for name, shape in shapes.items()])


def text_cells(
    source: SourceFile, on_bad_row: OnBadRow | None = None, see_data: Callable[[bytes], None] = lambda _: None
) -> Iterator[pa.RecordBatch]:
    """The cells of all rows as text, or NULL. The first batch has no rows; it shows the names of the columns.

    Before each later batch, ``see_data`` is called with its records, as they are in the file. Raises as ``read`` does,
    and InputError for a file without a record.
    """
    with source.text() as stream:
        file = DelimitedFile.open(stream, source, None, isolate_broken=on_bad_row is not None)
        if file is None:
            raise InputError(f"file {source.name!r} is empty: it needs at least a line to infer columns from")
        text = pa.schema(dict.fromkeys(file.columns, pa.string()))
        yield _no_rows(text)
        # Checks of the table are for values, not for their texts.
        converter = _DelimitedConverter(file, text, replace(source.options, checks=()), on_bad_row)

        def convert(block: Block, row: int) -> tuple[pa.RecordBatch, int]:
            see_data(block.data)
            return converter.convert(block, row)

        yield from file.batches(convert)


def _shapes(source: SourceFile, on_bad_row: OnBadRow | None = None) -> dict[str, TextShape]:
    shapes, notation = dict[str, TextShape](), CellNotation.of(source.options.dialect)
    for cells in text_cells(source, on_bad_row):
        for name in cells.schema.names:
            if (shape := shapes.get(name, NOTHING)) != TEXT:
                shapes[name] = shape.join(shape_of_cells(cells[name], notation))
    return shapes


class DelimitedFile(Struct, frozen=True):
    """An open file and the names of its columns; the name of an ignored column is None.

    ``counted_by`` names what sets the number of fields of a record: the header, the first line or the table.
    """

    name: str
    names: Sequence[str | None]
    counted_by: str
    blocks: Iterator[Block]
    signs: Signs
    nulls: tuple[str, ...] = ("",)
    fill: bool = False
    decimal: str = "."

    @classmethod
    def open(
        cls, stream: ByteStream, source: SourceFile, table: list[str] | None, *, isolate_broken: bool
    ) -> DelimitedFile | None:
        """Reads up to the first row. Returns None for a file without a record, if it needs none.

        ``table`` has the table's columns; None infers them. ``isolate_broken``: broken records are blocks of their own.
        """
        name, options, dialect, signs = source.name, source.options, source.options.dialect, signs_of(source)
        ignore_others = options.ignore_extra and table is not None
        remaining = find_blocks(stream, source, source.block_bytes, isolate_broken=isolate_broken)

        def file_of(names: Sequence[str | None], counted_by: str, blocks: Iterator[Block]) -> DelimitedFile:
            return cls(name, names, counted_by, blocks, signs, dialect.nulls, dialect.ragged == "fill", dialect.decimal)

        if table is not None and not (dialect.header or ignore_others):
            return file_of(table, "the table", remaining)
        for block in remaining:
            records = _first_records(block.data, signs)
            if not len(records.starts):
                continue
            start, end = int(records.starts[0]), int(records.ends[0])
            if not dialect.header:
                check_columns(int(records.fields[0]), options.max_columns, name)
                names, counted_by = columns_by_position(int(records.fields[0]), table)
                body = Block(block.data[start:], block.line_at(start), block.problem)
                return file_of(names, counted_by, chain([body], remaining))
            if block.problem is not None:
                raise RowError(block.problem.reason, file=name, line=block.line_at(block.problem.offset))
            header = Block(block.data[start:end], block.line_at(start))
            body = Block(block.data[end:], block.line_at(end))
            names = columns_by_name(header, signs, name, table, ignore_others, options.max_columns, dialect.names)
            return file_of(names, "the header", chain([body], remaining))
        if dialect.header:
            raise InputError(f"file {name!r} is empty: it needs at least a line with the names of its columns")
        return None

    @property
    def columns(self) -> list[str]:
        return [column for column in self.names if column is not None]

    def batches(self, convert: Callable[[Block, int], tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
        """Each block converted, given the 1-based number of its first row; ``convert`` returns its number of rows."""
        row = 1
        try:
            for block in chain.from_iterable(map(self._parts, self.blocks)):
                batch, rows = convert(block, row)
                row += rows
                yield batch
        except RowError as error:
            if error.row is not None:
                raise
            raise RowError(error.reason, file=error.file, line=error.line, row=row) from None  # an open quote

    def _parts(self, block: Block) -> Iterator[Block]:
        """The block, in parts if the fields that its records lack could need much memory."""
        if block.problem is None and self.fill and len(self.names) * count_lines(block.data) > _MAX_FILLED:
            records, rows = self.records(block), max(_MAX_FILLED // len(self.names), 1)
            cuts = [0, *records.starts[rows::rows].tolist(), len(block.data)]
            for begin, end in pairwise(cuts):
                yield Block(block.data[begin:end], block.line_at(begin))
            return
        yield block

    def parse(self, data: bytes, types: dict[str, pa.DataType]) -> pa.RecordBatch:
        """The rows of a block, its columns as ``types``. Raises ArrowInvalid or UnicodeDecodeError."""
        several = len(self.names) > 1
        data = without_comments(data, self.signs)
        if not data or (data.isspace() and several and not data.strip(b"\r\n")):
            return _no_rows(pa.schema(types))
        try:
            return self._parse(data, types, self.nulls)
        except pa.ArrowInvalid:
            if not self.fill:
                raise
            nulls = self.nulls if "" in self.nulls else (*self.nulls, unused_text(data))
            null = b"" if "" in self.nulls else nulls[-1].encode()
            filled = fill_records(data, self.signs, len(self.names), null)
            if filled is data:
                raise
        return self._parse(filled, types, nulls)

    def _parse(self, data: bytes, types: dict[str, pa.DataType], nulls: tuple[str, ...]) -> pa.RecordBatch:
        several, signs = len(self.names) > 1, self.signs
        if any(nulls) and signs.has_escape(data):
            data, signs = protect_nulls(data, signs, nulls, blank_lines_count=not several)
        data = end_line(data, signs)
        begins_with_mark = data.startswith(BOM_UTF8)
        if begins_with_mark:
            data = b"\n" + data  # inside a file the byte order mark is text, and pyarrow would skip it
        names, included = self.columns, None
        if len(names) < len(self.names):
            if not data.isascii():
                data.decode()  # pyarrow does not check columns that it skips
            names = [f"\0{number}" if column is None else column for number, column in enumerate(self.names)]
            included = list(types)
        table = csv.read_csv(
            pa.BufferReader(_copy_to_arrow(data)),
            csv.ReadOptions(column_names=names, block_size=len(data) + 1),
            parse_options(data, signs, skip_blank_lines=several),
            csv.ConvertOptions(
                column_types=types,
                include_columns=included,
                null_values=nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                decimal_point=self.decimal,
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        return batch.slice(1) if begins_with_mark and not several else batch

    def strings(self, block: Block, row: int) -> pa.RecordBatch:
        try:
            return self.parse(block.data, dict.fromkeys(self.columns, pa.string()))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise self._malformed_error(block, row, error) from None

    def records(self, block: Block) -> Records:
        return Records.of(block.data, self.signs, blank_lines_count=len(self.names) == 1)

    def _malformed_error(self, block: Block, row: int, error: ValueError) -> RowError:
        records = self.records(block)
        problems: list[tuple[int, int, str | None, str, RowProblem | None]] = []
        fields = np.maximum(records.fields, len(self.names)) if self.fill else records.fields
        ragged = np.flatnonzero(fields != len(self.names))
        if len(ragged):
            record = int(ragged[0])
            count = int(records.fields[record])
            reason = f"{count} field{'s' if count != 1 else ''} where {self.counted_by} has {len(self.names)}"
            problem: RowProblem | None = "few fields" if count < len(self.names) else None
            if problem:
                reason += "; the setting ingest_ragged can make the others NULL"
            problems.append((record, int(records.starts[record]), None, reason, problem))
        try:
            blank_comments(block.data, self.signs).decode()
        except UnicodeDecodeError as undecodable:
            record, field = records.position(undecodable.start)
            column = self.names[field] if field < len(self.names) else None
            problems.append((record, undecodable.start, column, undecodable_reason(undecodable), "not UTF-8"))
        if not problems:
            return RowError(f"the text cannot be parsed: {error}", file=self.name, line=block.line, row=row)
        record, offset, column, reason, problem = min(problems, key=lambda each: each[:2])
        line = block.line_at(offset)
        return RowError(reason, file=self.name, line=line, row=row + record, column=column, problem=problem)


def signs_of(source: SourceFile) -> Signs:
    return Signs.of(source.options.dialect, source.delimiter)


def find_blocks(
    stream: ByteStream, source: SourceFile, block_bytes: int, *, isolate_broken: bool = False
) -> Iterator[Block]:
    """The blocks of a delimited file, after the lines that its dialect skips. Raises as ``text_blocks.blocks`` does."""
    signs, name, skip_lines = signs_of(source), source.name, source.options.dialect.skip_lines
    find_end = partial(last_record_end, signs=signs)
    found = blocks(stream.read, find_end, name, block_bytes, isolate_broken=isolate_broken, skip_lines=skip_lines)
    return (_trim(block, signs) for block in found) if signs.trim else found


def _first_records(data: bytes, signs: Signs) -> Records:
    """Some of the first records of a block, or all."""
    with suppress(BrokenRecord):
        if len(data) > _HEAD_BYTES and (end := last_record_end(data[:_HEAD_BYTES], False, signs)):
            records = Records.of(data[:end], signs, blank_lines_count=False)
            if len(records.starts):
                return records
    return Records.of(data, signs, blank_lines_count=False)


def _trim(block: Block, signs: Signs) -> Block:
    """The block without the spaces around its fields; a broken record stays as it is."""
    is_trimmed = block.problem is not None or b" " not in block.data
    return block if is_trimmed else Block(trim_fields(block.data, signs), block.line)


def _copy_to_arrow(data: bytes) -> pa.Buffer:
    """Copies bytes into Arrow's memory: its threads may free a block late, which would need Python's interpreter."""
    copy = pa.allocate_buffer(len(data))
    pa.FixedSizeBufferWriter(copy).write(data)
    return copy


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


class _DelimitedConverter:
    """Converts blocks of a file to batches of a schema; without ``on_bad_row``, the first bad row is an error."""

    def __init__(
        self, file: DelimitedFile, schema: pa.Schema, options: ReadOptions, on_bad_row: OnBadRow | None
    ) -> None:
        self._file, self._schema, self._on_bad_row = file, schema, on_bad_row
        self._defaults, self._checks = options.defaults, options.checks
        notation = CellNotation.of(options.dialect)
        self._find_cast = partial(_cell_cast, notation=notation, ignore_extra=options.ignore_extra)
        native = {field.name: _native_type(field.type, notation) for field in schema}
        self._native = {name: kind for name, kind in native.items() if kind is not None}
        names = set(schema.names)
        self._placeholder_columns = [column for column in file.columns if mark_name(column) in names]
        self._placeholders = pa.array(options.placeholders, pa.string())
        self._placeholder_bytes = [text.encode() for text in options.placeholders] if self._placeholder_columns else []
        self._plans: dict[tuple[int, ...], tuple[dict[str, pa.DataType], CastPlan]] = {}
        try:
            _, self._text_plan = self._plan({}, [mark_name(column) for column in self._placeholder_columns])
            self._plan(self._native)
        except SchemaError as error:
            raise SchemaError(f"file {file.name!r}: {error}", column=error.column) from None

    def _plan(
        self, native: dict[str, pa.DataType], marks: Sequence[str] = ()
    ) -> tuple[dict[str, pa.DataType], CastPlan]:
        """The types that pyarrow parses the columns as, and the conversions that follow."""
        types = {column: native.get(column, pa.string()) for column in self._file.columns}
        own = pa.schema(types | dict.fromkeys(marks, pa.int8()))
        return types, plan_conform(own, self._schema, self._find_cast, self._defaults, checks=self._checks)

    def _parse(self, data: bytes) -> tuple[pa.RecordBatch, CastPlan]:
        """A block as pyarrow parses it, and the conversions that follow. Columns that it may misread are text."""
        values = data
        if self._file.signs.has_escape(data):  # pyarrow removes escapes before it parses values
            values = data.replace((self._file.signs.escape or "").encode(), b"")
        doubts = tuple(
            index
            for index, (is_affected, may_be_in) in enumerate(_SUSPECTS)
            if any(map(is_affected, self._native.values())) and may_be_in(values)
        )
        types, plan = self._plan_for(doubts)
        batch = self._file.parse(data, types)
        if any(map(_may_have_hour_alone, batch.columns)) and _may_be_hour_alone(values):
            types, plan = self._plan_for((*doubts, len(_SUSPECTS)))
            batch = self._file.parse(data, types)
        return batch, plan

    def _plan_for(self, doubts: tuple[int, ...]) -> tuple[dict[str, pa.DataType], CastPlan]:
        """The plan for a block that may have what these ``_SUSPECTS`` are about, or hours alone."""
        if doubts not in self._plans:
            checks = [(*(is_affected for is_affected, _ in _SUSPECTS), t.is_timestamp)[index] for index in doubts]
            sure = {name: kind for name, kind in self._native.items() if not any(check(kind) for check in checks)}
            self._plans[doubts] = self._plan(sure)
        return self._plans[doubts]

    def convert(self, block: Block, row: int) -> tuple[pa.RecordBatch, int]:
        """The block's good rows, and the number of all its rows. Raises RowError if there is no ``on_bad_row``."""
        signs = self._file.signs
        if self._on_bad_row is not None and block.problem is not None:
            line = block.line_at(block.problem.offset)
            # A broken record ends with its line, even if an escape precedes the line end.
            self._on_bad_row(BadRow(block.problem.reason, row, line, None, block.data.rstrip(b"\r\n")))
            return _no_rows(self._schema), 1
        try:
            batch = self._convert(block, row)
            return batch, batch.num_rows
        except RowError:
            if self._on_bad_row is None:
                raise
        records = self._file.records(block)

        def convert_part(start: int, stop: int) -> pa.RecordBatch:
            begin, end = int(records.starts[start]), int(records.ends[stop - 1])
            batch = self._convert(Block(block.data[begin:end], block.line_at(begin)), row + start)
            assert batch.num_rows == stop - start
            return batch

        def text(index: int) -> bytes:
            return signs.without_line_end(block.data[records.starts[index] : records.ends[index]])

        count = len(records.starts)
        good = good_rows(count, row, convert_part, text, self._on_bad_row)
        return pa.concat_batches(good) if good else _no_rows(self._schema), count

    def _convert(self, block: Block, row: int) -> pa.RecordBatch:
        """The block's rows. Raises RowError for the first that is malformed or does not fit."""
        may_be_escaped = bool(self._placeholder_bytes) and self._file.signs.has_escape(block.data)
        if not (may_be_escaped or any(text in block.data for text in self._placeholder_bytes)):
            try:
                parsed, plan = self._parse(block.data)
                return conform_batch(parsed, plan, first_row=row)
            except (pa.ArrowInvalid, UnicodeDecodeError, RowError):
                pass  # parsing the block as text shows what is wrong, if anything
        try:
            strings = self._file.strings(block, row)
        except RowError as error:
            if start := self._start(block, error, row):  # a row above may have an earlier problem: report that one
                self._convert(Block(block.data[:start], block.line), row)
            raise
        try:
            return conform_batch(self._mark_placeholders(strings), self._text_plan, first_row=row)
        except RowError as error:
            line = block.line_at(self._start(block, error, row))
            raise RowError(error.reason, file=self._file.name, line=line, row=error.row, column=error.column) from None

    def _mark_placeholders(self, strings: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as text, with NULL and a mark for each placeholder."""
        columns = dict(zip(strings.schema.names, strings.columns, strict=True))
        for column in self._placeholder_columns:
            is_placeholder = pc.is_in(columns[column], self._placeholders)
            columns[column] = pc.if_else(is_placeholder, pa.scalar(None, pa.string()), columns[column])
            columns[mark_name(column)] = pc.if_else(is_placeholder, pa.scalar(0, pa.int8()), pa.scalar(None, pa.int8()))
        return pa.RecordBatch.from_pydict(columns) if self._placeholder_columns else strings

    def _start(self, block: Block, error: RowError, row: int) -> int:
        return int(self._file.records(block).starts[(error.row or row) - row])


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
"""By grammar of text (``ColumnType.text``): whether pyarrow's CSV reader reads it as dolmen does, or refuses it."""


def _native_type(target: pa.DataType, notation: CellNotation) -> pa.DataType | None:
    """The type that pyarrow's CSV reader parses the cells of a column as; None for text."""
    times = notation.times
    if times is not None and times.parser(target) is not None:
        number = times.parser_type(target)
        return number if number is not None and t.is_integer(number) else None
    column_type = type_of(target)
    if column_type is None or column_type.text is None or not NATIVE[column_type.text]:
        return None
    if not notation.may_be_native(target):
        return None
    return native_decimal(target) if t.is_decimal(target) else target


def _may_be_hexadecimal(data: bytes) -> bool:
    """Whether there is a 0x anywhere, which pyarrow would take for the beginning of an integer."""
    if b"x" not in data and b"X" not in data:
        return False
    return any(((piece[1:] | _LOWER_CASE == ord("x")) & (piece[:-1] == ord("0"))).any() for piece in pieces(data, 1))


def _may_have_payload(data: bytes) -> bool:
    """Whether there is a nan(1) anywhere, which pyarrow would take for NaN."""
    return b"(" in data and _PAYLOAD.search(data) is not None


def _may_have_hour_alone(values: pa.Array) -> bool:
    """Whether a time of a parsed column may have been written as an hour alone: it has no seconds, nor minutes.

    With a UTC offset, the minutes may be any.
    """
    kind = values.type
    if not t.is_timestamp(kind) or kind.unit != "us":
        return bool(t.is_timestamp(kind))
    times = values.view(pa.int64()).fill_null(1).to_numpy()
    step = MINUTE_US if kind.tz else HOUR_US
    return bool((times // step * step == times).any())


def _may_be_hour_alone(data: bytes) -> bool:
    """Whether there is a 2024-02-29T13 anywhere, which pyarrow would take for 13:00."""
    return any(map(_has_hour_alone, pieces(data, 4, end=b"\n\n\n")))


def _has_hour_alone(array: npt.NDArray[np.uint8]) -> bool:
    mark, digit = array[1:-3], ord("0")  # unsigned: a character before "0" gives a large number
    doubtful = ((mark == ord("T")) | (mark == ord(" "))) & (array[:-4] - digit < 10) & (array[4:] != ord(":"))
    marks = np.flatnonzero(doubtful) + 1
    return bool(((array[marks + 1] - digit < 10) & (array[marks + 2] - digit < 10)).any())


_SUSPECTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[bytes], bool]], ...] = (
    (lambda kind: bool(t.is_integer(kind) or t.is_decimal(kind)), _may_be_hexadecimal),
    (t.is_decimal, may_be_tiny),
    (t.is_floating, _may_have_payload),
)
"""Text that pyarrow's CSV reader accepts and ``cells`` refuses: whether it concerns a type, and whether a block may
contain it: a cheap check, which seldom finds it where it is not. Hours alone are looked for only if there is a time
that may have been one (``_may_have_hour_alone``), which takes a twentieth of the time."""


def _cell_cast(source: pa.DataType, target: pa.DataType, *, notation: CellNotation, ignore_extra: bool) -> Cast | None:
    """The cast to ``target`` of cells as text, or of values that pyarrow has parsed (see ``casts.FindCast``)."""
    if source == target or (t.is_decimal(source) and t.is_decimal(target)):
        if t.is_timestamp(target) or t.is_date(target):
            return check_years
        return _check_not_infinite if t.is_floating(target) else precision_check(target)
    if (parse := notation.parser(target)) is not None:
        return text_cast(target, empty_is_null=True, parse=parse)
    return unparsed_cast(source, target, notation.times, ignore_extra, empty_is_null=True)


def _check_not_infinite(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():
        raise Misfit("infinite, or too large: only its text shows which")
    return values
