"""An open file of delimited text: its columns, and its blocks of text parsed by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.formats.compression import ByteStream
from dolmen.ingest.formats.csv.headers import columns_by_name, columns_by_place
from dolmen.ingest.formats.csv.quoting import Records, last_record_end
from dolmen.ingest.formats.limits import check_columns
from dolmen.ingest.formats.source import SourceFile
from dolmen.ingest.formats.text.blocks import Block, blocks

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
