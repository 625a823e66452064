"""Picks the reader of a file by its name, and reads its rows as record batches that fit a table.

==============================  =========  ==========================================================================
name ends in                    kind       documented in
==============================  =========  ==========================================================================
``.csv``, ``.tsv``              csv, tsv   ``csv_reader``: what NULL is, quoting, how rows are counted
``.jsonl .ndjson .json``        jsonl      ``jsonl``: one object per line
``.parquet``                    parquet    ``parquet_reader``
``.arrow .arrows .feather``     arrow      ``arrow``: IPC files and streams
``.ipc``
``.avro``                       avro       ``avro_reader``: object container files
``.orc``                        orc        ``orc_reader``
``.xlsx .xlsm .xltx``, ``.ods`` excel      ``sheet_reader``: one sheet of a workbook
==============================  =========  ==========================================================================

Each ending may be followed by ``.gz`` (gzip), ``.zst`` (Zstandard), ``.bz2`` (bzip2) or ``.zip`` (a zip archive of one
file), in upper or lower case.
``cells`` documents how text becomes values of a declared type, ``infer`` how types are inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import pyarrow as pa
from msgspec import Struct

from dolmen.adopt.hive_folders import folder_values, infer_type, parse_value
from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.ingest_properties import COMPRESSIONS, ENDINGS, FileKind, split_name
from dolmen.format.schema import own_names, stored_type
from dolmen.format.types import to_json, to_plain
from dolmen.ingest.formats import arrow, orc_reader, parquet_reader
from dolmen.ingest.formats.avro import avro_reader
from dolmen.ingest.formats.delimited import csv_reader
from dolmen.ingest.formats.json import json_types, jsonl
from dolmen.ingest.formats.sheets import sheet_reader
from dolmen.ingest.formats.source_file import BadRow, Format, OnBadRow, ReadOptions, SourceFile
from dolmen.ingest.formats.typed_batches import inferred_schema, name_columns, surveyed_schema
from dolmen.ingest.formats.zip_archive import ZipArchive


def read_with_folders(
    source: SourceFile, schema: pa.Schema, read: Callable[[SourceFile, pa.Schema], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Reads a file, with the columns that its options name from its folders. Raises SchemaError.

    A file may have such a column, too, if it has the same value, or NULL, in all rows. A delimited file without
    a header must have only the other columns.
    """
    values = _folder_scalars(source, schema)
    options = source.options
    is_positional = source.format.traits.delimiter is not None and not options.dialect.header
    if is_positional:
        own = pa.schema([field for field in schema if field.name not in values])
    else:
        own = pa.schema([field.with_nullable(True) if field.name in values else field for field in schema])
        defaults = {name: to_json(to_plain(pa.array([value]))[0]) for name, value in values.items()}
        options = replace(options, defaults={**options.defaults, **defaults})
    for batch in read(replace(source, options=replace(options, folders=())), own):
        arrays = []
        for field in schema:
            value = values.get(field.name)
            if value is None:
                arrays.append(batch[field.name])
                continue
            if not is_positional and not _agrees(batch[field.name], value):
                raise SchemaError(
                    f"{source.name}: column {field.name!r} differs in the file from the value {value} in its folder"
                )
            arrays.append(pa.repeat(value, batch.num_rows))
        yield pa.record_batch(arrays, schema)


