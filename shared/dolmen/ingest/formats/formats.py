"""Which format a file has, by its name, and its rows as record batches that fit a table.

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
from dataclasses import dataclass, replace

import pyarrow as pa

from dolmen.errors import InputError
from dolmen.format.ingest_properties import FileKind
from dolmen.format.schema import storable
from dolmen.ingest.formats.avro import container as avro
from dolmen.ingest.formats.columnar import arrow, parquet
from dolmen.ingest.formats.compression import Compression, OpenFile, open_text
from dolmen.ingest.formats.csv import delimited
from dolmen.ingest.formats.json import infer as json_infer
from dolmen.ingest.formats.json import jsonl
from dolmen.ingest.formats.options import BadRow, OnBadRow, ReadOptions

__all__ = ["BLOCK_BYTES", "BadRow", "FileKind", "Format", "OnBadRow", "ReadOptions", "detect", "infer", "read"]

_KINDS: dict[str, FileKind] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".avro": "avro",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DEFAULTS = ReadOptions()

BLOCK_BYTES = 2 << 20
"""How much text is parsed at once: small enough for many columns of strings in bounded memory, large enough that a
block's fixed costs (about a millisecond) vanish."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a file's content is to be understood. ``compression`` is None for a plain file."""

    kind: FileKind
    compression: Compression | None = None


def detect(name: str, kind: FileKind | None = None) -> Format:
    """The format of a file of this name; folders before it do not matter.

    Args:
        kind: what the content is, whatever the name says; the name still tells how it is compressed.

    Raises:
        InputError: the name says none of the supported formats.
    """
    stem, compression = name.lower(), None
    for ending, codec in _COMPRESSIONS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), codec
            break
    if kind is not None:
        return Format(kind, compression)
    for ending, named in _KINDS.items():
        if stem.endswith(ending):
            return Format(named, compression)
    *others, last = _COMPRESSIONS
    raise InputError(
        f"file {name!r}: its name ends in no supported format; there are {', '.join(_KINDS)}, "
        f"each plain or followed by {', '.join(others)} or {last}"
    )


def infer(
    open_file: OpenFile,
    format: Format,
    *,
    name: str,
    options: ReadOptions = _DEFAULTS,
    block_bytes: int = BLOCK_BYTES,
) -> pa.Schema:
    """The schema of stored types that holds every row of the file without loss, found by reading ALL of it.

    Args:
        open_file: opens the file from its beginning, each time it is called.
        name: what errors call the file.
        options: how to read it; nothing is extra where there is no table yet.
        block_bytes: how much text is looked at at once; the result does not depend on it.

    Raises:
        InputError: as for ``read``; also for a file without a single column.
    """
    compression = format.compression
    if format.kind == "parquet":
        return parquet.infer(open_file, compression, name, options)
    if format.kind == "arrow":
        return arrow.infer(open_file, compression, name, options)
    if format.kind == "avro":
        return avro.infer(open_file, compression, name, options)
    with open_text(open_file, compression, name, options.max_bytes) as stream:
        if format.kind == "jsonl":
            return json_infer.infer(stream, name, block_bytes, options)
        return delimited.infer(stream, name, block_bytes, _delimited(format, options))


def read(
    open_file: OpenFile,
    format: Format,
    schema: pa.Schema | None,
    *,
    name: str,
    options: ReadOptions = _DEFAULTS,
    on_bad_row: OnBadRow | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> pa.RecordBatchReader:
    """The rows of a file as a stream of batches of exactly ``schema``, in bounded memory, in the file's order.

    Nothing is opened before the first batch is asked for, but with no ``schema``: then the file is read twice, and
    the first time now, to infer the types from all of it.

    Args:
        open_file: opens the file from its beginning, each time it is called; what it returns is closed here.
        schema: the table's columns, of stored types; None to infer them.
        name: what errors call the file.
        options: how to read it.
        on_bad_row: is told of each row that is malformed or does not fit, and the rest is read on. Faults that are
            not of one row are errors still: a damaged file, columns that are not the table's, a record without an
            end. With no ``schema``, a malformed row is one too: types are inferred from all rows.
        block_bytes: how much text is parsed at once; rows and errors do not depend on it.

    Raises:
        SchemaError: the file's columns are not the table's, or a declared type cannot be stored.
        RowError: a row is malformed or a value does not fit its column: names file, line, row and column.
        InputError: the file is damaged, truncated, not of its format, or holds more than it may.
    """
    if schema is None:
        schema = infer(open_file, format, name=name, options=options, block_bytes=block_bytes)
    stored = [storable(field.type) for field in schema]
    schema = pa.schema([f if f.type == kind else f.with_type(kind) for f, kind in zip(schema, stored, strict=True)])
    batches = _batches(open_file, format, schema, name, block_bytes, options, on_bad_row)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _batches(
    open_file: OpenFile,
    format: Format,
    schema: pa.Schema,
    name: str,
    block_bytes: int,
    options: ReadOptions,
    on_bad_row: OnBadRow | None,
) -> Iterator[pa.RecordBatch]:
    compression = format.compression
    if format.kind == "parquet":
        yield from parquet.read(open_file, compression, schema, name, options, on_bad_row)
    elif format.kind == "arrow":
        yield from arrow.read(open_file, compression, schema, name, options, on_bad_row)
    elif format.kind == "avro":
        yield from avro.read(open_file, compression, schema, name, options, on_bad_row)
    else:
        with open_text(open_file, compression, name, options.max_bytes) as stream:
            if format.kind == "jsonl":
                yield from jsonl.read(stream, schema, name, block_bytes, options, on_bad_row)
            else:
                options = _delimited(format, options)
                yield from delimited.read(stream, schema, name, block_bytes, options, on_bad_row)


def _delimited(format: Format, options: ReadOptions) -> ReadOptions:
    """The options with a delimiter."""
    return options if options.delimiter else replace(options, delimiter=_DELIMITERS[format.kind])
