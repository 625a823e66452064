"""Parquet files: types as they are, or cast without loss to the declared ones; read a few pages at a time.

INT96 timestamps are read as microseconds. A compressed file is unpacked into a temporary file first, because its footer
comes last. A file with days of the Julian calendar is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pyarrow as pa
from pyarrow import parquet

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.format.parquet_footer import JULIAN, julian_leaves
from dolmen.format.types import change_children
from dolmen.ingest.formats.column_limits import (
    BATCH_ROWS,
    BYTES_AT_ONCE,
    check_columns,
    check_lists,
    rows_at_once,
)
from dolmen.ingest.formats.source_file import OnBadRow, SourceFile
from dolmen.ingest.formats.typed_batches import (
    check_schema,
    conform_columns,
)

_BUFFER_BYTES = MIB
_VARIANT = re.compile(r"group field_id=-?\d+ (.+) \(Variant")


def own_schema(source: SourceFile) -> pa.Schema:
    """The columns as the file has them, from its footer alone, with intervals, which ``read`` returns as bytes."""
    with _open(source) as file:
        own, leaves = _own_schema(file, source), range(file.metadata.num_columns)
        is_interval = [file.schema.column(leaf).converted_type == "INTERVAL" for leaf in leaves]
    if not any(is_interval):
        return own
    flags = iter(is_interval)
    return pa.schema([field.with_type(_mark_intervals(field.type, flags)) for field in own])


def column_losses(source: SourceFile) -> Iterator[tuple[str, str]]:
    """The paths of columns whose Arrow types do not show what is lost of them, and what that is."""
    with _open(source) as file:
        for column in map(file.schema.column, range(file.metadata.num_columns)):
            if column.physical_type == "INT96":
                yield column.path, "times of INT96 are cut to microseconds"
        for name in _VARIANT.findall(str(file.schema)):
            yield name, "a VARIANT is a struct of its encoded parts"


def _mark_intervals(kind: pa.DataType, flags: Iterator[bool]) -> pa.DataType:
    """The type with intervals where ``flags``, one for each column of Parquet, say so."""
    if kind.num_fields:
        return change_children(kind, lambda child: _mark_intervals(child, flags))
    return pa.month_day_nano_interval() if next(flags, False) else kind


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``. Raises as ``formats.read`` does."""
    with _open(source) as file:
        batches = partial(_batches, file, source)
        yield from conform_columns(batches, _own_schema(file, source), source, schema, on_bad_row)


def _own_schema(file: parquet.ParquetFile, source: SourceFile) -> pa.Schema:
    with _report_damage(source):
        return check_schema(file.schema_arrow, source.name, source.options.max_columns)


def _report_damage(source: SourceFile) -> AbstractContextManager[None]:
    return source.report_damage("Parquet")


def _batches(file: parquet.ParquetFile, source: SourceFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows, a few row groups at a time, and counts them.

    If a column chunk or a page states fewer values than its row group has rows, pyarrow ends the column there, or
    continues in the next row group, without an error.
    """
    with _report_damage(source):
        max_rows, footer_rows = rows_at_once(file.schema_arrow, source.name), file.metadata.num_rows
        runs = list(_runs_of_groups(file.metadata))
        widths = _list_widths(file.schema, file.metadata.num_columns)
    total = sum(rows for _, rows in runs)
    if footer_rows > total:  # some writers leave 0 in it
        raise InputError(
            f"file {source.name!r} is damaged: its footer says it has {footer_rows:,} rows, and its row groups have "
            f"{total:,}: write it again"
        )
    for groups, rows in runs:
        with _report_damage(source):
            row_bytes = max(_list_bytes(file.metadata, group, widths, source.name) for group in groups)
            batch_rows = max(1, min(max_rows, BYTES_AT_ONCE // max(1, row_bytes)))
            batches = file.iter_batches(batch_rows, row_groups=groups, columns=columns)
        rows_read = 0
        while True:
            with _report_damage(source):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate()  # conform_file checks the values, and names their rows
            rows_read += batch.num_rows
            if rows_read > rows:
                break
            yield batch
        if rows_read != rows:
            numbers = f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"
            raise InputError(
                f"file {source.name!r} is damaged: its footer says {rows:,} rows in {numbers}, but its columns "
                f"hold {'more' if rows_read > rows else f'{rows_read:,}'}: write it again"
            )


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}


def _list_widths(schema: parquet.ParquetSchema, columns: int) -> dict[int, int]:
    """The bytes of memory that a value or NULL takes, for each column in a list or map."""
    widths = {}
    for index in range(columns):
        column = schema.column(index)
        if column.max_repetition_level:
            fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
            widths[index] = column.length if fixed else _WIDTHS.get(column.physical_type, 8)
    return widths


def _list_bytes(metadata: parquet.FileMetaData, group: int, widths: dict[int, int], name: str) -> int:
    """The bytes of memory that the lists of a row take: the average of the row group. Raises LimitError."""
    row_group, size, packed = metadata.row_group(group), 0, 0
    largest, column = 0, ""
    for index, width in widths.items():
        chunk = row_group.column(index)
        column_bytes = chunk.num_values * width
        size, packed = size + column_bytes, packed + chunk.total_compressed_size
        if column_bytes > largest:
            largest, column = column_bytes, chunk.path_in_schema
    check_lists(size, packed, row_group.num_rows, f"file {name!r}, row group {group}, column {column!r}")
    return int(size // max(1, row_group.num_rows))


def _runs_of_groups(metadata: parquet.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """Runs of row groups with at most ``BATCH_ROWS`` rows (or one larger group), and their number of rows."""
    groups, rows = list[int](), 0
    for group in range(metadata.num_row_groups):
        group_rows = metadata.row_group(group).num_rows
        if groups and rows + group_rows > BATCH_ROWS:
            yield groups, rows
            groups, rows = [], 0
        groups.append(group)
        rows += group_rows
    if groups:
        yield groups, rows


@contextmanager
def _open(source: SourceFile) -> Iterator[parquet.ParquetFile]:
    with source.seekable() as opened:
        with _report_damage(source):
            file = parquet.ParquetFile(
                opened,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit="us",
            )
            check_columns(file.metadata.num_columns, source.options.max_columns, source.name)
            julian = sorted(julian_leaves(file.metadata))
        if julian:
            column = file.schema.column(julian[0]).path
            raise InputError(f"{source.name}: column {column!r}: {JULIAN}: let Spark write the file again")
        yield file