def _folder_scalars(source: SourceFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of the columns, by name in the schema."""
    try:
        texts = folder_values(source.name.split("/")[:-1])
        wanted = own_names(source.options.folders, schema)
        found = dict(zip(own_names(texts, schema), texts.values(), strict=True))
        if unknown := sorted(found.keys() - set(wanted)):
            raise SchemaError(f"no column {unknown[0]!r} is read from folders: they are {', '.join(wanted)}")
        scalars = {}
        for name in wanted:
            if name not in schema.names:
                continue  # only some columns are read
            if name not in found:
                raise SchemaError(f"no folder has a value of column {name!r}, as in {name}=...")
            try:
                scalars[name] = parse_value(found[name], schema.field(name).type)
            except SchemaError as error:
                raise SchemaError(f"column {name!r}: {error}") from None
            if found[name] is None and not schema.field(name).nullable:
                raise SchemaError(f"column {name!r} is NULL in a folder, and it cannot be NULL")
    except SchemaError as error:
        raise SchemaError(f"{source.name}: {error}") from None
    return scalars


def _agrees(column: pa.Array, value: pa.Scalar) -> bool:
    """True if all values are this one, or NULL."""
    if not value.is_valid:
        return bool(column.null_count == len(column))
    return pc.all(pc.equal(column, value), min_count=0).as_py() is not False


def folder_fields(columns: Sequence[str], files: Iterable[str]) -> list[pa.Field]:
    """These columns of a new table, with types that fit the folders of all files."""
    values = [folder_values(name.split("/")[:-1]) for name in files]
    return [pa.field(name, infer_type(each.get(name) for each in values)) for name in columns]


__all__ = [
    "READERS",
    "BadRow",
    "Format",
    "OnBadRow",
    "ReadOptions",
    "SourceFile",
    "detect",
    "detect_file",
    "infer",
    "read",
    "survey",
]


class FormatReader(Struct, frozen=True):
    """Reads files of one format; see the functions of these names."""

    infer: Callable[[SourceFile], pa.Schema]
    survey: Callable[[SourceFile, bool], pa.Schema]
    read: Callable[[SourceFile, pa.Schema, OnBadRow | None], Iterator[pa.RecordBatch]]
    # the columns as the file itself describes them; None if it does not
    own_schema: Callable[[SourceFile], pa.Schema] | None = None


def _typed_reader(
    own_schema: Callable[[SourceFile], pa.Schema],
    read: Callable[[SourceFile, pa.Schema, OnBadRow | None], Iterator[pa.RecordBatch]],
) -> FormatReader:
    return FormatReader(
        lambda source: inferred_schema(own_schema(source), source),
        lambda source, skip_bad_rows: surveyed_schema(name_columns(own_schema(source), source), source.name),
        read,
        own_schema,
    )


_CSV = FormatReader(csv_reader.infer, csv_reader.survey, csv_reader.read)
READERS: dict[FileKind, FormatReader] = {
    "csv": _CSV,
    "tsv": _CSV,
    "jsonl": FormatReader(json_types.infer, json_types.survey, jsonl.read),
    "parquet": _typed_reader(parquet_reader.own_schema, parquet_reader.read),
    "arrow": _typed_reader(arrow.own_schema, arrow.read),
    "avro": _typed_reader(avro_reader.own_schema, avro_reader.read),
    "orc": _typed_reader(orc_reader.own_schema, orc_reader.read),
    "excel": FormatReader(sheet_reader.infer, sheet_reader.survey, sheet_reader.read),
}
"""The reader of each format."""


_UNREAD = {
    (".xls", ".xlsb"): "is a binary workbook, which is not read: save it as .xlsx",
    (".xz", ".lzma", ".lz4", ".br", ".z"): "is compressed in a format that is not read: unpack it, or use .gz or .zst",
    (
        ".7z",
        ".rar",
        ".tar",
        ".tgz",
        ".tbz2",
        ".txz",
    ): "is an archive of a format that is not read: unpack it, and give each file",
}
"""What to do with common files that no reader supports, by the ends of their names."""


def detect(name: str, kind: FileKind | None = None) -> Format:
    """Returns the format of a file with this name. Raises InputError for an unknown ending.

    ``kind`` overrides the format by the name, but not the compression.
    """
    stem, named, compression = split_name(name)
    if (kind := kind or named) is not None:
        return Format(kind, compression)
    for endings, reason in _UNREAD.items():
        if stem.endswith(endings):
            raise InputError(f"file {name!r} {reason}")
    *others, last = COMPRESSIONS
    raise InputError(
        f"file {name!r}: its name ends in no supported format; there are {', '.join(ENDINGS)}, "
        f"each plain or followed by {', '.join(others)} or {last}"
    )


def detect_file(open: Callable[[], BinaryIO], name: str, kind: FileKind | None = None) -> Format:
    """Returns the format of a file: that of its name, or of the file in a zip archive whose own name shows none.

    Opens zip archives alone. Raises InputError like ``detect``; also for an archive of several files, or of none, and
    if the two names contradict each other.
    """
    _, outer, compression = split_name(name)
    if kind is not None or compression != "zip":
        return detect(name, kind)
    with open() as file:
        member = ZipArchive(file, name, 0).only_member().filename
    _, found, packed = split_name(member)
    what = f"file {name!r} is a zip archive of {short_repr(member)}"
    if packed is not None:
        raise InputError(f"{what}, which is compressed as well: unpack the archive")
    if outer is not None and found is not None and outer != found:
        raise InputError(f"{what}, which is not {outer}, as the archive's name says: rename one of them")
    if (kind := outer or found) is None:
        raise InputError(f"{what}, whose name ends in no supported format; there are {', '.join(ENDINGS)}")
    return Format(kind, compression)


def infer(source: SourceFile) -> pa.Schema:
    """Returns the schema of stored types that holds every row of the file without loss. Reads ALL of it.

    Raises InputError like ``read``; also for a file without a single column.
    """
    return READERS[source.format.kind].infer(source)


def survey(source: SourceFile, *, skip_bad_rows: bool = False) -> pa.Schema:
    """Returns the columns of a file for a table that may add them, with the types that ``infer`` finds.

    A text column without a single value has type null. A CSV file without a header has no names, so no columns.
    Raises InputError like ``read``, but not for malformed rows if ``skip_bad_rows``.
    """
    return READERS[source.format.kind].survey(source, skip_bad_rows)


def read(source: SourceFile, schema: pa.Schema | None, *, on_bad_row: OnBadRow | None = None) -> pa.RecordBatchReader:
    """Reads the rows of a file as batches of exactly ``schema``, in bounded memory and in the file's order.

    Opens the file when the first batch is requested. Without ``schema`` it reads the file twice: at once, to infer the
    types from all of it, and then for the rows.

    Args:
        schema: the table's columns, of stored types; None to infer them.
        on_bad_row: called with each row that is malformed or does not fit; the other rows are read. A problem of more
            than one row is still an error: a damaged file, columns that the table lacks, a record without an end.
            So is a malformed row without ``schema``, because types are inferred from all rows.

    Raises:
        SchemaError: the file's columns are not the table's, or a declared type cannot be stored.
        RowError: a row is malformed or a value does not fit its column: names file, line, row and column.
        InputError: the file is damaged, truncated, not of its format, or exceeds a limit.
    """
    if schema is None:
        schema = infer(source)
    stored = [stored_type(field.type) for field in schema]
    schema = pa.schema([f if f.type == kind else f.with_type(kind) for f, kind in zip(schema, stored, strict=True)])
    return pa.RecordBatchReader.from_batches(schema, _batches(source, schema, on_bad_row))


def _batches(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None) -> Iterator[pa.RecordBatch]:
    if source.options.folders:
        yield from read_with_folders(source, schema, partial(_batches, on_bad_row=on_bad_row))
    else:
        yield from READERS[source.format.kind].read(source, schema, on_bad_row)
