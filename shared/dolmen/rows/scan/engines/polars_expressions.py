"""Conditions that are expressions of Polars: those that it pushes into a lazy frame, and those that users write.

Polars passes the condition on a lazy frame as a typed expression, which can be written as JSON. A closed list of forms
is understood. Polars itself applies the whole condition to the rows, so that other forms only cost more reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dolmen.base.late_imports import optional
from dolmen.errors import InputError, PredicateError, short_repr
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.format.types import type_of
from dolmen.predicate import bind
from dolmen.predicate.ast import Constant, Predicate
from dolmen.predicate.bind import ConditionReader, Connective, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value
from dolmen.predicate.domains import Domain, Op, domain_of, nearest_float32

if TYPE_CHECKING:
    import polars as pl

_COMPARISONS: dict[str, Op] = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_BETWEEN: dict[str, tuple[Op, Op]] = {
    "Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<"),
}  # fmt: skip


_ReadLiteral: TypeAlias = Callable[[Any, Field], Any]


def predicate_of(condition: pl.Expr, stored: Schema) -> Predicate | None:
    """The predicate of the parts of a condition that are understood; None if none is."""
    polars = optional("polars", "polars")
    try:
        tree = _tree(condition)
    except (polars.exceptions.PolarsError, ValueError):  # for example, Python functions can't be written
        return None
    return _ExpressionReader(stored).read(tree).predicate


def _tree(condition: pl.Expr) -> Any:
    """The nodes of an expression. Chains of AND are as deep as they are long, too deep for Python's decoder."""
    text: str = condition.meta.serialize(format="json")
    try:
        return json.loads(text)
    except RecursionError:
        pass
    top: list[Any] = []
    open_nodes: list[Any] = [top]
    name: Any = None
    for word in (found[0] for found in _JSON_WORD.finditer(text)):
        if word in "}]":
            open_nodes.pop()
            continue
        value: Any = {} if word == "{" else [] if word == "[" else json.loads(word)
        if isinstance(node := open_nodes[-1], list):
            node.append(value)
        elif name is None:
            name = value
            continue
        else:
            node[name], name = value, None
        if word in "{[":
            open_nodes.append(value)
    return top[0]


_JSON_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\]:,"]+')


class _ExpressionReader(ConditionReader[Any]):
    """Reads the nodes of Polars's expressions, as JSON."""

    node_errors = (InputError, KeyError, TypeError, ValueError, pa.ArrowException)  # nodes may have an unknown shape

    def __init__(self, stored: Schema) -> None:
        self._stored = stored

    def connective(self, node: Any) -> tuple[Connective, Sequence[Any]] | None:
        match node:
            case {"BinaryExpr": {"op": "And" | "Or" as op, "left": left, "right": right}}:
                return ("and" if op == "And" else "or"), [left, right]
            case {"Function": {"function": {"Boolean": "Not"}, "input": [operand]}}:
                return "not", [operand]
        return None

    def atom(self, node: Any) -> Predicate:
        match node:
            case {"Column": _}:
                return bind.truth(self._field(node))
            case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _COMPARISONS:
                is_left = "Column" in left
                field = self._field(left if is_left else right)
                operands = (field, self._value(right, field)) if is_left else (self._value(left, field), field)
                return bind.compare(_COMPARISONS[op], *operands)
            case {"Function": {"function": {"Boolean": name}, "input": inputs}}:
                return self._function(name, inputs)
        raise UnsupportedConditionError

    def _function(self, name: Any, inputs: list[Any]) -> Predicate:
        field = self._field(inputs[0])
        match name:
            case "IsNull":
                return bind.is_null(field)
            case "IsNotNull":
                return bind.negation(bind.is_null(field))
            case "IsNan":
                return bind.compare("=", field, Value(domain_of(field.arrow_type), float("nan")))
            case {"IsBetween": {"closed": closed}}:
                least, greatest = _BETWEEN[closed]
                low, high = (self._value(bound, field) for bound in inputs[1:])
                return bind.conjunction([bind.compare(least, field, low), bind.compare(greatest, field, high)])
            case {"IsIn": {"nulls_equal": False}}:
                return bind.one_of(field, _members(inputs[1], field))
        raise UnsupportedConditionError

    def _field(self, node: Any) -> Field:
        field = self._stored.field(node["Column"])
        if is_nested(field.arrow_type):
            raise UnsupportedConditionError
        return field

    def _value(self, node: Any, field: Field) -> Value:
        """A literal of the column's own type."""
        ((kind, value),) = node["Literal"]["Scalar"].items()
        column_type, domain = type_of(field.arrow_type), domain_of(field.arrow_type)
        if column_type is None or domain is None or column_type.polars != kind:
            raise UnsupportedConditionError
        return Value(domain, LITERALS[kind](value, field))


def read_expression(condition: pl.Expr, schema: Schema) -> Predicate:
    """The predicate that is TRUE for the rows that Polars keeps. Raises PredicateError, which names what has none."""
    polars = optional("polars", "polars")
    try:
        return _UserExpressionReader(schema).read_whole(_tree(condition))
    except polars.exceptions.PolarsError as error:
        raise PredicateError(f"{short_repr(str(condition))} can't be read: {error}") from error


