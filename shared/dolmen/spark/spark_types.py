"""Spark's types for stored columns: those in which Spark's own Parquet reader returns them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

from dolmen.errors import SchemaError
from dolmen.format.schema import Field
from dolmen.format.types import DECIMAL, LIST, MAP, STRUCT, TYPES, ColumnType, short_type, type_of


def _type_by_name(name: str) -> s.DataType:
    """Spark's type with this name, as in a schema's JSON."""
    return s.StructField.fromJson({"name": "", "type": name, "nullable": True, "metadata": {}}).dataType


_BY_NAME = {name: _type_by_name(name) for name in {known.spark for known in TYPES if known.spark is not None}}


def spark_schema(fields: Iterable[Field]) -> s.StructType:
    """The columns as Spark's types.

    Raises:
        SchemaError: Spark does not read a type (times of day): leave the column out.
    """
    return s.StructType([_field(field.to_arrow()) for field in fields])


def spark_arrow_type(arrow_type: pa.DataType) -> pa.DataType:
    """The Arrow type in which values of a stored type go to Spark: it has no unsigned integers or fixed-size binary."""
    t = pa.types
    found = type_of(arrow_type)
    if found is not None and found.spark_carrier is not None:
        return found.spark_carrier
    if t.is_list(arrow_type):
        return pa.list_(_arrow_field(arrow_type.value_field))
    if t.is_struct(arrow_type):
        return pa.struct([_arrow_field(field) for field in arrow_type])
    if t.is_map(arrow_type):
        return pa.map_(_arrow_field(arrow_type.key_field), _arrow_field(arrow_type.item_field))
    return arrow_type


def spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    """``spark_arrow_type`` for all columns."""
    return pa.schema([_arrow_field(field) for field in schema])


def _arrow_field(field: pa.Field) -> pa.Field:
    return field.with_type(spark_arrow_type(field.type))


def _field(field: pa.Field) -> s.StructField:
    try:
        return s.StructField(field.name, spark_type(field.type), field.nullable)
    except SchemaError as error:
        raise SchemaError(f"column {field.name!r}: {error}") from None


def worker_schema(schema: s.StructType) -> pa.Schema:
    """The Arrow types in which Spark exchanges columns with Python workers; timestamps with a zone are UTC's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = _with_voids(schema)
    if "timezone" in signature(to_arrow_schema).parameters:  # newer than 4.1
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema, timestamp_utc=True)


def _with_voids(kind: s.DataType) -> Any:
    """The type with NULL allowed where it is the only value: Arrow lacks such a type without it."""
    match kind:
        case s.ArrayType():
            item = _with_voids(kind.elementType)
            return s.ArrayType(item, kind.containsNull or isinstance(item, s.NullType))
        case s.MapType():
            key, value = _with_voids(kind.keyType), _with_voids(kind.valueType)
            return s.MapType(key, value, kind.valueContainsNull or isinstance(value, s.NullType))
        case s.StructType():
            kinds = [(field, _with_voids(field.dataType)) for field in kind.fields]
            return s.StructType(
                [
                    s.StructField(field.name, inner, field.nullable or isinstance(inner, s.NullType))
                    for field, inner in kinds
                ]
            )
    return kind


def spark_type(arrow_type: pa.DataType) -> s.DataType:
    """Spark's type for values of a stored type. Raises SchemaError."""
    found = type_of(arrow_type)
    if found is not None and found.spark is not None:
        return _BY_NAME[found.spark]
    if found in PARAMETRIC:
        return PARAMETRIC[found](arrow_type)
    raise SchemaError(f"Spark reads no {short_type(arrow_type)} from Parquet: leave it out by columns=[...]")


def _decimal(arrow_type: pa.DataType) -> s.DataType:
    return s.DecimalType(arrow_type.precision, arrow_type.scale)


def _list(arrow_type: pa.DataType) -> s.DataType:
    item = _field(arrow_type.value_field)
    return s.ArrayType(item.dataType, item.nullable)


def _struct(arrow_type: pa.DataType) -> s.DataType:
    return s.StructType([_field(field) for field in arrow_type])


def _map(arrow_type: pa.DataType) -> s.DataType:
    item = _field(arrow_type.item_field)
    return s.MapType(_field(arrow_type.key_field).dataType, item.dataType, item.nullable)


PARAMETRIC: dict[ColumnType | None, Callable[[pa.DataType], s.DataType]] = {
    DECIMAL: _decimal,
    LIST: _list,
    STRUCT: _struct,
    MAP: _map,
}
"""Spark's types of those that take parameters."""
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def to_frame(
    spark: SparkSession, table: pa.Table, mark: Callable[[s.StructType], s.StructType] = lambda schema: schema
) -> DataFrame:
    """An Arrow table as a DataFrame with the types of ``spark_type``, whatever the session prefers.

    By default Spark reads timestamps without a zone as local times of its zone. An hour that the clocks skip or repeat
    has no moment for them, or two.

    Args:
        mark: adds metadata to the columns.
    """
    schema = s.StructType([_field(field) for field in table.schema])
    if int(spark.conf.get(_BATCH_ROWS, "10000") or 0) <= 0:  # means "no limit", at which createDataFrame fails
        spark = spark.newSession()  # the same Spark, with settings of its own
        spark.conf.set(_BATCH_ROWS, "10000")
    return spark.createDataFrame(table, mark(schema))


_OWN = re.compile(
    r"_metadata|_tmp_metadata_row_index|__(file|size|row|row_index|nothing|source|action|(key|value|column|dropped)_\w+)",
    re.IGNORECASE,
)


def is_own(name: str) -> bool:
    """Whether Spark or dolmen itself uses this column name when files are read or merged."""
    return _OWN.fullmatch(name) is not None


def quote(name: str) -> str:
    """A column's name, quoted for Spark's expressions."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
