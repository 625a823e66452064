"""Gives values the types of the columns that they are for, as Spark does when it stores them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.schema import Field
from dolmen.spark.failures import mark_of
from dolmen.spark.types import quoted, spark_type

_POLICY = "spark.sql.storeAssignmentPolicy"
_DAYS = s.DateType, s.TimestampType, s.TimestampNTZType


class StoreCasts:
    """Casts by the ANSI policy of Spark's: what can't be stored by it is refused, and what does not fit fails the job.

    It does not matter whether ``spark.sql.ansi.enabled`` is on.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._policy = (spark.conf.get(_POLICY, None) or "ANSI").upper()

    def column(self, frame: DataFrame, name: str, field: Field, what: str) -> Column:
        """A frame's column in the type of a table's column.

        Args:
            what: the piece of SQL that gave it.

        Raises:
            SchemaError: Spark does not store values of its type in such a column, or dolmen does not.
        """
        own, wanted = frame.schema[name].dataType, spark_type(field.arrow_type)
        column = F.col(quoted(name))
        if own.simpleString() == wanted.simpleString() or isinstance(own, s.NullType):
            return column.cast(wanted)
        said = f"{what}: a value of type {own.simpleString()} for column {field.name!r} of {wanted.simpleString()}"
        if self._policy != "ANSI":
            raise InputError(f"{said}: with {_POLICY}={self._policy} write the cast yourself")
        if _fits(own, wanted):
            return column.cast(wanted)
        nested = s.ArrayType, s.MapType, s.StructType, s.VariantType
        if isinstance(own, nested) or isinstance(wanted, nested) or not can_store(own, wanted):
            raise SchemaError(f"{said}: cast it")
        fitting = column.try_cast(wanted)
        reason = f"a value does not fit {wanted.simpleString()}"
        misfit = F.raise_error(F.lit(mark_of(RowError(reason, column=field.name))))
        return F.when(column.isNotNull() & fitting.isNull(), misfit).otherwise(fitting)


def _fits(own: s.DataType, wanted: s.DataType) -> bool:
    """Whether a list, map or struct needs no other casts inside than those of literals, which always fit."""
    if isinstance(own, s.ArrayType) and isinstance(wanted, s.ArrayType):
        pairs = [(own.elementType, wanted.elementType)]
    elif isinstance(own, s.MapType) and isinstance(wanted, s.MapType):
        pairs = [(own.keyType, wanted.keyType), (own.valueType, wanted.valueType)]
    elif isinstance(own, s.StructType) and isinstance(wanted, s.StructType) and own.names == wanted.names:
        pairs = [(field.dataType, other.dataType) for field, other in zip(own, wanted, strict=True)]
    else:
        return False
    return all(_fits(*pair) or _is_literal_of(*pair) for pair in pairs)


def _is_literal_of(own: s.DataType, wanted: s.DataType) -> bool:
    """Whether all values of a flat type fit another one: NULL, integers in wider types, decimals as floats."""
    if own == wanted or isinstance(own, s.NullType):
        return True
    integers = [s.ByteType, s.ShortType, s.IntegerType, s.LongType]
    if type(own) in integers and type(wanted) in integers:
        return integers.index(type(own)) < integers.index(type(wanted))
    return (
        isinstance(own, (s.IntegralType, s.DecimalType))
        and isinstance(wanted, s.FractionalType)
        and not isinstance(wanted, s.DecimalType)
    )


def can_store(own: s.DataType, wanted: s.DataType) -> bool:
    """Whether Spark's ANSI policy stores flat values of another type in a column, as Spark's own
    ``Cast.canANSIStoreAssign`` says, which a session of Spark Connect can't be asked for."""
    if isinstance(wanted, s.StringType):
        return isinstance(own, (s.AtomicType, s.CalendarIntervalType))
    if isinstance(own, _DAYS) and isinstance(wanted, _DAYS):
        return True
    return isinstance(own, s.NumericType) and isinstance(wanted, s.NumericType)
