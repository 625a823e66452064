"""Conditions that are expressions of pyarrow: those that DuckDB pushes into a scan, and those that users write.

The structure of an expression is read from its serialized form (Arrow's ``compute::Serialize``): a record batch whose
columns are the literals, and whose metadata are the steps of a walk through the expression: ``call`` and ``end`` around
a function's arguments, ``field_ref``, ``literal``, ``options``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.errors import PredicateError, short_repr
from dolmen.format.schema import Field, Schema
from dolmen.format.types import to_plain
from dolmen.predicate import bind
from dolmen.predicate.ast import Constant, Not, Predicate
from dolmen.predicate.bind import ConditionReader, Connective, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value
from dolmen.predicate.domains import Domain, Op, domain_of
from dolmen.predicate.names import Name, find_column

_COMPARISONS: dict[str, Op] = {
    "equal": "=", "not_equal": "<>", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip


class _Column(Struct, frozen=True):
    path: tuple[str, ...]


class _Call(Struct, frozen=True):
    function: str
    arguments: list[_Node]
    options: Any


_Node: TypeAlias = _Column | _Call | pa.Scalar
_Step: TypeAlias = tuple[str, str]


class Filter(Struct, frozen=True):
    """The predicate and the columns of an Arrow expression."""

    columns: frozenset[str] | None  # names of the columns that it reads; None if unknown
    predicate: Predicate | None  # TRUE for every row for which the expression is TRUE
    is_exact: bool  # the predicate is TRUE only for these rows, so the expression need not be evaluated


def read_filter(expression: pc.Expression, schema: Schema, *, boxed: bool = False) -> Filter:
    """Finds the predicate of a DuckDB filter; with ``boxed`` it reads columns out of their boxes.

    Comparisons mean the same in DuckDB and in predicates: NaN equals itself and is greater than every number. Literals
    must have the type of the column that they are compared with; anything else is not understood.
    """
    try:
        node = _unbox(_tree(expression)) if boxed else _tree(expression)
    except (UnsupportedConditionError, pa.ArrowException, RecursionError):
        return Filter(None, None, False)
    reading = _FilterReader(schema).read(node)
    return Filter(frozenset(_columns(node)), reading.predicate, reading.is_exact)


def _tree(expression: pc.Expression) -> _Node:
    _, (buffer,) = expression.__reduce__()
    with pa.ipc.open_file(buffer) as file:
        batch = file.get_batch(0)
    return _read(iter(_metadata(batch.schema)), batch)


def _unbox(node: _Node) -> _Node:
    """The expression with columns instead of the fields of their boxes."""
    if isinstance(node, _Call):
        return replace(node, arguments=list(map(_unbox, node.arguments)))
    if not isinstance(node, _Column):
        return node
    if len(node.path) < 2:
        raise UnsupportedConditionError
    return _Column(node.path[:1])


def _read(steps: Iterator[_Step], batch: pa.RecordBatch) -> _Node:
    """The tree. An OR of hundreds of comparisons nests as deep: its operands become arguments of one call."""
    open_calls: list[tuple[str, list[_Node], list[Any]]] = []
    for kind, value in steps:
        node: _Node
        if kind == "call":
            open_calls.append((value, [], []))
            continue
        if kind == "options" and open_calls:
            open_calls[-1][2].append(batch.column(int(value))[0])
            continue
        if kind == "literal":
            node = batch.column(int(value))[0]
        elif kind == "field_ref":
            node = _Column((value,))
        elif kind == "nested_field_ref":
            node = _Column(tuple(name for _, name in (next(steps) for _ in range(int(value)))))
        elif kind == "end" and open_calls:
            function, arguments, options = open_calls.pop()
            node = _Call(function, _merge_arguments(function, arguments), options[0] if options else None)
        else:
            raise UnsupportedConditionError
        if not open_calls:
            return node
        open_calls[-1][1].append(node)
    raise UnsupportedConditionError


def _merge_arguments(function: str, arguments: list[_Node]) -> list[_Node]:
    """The operands of a chain; the list of its first part grows, so that a long chain is not copied again and again."""
    if function not in ("and_kleene", "or_kleene"):
        return arguments
    merged: list[_Node] = []
    for node in arguments:
        more = node.arguments if isinstance(node, _Call) and node.function == function else [node]
        merged = merged + more if merged else more
    return merged


def _metadata(schema: pa.Schema) -> list[_Step]:
    """A schema's metadata with repeated keys, which pyarrow leaves out, by the Arrow C data interface.

    See https://arrow.apache.org/docs/format/CDataInterface.html#c.ArrowSchema.metadata
    """
    exported = (ctypes.c_void_p * 9)()
    schema._export_to_c(ctypes.addressof(exported))
    try:
        return list(_pairs(exported[2]))  # its third member
    finally:
        pa.Schema._import_from_c(ctypes.addressof(exported))  # releases it


def _pairs(address: int | None) -> Iterator[_Step]:
    if not address:
        return
    cursor = address

    def integer() -> int:
        nonlocal cursor
        cursor += 4
        return ctypes.c_int32.from_address(cursor - 4).value

    def text() -> str:
        nonlocal cursor
        length = integer()
        cursor += length
        return ctypes.string_at(cursor - length, length).decode()

    for _ in range(integer()):
        yield text(), text()


def _columns(node: _Node) -> Iterator[str]:
    if isinstance(node, _Column):
        yield node.path[0]
    elif isinstance(node, _Call):
        for argument in node.arguments:
            yield from _columns(argument)


_CONNECTIVES: dict[str, Connective] = {"and_kleene": "and", "or_kleene": "or", "invert": "not"}


class _FilterReader(ConditionReader[_Node]):
    """Reads the nodes of Arrow expressions that DuckDB writes."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def connective(self, node: _Node) -> tuple[Connective, Sequence[_Node]] | None:
        if not isinstance(node, _Call) or node.function not in _CONNECTIVES:
            return None
        return _CONNECTIVES[node.function], node.arguments

    def atom(self, node: _Node) -> Predicate:
        if isinstance(node, pa.Scalar) and pa.types.is_boolean(node.type):
            return Constant(node.as_py())
        if isinstance(node, _Column):
            return bind.truth(self._field(node))
        if not isinstance(node, _Call):
            raise UnsupportedConditionError
        arguments = node.arguments
        match node.function:
            case "is_null" if node.options is None or not node.options["nan_is_null"].as_py():
                return bind.is_null(self._field(arguments[0]))
            case "is_valid":
                return bind.negation(bind.is_null(self._field(arguments[0])))
            case "is_nan":
                field = self._field(arguments[0])
                nan = pa.scalar(float("nan"), field.arrow_type)
                return bind.compare("=", field, _value(nan, field))
            case "is_in":  # FALSE, rather than NULL, for NULL
                field = self._field(arguments[0])
                return bind.conjunction([_one_of(node, field), Not(bind.is_null(field))])
            case "if_else":
                return self._sql_in(arguments)
            case function if function in _COMPARISONS and len(arguments) == 2:
                return self._compare(_COMPARISONS[function], *arguments)
        raise UnsupportedConditionError

    def _compare(self, op: Op, left: _Node, right: _Node) -> Predicate:
        if isinstance(left, pa.Scalar):
            field = self._field(right)
            return bind.compare(op, _value(left, field), field)
        if not isinstance(right, pa.Scalar):
            raise UnsupportedConditionError
        field = self._field(left)
        return bind.compare(op, field, _value(right, field))

    def _sql_in(self, arguments: list[_Node]) -> Predicate:
        """SQL's IN: ``if_else(is_valid(x), is_in(x, ...), NULL)``."""
        match arguments:
            case (
                _Call("is_valid", (_Column() as tested,)),
                _Call("is_in", (_Column() as column,)) as members,
                pa.Scalar() as otherwise,
            ) if tested == column and not otherwise.is_valid:
                return _one_of(members, self._field(column))
        raise UnsupportedConditionError

    def _field(self, node: _Node) -> Field:
        if not isinstance(node, _Column):
            raise UnsupportedConditionError
        return find_column([Name(part, quoted=True) for part in node.path], self._schema)


