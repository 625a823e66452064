"""Filters as Arrow expressions, in which DuckDB asks a dataset for rows, as predicates.

An expression does not show what it is made of, but its serialized form does (Arrow's ``compute::Serialize``): a record
batch whose columns are the literals, and whose metadata are the steps of a walk through the expression: ``call`` and
``end`` around a function's arguments, ``field_ref``, ``literal``, ``options``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.errors import InputError
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.format.values import to_plain
from dolmen.predicate import Constant, Not, Predicate, bind
from dolmen.predicate.constants import Value
from dolmen.predicate.domain import Domain, Op, domain_of

_COMPARISONS: dict[str, Op] = {
    "equal": "=", "not_equal": "<>", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip


@dataclass(frozen=True)
class _Column:
    path: tuple[str, ...]


@dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]
    options: Any


_Node: TypeAlias = _Column | _Call | pa.Scalar
_Step: TypeAlias = tuple[str, str]


class _UnsupportedFilterError(Exception):
    """There is no predicate that surely says the same."""


@dataclass(frozen=True)
class Filter:
    """The predicate and the columns of an Arrow expression.

    Args:
        columns: names of the columns that it reads; None if that can't be told.
        predicate: a condition that all rows fulfil for which the expression is TRUE.
        whole: whether all rows that fulfil it are such rows: the expression need not be evaluated then.
    """

    columns: frozenset[str] | None
    predicate: Predicate | None
    whole: bool


def read_filter(expression: pc.Expression, schema: Schema, *, boxed: bool = False) -> Filter:
    """Finds the predicate that a filter of DuckDB's amounts to.

    Comparisons mean what they mean in DuckDB, and in predicates: NaN equals itself and is greater than every number.
    Literals must have the type of the column that they are compared with; anything else is not understood.

    Args:
        schema: the table's columns.
        boxed: the expression reads them out of their boxes.
    """
    try:
        node = _out_of_boxes(_tree(expression)) if boxed else _tree(expression)
    except (_UnsupportedFilterError, pa.ArrowException):
        return Filter(None, None, False)
    understood, whole = [], True
    for conjunct in _conjuncts(node):
        try:
            understood.append(_predicate(conjunct, schema))
        except (_UnsupportedFilterError, InputError):
            whole = False
    return Filter(frozenset(_columns(node)), bind.conjunction(understood) if understood else None, whole)


def _tree(expression: pc.Expression) -> _Node:
    _, (buffer,) = expression.__reduce__()
    with pa.ipc.open_file(buffer) as file:
        batch = file.get_batch(0)
    return _read(iter(_metadata(batch.schema)), batch)


def _out_of_boxes(node: _Node) -> _Node:
    """The same expression on columns instead of the fields of their boxes."""
    if isinstance(node, _Call):
        return replace(node, arguments=tuple(map(_out_of_boxes, node.arguments)))
    if not isinstance(node, _Column):
        return node
    if len(node.path) < 2:
        raise _UnsupportedFilterError
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
            node = _Call(function, _flat(function, arguments), options[0] if options else None)
        else:
            raise _UnsupportedFilterError
        if not open_calls:
            return node
        open_calls[-1][1].append(node)
    raise _UnsupportedFilterError


def _flat(function: str, arguments: list[_Node]) -> tuple[_Node, ...]:
    if function not in ("and_kleene", "or_kleene"):
        return tuple(arguments)
    parts = ((node.arguments if _is(node, function) else (node,)) for node in arguments)
    return tuple(chain.from_iterable(parts))


def _is(node: _Node, function: str) -> TypeGuard[_Call]:
    return isinstance(node, _Call) and node.function == function


def _metadata(schema: pa.Schema) -> list[_Step]:
    """A schema's metadata with all keys that are there twice, which pyarrow's own way leaves out.

    Read from the Arrow C data interface: https://arrow.apache.org/docs/format/CDataInterface.html#c.ArrowSchema.metadata
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
    place = address

    def integer() -> int:
        nonlocal place
        place += 4
        return ctypes.c_int32.from_address(place - 4).value

    def text() -> str:
        nonlocal place
        length = integer()
        place += length
        return ctypes.string_at(place - length, length).decode()

    for _ in range(integer()):
        yield text(), text()


