"""The changes of ALTER TABLE in a catalog: objects of Spark become calls of a table's verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as s

from dolmen.errors import InputError
from dolmen.spark.frame_types import quote, spark_type, worker_schema
from dolmen.spark.sql.catalyst import kind_of_node
from dolmen.transactions.merge.clauses import Expression
from dolmen.transactions.transaction_table import TransactionTable


def change_table(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    """Makes one change of ALTER TABLE, a ``TableChange`` of Spark. Raises InputError if it is not supported."""
    _CHANGES.get(change.getClass().getSimpleName(), _refuse)(spark, table, change)


def cluster_by(columns: Any) -> str:
    """The setting ``cluster_by`` for the columns of CLUSTER BY."""
    return ", ".join(quote(".".join(each.fieldNames())).replace("`", '"') for each in columns)


def _path(change: Any) -> str:
    return ".".join(change.fieldNames())


def _type(kind: Any) -> pa.DataType:
    made = s.StructType.fromJson(
        {"type": "struct", "fields": [{"name": "c", "type": json.loads(kind.json()), "nullable": True, "metadata": {}}]}
    )
    return worker_schema(made).field(0).type


def _add(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    name, kind, default = _path(change), _type(change.dataType()), change.defaultValue()
    value = None if default is None else default_value(spark, default.getSql(), change.dataType())
    table.add_column(name, kind, value, nullable=change.isNullable())
    if change.comment():
        table.comment(name, change.comment())
    if change.position() is not None:
        _move(spark, table, change)


def default_value(spark: SparkSession, sql: str, kind: Any) -> Any:
    """The value of a DEFAULT, which Spark evaluates once; the present time is a function."""
    if sql.lower() in ("current_timestamp()", "current_timestamp", "now()"):
        return Expression("now()")
    return spark.sql(f"SELECT CAST(({sql}) AS {kind.sql()})").toArrow()[0][0].as_py()


def _set_default(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    sql, kind = change.newDefaultValue(), spark_type(table.schema.field(_path(change)).type)
    java_kind = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
    table.set_default(_path(change), default_value(spark, sql, java_kind) if sql else None)


def _move(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    """Puts a column first, or after another one."""
    name, position = _path(change), change.position()
    others = [each for each in table.columns if each != name]
    if len(change.fieldNames()) > 1 or name not in table.columns:
        raise InputError(f"column {name}: fields of a struct can't be moved")
    is_after = kind_of_node(position) == "After"
    if is_after and position.column() not in others:
        raise InputError(f"AFTER {position.column()}: table {table.name!r} has no other column of this name")
    place = others.index(position.column()) + 1 if is_after else 0
    table.reorder([*others[:place], name, *others[place:]])


def _drop(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    if not (change.ifExists() and change.fieldNames()[0] not in table.columns):
        table.drop_column(_path(change))


def _set_nullability(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    (table.make_nullable if change.nullable() else table.set_not_null)(_path(change))


def _refuse(spark: SparkSession, table: TransactionTable, change: Any) -> None:
    kind = change.getClass().getSimpleName()
    raise InputError(f"{table.name}: {kind} is not a change that this catalog makes: docs/spark-catalog.md lists them")


_CHANGES: Mapping[str, Callable[[SparkSession, TransactionTable, Any], None]] = {
    "AddColumn": _add,
    "DeleteColumn": _drop,
    "RenameColumn": lambda _, table, change: table.rename_column(_path(change), change.newName()),
    "UpdateColumnType": lambda _, table, change: table.widen_column(_path(change), _type(change.newDataType())),
    "UpdateColumnNullability": _set_nullability,
    "UpdateColumnPosition": _move,
    "UpdateColumnDefaultValue": _set_default,
    "ClusterBy": lambda _, table, change: table.set(cluster_by=cluster_by(change.clusteringColumns()) or None),
    "UpdateColumnComment": lambda _, table, change: table.comment(_path(change), change.newComment()),
    "SetProperty": lambda _, table, change: table.set(**{change.property(): change.value()}),
    "RemoveProperty": lambda _, table, change: table.set(**{change.property(): None}),
}
"""The changes of ALTER TABLE, by the names of Spark's classes."""