def _one_of(node: _Call, field: Field) -> Predicate:
    members = node.options["value_set"].values
    if members is None or members.null_count:
        raise UnsupportedConditionError
    return bind.one_of(field, [_value(member, field) for member in members])


def _value(scalar: pa.Scalar, field: Field) -> Value:
    """A literal of the column's own type, or of a type with the same stored values."""
    kind, target = scalar.type, field.arrow_type
    domain = domain_of(kind)
    if kind == pa.float64() and target == pa.float32():  # the same number, written wider
        return _value(scalar, Field(field.id, field.name, "double"))
    in_us = pa.timestamp("us", getattr(kind, "tz", None))
    has_same_form = domain in (Domain.TEXT, Domain.BYTES, Domain.EXACT) or kind == in_us
    alike = kind == target or (domain is domain_of(target) and has_same_form)
    if not alike or domain is None or not scalar.is_valid:
        raise UnsupportedConditionError
    return Value(domain, to_plain(pa.array([scalar], kind))[0])


def read_expression(expression: pc.Expression, schema: Schema) -> Predicate:
    """The predicate that is TRUE for the rows that pyarrow keeps. Raises PredicateError, which names what has none."""
    try:
        return _UserFilterReader(schema).read_whole(_tree(expression))
    except (UnsupportedConditionError, pa.ArrowException) as error:
        shown = short_repr(str(expression))
        raise PredicateError(f"{shown} can't be read: name columns as in pc.field('name')") from error