class _UserExpressionReader(_ExpressionReader):
    """Reads the nodes of Polars's expressions that users write: their literals may have no type yet."""

    def atom(self, node: Any) -> Predicate:
        match node:
            case {"Literal": {"Scalar": {"Boolean": bool() as value}}}:
                return Constant(value)
            case {"BinaryExpr": {"op": "EqValidity" | "NotEqValidity" as op, "left": left, "right": right}}:
                field = self._field(left)
                differ = bind.distinct_from(field, self._value(right, field))
                return differ if op == "NotEqValidity" else bind.negation(differ)
            case {"BinaryExpr": {"op": op, "left": {"Column": _} as left, "right": {"Column": _} as right}}:
                field, other = self._field(left), self._field(right)
                if op not in _COMPARISONS or field.arrow_type != other.arrow_type:
                    raise UnsupportedConditionError
                return bind.compare(_COMPARISONS[op], field, other)
            case {"Function": {"function": {"StringExpr": "StartsWith" | "EndsWith" as name}, "input": [column, text]}}:
                pattern = Value(Domain.TEXT, text["Literal"]["Scalar"]["String"])
                return bind.text_match(name.lower(), self._field(column), pattern)
        return super().atom(node)

    def show(self, node: Any) -> str:
        polars = optional("polars", "polars")
        try:
            return str(polars.Expr.deserialize(BytesIO(json.dumps(node).encode()), format="json"))
        except (polars.exceptions.PolarsError, RecursionError):  # too deep
            return "the expression"

    def _value(self, node: Any, field: Field) -> Value:
        """A literal that Polars compares with a column as dolmen does."""
        kind = field.arrow_type
        match node:
            case {"Literal": {"Scalar": {"Null": _}}}:
                return NULL
            case {"Literal": {"Dyn": {"Int": int() as number}}} if domain_of(kind) in _NUMBERS:
                return Value(Domain.EXACT, number)
            case {"Literal": {"Dyn": {"Float": int() | float() as number}}} if pa.types.is_float32(kind):
                return Value(Domain.FLOAT32, nearest_float32(float(number)))
            case {"Literal": {"Dyn": {"Float": int() | float() as number}}}:
                if pa.types.is_decimal(kind) or domain_of(kind) not in _NUMBERS:
                    raise UnsupportedConditionError
                return Value(Domain.FLOAT64, float(number))
            case {"Literal": {"Scalar": scalar}} if pa.types.is_integer(kind):
                ((name, number),) = scalar.items()
                if _INTEGER.fullmatch(name):
                    return Value(Domain.EXACT, number)
        return super()._value(node, field)


_NUMBERS = (Domain.EXACT, Domain.FLOAT32, Domain.FLOAT64)
_INTEGER = re.compile("U?Int(8|16|32|64)")


def _members(node: Any, field: Field) -> list[Value]:
    """The values of a list, which is an Arrow stream of one column."""
    with pa.ipc.open_stream(bytes(node["Literal"]["Scalar"]["List"])) as stream:
        column = stream.read_all().column(0)
    texts = pa.types.is_string_view(column.type) or pa.types.is_large_string(column.type)
    column = column.cast(pa.string()) if texts else column
    exact = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    if column.type != field.arrow_type or not exact or column.null_count:
        raise UnsupportedConditionError
    domain = domain_of(column.type)
    assert domain is not None
    return [Value(domain, value) for value in column.to_pylist()]


def _literal_reader(python_type: type) -> _ReadLiteral:
    def read(value: Any, field: Field) -> Any:
        if type(value) is not python_type:
            raise UnsupportedConditionError
        return value

    return read


def _decimal(value: Any, field: Field) -> Decimal:
    unscaled, _, scale = value
    return Decimal(unscaled).scaleb(-scale)


def _number(value: Any, field: Field) -> float:
    if not isinstance(value, (int, float)):
        raise UnsupportedConditionError
    return float(value)


def _time(value: Any, field: Field) -> int:
    if type(value) is not int or value % 1000:  # nanoseconds
        raise UnsupportedConditionError
    return value // 1000


def _timestamp(value: Any, field: Field) -> Any:
    number, unit, zone = value
    if unit != "Microseconds" or (zone is None) != (field.arrow_type.tz is None):
        raise UnsupportedConditionError
    return number


LITERALS: dict[str, _ReadLiteral] = {
    "Boolean": _literal_reader(bool),
    **{f"{sign}Int{bits}": _literal_reader(int) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "Decimal": _decimal,
    "Float64": _number,
    "Float32": lambda value, field: nearest_float32(_number(value, field)),
    "String": _literal_reader(str),
    "Binary": lambda value, field: bytes(value),
    "Date": _literal_reader(int),
    "Time": _time,
    "Datetime": _timestamp,
}
"""By Polars's name of a type, reads the plain value of a literal."""