def _columns(node: _Node) -> Iterator[str]:
    if isinstance(node, _Column):
        yield node.path[0]
    elif isinstance(node, _Call):
        for argument in node.arguments:
            yield from _columns(argument)


def _conjuncts(node: _Node) -> tuple[_Node, ...]:
    return node.arguments if _is(node, "and_kleene") else (node,)


def _predicate(node: _Node, schema: Schema) -> Predicate:
    """The predicate that is TRUE, FALSE or NULL where the expression is."""
    if isinstance(node, pa.Scalar) and pa.types.is_boolean(node.type):
        return Constant(node.as_py())
    if isinstance(node, _Column):
        return bind.truth(_field(node, schema))
    if not isinstance(node, _Call):
        raise _UnsupportedFilterError
    arguments = node.arguments
    match node.function:
        case "and_kleene":
            return bind.conjunction([_predicate(argument, schema) for argument in arguments])
        case "or_kleene":
            return bind.disjunction([_predicate(argument, schema) for argument in arguments])
        case "invert":
            return bind.negation(_predicate(arguments[0], schema))
        case "is_null" if node.options is None or not node.options["nan_is_null"].as_py():
            return bind.is_null(_field(arguments[0], schema))
        case "is_valid":
            return bind.negation(bind.is_null(_field(arguments[0], schema)))
        case "is_nan":
            field = _field(arguments[0], schema)
            nan = pa.scalar(float("nan"), field.arrow_type)
            return bind.compare("=", field, _value(nan, field))
        case "is_in":  # FALSE, rather than NULL, for NULL
            field = _field(arguments[0], schema)
            return bind.conjunction([_one_of(node, field), Not(bind.is_null(field))])
        case "if_else":
            return _in_where_valid(arguments, schema)
        case function if function in _COMPARISONS and len(arguments) == 2:
            return _compare(_COMPARISONS[function], *arguments, schema)
    raise _UnsupportedFilterError


def _compare(op: Op, left: _Node, right: _Node, schema: Schema) -> Predicate:
    if isinstance(left, pa.Scalar) and isinstance(right, _Column):
        field = _field(right, schema)
        return bind.compare(op, _value(left, field), field)
    field = _field(left, schema)
    if not isinstance(right, pa.Scalar):
        raise _UnsupportedFilterError
    return bind.compare(op, field, _value(right, field))


def _in_where_valid(arguments: tuple[_Node, ...], schema: Schema) -> Predicate:
    """SQL's IN: ``if_else(is_valid(x), is_in(x, ...), NULL)``."""
    match arguments:
        case (
            _Call("is_valid", (_Column() as tested,)),
            _Call("is_in", (_Column() as column,)) as members,
            pa.Scalar() as otherwise,
        ) if tested == column and not otherwise.is_valid:
            return _one_of(members, _field(column, schema))
    raise _UnsupportedFilterError


def _one_of(node: _Call, field: Field) -> Predicate:
    members = node.options["value_set"].values
    if members is None or members.null_count:
        raise _UnsupportedFilterError
    return bind.one_of(field, [_value(member, field) for member in members])


def _field(node: _Node, schema: Schema) -> Field:
    if not isinstance(node, _Column) or len(node.path) > 1:
        raise _UnsupportedFilterError
    field = schema.field(node.path[0])
    if is_nested(field.arrow_type):
        raise _UnsupportedFilterError
    return field


def _value(scalar: pa.Scalar, field: Field) -> Value:
    """A literal of the column's own type, or one that is stored alike."""
    own, wanted = scalar.type, field.arrow_type
    domain = domain_of(own)
    if own == pa.float64() and wanted == pa.float32():  # the same number, written wider
        return _value(scalar, Field(field.id, field.name, "double"))
    alike = own == wanted or (
        domain is domain_of(wanted)
        and (domain in (Domain.TEXT, Domain.BYTES, Domain.EXACT) or own == pa.timestamp("us", getattr(own, "tz", None)))
    )
    if not alike or domain is None or not scalar.is_valid:
        raise _UnsupportedFilterError
    return Value(domain, to_plain(pa.array([scalar], own))[0])
