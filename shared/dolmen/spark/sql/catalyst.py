"""Reads queries that Spark has analysed: conditions, the columns that a join compares, and the columns of a SELECT.

In an analysed plan the names are resolved and the casts are written out, so nothing of a text's meaning is guessed. A
condition becomes a predicate only where both certainly mean the same for every row. It may consist of:

- the nodes that ``_CatalystReader`` knows;
- columns, also in a cast to a type that keeps every number;
- values of the column's own type, which Spark has evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from dolmen.errors import InputError
from dolmen.format.schema import Field, child_fields, is_nested
from dolmen.predicate import bind
from dolmen.predicate.ast import Constant, Predicate
from dolmen.predicate.bind import ConditionReader, Connective, ForeignCondition, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.names import field_inside
from dolmen.spark.frame_types import OPERATORS, items
from dolmen.spark.tasks import Py4JError

_DOMAINS = {
    "boolean": Domain.BOOLEAN, "tinyint": Domain.EXACT, "smallint": Domain.EXACT, "int": Domain.EXACT,
    "bigint": Domain.EXACT, "float": Domain.FLOAT32, "double": Domain.FLOAT64, "string": Domain.TEXT,
    "binary": Domain.BYTES, "date": Domain.DATE, "timestamp": Domain.ZONED, "timestamp_ntz": Domain.NAIVE,
}  # fmt: skip
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Types of whole numbers, with the most digits of their values."""
_ROW_BY_ROW = {"Project", "Filter", "SubqueryAlias", "View", "Join"}
"""Nodes under which each row of the target stays one row."""
_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys([*_DIGITS, "date", "timestamp", "timestamp_ntz"], int), "string": str
}  # fmt: skip
"""Types of values in a set, which Spark shows as text."""
_SEPARATOR = "\x1f\x00\x1f"
MOST_NODES = 400  # a condition of more nodes is left to Spark: each costs a call of the JVM


