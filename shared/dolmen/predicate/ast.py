"""The predicate's tree: few nodes, bound to column ids and types, stored as JSON.

Each node is an object with a ``kind``. A column has the type it was bound to. A literal has its own type and the JSON
form of its value (``dolmen.format.types``)::

    {"kind": "compare", "op": "<", "left": {"kind": "column", "id": 3, "type": "int64"},
     "right": {"kind": "literal", "type": "int64", "value": 5}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from itertools import product
from math import prod
from operator import or_
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base.runtime import cached_property
from dolmen.errors import LimitError, PredicateError, SchemaError
from dolmen.format.layout import build_decoders
from dolmen.format.schema import type_from_json
from dolmen.format.types import Json, Plain
from dolmen.format.types import from_json as value_from_json
from dolmen.predicate.domains import (
    Domain,
    Function,
    Op,
    convert,
    domain_of,
    is_exact_float,
    join,
    keep_valid,
    result_of,
)

KeyTuples: TypeAlias = tuple[tuple[int, ...], list[tuple[Plain, ...]]]


def listed_tuples(p: Predicate) -> KeyTuples | None:
    """The tuples of values that a predicate lists, if it has no other conditions.

    Such a predicate consists of ``=`` and IN over columns that are not floats, joined by AND, or of several such
    conditions over the same columns, joined by OR. IS NOT NULL of these columns has no effect. NULL members, and values
    that the column's type lacks, equal nothing and are dropped.

    Returns:
        the ids of the columns, ascending, and the distinct tuples of plain values in the columns' bound types; None for
        other conditions, or too many tuples.
    """
    match p:
        case Compare(op="=", right=Literal() as literal):
            return _values(p.left, [literal.plain], literal.arrow_type)
        case In():
            return _values(p.column, p.plain, p.arrow_type)
        case And():
            return _all_of(p)
        case Or():
            return _any_of(p)
    return None


def _values(column: Term, values: list[Plain], own: pa.DataType) -> KeyTuples | None:
    if not isinstance(column, Column) or isinstance(column, StructField):
        return None
    arrow_type = column.arrow_type
    domain = join(domain_of(arrow_type), domain_of(own))
    if domain is None or pa.types.is_floating(arrow_type) or len(values) > MAX_MEMBERS:
        return None
    if domain.is_float and not (
        pa.types.is_integer(arrow_type) and all(is_exact_float(value, domain) for value in values)  # type: ignore[arg-type]
    ):
        return None
    if domain in (Domain.TEXT, Domain.BYTES, Domain.BOOLEAN):
        width = arrow_type.byte_width if pa.types.is_fixed_size_binary(arrow_type) else None
        return (column.id,), [(v,) for v in values if width is None or len(v) == width]  # type: ignore[arg-type]
    converted = (convert(value, domain_of(own), domain) for value in values)
    stored = keep_valid(converted, arrow_type, Domain.EXACT if domain.is_float else domain)
    return (column.id,), [(value,) for value in stored]


def _all_of(p: And) -> KeyTuples | None:
    """The product of the operands' tuples. Operands over the same columns intersect; others must share no column."""
    by_columns: dict[tuple[int, ...], dict[tuple[Plain, ...], None]] = {}
    not_null = set()
    for arg in p.args:
        if isinstance(arg, Not) and isinstance(arg.arg, IsNull):
            if not isinstance(arg.arg.column, Column):
                return None
            not_null.add(arg.arg.column.id)
            continue
        part = listed_tuples(arg)
        if part is None:
            return None
        ids, tuples = part
        others = by_columns.get(ids)
        by_columns[ids] = dict.fromkeys(t for t in tuples if others is None or t in others)
    ids = tuple(column for columns in by_columns for column in columns)
    size = prod(map(len, by_columns.values()))
    if not ids or len(set(ids)) < len(ids) or not not_null <= set(ids) or size > MAX_MEMBERS:
        return None
    order = sorted(range(len(ids)), key=ids.__getitem__)
    rows = (sum(parts, ()) for parts in product(*by_columns.values()))
    return tuple(ids[index] for index in order), [tuple(row[index] for index in order) for row in rows]


