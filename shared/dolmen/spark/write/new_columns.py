"""Columns that a DataFrame has and its table does not: refused, or added (``merge_schema``) before rows are written.

Columns that are wider in the DataFrame become as wide in the table, too. Columns are changed in a commit of their own:
tasks write under the columns that the table has by then. Whoever repeats a write, or makes the same one at the same
time, finds them there and changes nothing.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as s

from dolmen.base.retry import NEW_COLUMNS, attempts
from dolmen.commit.context import Context
from dolmen.commit.statements.catalog import AlterTable
from dolmen.errors import ConflictError, SchemaError
from dolmen.format.column_history import narrowing
from dolmen.format.evolution import AddColumn, SchemaChange, WidenColumn
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema, own_names, same_names
from dolmen.rows.write.conform import plan_conform
from dolmen.spark.spark_types import handed_schema
from dolmen.transactions.transaction import Transaction


def check_columns(schema: s.StructType, entry: TableEntry) -> None:
    """Checks that rows of a DataFrame may fit a table.

    Raises:
        SchemaError: no row could; or the table does not have a column of the DataFrame.
    """
    if unknown := _unknown(schema, entry.schema):
        there = ", ".join(field.name for field in entry.schema.fields)
        raise SchemaError(
            f"no column {unknown[0]!r} in the table; there are: {there}. "
            'To add new columns of the DataFrame, give merge_schema=True, or option("mergeSchema", True) with '
            'format("dolmen")'
        )
    plan_conform(handed_schema(schema), entry.schema)


def add_new_columns(context: Context, table: str, schema: s.StructType, request: str | None) -> None:
    """Adds the columns of a DataFrame that a table does not have, at its end, in one commit. NULL is allowed in them.

    Columns of the table get the wider types that they have in the DataFrame, where files need not be written anew
    (``Table.widen_column``). The others keep theirs, and values that do not fit are errors, row by row.

    Args:
        request: of the write: if it was applied before, nothing is added.

    Raises:
        SchemaError: a column can't be added, or the DataFrame's other columns do not fit; nothing is added then.
        ConflictError: others change the columns again and again.
    """
    conflict: ConflictError | None = None
    for _ in attempts(context.runtime, NEW_COLUMNS):
        transaction = Transaction(context, "alter")
        transaction.refresh()
        if transaction.has_applied(request):
            return
        entry = transaction.entry(table)
        changes = _changes(schema, entry)
        if not changes:
            return
        transaction.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, changes))
        check_columns(schema, transaction.entry(table))
        try:
            transaction.commit()
        except ConflictError as error:  # another writer was first, perhaps with the same columns
            conflict = error
            continue
        return
    assert conflict is not None
    raise conflict


def _changes(schema: s.StructType, entry: TableEntry) -> tuple[SchemaChange, ...]:
    """The changes of a table's columns by which a DataFrame's rows fit."""
    if alike := same_names(schema.names):
        raise SchemaError(f"columns {alike[0]!r} and {alike[1]!r} differ in case only: rename one, or drop it")
    types = handed_schema(schema)
    types = pa.schema(
        [field.with_name(name) for field, name in zip(types, own_names(types.names, entry.schema), strict=True)]
    )
    added = [AddColumn(name, types.field(name).type, is_path=False) for name in _unknown(schema, entry.schema)]
    if entry.sequences is not None:  # deletes are remembered by values of the types of now
        return tuple(added)
    widened = [
        WidenColumn(field.name, types.field(field.name).type)
        for field in entry.schema.fields
        if field.name in types.names and _is_wider(types.field(field.name).type, field.arrow_type)
    ]
    return (*added, *widened)


def _is_wider(arrow_type: pa.DataType, own: pa.DataType) -> bool:
    return arrow_type != own and not narrowing(own, arrow_type)


def _unknown(schema: s.StructType, own: Schema) -> list[str]:
    there = {field.name for field in own.fields}
    return [
        name for name, spelled in zip(schema.names, own_names(schema.names, own), strict=True) if spelled not in there
    ]