def kind_of_node(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def read_condition(query: DataFrame, fields: Mapping[int, Field]) -> ForeignCondition:
    """Reads the condition of an analysed ``SELECT ... FROM table WHERE condition``; ``fields`` are by their index."""
    plan = query._jdf.queryExecution().analyzed()
    if kind_of_node(plan) != "Project" or kind_of_node(plan.child()) != "Filter":
        return ForeignCondition(None, is_exact=False)
    output = plan.child().output()
    by_id = {output.apply(index).exprId().id(): field for index, field in fields.items()}
    return _CatalystReader(by_id).read(plan.child().condition())


def read_pushed(condition: Any, fields: Mapping[str, Field]) -> ForeignCondition:
    """Reads a condition that Spark's optimizer pushes into a scan; ``fields`` are by their names there."""
    return _CatalystReader(fields, lambda column: column.name()).read(condition)


class _CatalystReader(ConditionReader[Any]):
    """Reads the expressions of Spark's plans, over columns by the id that the plan gives them, or by another key."""

    node_errors = (InputError, Py4JError, PySparkException)  # the last two: Spark can't evaluate a value

    def __init__(
        self, fields: Mapping[Any, Field], key: Callable[[Any], Any] = lambda column: column.exprId().id()
    ) -> None:
        self._fields, self._key, self._budget = fields, key, MOST_NODES
        self._common: dict[str, Any] = {}

    def connective(self, node: Any) -> tuple[Connective, Sequence[Any]] | None:
        match kind_of_node(node):
            case "And" | "Or" as kind:
                return ("and" if kind == "And" else "or"), [node.left(), node.right()]
            case "Not":
                return "not", [node.child()]
        return None

    def predicate(self, node: Any) -> Predicate:
        self._spend(1)
        return super().predicate(node)

    def atom(self, node: Any) -> Predicate:
        match kind_of_node(node):
            case "IsNull":
                return bind.is_null(self._plain_column(node.child()))
            case "IsNotNull":
                return bind.negation(bind.is_null(self._plain_column(node.child())))
            case "Between":
                return self.predicate(node.replacement())
            case "With":
                for definition in items(node.defs()):
                    self._common[definition.id().toString()] = definition.child()
                return self.predicate(node.child())
            case "In":
                return self._in(node)
            case "InSet":
                return self._in_set(node)
            case "StartsWith" | "EndsWith" | "Contains" as kind:
                return self._text_match(kind, node)
            case "AttributeReference" | "GetStructField":
                return bind.truth(self._plain_column(node))
            case "EqualNullSafe":
                return bind.negation(bind.distinct_from(*self._sides(node)))
            case kind if kind in OPERATORS:
                return bind.compare(OPERATORS[kind], *self._sides(node))
        if node.foldable() and node.dataType().simpleString() in ("boolean", "void"):
            return Constant(node.eval(None))
        raise UnsupportedConditionError

    def _spend(self, nodes: int) -> None:
        self._budget -= nodes
        if self._budget < 0:
            raise UnsupportedConditionError

    def _sides(self, node: Any) -> tuple[Field | Value, Field | Value]:
        """The sides of a comparison: a column and a value, in either order."""
        left, right = node.left(), node.right()
        if left.foldable():
            field = self._column(right)
            return self._value(left, field), field
        field = self._column(left)
        return field, self._value(right, field)

    def _in(self, node: Any) -> Predicate:
        field = self._column(node.value())
        if pa.types.is_floating(field.arrow_type):  # Spark compares these by their bits
            raise UnsupportedConditionError
        self._spend(node.list().size())
        return bind.one_of(field, [self._value(value, field) for value in items(node.list())])

    def _in_set(self, node: Any) -> Predicate:
        """IN of many values, which Spark's optimizer has evaluated: one call gets them all."""
        field, members = self._column(node.child()), node.hset()
        kind = node.child().dataType().simpleString()
        domain, read = _domain(kind), _READERS.get(kind, Decimal)
        texts = members.mkString(_SEPARATOR).split(_SEPARATOR)
        is_known = kind in _READERS or kind.startswith("decimal(")
        if not is_known or domain is not domain_of(field.arrow_type) or members.contains(None):
            raise UnsupportedConditionError
        if len(texts) != members.size():  # a text has the separator in it
            raise UnsupportedConditionError
        return bind.one_of(field, [Value(domain, read(text)) for text in texts])

    def _text_match(self, kind: str, node: Any) -> Predicate:
        field, value = self._plain_column(node.left()), node.right()
        if {node.left().dataType().simpleString(), value.dataType().simpleString()} != {"string"}:
            raise UnsupportedConditionError
        text = self._value(value, field)
        if text.kind is None:
            raise UnsupportedConditionError
        return bind.text_match(kind.lower(), field, text)

    def _plain_column(self, node: Any) -> Field:
        if kind_of_node(node) == "CommonExpressionRef":
            node = self._common.get(node.id().toString(), node)
        path = []
        while kind_of_node(node) == "GetStructField":
            path.append(node.ordinal())
            node = node.child()
        if kind_of_node(node) != "AttributeReference":
            raise UnsupportedConditionError
        field = self._fields.get(self._key(node))
        if field is None:
            raise UnsupportedConditionError
        for ordinal in reversed(path):
            field = field_inside(field, child_fields(field.type)[ordinal])
        if is_nested(field.arrow_type):
            raise UnsupportedConditionError
        return field

    def _column(self, node: Any) -> Field:
        """A column by itself, or in a cast to a wider exact type."""
        is_cast = kind_of_node(node) == "Cast"
        field = self._plain_column(node.child() if is_cast else node)
        if is_cast and not _is_widening(node):
            raise UnsupportedConditionError
        return field

    def _value(self, node: Any, field: Field) -> Value:
        if not node.foldable():
            raise UnsupportedConditionError
        return plain_value(node.dataType().simpleString(), node.eval(None), field)


def plain_value(kind: str, value: Any, field: Field) -> Value:
    """A value as Spark keeps one of a type. Raises UnsupportedConditionError: it is not of the column's own domain."""
    if value is None:
        return NULL
    is_decimal, domain = kind.startswith("decimal("), _domain(kind)
    if domain is None or domain is not domain_of(field.arrow_type):
        raise UnsupportedConditionError
    if domain is Domain.TEXT:
        return Value(domain, value.toString())
    if is_decimal:
        return Value(domain, value.toJavaBigDecimal())
    if domain.is_float:  # a float32 becomes the double with the same value
        return Value(Domain.FLOAT64, float(value))
    return Value(domain, bytes(value) if domain is Domain.BYTES else value)


def _domain(kind: str) -> Domain | None:
    return Domain.EXACT if kind.startswith("decimal(") else _DOMAINS.get(kind)


def _is_widening(cast: Any) -> bool:
    """Whether a cast takes an exact number to a type that has all values of its own."""
    narrow, wide = (_digits(node.dataType().simpleString()) for node in (cast.child(), cast))
    return narrow is not None and wide is not None and narrow[0] <= wide[0] and narrow[1] <= wide[1]


def _digits(kind: str) -> tuple[int, int] | None:
    """The digits that an exact type has before and after the point; None for another type."""
    if kind in _DIGITS:
        return _DIGITS[kind], 0
    if not kind.startswith("decimal("):
        return None
    precision, scale = map(int, kind[8:-1].split(","))
    return precision - scale, scale


def find_equal_columns(
    query: DataFrame, fields: Mapping[int, Field], source_columns: Sequence[str], *, may_cast: bool = False
) -> list[tuple[Field, str]]:
    """Columns of the target, each with the column of the source that a join's condition requires to be equal.

    ``may_cast`` allows pairs of two types of whole numbers or decimals, and pairs that may both be NULL.
    """
    join = _join_of(query)
    if join is None:
        return []
    target_output, source_output = join.left().output(), join.right().output()
    left = {target_output.apply(index).exprId().id(): field for index, field in fields.items()}
    right = {source_output.apply(index).exprId().id(): name for index, name in enumerate(source_columns)}
    kinds = {"EqualTo", "EqualNullSafe"} if may_cast else {"EqualTo"}
    pairs: dict[int, tuple[Field, str]] = {}
    for node in _conjuncts(join.condition().get()):
        if kind_of_node(node) not in kinds:
            continue
        sides = [_strip_widening(side) if may_cast else side for side in (node.left(), node.right())]
        if any(kind_of_node(side) != "AttributeReference" for side in sides):
            continue
        if may_cast and any(side.dataType().simpleString() in ("float", "double") for side in sides):
            continue  # a key that is rounded may be equal to another one
        ids = [side.exprId().id() for side in sides]
        if ids[0] not in left:
            ids.reverse()
        field, name = left.get(ids[0]), right.get(ids[1])
        if field is None or name is None or source_columns.count(name) > 1 or pa.types.is_floating(field.arrow_type):
            continue
        pairs.setdefault(field.id, (field, name))
    return list(pairs.values())


def count_join_conditions(query: DataFrame) -> int:
    """The number of conditions of a join that must all be TRUE."""
    return len(list(_conjuncts(_join_of(query).condition().get())))


def _join_of(query: DataFrame) -> Any:
    """The join of an analysed query; None if another node is above it."""
    node = query._jdf.queryExecution().analyzed()
    while (kind := kind_of_node(node)) != "Join":
        if kind not in ("Project", "WithCTE"):
            return None
        node = _inner(node)
    return node


def _inner(node: Any) -> Any:
    return node.plan() if kind_of_node(node) == "WithCTE" else node.child()


def _conjuncts(condition: Any) -> Iterator[Any]:
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if kind_of_node(node) == "And":
            waiting += [node.left(), node.right()]
        else:
            yield node


def _strip_widening(value: Any) -> Any:
    """Strips casts of an exact number to types that have all its values."""
    inner = value
    while kind_of_node(inner) == "Cast":
        if not _is_widening(inner):
            return value
        inner = inner.child()
    return inner


def find_column_indexes(query: DataFrame, count: int) -> list[int | None]:
    """The column index of each of a SELECT's first ``count`` expressions; None for a computed one."""
    node = query._jdf.queryExecution().analyzed()
    while kind_of_node(node) == "WithCTE":
        node = node.plan()
    indexes = {column.exprId().id(): index for index, column in enumerate(items(node.child().output()))}
    values = [alias.child() for alias in items(node.projectList())[:count]]
    return [indexes.get(v.exprId().id()) if kind_of_node(v) == "AttributeReference" else None for v in values]


def check_single_rows(query: DataFrame, clause: str) -> None:
    """Raises InputError for a query with an aggregate, a window or a generator, which do not work row by row.

    ``clause`` is the part of the statement that the error names, such as WHERE.
    """
    node = query._jdf.queryExecution().analyzed()
    while kind_of_node(node) in ("WithCTE", "Project", "Filter"):
        node = _inner(node)
    if (kind := kind_of_node(node)) not in _ROW_BY_ROW:
        raise InputError(f"{clause}: {kind.lower()}s are not for single rows: put them into a subquery")