def _any_of(p: Or) -> KeyTuples | None:
    """The union of the operands' tuples, which must be over the same columns."""
    ids: tuple[int, ...] | None = None
    union: dict[tuple[Plain, ...], None] = {}
    for arg in p.args:
        part = listed_tuples(arg)
        if part is None or (ids is not None and part[0] != ids):
            return None
        ids = part[0]
        union.update(dict.fromkeys(part[1]))
        if len(union) > MAX_MEMBERS:
            return None
    assert ids is not None
    return ids, list(union)


class _Typed:
    __slots__ = ()
    type: str

    @property
    def arrow_type(self) -> pa.DataType:
        return type_from_json(self.type)


class Column(_Typed, msgspec.Struct, frozen=True, tag="column", tag_field="kind"):
    """A column: its id and the stored type it had when the predicate was bound."""

    id: int
    type: str

    @property
    def column_id(self) -> int:
        """The column that has to be read for it."""
        return self.id

    @property
    def path(self) -> tuple[int, ...]:
        """The ids that lead from the column to a field inside."""
        return ()


class StructField(Column, frozen=True, tag="field", tag_field="kind"):
    """A field of a struct, which is NULL where the struct is.

    ``inside``: the ids of the column and of the structs around the field, outermost first.
    """

    inside: tuple[int, ...]

    @property
    def column_id(self) -> int:
        """See ``Column``."""
        return (*self.inside, self.id)[0]

    @property
    def path(self) -> tuple[int, ...]:
        """See ``Column``."""
        return (*self.inside, self.id)[1:]


class ListColumn(StructField, frozen=True, omit_defaults=True, tag="list", tag_field="kind"):
    """A list, which is a column or a field of structs. Only ``list_contains`` takes it. ``type``: that of elements."""

    inside: tuple[int, ...] = ()

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(type_from_json(self.type))


class Literal(_Typed, msgspec.Struct, frozen=True, dict=True, tag="literal", tag_field="kind"):
    """A value that is not NULL. Its type may differ from that of the column it is compared with."""

    type: str
    value: Json

    @cached_property
    def plain(self) -> Plain:
        return value_from_json(self.value, self.arrow_type)


class Call(_Typed, msgspec.Struct, frozen=True, tag="call", tag_field="kind"):
    """A function of columns, with the type of its result (``result_of`` the arguments' types)."""

    function: Function
    args: tuple[Term | ListColumn | Literal, ...]
    type: str


Term: TypeAlias = Column | StructField | Call


class Compare(msgspec.Struct, frozen=True, tag="compare", tag_field="kind"):
    """``left op right``; NULL when either is NULL."""

    op: Op
    left: Term
    right: Term | Literal


class In(_Typed, msgspec.Struct, frozen=True, dict=True, omit_defaults=True, tag="in", tag_field="kind"):
    """``column IN (values)``."""

    column: Term
    type: str  # type of the values, which may differ from the column's
    values: tuple[Json, ...]  # JSON forms, distinct and ascending, with NaN after all numbers
    null: bool = False  # whether NULL is a member: a value that is not found then gives NULL instead of FALSE

    @cached_property
    def plain(self) -> list[Plain]:
        arrow_type = self.arrow_type
        return [value_from_json(value, arrow_type) for value in self.values]

    @cached_property
    def prepared(self) -> dict[Any, Any]:
        """A cache of converted values for evaluators: a long list is converted once, not for each batch."""
        return {}


class IsNull(msgspec.Struct, frozen=True, tag="is_null", tag_field="kind"):
    """``column IS NULL``; never NULL itself."""

    column: Term


class Like(msgspec.Struct, frozen=True, omit_defaults=True, tag="like", tag_field="kind"):
    """``column LIKE pattern``: ``%`` is any text, ``_`` any one character, newlines included."""

    column: Term
    pattern: str
    escape: str | None = None  # the character after which ``%`` and ``_`` are literal; None if there is none
    ignore_case: bool = False  # True for ILIKE: both sides are lower-cased first, character by character


