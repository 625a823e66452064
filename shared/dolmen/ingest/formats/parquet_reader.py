"""Parquet files: types as they are, or cast without loss to the declared ones; read a few pages at a time.

INT96 timestamps are read as microseconds. A compressed file is unpacked into a temporary file first, because its footer
comes last. A file with days of the Julian calendar is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
from pyarrow import parquet

from dolmen.base.units import MIB
from dolmen.errors import InputError
from dolmen.format.parquet_footer import JULIAN, julian_leaves
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
    common_schema,
    conform_file,
)

_BUFFER_BYTES = MIB


def own_schema(source: SourceFile) -> pa.Schema:
    """The columns as the file has them, from its footer alone."""
    with _open(source) as file:
        return _own_schema(file, source)


def read(source: SourceFile, schema: pa.Schema, on_bad_row: OnBadRow | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``schema``. Raises as ``formats.read`` does."""
    with _open(source) as file:
        own, columns = _own_schema(file, source), None
        if source.options.ignore_extra:
            columns = common_schema(own, schema, source.name).names
            own = pa.schema([field for field in own if field.name in columns])
        yield from conform_file(_batches(file, columns, source), own, source, schema, on_bad_row)


def _own_schema(file: parquet.ParquetFile, source: SourceFile) -> pa.Schema:
    with _damage(source):
        return check_schema(file.schema_arrow, source.name, source.options.max_columns)


def _damage(source: SourceFile) -> AbstractContextManager[None]:
    return source.raising_damage("Parquet")


def _batches(file: parquet.ParquetFile, columns: list[str] | None, source: SourceFile) -> Iterator[pa.RecordBatch]:
    """The rows, some row groups after the others.

    Where a column chunk or a page says that it has fewer values than its row group has rows, pyarrow's reader ends the
    column there, or goes on in the next row group, without an error.
    """
    with _damage(source):
        most, claimed = rows_at_once(file.schema_arrow, source.name), file.metadata.num_rows
        runs = list(_runs_of_groups(file.metadata))
        widths = _list_widths(file.schema, file.metadata.num_columns)
    total = sum(rows for _, rows in runs)
    if claimed > total:  # it is 0 in files of some writers
        raise InputError(
            f"file {source.name!r} is damaged: its footer says it has {claimed:,} rows, and its row groups have "
            f"{total:,}: write it again"
        )
    for groups, rows in runs:
        with _damage(source):
            taken = max(_list_bytes(file.metadata, group, widths, source.name) for group in groups)
            some = max(1, min(most, BYTES_AT_ONCE // max(1, taken)))
            batches = file.iter_batches(some, row_groups=groups, columns=columns)
        found = 0
        while True:
            with _damage(source):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate()  # its values are looked at when they are made to fit, which names their rows
            found += batch.num_rows
            if found > rows:
                break
            yield batch
        if found != rows:
            numbers = f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"
            raise InputError(
                f"file {source.name!r} is damaged: by its footer there are {rows:,} rows in {numbers}, but its columns "
                f"hold {'more' if found > rows else f'{found:,}'}: write it again"
            )


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}


def _list_widths(schema: parquet.ParquetSchema, columns: int) -> dict[int, int]:
    """The bytes of memory that a value takes, NULL or not, of each column that is in a list or map."""
    widths = {}
    for index in range(columns):
        column = schema.column(index)
        if column.max_repetition_level:
            fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
            widths[index] = column.length if fixed else _WIDTHS.get(column.physical_type, 8)
    return widths


def _list_bytes(metadata: parquet.FileMetaData, group: int, widths: dict[int, int], name: str) -> int:
    """The bytes of memory that the lists of a row take, on average of its row group. Raises LimitError."""
    row_group, size, packed = metadata.row_group(group), 0, 0
    largest, column = 0, ""
    for index, width in widths.items():
        chunk = row_group.column(index)
        own = chunk.num_values * width
        size, packed = size + own, packed + chunk.total_compressed_size
        if own > largest:
            largest, column = own, chunk.path_in_schema
    check_lists(size, packed, row_group.num_rows, f"file {name!r}, row group {group}, column {column!r}")
    return int(size // max(1, row_group.num_rows))


def _runs_of_groups(metadata: parquet.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """Consecutive row groups with at most the rows of a batch, or one that has more; and their number of rows."""
    groups, rows = list[int](), 0
    for group in range(metadata.num_row_groups):
        own = metadata.row_group(group).num_rows
        if groups and rows + own > BATCH_ROWS:
            yield groups, rows
            groups, rows = [], 0
        groups.append(group)
        rows += own
    if groups:
        yield groups, rows


@contextmanager
def _open(source: SourceFile) -> Iterator[parquet.ParquetFile]:
    with source.seekable() as opened:
        with _damage(source):
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
