"""Builds predicates of columns and constants, bound to column ids and types.

A literal keeps its own type, so nothing wraps: ``tiny < 300`` is TRUE for every int8, and still is after the column has
become an int16. A date column may become a timestamp: dates compare as midnights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from typing import Literal as Choice

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.errors import InputError, PredicateError, short_repr
from dolmen.format.column_history import is_date_to_timestamp
from dolmen.format.schema import CheckConstraint, Field, Schema, child_fields
from dolmen.format.types import TIMESTAMP, TYPES, Plain, short_type, to_json, type_of
from dolmen.predicate import ast, domains
from dolmen.predicate import like as like_patterns
from dolmen.predicate.ast import Predicate, Term
from dolmen.predicate.constants import NULL as NULL_VALUE
from dolmen.predicate.constants import Interval, Value, from_text
from dolmen.predicate.domains import Domain, Function, Op, domain_of
from dolmen.predicate.names import InnerField


class Computed(NamedTuple):
    """A function of columns. Conditions can use it wherever they can use a column."""

    call: ast.Call

    @property
    def arrow_type(self) -> pa.DataType:
        return self.call.arrow_type

    @property
    def type(self) -> str:
        return self.call.type

    @property
    def name(self) -> str:
        return f"the result of {self.call.function}"


ColumnOperand: TypeAlias = Field | Computed
Side: TypeAlias = ColumnOperand | Value

_MOST_MONTHS, _MOST_DAYS = 10_000_000, 300_000_000  # more than there are between the first and the last timestamp
MIRROR: dict[Op, Op] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LITERAL_TYPES = {
    Domain[each.domain]: each.stored for each in TYPES if each.domain not in (None, "EXACT") and each.stored
}
"""The type of literals by domain, except for exact numbers, whose type depends on the column and on the number."""


def compare(op: Op, left: Side, right: Side, within: Domain | None = None) -> Predicate:
    """``left op right``. Raises PredicateError if values of these types cannot be compared.

    ``within``: the domain of the comparison, if it depends on a third value (BETWEEN).
    """
    if isinstance(left, Value) and isinstance(right, ColumnOperand):
        return compare(MIRROR[op], right, left, within)
    if isinstance(left, ColumnOperand):
        right = _coerce(right, left)
    if any(isinstance(side, Value) and side.kind is None for side in (left, right)):
        return ast.NULL
    domain = within or _domain((left, right))
    if isinstance(left, Value):
        assert isinstance(right, Value)
        sign = domains.order(*(domains.convert(side.value, side.kind, domain) for side in (left, right)))
        return ast.Constant(sign in domains.HOLDS[op])
    if isinstance(right, Value):
        return ast.Compare(op, _column(left), _literal(right, domain, left.arrow_type))
    if _domain((left, right)) is not domain:
        raise PredicateError("BETWEEN over columns and numbers of different precision: write two comparisons")
    return ast.Compare(op, _column(left), _column(right))


def between(value: Side, low: Side, high: Side) -> Predicate:
    """``low <= value <= high``, all three in their common domain."""
    sides = [value, low, high]
    for field in [side for side in sides if isinstance(side, ColumnOperand)][:1]:
        sides = [_coerce(side, field) for side in sides]
    not_null = [side for side in sides if isinstance(side, ColumnOperand) or side.kind is not None]
    if not not_null:
        return ast.NULL
    domain = _domain(not_null)
    value, low, high = sides
    return conjunction([compare(">=", value, low, domain), compare("<=", value, high, domain)])


def one_of(field: ColumnOperand, values: Iterable[Value]) -> Predicate:
    """``field IN (values)``."""
    coerced = [_coerce(value, field) for value in values]
    ast.check_count(len(coerced), ast.MAX_MEMBERS, "members of an IN", "split it")
    members = [value for value in coerced if isinstance(value, Value) and value.kind is not None]
    null = len(members) < len(coerced)
    if not members:
        return ast.NULL if null else ast.FALSE
    domain = _domain([field, *{value.kind: value for value in members}.values()])
    plain = {domains.convert(value.value, value.kind, domain): None for value in members}
    distinct = sorted((value for value in plain if value == value), key=None)
    if len(distinct) < len(plain):
        distinct.append(float("nan"))
    if len(distinct) == 1 and not null:
        return ast.Compare("=", _column(field), _literal(Value(domain, distinct[0]), domain, field.arrow_type))
    arrow_type = _type_of(distinct, domain, field.arrow_type)
    return ast.In(_column(field), str(arrow_type), tuple(map(to_json, _canonical_values(distinct, arrow_type))), null)


def one_of_tuples(fields: Sequence[Field], rows: Sequence[Sequence[Value]]) -> Predicate:
    """``(fields) IN (rows)``. As in DuckDB, a tuple that contains NULL is not equal, rather than unknown.

    Each column compares in the common domain of ALL its members, as in ``one_of``.
    """
    not_null = [negation(is_null(field)) for field in fields]
    members = [[_coerce(row[index], field) for row in rows] for index, field in enumerate(fields)]
    domains = [_domain([field, *values]) for field, values in zip(fields, members, strict=True)]
    alternatives = []
    for row in zip(*members, strict=True):
        equal = [compare("=", *sides) for sides in zip(fields, row, domains, strict=True)]
        alternatives.append(conjunction([*equal, *not_null]))
    return disjunction(alternatives)


def is_null(field: ColumnOperand) -> Predicate:
    return ast.IsNull(_column(field))


def truth(field: ColumnOperand) -> Predicate:
    """A boolean column by itself."""
    if domain_of(field.arrow_type) is not Domain.BOOLEAN:
        raise PredicateError(
            f"{_describe(field)} is {short_type(field.type)}, not a condition; compare it with something"
        )
    column = _column(field)
    if isinstance(column, ast.Call):
        return compare("=", field, Value(Domain.BOOLEAN, True))
    return ast.Truth(column)


def like(field: ColumnOperand, pattern: Value, escape: str | None, ignore_case: bool) -> Predicate:
    if domain_of(field.arrow_type) is not Domain.TEXT:
        raise PredicateError(
            f"LIKE is for strings, and {_describe(field)} is {short_type(field.type)}: CAST integers AS VARCHAR"
        )
    if pattern.kind is None:
        return ast.NULL
    if pattern.kind is not Domain.TEXT:
        raise PredicateError("the pattern of LIKE must be a text in single quotes")
    if escape is not None and (len(escape) != 1 or (ignore_case and escape.isalpha())):
        raise PredicateError(
            f"ESCAPE {short_repr(escape)}: write one character, and with ILIKE one that is not a letter"
        )
    text = str(pattern.value)
    ast.check_count(len(text), ast.MAX_PATTERN, "characters of a LIKE pattern", "shorten it")
    like_patterns.pattern(text, escape)
    return ast.Like(_column(field), text, escape, ignore_case)


def distinct_from(left: Side, right: Side) -> Predicate:
    """``left IS DISTINCT FROM right``: ``<>`` that treats NULL as a value and is never NULL."""
    if isinstance(left, Value) and isinstance(right, ColumnOperand):
        left, right = right, left
    if isinstance(left, Value):
        raise PredicateError("IS DISTINCT FROM needs a column")
    differ = compare("<>", left, right)
    if isinstance(right, Value):
        return negation(is_null(left)) if right.kind is None else disjunction([differ, is_null(left)])
    one_null = [conjunction([is_null(a), negation(is_null(b))]) for a, b in ((left, right), (right, left))]
    both = [negation(is_null(left)), negation(is_null(right))]
    return disjunction([conjunction([differ, *both]), *one_null])


def compute(function: Function, args: Sequence[Side], target: pa.DataType | None = None) -> Side:
    """A function of columns; NULL of NULL. Raises PredicateError."""
    if any(isinstance(arg, Value) and arg.kind is None for arg in args):
        return NULL_VALUE
    try:
        terms = [_argument(function, arg) for arg in args]
        if function == "cast" and terms[0].arrow_type == target:
            return args[0]
        result_type = domains.result_of(function, [term.arrow_type for term in terms], target)
    except PredicateError as error:
        raise PredicateError(error.reason, is_mistake=False) from None
    return Computed(ast.Call(function, tuple(terms), str(result_type)))


def coalesce(sides: Sequence[Side]) -> Side:
    """The first of these values that is not NULL. Raises PredicateError."""
    args: list[Side] = []
    for side in sides:
        if isinstance(side, Value) and side.kind is None:
            continue
        args.append(side)
        if isinstance(side, Value):  # it is never NULL, so the others are not looked at
            break
    if len(args) < 2:
        return args[0] if args else NULL_VALUE
    first = args[0]
    assert isinstance(first, ColumnOperand)
    terms = [_any_argument(_coerce(arg, first)) for arg in args]
    result_type = domains.result_of("coalesce", [term.arrow_type for term in terms])
    return Computed(ast.Call("coalesce", tuple(terms), str(result_type)))


def add_interval(side: ColumnOperand, span: Interval) -> Side:
    """A date or timestamp after an interval. Raises PredicateError."""
    if abs(span.months) > _MOST_MONTHS or abs(span.days) > _MOST_DAYS or abs(span.us) >= 2**63:
        raise PredicateError("the interval is longer than the range of timestamps")
    term, parts = _column(side), [ast.Literal("int64", part) for part in span]
    result_type = domains.result_of("add_interval", [term.arrow_type, *(part.arrow_type for part in parts)])
    return Computed(ast.Call("add_interval", (term, *parts), str(result_type)))


def is_nan(field: ColumnOperand) -> Predicate:
    domain = domain_of(field.arrow_type)
    if domain is None or not domain.is_float:
        raise PredicateError(f"only floats can be NaN, and {_describe(field)} is {short_type(field.type)}")
    return compare("=", field, Value(domain, float("nan")))


AROUND = {"startswith": ("", "%"), "endswith": ("%", ""), "contains": ("%", "%")}
"""What may be before and after the text that a function looks for: any text (``%``), or none."""


def text_match(function: str, field: ColumnOperand, text: Value) -> Predicate:
    """Whether a string begins with a text, ends with it or has it inside: ``function`` is one of ``AROUND``."""
    before, after = AROUND[function]
    if text.kind not in (None, Domain.TEXT):
        raise PredicateError("the text to look for is written in single quotes", is_mistake=False)
    escaped = "".join(f"!{each}" if each in "%_!" else each for each in str(text.value or ""))
    pattern = text if text.kind is None else Value(Domain.TEXT, f"{before}{escaped}{after}")
    return like(field, pattern, "!" if "!" in escaped else None, False)


def list_contains(field: Field, value: Value) -> Side:
    """Whether an element of a list equals a value; NULL where the list is. Raises PredicateError."""
    element = msgspec.structs.replace(field, type=child_fields(field.type)[0].type)
    coerced = _coerce(value, element)
    assert isinstance(coerced, Value)
    if coerced.kind is None:
        return NULL_VALUE
    literal = _literal(coerced, _domain([element, coerced]), element.arrow_type)
    inside = field.inside if isinstance(field, InnerField) else ()
    return Computed(ast.Call("list_contains", (ast.ListColumn(field.id, str(element.type), inside), literal), "bool"))


def _any_argument(arg: Side) -> Term | ast.Literal:
    if not isinstance(arg, Value):
        return _column(arg)
    if not isinstance(arg.kind, Domain):
        raise PredicateError(f"coalesce takes columns and constants, not {arg.name}", is_mistake=False)
    return _literal(arg, arg.kind, pa.int8())


def _argument(function: Function, arg: Side) -> Term | ast.Literal:
    if not isinstance(arg, Value):
        return _column(arg)
    if not isinstance(arg.kind, Domain) or not arg.kind.is_number:
        raise PredicateError(f"can't compute a column {function} {arg.name}: + - * / % are for numbers")
    return _literal(arg, arg.kind, pa.int8())


def conjunction(args: Iterable[Predicate]) -> Predicate:
    """AND of any number of predicates; nested ANDs and constants are folded."""
    flat = [p for arg in args for p in (arg.args if isinstance(arg, ast.And) else (arg,)) if p != ast.TRUE]
    if ast.FALSE in flat:
        return ast.FALSE
    return ast.And(tuple(flat)) if len(flat) > 1 else flat[0] if flat else ast.TRUE


def disjunction(args: Iterable[Predicate]) -> Predicate:
    """OR of any number of predicates; nested ORs and constants are folded."""
    flat = [p for arg in args for p in (arg.args if isinstance(arg, ast.Or) else (arg,)) if p != ast.FALSE]
    if ast.TRUE in flat:
        return ast.TRUE
    return ast.Or(tuple(flat)) if len(flat) > 1 else flat[0] if flat else ast.FALSE


def negation(p: Predicate) -> Predicate:
    """NOT; a double negation is removed."""
    if isinstance(p, ast.Not):
        return p.arg
    if isinstance(p, ast.Constant):
        return ast.Constant(None if p.value is None else not p.value)
    return ast.Not(p)


def _describe(side: ColumnOperand) -> str:
    return f"column {side.name!r}" if isinstance(side, Field) else side.name


def _column(field: ColumnOperand) -> Term:
    if isinstance(field, Computed):
        return field.call
    assert isinstance(field.type, str), "nested columns are refused where names are looked up"
    if isinstance(field, InnerField):
        return ast.StructField(field.id, field.type, field.inside)
    return ast.Column(field.id, field.type)


def _coerce(side: Side, field: ColumnOperand) -> Side:
    """A literal for a comparison with this column: texts are parsed, dates become UTC midnight for zoned columns."""
    if isinstance(side, ColumnOperand):
        return side
    domain = domain_of(field.arrow_type)
    if side.kind is Domain.TEXT and domain is not Domain.TEXT:
        return from_text(str(side.value), field.arrow_type)
    if side.kind is Domain.DATE and domain is Domain.ZONED:
        return Value(domain, domains.convert(side.value, Domain.DATE, Domain.NAIVE))
    return side


def _domain(sides: Sequence[Side]) -> Domain:
    """The common domain. Raises PredicateError."""
    kinds = [domain_of(side.arrow_type) if isinstance(side, ColumnOperand) else side.kind for side in sides]
    domain = domains.join(*kinds) if all(isinstance(kind, Domain) for kind in kinds) else None  # type: ignore[arg-type]
    if domain is not None:
        return domain
    names = " with ".join(
        f"{_describe(side)} ({short_type(side.type)})" if isinstance(side, ColumnOperand) else side.name
        for side in sides
    )
    hint = ""
    if {Domain.ZONED, Domain.NAIVE} <= set(kinds):
        hint = ": one has a time zone and the other has none; convert one, as in CAST(now() AS TIMESTAMP) (UTC)"
    elif {Domain.ZONED, Domain.DATE} <= set(kinds):
        hint = ": write the day as a DATE, as in CAST(now() AS DATE) (UTC)"
    elif Domain.BOOLEAN in kinds:
        hint = ": compare it with TRUE or FALSE"
    elif Domain.EXACT in kinds and {Domain.DATE, Domain.NAIVE, Domain.ZONED, Domain.TIME} & set(kinds):
        hint = ": write times in single quotes, such as '2025-01-31' or '2025-01-31 10:00:00'"
    elif Domain.TEXT in kinds:
        hint = ": write texts in single quotes, and numbers without quotes"
    raise PredicateError(f"can't compare {names}{hint}")


def _literal(value: Value, domain: Domain, column: pa.DataType) -> ast.Literal:
    plain = domains.convert(value.value, value.kind, domain)
    arrow_type = _type_of([plain], domain, column)
    return ast.Literal(str(arrow_type), to_json(_canonical_values([plain], arrow_type)[0]))


def _type_of(values: Sequence[Plain], domain: Domain, column: pa.DataType) -> pa.DataType:
    """The column's type if it has the values, otherwise another type with them."""
    if domain is not Domain.EXACT:
        return _LITERAL_TYPES[domain]
    for candidate in (column, pa.int64(), pa.uint64()):
        if domain_of(candidate) is Domain.EXACT:
            cells = domains.grid(candidate, domain)
            if all(isinstance(domains.fit("=", value, cells), tuple) for value in values):
                return candidate
    parts = [Decimal(value).as_tuple() for value in values]  # type: ignore[arg-type]
    scale = max(0, *(-int(part.exponent) for part in parts))
    precision = scale + max(1, *(len(part.digits) + int(part.exponent) for part in parts))
    if precision > domains.MAX_DIGITS:
        raise PredicateError(
            f"the numbers need a type of {precision} digits; at most {domains.MAX_DIGITS} are supported"
        )
    return pa.decimal128(precision, scale)


