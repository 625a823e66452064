"""The columns of a DataFrame and of its table: checked, named alike, or added to the table (``merge_schema``).

Columns are added or widened before rows are written, in a commit of their own, after which tasks write. A repeated or
simultaneous write finds the columns and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.base.runtime import NEW_COLUMNS
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import AlterTable
from dolmen.errors import SchemaError
from dolmen.format.column_history import widening_problem
from dolmen.format.column_terms import partition_terms
from dolmen.format.evolution import AddColumn, SchemaChange, WidenColumn
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, Schema, own_names, same_names, same_names_problem
from dolmen.format.transforms import Transform
from dolmen.rows.write.conform import plan_conform
from dolmen.spark.frame_types import quote, spark_type, worker_schema
from dolmen.transactions.transaction import Transaction, replay, unit_of

_HOUR_MICROS = 3_600_000_000


def check_columns(schema: s.StructType, entry: TableEntry) -> None:
    """Raises SchemaError if no row of a DataFrame fits a table, or the table lacks a column of it."""
    if unknown := _unknown_columns(schema, entry.schema):
        names = ", ".join(field.name for field in entry.schema.fields)
        raise SchemaError(
            f"no column {unknown[0]!r} in the table; there are: {names}. "
            'To add new columns of the DataFrame, give merge_schema=True, or option("mergeSchema", True) with '
            'format("dolmen")'
        )
    plan_conform(worker_schema(schema), entry.schema)


def add_new_columns(context: Context, table: str, schema: s.StructType, request: str | None) -> None:
    """Adds the columns of a DataFrame that a table does not have, at its end, in one commit. NULL is allowed in them.

    Columns of the table get the wider types that they have in the DataFrame, where no file need be rewritten
    (``Table.widen_column``). The others keep theirs, and values that do not fit are errors, row by row.

    Args:
        request: of the write: if it was applied before, nothing is added.

    Raises:
        SchemaError: a column can't be added, or the DataFrame's other columns do not fit; nothing is added then.
        ConflictError: others kept changing the columns.
    """

    def add(transaction: Transaction) -> None:
        unit = unit_of(transaction)
        if transaction.has_applied(request):
            return
        entry = unit.entry(table)
        if changes := _changes(schema, entry):
            unit.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, changes))
            check_columns(schema, unit.entry(table))

    replay(context, add, "alter", policy=NEW_COLUMNS)  # another writer may be first, perhaps with the same columns


def _changes(schema: s.StructType, entry: TableEntry) -> tuple[SchemaChange, ...]:
    if alike := same_names(schema.names):
        raise SchemaError(same_names_problem(alike))
    types = dict(zip(own_names(schema.names, entry.schema), worker_schema(schema).types, strict=True))
    added = [AddColumn(name, types[name], is_path=False) for name in _unknown_columns(schema, entry.schema)]
    if entry.sequences is not None:  # its deletes are remembered by values of the present types
        return tuple(added)
    widened = [
        WidenColumn(field.name, types[field.name])
        for field in entry.schema.fields
        if field.name in types
        and types[field.name] != field.arrow_type
        and not widening_problem(field.arrow_type, types[field.name])
    ]
    return (*added, *widened)


def _unknown_columns(schema: s.StructType, table_schema: Schema) -> list[str]:
    names = {field.name for field in table_schema.fields}
    return [name for name in own_names(schema.names, table_schema) if name not in names]


def match_names(frame: DataFrame, schema: Schema) -> DataFrame:
    """The DataFrame with the spelling that its columns' names have in the table. Raises SchemaError."""
    names = own_names(frame.columns, schema)
    if names == frame.columns:
        return frame
    if alike := same_names(frame.columns, names):
        raise SchemaError(same_names_problem(alike))
    return frame.toDF(*names)


def gather_partitions(frame: DataFrame, entry: TableEntry) -> DataFrame:
    """The rows with those of a partition in as few tasks as their size needs, if the table has partitions."""
    columns = partition_columns(match_names(frame, entry.schema), entry)
    names = [f"__dolmen_partition_{index}" for index in range(len(columns))]
    if not columns:
        return frame
    return frame.withColumns(dict(zip(names, columns, strict=True))).hint("rebalance", *names).drop(*names)


def partition_columns(frame: DataFrame, entry: TableEntry) -> list[Column]:
    """Columns that are equal in rows of one partition; none for buckets, which Spark's functions do not know."""
    columns = []
    for term in partition_terms(entry.properties):
        if term.column in frame.columns and term.transform.name != "bucket":
            kind, column = spark_type(entry.schema.field(term.column).arrow_type), F.col(quote(term.column))
            if frame.schema[term.column].dataType != kind:
                column = column.try_cast(kind)
            columns.append(_transformed(column, term.transform, kind))
    return columns


def _transformed(column: Column, transform: Transform, kind: s.DataType) -> Column:
    size = F.lit(transform.size)
    match transform.name, kind:
        case "identity", _:
            return column
        case "truncate", s.StringType() | s.BinaryType():
            return F.substring(column, 1, transform.size)
        case "truncate", s.DecimalType():
            return F.floor(column / (size / 10**kind.scale))
        case "truncate", _:
            return column - F.pmod(column, size)
    if not isinstance(kind, s.DateType):
        unit = F.lit(_HOUR_MICROS if transform.name == "hour" else 24 * _HOUR_MICROS)
        micros = F.unix_micros(column.cast("timestamp"))
        column = (micros - F.pmod(micros, unit)) / unit
        if transform.name in ("hour", "day"):
            return column
        column = F.date_from_unix_date(column.cast("int"))
    return column if transform.name == "day" else F.trunc(column, transform.name)


def key_columns(frame: DataFrame, fields: Iterable[Field]) -> list[Column]:
    """The key's columns in Spark's types for the table's columns: equal keys are equal in these.

    Raises SchemaError for a column whose kind differs from the table's: Spark might compare it differently.
    """
    columns = []
    for field in fields:
        if field.name not in frame.columns:
            raise SchemaError(f"the DataFrame has no column {field.name!r}, which is part of the key")
        kind, target = frame.schema[field.name].dataType, spark_type(field.arrow_type)
        numbers = s.IntegralType, s.DecimalType
        if type(kind) is not type(target) and not (isinstance(kind, numbers) and isinstance(target, numbers)):
            raise SchemaError(
                f"column {field.name!r}: a key of type {kind.simpleString()} for one of {target.simpleString()}: "
                "cast it"
            )
        column = F.col(quote(field.name))
        columns.append(column if kind == target else column.try_cast(target))  # the write finds misfits
    return columns


def uncollated_column(frame: DataFrame, field: Field) -> Column:
    """A key's column in its own type; text without its collation, which might take unequal keys for equal."""
    column = F.col(quote(field.name))
    is_text = isinstance(frame.schema[field.name].dataType, s.StringType)
    return column.cast("string").alias(field.name) if is_text else column
