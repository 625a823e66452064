"""Finds the format of a file by its name, and reads its rows as record batches that fit a table.

==============================  =========  ==========================================================================
name ends in                    kind       documented in
==============================  =========  ==========================================================================
``.csv``, ``.tsv``              csv, tsv   ``delimited``: what NULL is, quoting, how rows are counted
``.jsonl .ndjson .json``        jsonl      ``jsonl``: one object per line
``.parquet``                    parquet    ``parquet``
``.arrow .arrows .feather``     arrow      ``arrow``: IPC files and streams
``.ipc``
``.avro``                       avro       ``avro``: object container files
==============================  =========  ==========================================================================

Each plain, or followed by ``.gz`` (gzip), ``.zst`` (Zstandard) or ``.bz2`` (bzip2); upper and lower case are one. How
text becomes values of a declared type is documented in ``text`` and ``times``, how types are inferred in ``infer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from dolmen.errors import InputError
from dolmen.format.ingest_properties import COMPRESSIONS, ENDINGS, FileKind
from dolmen.format.schema import storable
from dolmen.ingest.formats.avro import container as avro
from dolmen.ingest.formats.columnar import arrow, parquet_reader
from dolmen.ingest.formats.csv import delimited as csv
from dolmen.ingest.formats.json import jsonl
from dolmen.ingest.formats.reader_options import BadRow, OnBadRow, ReadOptions
from dolmen.ingest.formats.source_file import Format, SourceFile

__all__ = [
    "READERS",
    "BadRow",
    "FileKind",
    "Format",
    "OnBadRow",
    "ReadOptions",
    "SourceFile",
    "detect",
    "infer",
    "read",
    "survey",
]


class FormatReader(Protocol):
    """A module that reads files of one format."""

    def infer(self, source: SourceFile) -> pa.Schema:
        """The stored types that hold every row of a file."""

    def survey(self, source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
        """The file's columns, with type null for one that holds nothing."""

    def read(self, source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None) -> Iterator[pa.RecordBatch]:
        """The rows of a file as batches of ``schema``."""


READERS: dict[FileKind, FormatReader] = {
    "csv": csv,
    "tsv": csv,
    "jsonl": jsonl,
    "parquet": parquet_reader,
    "arrow": arrow,
    "avro": avro,
}
"""The module that reads files of each format."""


def detect(name: str, kind: FileKind | None = None) -> Format:
    """The format of a file of this name; folders before it do not matter.

    Args:
        kind: what the content is, whatever the name says; the name still tells how it is compressed.

    Raises:
        InputError: the name says none of the supported formats.
    """
    stem, compression = name.lower(), None
    for ending, codec in COMPRESSIONS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), codec
            break
    if kind is not None:
        return Format(kind, compression)
    for ending, named in ENDINGS.items():
        if stem.endswith(ending):
            return Format(named, compression)
    *others, last = COMPRESSIONS
    raise InputError(
        f"file {name!r}: its name ends in no supported format; there are {', '.join(ENDINGS)}, "
        f"each plain or followed by {', '.join(others)} or {last}"
    )


def infer(source: SourceFile) -> pa.Schema:
    """The schema of stored types that holds every row of the file without loss, found by reading ALL of it.

    Nothing counts as extra where there is no table yet. The result does not depend on ``source.block_bytes``.

    Raises:
        InputError: as for ``read``; also for a file without a single column.
    """
    return READERS[source.format.kind].infer(source)


def survey(source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
    """The columns of a file for a table that may get them, with the types that ``infer`` finds.

    A column that says no type has type null: one of text without a single value. A file of CSV without a header has
    no names, so no columns.

    Args:
        skip_bad_rows: leave out malformed rows, which are errors otherwise.

    Raises:
        InputError: as for ``read``.
    """
    return READERS[source.format.kind].survey(source, skip_bad_rows=skip_bad_rows)


def read(source: SourceFile, schema: pa.Schema | None, *, on_bad_row: OnBadRow | None = None) -> pa.RecordBatchReader:
    """The rows of a file as a stream of batches of exactly ``schema``, in bounded memory, in the file's order.

    Nothing is opened before the first batch is asked for, but with no ``schema``: then the file is read twice, and
    the first time now, to infer the types from all of it.

    Args:
        schema: the table's columns, of stored types; None to infer them.
        on_bad_row: called with each row that is malformed or does not fit; the rest is read on. Faults that are
            not of one row are still errors: a damaged file, columns that are not the table's, a record without an
            end. With no ``schema``, a malformed row is one too: types are inferred from all rows.

    Raises:
        SchemaError: the file's columns are not the table's, or a declared type cannot be stored.
        RowError: a row is malformed or a value does not fit its column: names file, line, row and column.
        InputError: the file is damaged, truncated, not of its format, or holds more than it may.
    """
    if schema is None:
        schema = infer(source)
    stored = [storable(field.type) for field in schema]
    schema = pa.schema([f if f.type == kind else f.with_type(kind) for f, kind in zip(schema, stored, strict=True)])
    return pa.RecordBatchReader.from_batches(schema, _batches(source, schema, on_bad_row))


def _batches(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None) -> Iterator[pa.RecordBatch]:
    yield from READERS[source.format.kind].read(source, schema, on_bad_row)
