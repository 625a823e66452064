"""Which format a file has, by its name, and its rows as record batches that fit a table.

===========================  =============  =================================================================
name ends in                 kind           documented in
===========================  =============  =================================================================
``.csv``, ``.tsv``           csv, tsv       ``delimited``: what NULL is, quoting, how rows are counted
``.jsonl .ndjson .json``     jsonl          ``jsonl``: one object per line
``.parquet``                 parquet        ``parquet``
===========================  =============  =================================================================

Each plain, or followed by ``.gz`` (gzip) or ``.zst`` (Zstandard); upper and lower case are one. How text becomes
values of a declared type is documented in ``text``, how types are inferred in ``infer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from dolmen.errors import InputError
from dolmen.format.schema import storable
from dolmen.ingest import delimited, jsonl, parquet
from dolmen.ingest.compression import Compression, OpenFile, open_text

Kind = Literal["csv", "tsv", "jsonl", "parquet"]

_KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}

BLOCK_BYTES = 2 << 20
"""How much text is parsed at once: small enough for many columns of strings in bounded memory, large enough that a
block's fixed costs (about a millisecond) vanish."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a file's name says of its content. ``compression`` is None for a plain file."""

    kind: Kind
    compression: Compression | None = None


def detect(name: str) -> Format:
    """The format of a file of this name; folders before it do not matter.

    Raises:
        InputError: the name says none of the supported formats.
    """
    stem, compression = name.lower(), None
    for ending, codec in _COMPRESSIONS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), codec
            break
    for ending, kind in _KINDS.items():
        if stem.endswith(ending):
            return Format(kind, compression)
    raise InputError(
        f"file {name!r}: its name ends in no supported format; there are {', '.join(_KINDS)}, "
        f"each plain or followed by {' or '.join(_COMPRESSIONS)}"
    )


def infer(open_file: OpenFile, format: Format, *, name: str, block_bytes: int = BLOCK_BYTES) -> pa.Schema:
    """The schema of stored types that holds every row of the file without loss, found by reading ALL of it.

    Args:
        open_file: opens the file from its beginning, each time it is called.
        name: what errors call the file.
        block_bytes: how much text is looked at at once; the result does not depend on it.

    Raises:
        InputError: as for ``read``; also for a file without a single column.
    """
    if format.kind == "parquet":
        return parquet.infer(open_file, format.compression, name)
    with open_text(open_file, format.compression, name) as stream:
        if format.kind == "jsonl":
            return jsonl.infer(stream, name, block_bytes)
        return delimited.infer(stream, name, block_bytes, _DELIMITERS[format.kind])


def read(
    open_file: OpenFile,
    format: Format,
    schema: pa.Schema | None,
    *,
    name: str,
    block_bytes: int = BLOCK_BYTES,
) -> pa.RecordBatchReader:
    """The rows of a file as a stream of batches of exactly ``schema``, in bounded memory, in the file's order.

    Nothing is opened before the first batch is asked for, but with no ``schema``: then the file is read twice, and
    the first time now, to infer the types from all of it.

    Args:
        open_file: opens the file from its beginning, each time it is called; what it returns is closed here.
        schema: the table's columns, of stored types; None to infer them.
        name: what errors call the file.
        block_bytes: how much text is parsed at once; rows and errors do not depend on it.

    Raises:
        SchemaError: the file's columns are not the table's, or a declared type cannot be stored.
        RowError: a row is malformed or a value does not fit its column: names file, line, row and column.
        InputError: the file is damaged, truncated or not of its format.
    """
    if schema is None:
        schema = infer(open_file, format, name=name, block_bytes=block_bytes)
    stored = [storable(field.type) for field in schema]
    schema = pa.schema([f if f.type == kind else f.with_type(kind) for f, kind in zip(schema, stored, strict=True)])
    return pa.RecordBatchReader.from_batches(schema, _batches(open_file, format, schema, name, block_bytes))


def _batches(
    open_file: OpenFile, format: Format, schema: pa.Schema, name: str, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    if format.kind == "parquet":
        yield from parquet.read(open_file, format.compression, schema, name)
        return
    with open_text(open_file, format.compression, name) as stream:
        if format.kind == "jsonl":
            yield from jsonl.read(stream, schema, name, block_bytes)
        else:
            yield from delimited.read(stream, schema, name, block_bytes, _DELIMITERS[format.kind])
