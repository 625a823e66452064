"""Turns a condition that Spark has analysed into a dolmen predicate, where both mean the same for every row.

Spark has resolved names and written its casts out by then, so nothing of a text's meaning is guessed here: time zones,
settings and the types of literals are in the tree. Of its nodes a closed list is understood, in which a column stands
by itself, or in a cast that keeps every number as it is, beside values of the column's own type. A value is whatever
Spark makes of a part without columns. For all else there is no predicate, and Spark evaluates the condition.

Gives values the types of the columns that they are for, as Spark does when it stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa
from pyspark.sql import types as s

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.schema import Field, is_nested
from dolmen.predicate import Constant, Predicate, bind
from dolmen.predicate.constants import NULL, Domain, Op, Value, domain_of
from dolmen.spark.failures import Py4JError, mark_of
from dolmen.spark.spark_types import quoted, spark_type

_OPS: dict[str, Op] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip


_MIRRORED: dict[Op, Op] = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


_DOMAINS = {
    "boolean": Domain.BOOLEAN, "tinyint": Domain.EXACT, "smallint": Domain.EXACT, "int": Domain.EXACT,
    "bigint": Domain.EXACT, "float": Domain.FLOAT32, "double": Domain.FLOAT64, "string": Domain.TEXT,
    "binary": Domain.BYTES, "date": Domain.DATE, "timestamp": Domain.ZONED, "timestamp_ntz": Domain.NAIVE,
}  # fmt: skip


_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


MOST_NODES = 400
"""A condition of more nodes is left to Spark: each costs a call of the JVM."""


class _DifferenceError(Exception):
    """Spark and dolmen may differ in a part."""


def agreed_predicate(filtered: DataFrame, fields: Mapping[int, Field]) -> Predicate | None:
    """The predicate of ``SELECT ... FROM table WHERE condition``; None if it is Spark's to evaluate.

    Args:
        filtered: that query, analysed.
        fields: columns of the table, by their place in it.
    """
    both = _of_plan(filtered, fields)
    return both[0] if both is not None and both[1] else None


def wider_predicate(filtered: DataFrame, fields: Mapping[int, Field]) -> Predicate | None:
    """A predicate that is TRUE for every row for which the condition is TRUE; None if there is none."""
    both = _of_plan(filtered, fields)
    return None if both is None else both[0]


def _of_plan(filtered: DataFrame, fields: Mapping[int, Field]) -> tuple[Predicate, bool] | None:
    """Such a predicate, and whether it is the condition itself."""
    plan = filtered._jdf.queryExecution().analyzed()
    if _kind(plan) != "Project" or _kind(plan.child()) != "Filter":
        return None
    condition, output = plan.child().condition(), plan.child().output()
    ids = {output.apply(place).exprId().id(): field for place, field in fields.items()}
    reader = _TreeReader(ids)
    parts = _conjuncts(condition)
    found = [predicate for part in parts if (predicate := reader.try_predicate(part)) is not None]
    return (bind.conjunction(found), len(found) == len(parts)) if found else None


def _conjuncts(node: Any) -> list[Any]:
    if _kind(node) != "And":
        return [node]
    return [*_conjuncts(node.left()), *_conjuncts(node.right())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


class _TreeReader:
    def __init__(self, fields: Mapping[int, Field]) -> None:
        self._fields, self._left = fields, MOST_NODES
        self._common: dict[str, Any] = {}

    def try_predicate(self, node: Any) -> Predicate | None:
        try:
            return self._predicate(node)
        except (
            _DifferenceError,
            InputError,
            Py4JError,
            PySparkException,
        ):  # the last two: Spark can't evaluate a value
            return None

    def _predicate(self, node: Any) -> Predicate:
        self._left -= 1
        if self._left < 0:
            raise _DifferenceError
        kind = _kind(node)
        if kind == "And":
            return bind.conjunction([self._predicate(node.left()), self._predicate(node.right())])
        if kind == "Or":
            return bind.disjunction([self._predicate(node.left()), self._predicate(node.right())])
        if kind == "Not":
            return bind.negation(self._predicate(node.child()))
        if kind == "IsNull":
            return bind.is_null(self._bare(node.child()))
        if kind == "IsNotNull":
            return bind.negation(bind.is_null(self._bare(node.child())))
        if kind == "Between":
            return self._predicate(node.replacement())
        if kind == "With":
            defined = node.defs()
            for place in range(defined.size()):
                self._common[defined.apply(place).id().toString()] = defined.apply(place).child()
            return self._predicate(node.child())
        if kind == "In":
            return self._in(node)
        if kind == "AttributeReference":
            return bind.truth(self._bare(node))
        if kind in _OPS or kind == "EqualNullSafe":
            return self._comparison(kind, node)
        if node.foldable() and node.dataType().simpleString() in ("boolean", "void"):
            return Constant(node.eval(None))
        raise _DifferenceError

    def _comparison(self, kind: str, node: Any) -> Predicate:
        left, right = node.left(), node.right()
        op = _OPS.get(kind, "=")
        if left.foldable():
            left, right, op = right, left, _MIRRORED[op]
        field = self._column(left)
        value = self._value(right, field)
        if kind == "EqualNullSafe":
            return bind.negation(bind.distinct_from(field, value))
        return bind.compare(op, field, value)

    def _in(self, node: Any) -> Predicate:
        field = self._column(node.value())
        if pa.types.is_floating(field.arrow_type):  # Spark compares these by their bits
            raise _DifferenceError
        values = node.list()
        self._left -= values.size()
        if self._left < 0:
            raise _DifferenceError
        return bind.one_of(field, [self._value(values.apply(place), field) for place in range(values.size())])

    def _bare(self, node: Any) -> Field:
        """A column by itself."""
        if _kind(node) == "CommonExpressionRef":
            node = self._common.get(node.id().toString(), node)
        if _kind(node) != "AttributeReference":
            raise _DifferenceError
        field = self._fields.get(node.exprId().id())
        if field is None or is_nested(field.arrow_type):
            raise _DifferenceError
        return field

    def _column(self, node: Any) -> Field:
        """A column by itself, or in a cast to a wider exact type."""
        if _kind(node) != "Cast":
            return self._bare(node)
        field = self._bare(node.child())
        own, wide = _room(node.child().dataType().simpleString()), _room(node.dataType().simpleString())
        if own is None or wide is None or own[0] > wide[0] or own[1] > wide[1]:
            raise _DifferenceError
        return field

    def _value(self, node: Any, field: Field) -> Value:
        if not node.foldable():
            raise _DifferenceError
        kind = node.dataType().simpleString()
        value = node.eval(None)
        if value is None:
            return NULL
        domain = Domain.EXACT if kind.startswith("decimal(") else _DOMAINS.get(kind)
        if domain is None or domain is not domain_of(field.arrow_type):
            raise _DifferenceError
        if domain is Domain.TEXT:
            return Value(domain, value.toString())
        if kind.startswith("decimal("):
            return Value(domain, value.toJavaBigDecimal())
        if domain.is_float:  # of a float column it is the float, told in full
            return Value(Domain.FLOAT64, float(value))
        return Value(domain, bytes(value) if domain is Domain.BYTES else value)


def _room(kind: str) -> tuple[int, int] | None:
    """The digits that an exact type has before and behind the point; None for another type."""
    if kind in _DIGITS:
        return _DIGITS[kind], 0
    if not kind.startswith("decimal("):
        return None
    precision, scale = map(int, kind[8:-1].split(","))
    return precision - scale, scale


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
