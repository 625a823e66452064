"""An open file of delimited text: its columns, and its blocks of text parsed by pyarrow.

Finds the columns of delimited text: by a header, or by their places.

A column that is ignored has no name here: None.

Blocks of delimited text as batches of a table's types, and the places of rows that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.schema import own_names
from dolmen.ingest.formats.column_limits import check_columns
from dolmen.ingest.formats.csv.quoting import SUSPECTS, Records, cell_cast, last_record_end, native_type, without_doubts
from dolmen.ingest.formats.reader_options import BadRow, OnBadRow, ReadOptions, good_rows, mark_name
from dolmen.ingest.formats.source_file import ByteStream, SourceFile
from dolmen.ingest.formats.text.text_blocks import Block, blocks
from dolmen.rows.write.conform import CastPlan, conform_batch, plan_conform


def columns_by_place(fields: int, wanted: list[str] | None) -> tuple[Sequence[str | None], str]:
    """The columns of a file whose first record has ``fields`` fields, and the words for what sets that number.

    Args:
        wanted: the table's columns, where others are ignored; None to make names up.
    """
    if wanted is None:
        return [f"column_{place}" for place in range(1, fields + 1)], "the first line"
    if fields > len(wanted):
        return [*wanted, *[None] * (fields - len(wanted))], "the first line"
    return wanted, "the table"


def columns_by_name(
    header: Block, delimiter: str, name: str, wanted: list[str] | None, ignored: bool, most: int
) -> Sequence[str | None]:
    """The columns that a header names.

    Args:
        name: of the file, for errors.
        wanted: the table's columns, which are found in any case; None to infer them.
        ignored: whether other columns are ignored.
        most: the most columns that there may be.

    Raises:
        LimitError: there are more.
        RowError: the header is not UTF-8.
        SchemaError: a column has no name, or is there twice, or none is wanted.
    """
    where = f"file {name!r}, line {header.line}"
    try:
        header.data.decode()
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: {error.reason}", file=name, line=header.line) from None
    count = int(Records.of(header.data, delimiter, blank_lines_count=True).fields[0])
    check_columns(count, most, name)
    places = [str(place) for place in range(count)]
    cells = csv.read_csv(
        pa.BufferReader(header.data),
        csv.ReadOptions(column_names=places, block_size=len(header.data) + 1, use_threads=False),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False),
    )
    given: list[str] = [column[0].as_py() for column in cells.columns]
    names = own_names(given, wanted or ())
    known = set(wanted or ()) if ignored else None
    kept: list[str | None] = [column if known is None or column in known else None for column in names]
    if not any(column is not None for column in kept):
        raise SchemaError(f"{where}: no column is one of the table's; there are: {', '.join(wanted or ())}")
    seen: dict[str, str] = {}
    for place, (column, spelled) in enumerate(zip(kept, given, strict=True), 1):
        if column == "":
            hint = " (an index that pandas wrote? leave it out with index=False)" if place == 1 else ""
            raise SchemaError(f"{where}: column {place} has no name{hint}")
        if column in seen and seen[column] != spelled:
            reason = f"columns {seen[column]!r} and {spelled!r} differ in case only: rename one, or drop it"
            raise SchemaError(f"{where}: {reason}", column=column)
        if column in seen:
            raise SchemaError(f"{where}: column {column!r} is there twice", column=column)
        if column is not None:
            seen[column] = spelled
    return kept


_MARK = b"\xef\xbb\xbf"


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of a schema without rows."""
    return pa.RecordBatch.from_pylist([], schema)


def with_count(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """A batch, and the number of its rows."""
    return batch, batch.num_rows


@dataclass(frozen=True)
class DelimitedFile:
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
        source: SourceFile,
        wanted: list[str] | None,
        *,
        go_on: bool = False,
    ) -> DelimitedFile | None:
        """Reads as far as the columns are known.

        Args:
            wanted: the table's columns; None to infer them.
            go_on: whether broken records are blocks of their own (see ``blocks``).

        Returns:
            None for a file without a record, if it needs none.
        """
        name, options, delimiter = source.name, source.options, source.delimiter
        nulls, ignored = options.nulls, options.ignore_extra and wanted is not None
        rest = blocks(stream, partial(last_record_end, delimiter=delimiter), name, source.block_bytes, go_on=go_on)
        if not (options.header or ignored or wanted is None):
            return cls(name, wanted, "the table", rest, delimiter, nulls)
        for block in rest:
            records = Records.of(block.data, delimiter, blank_lines_count=False)
            if not len(records.starts):
                continue
            start = int(records.starts[0])
            if not options.header:
                check_columns(int(records.fields[0]), options.max_columns, name)
                names, said_by = columns_by_place(int(records.fields[0]), wanted)
                body = Block(block.data[start:], block.line_at(start), block.fault)
                return cls(name, names, said_by, chain([body], rest), delimiter, nulls)
            if block.fault is not None:
                raise RowError(block.fault.reason, file=name, line=block.line_at(block.fault.offset))
            end = int(records.ends[0])
            header = Block(block.data[start:end], block.line_at(start))
            body = Block(block.data[end:], block.line_at(end))
            names = columns_by_name(header, delimiter, name, wanted, ignored, options.max_columns)
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
            return no_rows(pa.schema(list(types.items())))
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


def _copy_to_arrow(data: bytes) -> pa.Buffer:
    """Copies bytes into Arrow's memory: its threads may free a block late, which would need Python's interpreter."""
    copy = pa.allocate_buffer(len(data))
    pa.FixedSizeBufferWriter(copy).write(data)
    return copy


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