class _UserFilterReader(_FilterReader):
    """Reads the nodes of Arrow expressions that users write: their literals need not have the type of the column.

    Arrow compares NaN by IEEE 754: it equals nothing, and is not greater than a number.
    """

    def atom(self, node: _Node) -> Predicate:
        if isinstance(node, _Call) and node.function == "is_in":
            return self._is_in(node)
        if isinstance(node, _Call) and node.function in ("starts_with", "ends_with"):
            return self._like(node)
        return super().atom(node)

    def show(self, node: _Node) -> str:
        if isinstance(node, _Call):
            return f"{node.function}({', '.join(map(self.show, node.arguments))})"
        return ".".join(node.path) if isinstance(node, _Column) else str(node)

    def _is_in(self, node: _Call) -> Predicate:
        """TRUE for NULL if that is a member, and never NULL itself."""
        field, members = self._field(node.arguments[0]), node.options["value_set"].values
        if members is None or node.options["null_matching_behavior"].as_py() != _MATCH:
            raise UnsupportedConditionError
        if pa.types.is_floating(field.arrow_type) or pa.types.is_floating(members.type):  # by their bits
            raise UnsupportedConditionError
        null = bind.is_null(field)
        found = bind.one_of(field, [_user_value(member, field) for member in members.drop_null()])
        return bind.disjunction([found, null]) if members.null_count else bind.conjunction([found, bind.negation(null)])

    def _like(self, node: _Call) -> Predicate:
        pattern = node.options["pattern"].as_py()
        if node.options["ignore_case"].as_py():
            raise UnsupportedConditionError
        function = node.function.replace("_", "")
        return bind.text_match(function, self._field(node.arguments[0]), Value(Domain.TEXT, pattern))

    def _compare(self, op: Op, left: _Node, right: _Node) -> Predicate:
        if isinstance(left, pa.Scalar) and isinstance(right, _Column):
            op, left, right = bind.MIRROR[op], right, left
        field = self._field(left)
        is_float = pa.types.is_floating(field.arrow_type)
        if not isinstance(right, pa.Scalar):
            other = self._field(right)
            if is_float or other.arrow_type != field.arrow_type:
                raise UnsupportedConditionError
            return bind.compare(op, field, other)
        value = _user_value(right, field)
        if value.value != value.value:
            raise UnsupportedConditionError
        found = bind.compare(op, field, value)
        if not is_float or op not in (">", ">=") or value.kind is None:
            return found
        nan = bind.compare("=", field, Value(Domain.FLOAT64, float("nan")))
        return bind.conjunction([found, bind.negation(nan)])


_MATCH = 0  # the value of ``null_matching_behavior`` by which NULL is a member like any other


def _user_value(scalar: pa.Scalar, field: Field) -> Value:
    """A literal that Arrow compares with a column as dolmen does."""
    if not scalar.is_valid:
        return NULL
    if pa.types.is_timestamp(scalar.type):
        scalar = scalar.cast(pa.timestamp("us", scalar.type.tz))
    if pa.types.is_dictionary(scalar.type):
        raise UnsupportedConditionError
    domain, own = domain_of(scalar.type), domain_of(field.arrow_type)
    is_decimal = pa.types.is_decimal(scalar.type) or pa.types.is_decimal(field.arrow_type)
    are_numbers = domain is not None and own is not None and domain.is_number and own.is_number and not is_decimal
    if domain is None or not (domain is own or are_numbers):
        raise UnsupportedConditionError
    return Value(domain, to_plain(pa.array([scalar], scalar.type))[0])
