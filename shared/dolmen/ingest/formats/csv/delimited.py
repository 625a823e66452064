"""CSV and TSV: UTF-8, a header line, then one record per row.

- An empty field is NULL. A quoted empty field (``""``) is the empty string in a string column, no bytes in a binary
  one, and NULL in any other.
  Other texts that mean NULL can be given; they do unless they are quoted.
- Columns are matched by the header's names, in any case; a name missing, empty or there twice is an error. Where
  columns that the table does not have are ignored, their names may be anything, and their fields hold any UTF-8.
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

Where bad rows are reported one by one, a record with text after a closing quote is taken to end with that line; a quote
that is never closed still ends the reading, and so does a header that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from dolmen.errors import InputError
from dolmen.ingest.formats.csv.delimited_file import DelimitedConverter, DelimitedFile, with_count
from dolmen.ingest.formats.reader_options import BadRow, OnBadRow, is_mark
from dolmen.ingest.formats.source_file import SourceFile
from dolmen.ingest.formats.text.infer import NOTHING, TEXT, shape_of_cells


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a delimited file as batches of ``schema``, one per block of text that has any.

    Args:
        on_bad_row: called with each bad row; None raises an error for the first.

    Raises:
        SchemaError: the header does not match the schema.
        RowError: a malformed record, or a cell that does not fit its column.
    """
    with source.text() as stream:
        columns = [name for name in schema.names if not is_mark(name)]
        file = DelimitedFile.open(stream, source, columns, go_on=on_bad_row is not None)
        if file is None:
            return
        converter = DelimitedConverter(file, schema, source.options)
        convert = converter.convert if on_bad_row is None else partial(converter.convert_good, on_bad_row=on_bad_row)
        for batch in file.batches(convert):
            if batch.num_rows:
                yield batch


def infer(source: SourceFile) -> pa.Schema:
    """The types that hold every cell of the file, by its header's names. Raises as ``read`` does."""
    with source.text() as stream:
        file = DelimitedFile.open(stream, source, None)
        if file is None:
            raise InputError(f"file {source.name!r} is empty: it needs at least a line to infer columns from")
        shapes = [NOTHING] * len(file.names)
        times = source.options.times
        for strings in file.batches(lambda block, row: with_count(file.strings(block, row))):
            shapes = [
                shape if shape == TEXT else shape.join(shape_of_cells(cells, times))
                for cells, shape in zip(strings.columns, shapes, strict=True)
            ]
    return pa.schema([pa.field(column, shape.arrow_type) for column, shape in zip(file.kept, shapes, strict=True)])


def survey(source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
    """The types that hold every cell, by the header's names; null for a column without any. None without a header.

    Args:
        skip_bad_rows: leave out malformed records, which are errors otherwise.
    """
    if not source.options.header:
        return pa.schema([])
    with source.text() as stream:
        file = DelimitedFile.open(stream, source, None, go_on=skip_bad_rows)
        assert file is not None
        names, times = file.kept, source.options.times
    shapes = [NOTHING] * len(names)
    text = pa.schema([(name, pa.string()) for name in names])
    for cells in read(source, text, _skip if skip_bad_rows else None):
        shapes = [
            shape if shape == TEXT else shape.join(shape_of_cells(column, times))
            for column, shape in zip(cells.columns, shapes, strict=True)
        ]
    kinds = [pa.null() if shape == NOTHING else shape.arrow_type for shape in shapes]
    return pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])


def _skip(bad: BadRow) -> None:
    """Leaves a bad row out."""
