"""The predicate's tree: few nodes, bound to column ids and types, stored as JSON.

Each node is an object with a ``kind``. A column has the type it was bound to. A literal has its own type and the JSON
form of its value (``dolmen.format.types``)::

    {"kind": "compare", "op": "<", "left": {"kind": "column", "id": 3, "type": "int64"},
     "right": {"kind": "literal", "type": "int64", "value": 5}}
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.errors import PredicateError, SchemaError
from dolmen.format.layout import prepare
from dolmen.format.schema import type_from_json
from dolmen.format.types import Json, Plain
from dolmen.format.types import from_json as value_from_json
from dolmen.predicate.constants import Op
from dolmen.predicate.functions import Function, result_of
from dolmen.predicate.limits import MAX_DEPTH


class Column(msgspec.Struct, frozen=True, tag="column", tag_field="kind"):
    """A column: its id and the stored type it had when the predicate was bound."""

    id: int
    type: str

    @property
    def arrow_type(self) -> pa.DataType:
        """The bound type as an Arrow type."""
        return type_from_json(self.type)


class Literal(msgspec.Struct, frozen=True, dict=True, tag="literal", tag_field="kind"):
    """A value that is not NULL. Its type may differ from that of the column it is compared with."""

    type: str
    value: Json

    @property
    def arrow_type(self) -> pa.DataType:
        """The literal's type as an Arrow type."""
        return type_from_json(self.type)

    @cached_property
    def plain(self) -> Plain:
        """The plain value."""
        return value_from_json(self.value, self.arrow_type)


class Call(msgspec.Struct, frozen=True, tag="call", tag_field="kind"):
    """A function of columns. It can be used wherever a column can.

    Args:
        type: stored type of the result: ``result_of`` the arguments' types.
    """

    function: Function
    args: tuple[Term | Literal, ...]
    type: str

    @property
    def arrow_type(self) -> pa.DataType:
        """The result's type as an Arrow type."""
        return type_from_json(self.type)


Term: TypeAlias = Column | Call


class Compare(msgspec.Struct, frozen=True, tag="compare", tag_field="kind"):
    """``left op right``; NULL when either is NULL."""

    op: Op
    left: Term
    right: Term | Literal


class In(msgspec.Struct, frozen=True, dict=True, omit_defaults=True, tag="in", tag_field="kind"):
    """``column IN (values)``.

    Args:
        type: type of the values, which may differ from the column's.
        values: JSON forms, distinct and ascending, with NaN after all numbers.
        null: whether NULL is a member: a value that is not found then gives NULL instead of FALSE.
    """

    column: Term
    type: str
    values: tuple[Json, ...]
    null: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """The values' type as an Arrow type."""
        return type_from_json(self.type)

    @cached_property
    def plain(self) -> list[Plain]:
        """The plain values."""
        arrow_type = self.arrow_type
        return [value_from_json(value, arrow_type) for value in self.values]

    @cached_property
    def prepared(self) -> dict[Any, Any]:
        """Converted values, which evaluators cache here: a long list is converted once, not once per batch."""
        return {}


class IsNull(msgspec.Struct, frozen=True, tag="is_null", tag_field="kind"):
    """``column IS NULL``; never NULL itself."""

    column: Term


class Like(msgspec.Struct, frozen=True, omit_defaults=True, tag="like", tag_field="kind"):
    """``column LIKE pattern``: ``%`` is any text, ``_`` any one character, newlines included.

    Args:
        escape: the character after which ``%`` and ``_`` are literal; None if there is none.
        ignore_case: True for ILIKE: both sides are lower-cased first, character by character.
    """

    column: Term
    pattern: str
    escape: str | None = None
    ignore_case: bool = False


class Truth(msgspec.Struct, frozen=True, tag="truth", tag_field="kind"):
    """A boolean column by itself."""

    column: Column


class Constant(msgspec.Struct, frozen=True, tag="constant", tag_field="kind"):
    """TRUE, FALSE or NULL for every row."""

    value: bool | None


class Not(msgspec.Struct, frozen=True, tag="not", tag_field="kind"):
    """NOT; NULL stays NULL."""

    arg: Predicate


class And(msgspec.Struct, frozen=True, tag="and", tag_field="kind"):
    """All of two or more; FALSE wins over NULL."""

    args: tuple[Predicate, ...]


class Or(msgspec.Struct, frozen=True, tag="or", tag_field="kind"):
    """Any of two or more; TRUE wins over NULL."""

    args: tuple[Predicate, ...]


Predicate: TypeAlias = Compare | In | IsNull | Like | Truth | Constant | Not | And | Or

TRUE, FALSE, NULL = Constant(True), Constant(False), Constant(None)


def terms_of(p: Predicate) -> tuple[Term, ...]:
    """The columns and calls that a leaf reads, in reading order."""
    if isinstance(p, Compare):
        return (p.left,) if isinstance(p.right, Literal) else (p.left, p.right)
    if isinstance(p, (In, IsNull, Like, Truth)):
        return (p.column,)
    return ()


def columns_in(term: Term | Literal) -> tuple[Column, ...]:
    """The columns of a term, in reading order."""
    if isinstance(term, Call):
        return tuple(column for arg in term.args for column in columns_in(arg))
    return (term,) if isinstance(term, Column) else ()


