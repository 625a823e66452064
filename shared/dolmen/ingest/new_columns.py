"""Gives a table the columns of a dropped file that it lacks (``ingest_new_columns: add``; docs/ingest.md, New columns).

Two processes that add columns to one table at once conflict: the second rebuilds its batch on the columns that the
first committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base.records import replace
from dolmen.commit.statements.catalog import AlterTable
from dolmen.errors import InputError, LimitError, SchemaError
from dolmen.format.column_history import widening_problem
from dolmen.format.evolution import AddColumn, WidenColumn
from dolmen.format.ingest_properties import IngestSettings
from dolmen.format.schema import Schema, no_common_column, own_names
from dolmen.ingest.formats.formats import SourceFile
from dolmen.ingest.formats.typed_batches import new_column_type
from dolmen.transactions.transaction import Transaction, unit_of

MAX_COLUMNS = 1_000
"""The most columns of a table that files may add columns to: keys that are data must not become columns."""
MAX_NAME = 200  # characters of the name of a column that a file adds
_IMAGES = ("after", "payload", None)  # parts of an event that errors may name instead of a column


class NewColumns(Struct, frozen=True):
    """The columns of a file that its table lacks: ``added`` to it, all nullable, or ``empty`` and not added.

    ``widened`` columns of the table get the file's wider type.
    """

    added: tuple[pa.Field, ...] = ()
    empty: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """The columns to read the file with: the table's, and the empty ones."""
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in self.empty)]) if self.empty else schema

    def leave_out(self, rows: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
        """Removes empty columns from rows."""
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
    """Ingests a file, adding the columns that the table lacks, and widening columns that are too narrow; returns both.

    ``ingest`` adds the file's rows to the transaction by these settings. It may be called several times.
    """
    strict = replace(settings, on_bad_row="reject_file")

    def find_problem(new: NewColumns) -> InputError | None:
        """Adds the rows, or adds nothing and returns the error."""
        try:
            with unit_of(transaction).savepoint():
                ingest(strict, new)
        except InputError as error:
            return error
        return None

    new = NO_NEW_COLUMNS
    if (problem := find_problem(new)) is None:
        return new
    from dolmen.ingest.cdc.change_columns import find_columns  # only for files that do not fit

    schema = unit_of(transaction).entry(table).schema
    file_columns = spell_as(schema, find_columns(source, settings))
    new = select_new(file_columns, {field.name for field in schema.fields}, source.name)
    add_columns(transaction, table, source.name, new.added, request)
    if new.added or new.empty:
        problem = find_problem(new)
    wider = _wider_types(file_columns, schema)
    while problem is not None and (names := _narrow_columns(problem, wider, settings)):
        widened = {name: wider.pop(name) for name in names}
        if not _widen_columns(transaction, table, widened, request):
            break
        new = replace(new, widened=(*new.widened, *widened))
        problem = find_problem(new)
    if problem is not None:
        if settings.on_bad_row == "reject_file":
            raise problem
        ingest(settings, new)
    return new


def spell_as(schema: Schema, columns: Sequence[pa.Field]) -> list[pa.Field]:
    """Gives a file's columns the spelling of the table, if it has them."""
    names = own_names([field.name for field in columns], schema)
    return [field.with_name(name) for field, name in zip(columns, names, strict=True)]


def select_new(columns: Collection[pa.Field], table: Collection[str], file: str) -> NewColumns:
    """Selects the columns of a file that its table lacks. Raises SchemaError if it lacks all of them."""
    new = [field for field in columns if field.name not in table]
    if new and len(new) == len(columns):
        raise no_common_column(f"file {file!r}", table)
    return NewColumns(
        tuple(field.with_type(new_column_type(field.type)) for field in new if not t.is_null(field.type)),
        tuple(field.name for field in new if t.is_null(field.type)),
    )


def add_columns(transaction: Transaction, table: str, file: str, added: Collection[pa.Field], request: str) -> None:
    """Adds columns to a table, in the order of the file. Raises SchemaError, LimitError."""
    unit = unit_of(transaction)
    if not added:
        return
    entry = unit.entry(table)
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
    changes = tuple(AddColumn(field.name, field.type, is_path=False) for field in added)
    try:
        unit.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, changes, request))
    except SchemaError as error:
        raise SchemaError(f"file {file!r}, new column: {error}") from None


def _wider_types(columns: Collection[pa.Field], schema: Schema) -> dict[str, pa.DataType]:
    """The wider types in a file that columns of its table may change to, by name."""
    narrow = {field.name: field.arrow_type for field in schema.fields}
    return {
        field.name: field.type
        for field in columns
        if field.name in narrow
        and field.type != narrow[field.name]
        and not widening_problem(narrow[field.name], field.type)
    }


def _narrow_columns(problem: InputError, wider: Collection[str], settings: IngestSettings) -> list[str]:
    """The columns that may be too narrow: the one that the error names, or all if the file has Debezium events."""
    column: str | None = getattr(problem, "column", None)
    if column is not None and column in wider:
        return [column]
    in_envelope = settings.cdc is not None and settings.cdc.envelope == "debezium"
    return list(wider) if in_envelope and column in _IMAGES else []


def _widen_columns(transaction: Transaction, table: str, wider: Mapping[str, pa.DataType], request: str) -> bool:
    """Widens columns. Returns False if that is not allowed."""
    unit = unit_of(transaction)
    entry = unit.entry(table)
    changes = tuple(WidenColumn(name, kind) for name, kind in wider.items())
    try:
        unit.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, changes, request))
    except SchemaError:
        return False  # the first error says what is wrong
    return True