class Truth(msgspec.Struct, frozen=True, tag="truth", tag_field="kind"):
    """A boolean column by itself."""

    column: Column | StructField


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
    """The columns and calls of a leaf, in reading order."""
    if isinstance(p, Compare):
        return (p.left,) if isinstance(p.right, Literal) else (p.left, p.right)
    if isinstance(p, (In, IsNull, Like, Truth)):
        return (p.column,)
    return ()


def columns_in(term: Term | Literal) -> tuple[Column, ...]:
    if isinstance(term, Call):
        return tuple(column for arg in term.args for column in columns_in(arg))
    return (term,) if isinstance(term, Column) else ()


def computes(p: Predicate) -> bool:
    """Whether a leaf has a call, which neither statistics nor keys can judge."""
    return any(isinstance(term, Call) for term in terms_of(p))


def functions(p: Predicate) -> frozenset[Function]:
    """All functions that the predicate calls."""
    own = frozenset(function for term in terms_of(p) for function in _functions_in(term))
    return reduce(or_, map(functions, children(p)), own)


def _functions_in(term: Term | Literal) -> Iterator[Function]:
    if isinstance(term, Call):
        yield term.function
        for arg in term.args:
            yield from _functions_in(arg)


def uses_calls(p: Predicate) -> bool:
    return computes(p) or any(map(uses_calls, children(p)))


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
    own = frozenset(column for term in terms_of(p) for column in columns_in(term))
    return reduce(or_, map(all_columns, children(p)), own)


def columns(p: Predicate) -> frozenset[int]:
    """Ids of the columns to be read, a struct for its fields."""
    return frozenset(column.column_id for column in all_columns(p))


def term_ids(p: Predicate) -> frozenset[int]:
    """Ids of the columns and of the fields of structs, as statistics have them."""
    return frozenset(column.id for column in all_columns(p))


def uses_fields(p: Predicate) -> bool:
    """Whether a field of a struct is in the predicate."""
    return any(column.path for column in all_columns(p))


def to_builtins(p: Predicate) -> dict[str, Any]:
    """The predicate as JSON objects, equal to the ones in a manifest that was read."""
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(p))
    return built


def from_builtins(document: Any) -> Predicate:
    """The inverse of ``to_builtins``. Raises PredicateError, also for kinds of nodes that this dolmen does not know."""
    try:
        p: Predicate = msgspec.convert(document, Predicate)
        _check(p)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise PredicateError(f"not a stored predicate: {error}") from error
    return p


def to_json(p: Predicate) -> bytes:
    """The predicate as JSON text for ``.del`` objects; equal predicates have the same bytes."""
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
        if [isinstance(arg, ListColumn) for arg in term.args].count(True) != (term.function == "list_contains"):
            raise SchemaError(f"{term.function} does not take these arguments")
        if result_of(term.function, [arg.arrow_type for arg in term.args], term.arrow_type) != term.arrow_type:
            raise SchemaError(f"{term.function} does not give {term.type}")
    elif isinstance(term, StructField) and not isinstance(term, ListColumn) and not term.inside:
        raise SchemaError("a field that is in no column")
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


build_decoders(Predicate)


MAX_CONDITIONS = 10_000  # conditions joined by AND and OR. An IN is one condition, whatever its number of members.
MAX_MEMBERS = 1_000_000  # members of an IN, and keys of a delete
MAX_PATTERN = 10_000  # characters of a LIKE pattern
MAX_DEPTH = 200  # levels of a stored predicate's tree. Text cannot make more than half of them.


def check_count(count: int, most: int, what: str, instead: str) -> None:
    """Raises LimitError if ``count`` of ``what``, a plural, is more than ``most``; ``instead`` is the advice."""
    if count > most:
        raise LimitError(f"{count:,} {what} in a predicate: at most {most:,} are allowed; {instead}")
