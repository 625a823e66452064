"""Columns as Spark has them: the types in which its own Parquet reader returns them, their names in expressions, and
the mark of the version that they were read from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

from dolmen.errors import SchemaError
from dolmen.format.schema import Field
from dolmen.format.types import DECIMAL, LIST, MAP, STRUCT, TYPES, ColumnType, short_type, type_of
from dolmen.predicate.domains import Op

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OWN = re.compile(
    r"_metadata|_tmp_metadata_row_index|__(file|size|row|row_index|nothing|source|action|(key|value|column|dropped)_\w+)",
    re.IGNORECASE,
)
_ORIGIN = "dolmen"
OPERATORS: dict[str, Op] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
"""Operators of comparisons, by the names that nodes of Spark's plans and filters of its data sources have for them."""


_BY_NAME = {
    name: s.StructField.fromJson({"name": "", "type": name, "nullable": True, "metadata": {}}).dataType
    for name in {kind.spark for kind in TYPES if kind.spark is not None}
}


def spark_schema(fields: Iterable[Field]) -> s.StructType:
    return s.StructType([spark_field(field.to_arrow()) for field in fields])


def spark_field(field: pa.Field) -> s.StructField:
    """A column of a stored type, as Spark has it. Raises SchemaError."""
    try:
        return s.StructField(field.name, spark_type(field.type), field.nullable)
    except SchemaError as error:
        raise SchemaError(f"column {field.name!r}: {error}") from None


def spark_type(arrow_type: pa.DataType) -> s.DataType:
    """Spark's type for values of a stored type. Raises SchemaError."""
    kind = type_of(arrow_type)
    if kind is not None and kind.spark is not None:
        return _BY_NAME[kind.spark]
    if kind in PARAMETRIC:
        return PARAMETRIC[kind](arrow_type)
    raise SchemaError(f"Spark can't read {short_type(arrow_type)} from Parquet: leave it out by columns=[...]")


def _list(arrow_type: pa.DataType) -> s.DataType:
    item = spark_field(arrow_type.value_field)
    return s.ArrayType(item.dataType, item.nullable)


def _map(arrow_type: pa.DataType) -> s.DataType:
    item = spark_field(arrow_type.item_field)
    return s.MapType(spark_field(arrow_type.key_field).dataType, item.dataType, item.nullable)


PARAMETRIC: dict[ColumnType | None, Callable[[pa.DataType], s.DataType]] = {
    DECIMAL: lambda own: s.DecimalType(own.precision, own.scale),
    LIST: _list,
    STRUCT: lambda own: s.StructType([spark_field(field) for field in own]),
    MAP: _map,
}
"""Spark's types for column types with parameters."""


def worker_schema(schema: s.StructType) -> pa.Schema:
    """The Arrow types in which Spark exchanges columns with Python workers; timestamps with a zone are UTC's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = _with_voids(schema)
    if "timezone" in signature(to_arrow_schema).parameters:  # newer than 4.1
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema, timestamp_utc=True)


def worker_type(arrow_type: pa.DataType) -> pa.DataType:
    """The Arrow type in which values of a stored type go to Spark. Raises SchemaError: Spark lacks the type."""
    return worker_schema(s.StructType([s.StructField("value", spark_type(arrow_type))])).field(0).type


def _with_voids(kind: s.DataType) -> Any:
    """The type with its members of Spark's type VOID made nullable: in Arrow such a member is always nullable."""
    match kind:
        case s.ArrayType():
            item = _with_voids(kind.elementType)
            return s.ArrayType(item, kind.containsNull or isinstance(item, s.NullType))
        case s.MapType():
            key, value = _with_voids(kind.keyType), _with_voids(kind.valueType)
            return s.MapType(key, value, kind.valueContainsNull or isinstance(value, s.NullType))
        case s.StructType():
            inner = [_with_voids(field.dataType) for field in kind.fields]
            return s.StructType(
                [
                    s.StructField(field.name, own, field.nullable or isinstance(own, s.NullType))
                    for field, own in zip(kind.fields, inner, strict=True)
                ]
            )
    return kind


def to_frame(
    spark: SparkSession, table: pa.Table, mark: Callable[[s.StructType], s.StructType] = lambda schema: schema
) -> DataFrame:
    """An Arrow table as a DataFrame with the types of ``spark_type``, whatever the session prefers.

    By default Spark reads timestamps without a zone as local times of its zone. In an hour that the clocks skip or
    repeat, such a time means no moment, or two. ``mark`` adds metadata to the columns.
    """
    schema = s.StructType([spark_field(field) for field in table.schema])
    if int(spark.conf.get(_BATCH_ROWS, "10000") or 0) <= 0:  # means "no limit", at which createDataFrame fails
        spark = spark.newSession()  # the same Spark, with settings of its own
        spark.conf.set(_BATCH_ROWS, "10000")
    return spark.createDataFrame(table, mark(schema))


def is_own(name: str) -> bool:
    """Whether Spark or dolmen itself uses this column name when files are read or merged."""
    return _OWN.fullmatch(name) is not None


def quote(name: str) -> str:
    """A column's name, quoted for Spark's expressions."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


class Origin(Struct, frozen=True):
    """The origin of rows: a version of the database, and the uuid of a table.

    It is in the metadata of the columns that are read. Spark passes it on with each column that is not computed,
    through views, caches and checkpoints, also to a data source that writes: so a write does not undo later changes.
    """

    table: str
    version: int

    def mark(self, schema: s.StructType) -> s.StructType:
        own = {_ORIGIN: f"{self.table}@{self.version}"}
        return s.StructType(
            [s.StructField(f.name, f.dataType, f.nullable, {**(f.metadata or {}), **own}) for f in schema.fields]
        )


def origins_of(schema: s.StructType) -> set[Origin]:
    """The origins that columns are marked with; computed columns have none."""
    return _origins(field.metadata or {} for field in schema.fields)


def origins_in_plan(frame: DataFrame) -> set[Origin]:
    """The origins of everything that a frame reads, anywhere in its plan. Runs no job."""
    plan = frame._jdf.queryExecution().analyzed()
    leaves = [leaf for each in (plan, *items(plan.subqueriesAll())) for leaf in items(each.collectLeaves())]
    firsts = [column for leaf in leaves for column in items(leaf.output())[:1]]  # all columns of a leaf have one mark
    return _origins(msgspec.json.decode(column.metadata().json()) for column in firsts)


def items(scala: Any) -> list[Any]:
    return [scala.apply(index) for index in range(scala.size())]


def _origins(metadata: Iterable[dict[str, Any]]) -> set[Origin]:
    marks = (str(each.get(_ORIGIN, "")).partition("@") for each in metadata)
    return {Origin(table, int(version)) for table, _, version in marks if version.isdecimal()}
