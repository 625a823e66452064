"""Writes rows as files and streams that ``formats.read`` reads back equal; refuses values that a format cannot hold.

Columns are checked before anything is written, values as they are written. A complete file gets its name.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.runtime import shared_runtime
from dolmen.base.units import DAY_US
from dolmen.entries.partitions import NULL_FOLDER, Partition, PartitionSpec
from dolmen.errors import InputError, ObjectNotFoundError, SchemaError, short_repr
from dolmen.format.column_terms import check_partition_columns, parse_partition_by
from dolmen.format.ingest_properties import WRITTEN, format_names
from dolmen.format.schema import Schema
from dolmen.format.types import JsonKind, TextKind, contains_kind, type_of
from dolmen.ingest.formats.cells import FIRST_DAY, LAST_DAY, join_strings
from dolmen.ingest.formats.source_file import Format
from dolmen.ingest.formats.typed_batches import stored_schema
from dolmen.rows.write.casts import flattened_offsets
from dolmen.rows.write.conform import conform
from dolmen.rows.write.partitioning import RowDivision
from dolmen.rows.write.runs import DEFAULT, fill_hidden_of_batch
from dolmen.store import ObjectStore
from dolmen.store.base import StreamedOutput

_NAMED_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_HOLDS_ALL = "parquet and arrow hold it"


class TextError(Exception):
    """A value has no text; ``index`` is its 0-based position among the values."""

    def __init__(self, reason: str, index: int) -> None:
        self.reason, self.index = reason, index
        super().__init__(reason)


def has_text(kind: pa.DataType) -> bool:
    """Whether values of a type can be written as text: maps cannot, at any depth."""
    return not contains_kind(kind, lambda each: (own := type_of(each)) is None or own.text is None)


def csv_lines(batch: pa.RecordBatch, delimiter: str) -> pa.Buffer:
    """The rows of a batch as records of delimited text. Raises ``TextError``."""
    cells = [_write_column(name, _cells, array) for name, array in zip(batch.schema.names, batch.columns, strict=True)]
    lines = cells[0] if len(cells) == 1 else pc.binary_join_element_wise(*cells, delimiter)
    return join_strings(pc.binary_join_element_wise(lines, "", "\n"))


def csv_header(names: list[str], delimiter: str) -> bytes:
    """The first record: the names of the columns, in quotes where they need them."""
    return (delimiter.join(_quote_name(name, delimiter) for name in names) + "\n").encode()


def _quote_name(name: str, delimiter: str) -> str:
    plain = name.isprintable() and name == name.strip() and not set(name) & {'"', delimiter}
    return name if plain else '"' + name.replace('"', '""') + '"'


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    """The rows of a batch as JSON objects, one a line. Raises ``TextError``."""
    pairs = zip(batch.schema, batch.columns, strict=True)
    fields = [(field.name, _write_column(field.name, _json, column)) for field, column in pairs]
    return join_strings(pc.binary_join_element_wise(_object(fields), "", "\n"))


def _write_column(name: str, to_text: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
    try:
        return to_text(column)
    except TextError as error:
        raise TextError(f"column {name!r}: {error.reason}", error.index) from None


def _cells(array: pa.Array) -> pa.Array:
    text = _text(array)
    if t.is_string(array.type) or t.is_nested(array.type):
        text = _surround('"', pc.replace_substring(text, '"', '""'), '"')
    elif t.is_binary(array.type):
        text = pc.if_else(pc.equal(text, ""), '""', text)
    return pc.fill_null(pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())), "")


def _text(array: pa.Array) -> pa.Array:
    column_type = type_of(array.type)
    assert column_type is not None, array.type
    assert column_type.text is not None, array.type
    return WRITERS[column_type.text](array)


def _cast_to_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _date_text(array: pa.Array) -> pa.Array:
    _check_years(array.cast(pa.int32()), FIRST_DAY, LAST_DAY)
    return array.cast(pa.string())


def _timestamp_text(array: pa.Array) -> pa.Array:
    _check_years(array.cast(pa.int64()), FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1)
    return pc.replace_substring(array.cast(pa.string()), " ", "T")


def _check_years(numbers: pa.Array, first: int, last: int) -> None:
    """Raises TextError for a time in a year without four digits, which readers of text refuse."""
    outside = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)
    if pc.any(outside).as_py():
        raise TextError("a time outside of the years 1 to 9999", pc.index(outside, True).as_py())


def _json(array: pa.Array) -> pa.Array:
    """Values as JSON; NULL is ``null``."""
    column_type = type_of(array.type)
    assert column_type is not None, array.type
    assert column_type.json is not None, array.type
    return pc.if_else(array.is_valid(), JSON_WRITERS[column_type.json](array), "null")


def _json_object(array: pa.Array) -> pa.Array:
    return _object([(field.name, _json(child)) for field, child in zip(array.type, array.flatten(), strict=True)])


def _json_list(array: pa.Array) -> pa.Array:
    offsets, items = flattened_offsets(array), array.flatten()
    try:
        texts = _json(items)
    except TextError as error:
        row = int(np.searchsorted(offsets.to_numpy(), error.index, side="right")) - 1
        raise TextError(error.reason, row) from None
    return _surround("[", pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ","), "]")


def _object(fields: list[tuple[str, pa.Array]]) -> pa.Array:
    pieces: list[pa.Array | str] = ["{"]
    for index, (name, text) in enumerate(fields):
        pieces += [f"{',' if index else ''}{json.dumps(name, ensure_ascii=False)}:", text]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _json_float(array: pa.Array) -> pa.Array:
    text, finite = array.cast(pa.string()), pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return text
    word = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0.0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(finite, text, word)


def _escape(strings: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(strings, r'[\x00-\x1f\\"]')).as_py():
        return strings
    strings = pc.replace_substring(pc.replace_substring(strings, "\\", "\\\\"), '"', '\\"')
    for code in range(32):
        character = chr(code)
        if pc.any(pc.match_substring(strings, character)).as_py():
            strings = pc.replace_substring(strings, character, _NAMED_ESCAPES.get(character, f"\\u{code:04x}"))
    return strings


def _surround(before: str, text: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, text, after, "")


def encode_base64(array: pa.Array) -> pa.Array:
    """Base64 (RFC 4648, section 4, padded) of binary values; NULL stays NULL."""
    values = [None if value is None else b64encode(value).decode() for value in array.to_pylist()]
    return pa.array(values, pa.string())


WRITERS: dict[TextKind, Callable[[pa.Array], pa.Array]] = {
    "string": lambda array: array,
    "bool": _cast_to_text,
    "integer": _cast_to_text,
    "float": _cast_to_text,
    "decimal": _cast_to_text,
    "date": _date_text,
    "time": _cast_to_text,
    "timestamp": _timestamp_text,
    "base64": encode_base64,
    "json": _json,
}
"""How values become text, by the kind of its grammar (``ColumnType.text``)."""

JSON_WRITERS: dict[JsonKind, Callable[[pa.Array], pa.Array]] = {
    "bare": _cast_to_text,
    "float": _json_float,
    "string": lambda array: _surround('"', _escape(array), '"'),
    "quoted": lambda array: _surround('"', _text(array), '"'),
    "array": _json_list,
    "object": _json_object,
}
"""How values become JSON, by the form that it has for their type (``ColumnType.json``)."""


def export_file(rows: pa.RecordBatchReader, file: Path, format: Format) -> int:
    """Writes rows to a file; once complete it gets its name and replaces an existing file. Returns the number of rows.

    Raises SchemaError if the format does not hold a column, InputError if it does not hold a value; OSError.
    """
    rows = cast_for_export(rows, format)
    with open_for_replacement(file) as target:
        return _write(rows, target, format)


@contextmanager
def open_for_replacement(file: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing; it gets its name when the block ends without an error. Writes to a device directly.

    Raises InputError for a directory, or if there is no directory to write it into; OSError.
    """
    check_target(file)
    if file.exists() and not file.is_file():  # a device or a pipe: it keeps its name
        with file.open("wb") as target:
            yield target
        return
    file = Path(os.path.realpath(file))
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.partial")  # a name that no pipeline takes for a drop
    try:
        with partial.open("xb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    except OSError as error:
        if error.filename == str(partial):
            error.filename = str(file)  # not the temporary name
        raise
    finally:
        partial.unlink(missing_ok=True)


def check_target(file: Path) -> None:
    """Raises InputError if the file is a directory, or if its directory does not exist."""
    if file.is_dir():
        raise InputError(f"{str(file)!r} is a directory: name a file in it")
    file = file if file.exists() else Path(os.path.realpath(file))
    if not file.parent.is_dir():
        raise InputError(f"there is no directory {str(file.parent)!r} to write {file.name!r} into")


def export_folders(rows: pa.RecordBatchReader, directory: Path, partition_by: str, format: Format) -> int:
    """Writes rows into a new directory with folders of Hive, ``day=2026-11-29/``. Returns the number of rows.

    A column whose own values name folders is not in the files. The directory gets its name once it is complete.

    Args:
        partition_by: as for ``create_table``.

    Raises:
        InputError: the directory is not empty, a value is no name of a folder, or as by ``export_file``.
        SchemaError: a column is not there, cannot name folders, or is all that there is.
        OSError: the directory cannot be written.
    """
    rows, terms = cast_for_export(rows, format), parse_partition_by(partition_by)
    columns = Schema.from_arrow(rows.schema)
    check_partition_columns(terms, columns)
    spec = PartitionSpec.of_terms(terms, columns)
    named = {field.name for term, field in spec.terms if term.transform.name == "identity"}
    schema = pa.schema([field for field in rows.schema if field.name not in named])
    if not schema.names:
        raise SchemaError("all columns are in names of folders, and files without columns have no rows")
    directory = Path(os.path.realpath(directory))
    check_target(directory / "data" if directory.is_dir() else directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{str(directory)!r} exists and is not an empty directory: name another one")
    partial, count = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.partial"), 0
    try:
        partial.mkdir()
        division = RowDivision(spec, rows.schema, DEFAULT, sys.maxsize, shared_runtime())
        for partition, pieces in groupby(division.divide(rows), lambda piece: piece.partition):
            assert partition is not None, "each partition has files of its own"
            folder = partial / _folders(spec, partition)
            folder.mkdir(parents=True, exist_ok=True)
            tables = (pa.table(piece.columns, rows.schema).select(schema.names) for piece in pieces)
            own = pa.RecordBatchReader.from_batches(schema, (each for one in tables for each in one.to_batches()))
            with (folder / f"data-{len(list(folder.iterdir()))}.{format.kind}").open("xb") as target:
                count += _write(own, target, format)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return count


_MOST_NAME_BYTES = 255  # of a folder, on Linux, macOS and Windows


def _folders(spec: PartitionSpec, partition: Partition) -> str:
    for (term, _), value in zip(spec.terms, partition, strict=True):
        if value in ("", b"", NULL_FOLDER, NULL_FOLDER.encode()):
            raise InputError(f"{term} is {value!r} in a row, which can't name a folder: leave such rows out")
    folders = spec.name(partition)
    if longest := next((name for name in folders.split("/") if len(name) > _MOST_NAME_BYTES), None):
        raise InputError(
            f"{short_repr(longest)} is a name of {len(longest):,} bytes, and no folder's has more than "
            f"{_MOST_NAME_BYTES}: leave such rows out, or use truncate"
        )
    return folders


def export_stream(rows: pa.RecordBatchReader, target: BinaryIO, format: Format) -> int:
    """Writes rows to a stream; Arrow as an IPC stream. What was written before an error stays there."""
    return _write(cast_for_export(rows, format), target, format, pa.ipc.new_stream)


def export_object(rows: pa.RecordBatchReader, store: ObjectStore, key: str, format: Format) -> int:
    """Writes rows to a new object, which is there once it is complete. Returns the number of rows.

    Raises InputError if the object exists; and as ``export_file`` and the store do.
    """
    rows = cast_for_export(rows, format)
    with suppress(ObjectNotFoundError):
        store.head(key)
        raise InputError(f"{store.url}/{key} exists, and objects are not replaced: name another one")
    with store.open_output(key) as output:
        count = _write(rows, _StaysOpen(output), format)
        output.commit()
    return count


def cast_for_export(rows: pa.RecordBatchReader, format: Format) -> pa.RecordBatchReader:
    """Casts the rows to stored types. Raises SchemaError if the format cannot hold a column."""
    kind, traits, names = format.kind, format.traits, rows.schema.names
    if not traits.is_written:
        raise InputError(f"{kind.capitalize()} is read, but not written: write {format_names(WRITTEN)}")
    if not traits.is_text and format.compression is not None:
        raise InputError(f"{kind} compresses its own pages: leave out the ending for {format.compression}")
    if format.compression == "zip":
        raise InputError("zip archives are read, but not written: compress with .gz, .zst or .bz2")
    for name in names:
        if not name or names.count(name) > 1:
            raise SchemaError(f"{names.count(name)} columns have the name {name!r}: give each one of its own (AS name)")
    schema = stored_schema(rows.schema, f"the {kind} to write")
    if traits.is_text:
        for field in schema:
            if not has_text(field.type):
                raise SchemaError(f"column {field.name!r} holds maps, which {kind} does not: {_HOLDS_ALL}")
    return pa.RecordBatchReader.from_batches(schema, conform(rows, schema))


def _write(
    rows: pa.RecordBatchReader, target: Any, format: Format, new_arrow: Callable[..., Any] = pa.ipc.new_file
) -> int:
    if format.kind == "parquet":
        filled = pa.RecordBatchReader.from_batches(rows.schema, map(fill_hidden_of_batch, rows))
        return _count(filled, pq.ParquetWriter(target, rows.schema, compression="zstd"))
    if format.kind == "arrow":
        return _count(rows, new_arrow(target, rows.schema))
    with _compress(target, format) as stream:
        delimiter = format.traits.delimiter
        if delimiter is None:
            return _write_text(rows, stream, json_lines, format)
        stream.write(csv_header(rows.schema.names, delimiter))
        return _write_text(rows, stream, lambda batch: csv_lines(batch, delimiter), format)


def _count(rows: pa.RecordBatchReader, writer: Any) -> int:
    count = 0
    with writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_text(
    rows: pa.RecordBatchReader, stream: BinaryIO, to_text: Callable[[pa.RecordBatch], pa.Buffer], format: Format
) -> int:
    count = 0
    for batch in rows:
        try:
            stream.write(to_text(batch))
        except TextError as error:
            row = count + error.index + 1
            raise InputError(f"row {row}, {error.reason}: {format.kind} cannot express it, {_HOLDS_ALL}") from None
        except pa.ArrowInvalid as error:
            raise InputError(
                f"rows from {count + 1} on cannot be written as {format.kind}, {_HOLDS_ALL}: {error}"
            ) from error
        count += batch.num_rows
    return count


@contextmanager
def _compress(target: Any, format: Format) -> Iterator[Any]:
    if format.compression is None:
        yield target
        return
    with pa.CompressedOutputStream(pa.PythonFile(_StaysOpen(target), "w"), format.compression) as stream:
        yield stream


class _StaysOpen(io.RawIOBase):
    """A stream that stays open when its writer is closed."""

    def __init__(self, stream: BinaryIO | StreamedOutput) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._stream.write(data)