def _canonical_values(values: Sequence[Any], arrow_type: pa.DataType) -> list[Plain]:
    """The canonical plain form of each value: no -0.0, and decimals with the scale of their type."""
    domain = domain_of(arrow_type)
    if domain in (Domain.FLOAT32, Domain.FLOAT64):
        return [value + 0.0 for value in values]
    if domain in (Domain.DATE, Domain.NAIVE, Domain.ZONED):
        cells = domains.grid(arrow_type, Domain.EXACT)
        if not all(cells.least <= value <= cells.greatest for value in values):
            raise PredicateError("the date or timestamp is outside the range that can be stored")
    if domain is not Domain.EXACT:
        return list(values)
    if pa.types.is_integer(arrow_type):
        return [int(value) for value in values]
    return domains.keep_valid(values, arrow_type, Domain.EXACT)


def condition_of(check: CheckConstraint, schema: Schema) -> Predicate:
    """The condition of a check of a table with these columns. Rows for which it is FALSE are refused."""
    return days_to_timestamps(ast.from_builtins(check.predicate), schema.widened_types)


def days_to_timestamps(p: Predicate, types: Mapping[int, pa.DataType]) -> Predicate:
    """The predicate with its date columns bound as timestamps, where they have become timestamps.

    ``types``: the current types, by id, of the columns that had a narrower type before.
    """
    if not any(type_of(current) is TIMESTAMP for current in types.values()):
        return p
    changed = {
        column: ast.Column(column.id, str(types[column.id]))
        for column in ast.all_columns(p)
        if column.id in types and is_date_to_timestamp(column.arrow_type, types[column.id])
    }
    if not changed:
        return p

    def replaced(term: Term) -> Term:
        if isinstance(term, ast.Call):
            args = tuple(arg if isinstance(arg, ast.Literal) else replaced(arg) for arg in term.args)
            return msgspec.structs.replace(term, args=args)
        return changed.get(term, term)

    return ast.map_leaves(p, lambda leaf: ast.with_terms(leaf, replaced))