def computes(p: Predicate) -> bool:
    """Whether a leaf reads a call. Statistics and keys cannot judge calls."""
    return any(isinstance(term, Call) for term in terms_of(p))


def uses_calls(p: Predicate) -> bool:
    """Whether a predicate has a call anywhere."""
    return computes(p) or any(map(uses_calls, children(p)))


def columns_of(p: Predicate) -> tuple[Column, ...]:
    """The columns that a leaf names, in reading order."""
    return tuple(column for term in terms_of(p) for column in columns_in(term))


def children(p: Predicate) -> tuple[Predicate, ...]:
    """The operands of a connective; none for a leaf."""
    if isinstance(p, (And, Or)):
        return p.args
    return (p.arg,) if isinstance(p, Not) else ()


def map_leaves(p: Predicate, change: Callable[[Predicate], Predicate]) -> Predicate:
    """The predicate with each leaf (everything but AND, OR and NOT) replaced by ``change`` of it."""
    if isinstance(p, Not):
        return Not(map_leaves(p.arg, change))
    if isinstance(p, (And, Or)):
        return msgspec.structs.replace(p, args=tuple(map_leaves(arg, change) for arg in p.args))
    return change(p)


def with_terms(leaf: Predicate, change: Callable[[Term], Term]) -> Predicate:
    """A leaf with each column and call in it replaced by ``change`` of it."""
    if isinstance(leaf, Compare):
        right = leaf.right if isinstance(leaf.right, Literal) else change(leaf.right)
        return Compare(leaf.op, change(leaf.left), right)
    if isinstance(leaf, (In, IsNull, Like, Truth)):
        return msgspec.structs.replace(leaf, column=change(leaf.column))
    return leaf


def all_columns(p: Predicate) -> frozenset[Column]:
    """All columns that the predicate reads, as they were bound."""
    return reduce(or_, map(all_columns, children(p)), frozenset(columns_of(p)))


def columns(p: Predicate) -> frozenset[int]:
    """Ids of all columns that the predicate reads."""
    return frozenset(column.id for column in all_columns(p))


def to_builtins(p: Predicate) -> dict[str, Any]:
    """The predicate as JSON objects, equal to those read from a manifest, so that entries compare equal."""
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(p))
    return built


def from_builtins(document: Any) -> Predicate:
    """The inverse of ``to_builtins``.

    Raises:
        PredicateError: not a predicate, or of a kind that this version of dolmen does not know.
    """
    try:
        p: Predicate = msgspec.convert(document, Predicate)
        _check(p)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise PredicateError(f"not a stored predicate: {error}") from error
    return p


def to_json(p: Predicate) -> bytes:
    """The predicate as JSON text, as in ``.del`` objects; equal predicates have the same bytes."""
    return msgspec.json.encode(p)


def from_json(document: bytes | str) -> Predicate:
    """The inverse of ``to_json``. Raises PredicateError."""
    try:
        return from_builtins(msgspec.json.decode(document))
    except (msgspec.DecodeError, RecursionError) as error:
        raise PredicateError(f"not a stored predicate: {error}") from error


def _check(p: Predicate, depth: int = 1) -> None:
    """Raises SchemaError for types and values that would fail during a scan."""
    if depth > MAX_DEPTH:
        raise SchemaError(f"more than {MAX_DEPTH} levels")
    for term in terms_of(p):
        _check_term(term, depth)
    if isinstance(p, Compare) and isinstance(p.right, Literal):
        _check_value(p.right.plain, p.right.arrow_type)
    if isinstance(p, In):
        if not p.values:
            raise SchemaError("IN without members")
        arrow_type = p.arrow_type
        for value in p.plain:
            _check_value(value, arrow_type)
    for child in children(p):
        _check(child, depth + 1)


def _check_term(term: Term | Literal, depth: int) -> None:
    if isinstance(term, Literal):
        _check_value(term.plain, term.arrow_type)
    if isinstance(term, Call):
        if depth > MAX_DEPTH:
            raise SchemaError(f"more than {MAX_DEPTH} levels")
        for arg in term.args:
            _check_term(arg, depth + 1)
        if all(isinstance(arg, Literal) for arg in term.args):
            raise SchemaError("a function of literals alone")
        if result_of(term.function, [arg.arrow_type for arg in term.args], term.arrow_type) != term.arrow_type:
            raise SchemaError(f"{term.function} does not give {term.type}")
    else:
        assert term.arrow_type is not None


def _check_value(value: Plain, arrow_type: pa.DataType) -> None:
    """Raises SchemaError for NULL, and for a number outside its type: computing with 1e999999999 would never end."""
    if value is None:
        raise SchemaError("a literal NULL in a comparison")
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        fits = exponent == -arrow_type.scale and len(digits) <= arrow_type.precision
    elif type(value) is int:
        signed = not pa.types.is_unsigned_integer(arrow_type)
        bits = arrow_type.bit_width - signed
        fits = -(1 << bits) * signed <= value < 1 << bits
    else:
        fits = True
    if not fits:
        raise SchemaError(f"a value that does not fit {arrow_type}")


prepare(Predicate)
