"""Gives a table the columns of a dropped file that it lacks (``ingest_new_columns: add``).

A file is read once if it fits. Only a file that does not is surveyed, whole: if it has columns that the table lacks,
they are added in the file's own commit, before its rows, and the file is read again. Two processes that add columns to
one table at once conflict: the second builds its batch again, on the columns that the first has committed.

A column that holds nothing says no type, so it is not added; it is read, and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import types as t

from dolmen.commit.statements.schema import AlterTable
from dolmen.errors import InputError, LimitError, SchemaError
from dolmen.format.evolution import AddColumn
from dolmen.format.ingest_properties import IngestSettings
from dolmen.format.schema import Schema
from dolmen.ingest.formats.formats import SourceFile, survey
from dolmen.transaction import Transaction

MAX_COLUMNS = 1_000
"""The most columns of a table that files may add columns to: keys that are data must not become columns."""
MAX_NAME = 200
"""Characters of the name of a column that a file adds."""


@dataclass(frozen=True, slots=True)
class NewColumns:
    """The columns of a file that its table lacks.

    Args:
        added: those that the table gets; all may be NULL.
        empty: names of those that hold nothing, which it does not get.
    """

    added: tuple[pa.Field, ...] = ()
    empty: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.empty)

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """The columns to read the file with: those of the table, and those that hold nothing."""
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in self.empty)]) if self.empty else schema

    def leave_out(self, rows: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
        """Takes columns that hold nothing out of rows."""
        if not self.empty:
            return rows
        return pa.RecordBatchReader.from_batches(schema, (batch.select(schema.names) for batch in rows))


NO_NEW_COLUMNS = NewColumns()


def ingest_with_new_columns(
    transaction: Transaction,
    table: str,
    source: SourceFile,
    settings: IngestSettings,
    request: str,
    ingest: Callable[[IngestSettings, NewColumns], None],
) -> NewColumns:
    """Ingests a file, adding the columns that the table lacks; returns these.

    Args:
        settings: the table's, whose ``new_columns`` is ``add``.
        request: the file's id.
        ingest: adds the file's rows to the transaction by these settings. May be called twice.

    Raises:
        InputError: the file can't be read, or the table can't have one of its columns.
    """
    try:
        with transaction.savepoint():
            ingest(replace(settings, on_bad_row="reject_file"), NO_NEW_COLUMNS)
            return NO_NEW_COLUMNS
    except InputError:
        new = find_new_columns(source, transaction.entry(table).schema, settings)
        if not new and settings.on_bad_row == "reject_file":
            raise
    add_columns(transaction, table, source.name, new.added, request)
    ingest(settings, new)
    return new


def find_new_columns(source: SourceFile, schema: Schema, settings: IngestSettings) -> NewColumns:
    """Finds the columns of a file that a table of this schema lacks, by all of the file. Raises InputError."""
    skip_bad_rows = settings.on_bad_row == "quarantine"
    known = {field.name for field in schema.fields}
    if settings.cdc is not None:
        from dolmen.ingest.cdc.columns import image_columns  # only for those who have such tables

        found, outside = image_columns(source, settings.cdc, skip_bad_rows=skip_bad_rows)
        return select_new(found, known, source.name, outside=outside)
    return select_new(survey(source, skip_bad_rows=skip_bad_rows), known, source.name)


def select_new(
    found: Iterable[pa.Field], known: Collection[str], file: str, *, outside: Collection[str] = ()
) -> NewColumns:
    """Selects those of a file's columns that are not known.

    Args:
        outside: columns of the file that are about a change, and not of its row.

    Raises:
        SchemaError: none is known: the file is of another table, or has no header.
    """
    rows = [field for field in found if field.name not in outside]
    new = [field for field in rows if field.name not in known]
    if new and len(new) == len(rows):
        raise SchemaError(f"file {file!r}: no column is one of the table's; there are: {', '.join(known)}")
    return NewColumns(
        tuple(field.with_type(_without_nulls(field.type)) for field in new if not t.is_null(field.type)),
        tuple(field.name for field in new if t.is_null(field.type)),
    )


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    """The type with strings where a field of a struct holds nothing."""
    if t.is_null(kind):
        return pa.string()
    if t.is_struct(kind):
        return pa.struct([field.with_type(_without_nulls(field.type)) for field in kind])
    return kind


def add_columns(transaction: Transaction, table: str, file: str, added: Collection[pa.Field], request: str) -> None:
    """Adds columns to a table, in the order of the file.

    Raises:
        SchemaError: a name is reserved, too long, or not told apart from another by SQL; or a type can't be stored.
        LimitError: the table would have more than ``MAX_COLUMNS``.
    """
    if not added:
        return
    entry = transaction.entry(table)
    if (count := len(entry.schema.fields) + len(added)) > MAX_COLUMNS:
        raise LimitError(
            f"file {file!r} has {len(added):,} new columns, and the table would have {count:,}: files add columns "
            f"up to {MAX_COLUMNS:,}; if some of its names are data, put them into a map or rows"
        )
    for field in added:
        if len(field.name) > MAX_NAME:
            raise SchemaError(
                f"file {file!r}: a new column has a name of {len(field.name):,} characters: at most {MAX_NAME} are "
                "allowed"
            )
    changes = tuple(AddColumn(field.name, field.type) for field in added)
    try:
        transaction.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, changes, request))
    except SchemaError as error:
        raise SchemaError(f"file {file!r}, new column: {error}") from None