Node = TypeVar("Node")
Connective: TypeAlias = Choice["and", "or", "not"]


class UnsupportedConditionError(Exception):
    """No predicate is known to mean the same."""


class ForeignCondition(Struct, frozen=True):
    """The predicate of a condition."""

    # TRUE for every row for which the condition is TRUE; None if no conjunct has a predicate
    predicate: Predicate | None
    is_exact: bool  # the predicate is TRUE for these rows only, so the engine need not evaluate its condition


class ConditionReader(ABC, Generic[Node]):
    """Reads conditions of another engine (DuckDB, Polars, Spark) as predicates with the same meaning for every row.

    A subclass knows the engine's nodes. A conjunct without a predicate is left to the engine.
    """

    node_errors: ClassVar[tuple[type[Exception], ...]] = (InputError,)
    """Errors by which ``atom`` says that a node has no predicate, besides UnsupportedConditionError."""

    @abstractmethod
    def connective(self, node: Node) -> tuple[Connective, Sequence[Node]] | None:
        """The operands of AND, OR or NOT; None for any other node."""

    @abstractmethod
    def atom(self, node: Node) -> Predicate:
        """The predicate that is TRUE, FALSE or NULL where any other node is. Raises ``node_errors``."""

    def predicate(self, node: Node) -> Predicate:
        """The predicate that is TRUE, FALSE or NULL where the condition is. Raises ``node_errors``."""
        found = self.connective(node)
        if found is None:
            return self.atom(node)
        connective, operands = found
        predicates = [self.predicate(operand) for operand in self._flatten(connective, operands)]
        if connective == "not":
            return negation(*predicates)
        return conjunction(predicates) if connective == "and" else disjunction(predicates)

    def _flatten(self, connective: Connective, operands: Sequence[Node]) -> list[Node]:
        """The operands of a chain of one connective, which may be longer than Python's stack."""
        left, flat = list(reversed(operands)), list[Node]()
        while left:
            match self.connective(node := left.pop()):
                case (inner, more) if inner == connective != "not":
                    left += reversed(more)
                case _:
                    flat.append(node)
        return flat

    def find(self, node: Node) -> Predicate | None:
        node_errors: tuple[type[Exception], ...] = (UnsupportedConditionError, RecursionError, *self.node_errors)
        try:
            return self.predicate(node)
        except node_errors:
            return None

    def read_whole(self, node: Node) -> Predicate:
        """The predicate of a condition that a user wrote. Raises PredicateError, which names a part without one."""
        node_errors: tuple[type[Exception], ...] = (UnsupportedConditionError, *self.node_errors)
        try:
            try:
                return self.predicate(node)
            except node_errors as error:
                reason = f" ({error})" if isinstance(error, InputError) else ""
                raise PredicateError(
                    f"{short_repr(self.show(self._unread_part(node)))} can't be a predicate{reason}: write the "
                    "condition as SQL text, which DuckDB evaluates if no predicate can express it"
                ) from error
        except RecursionError:
            raise PredicateError("the expression is nested too deeply: write it with fewer levels") from None

    def show(self, node: Node) -> str:
        """A node for people."""
        return str(node)

    def _unread_part(self, node: Node) -> Node:
        connective, operands = self.connective(node) or ("and", ())
        flat = self._flatten(connective, operands)
        return next((self._unread_part(each) for each in flat if self.find(each) is None), node)

    def read(self, node: Node) -> ForeignCondition:
        """The predicate of all conjuncts that have one."""
        predicates = [self.find(conjunct) for conjunct in self._flatten("and", [node])]
        readable = [predicate for predicate in predicates if predicate is not None]
        return ForeignCondition(conjunction(readable) if readable else None, len(readable) == len(predicates))
