"""Reads predicates as users write them: SQL text in DuckDB's dialect, or a mapping of columns to values.

Only the nodes of sqlglot's trees that are listed here are supported, with the arguments that are listed. Everything
else is refused, so no construct is mistaken for a similar one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.base.units import DAY_US
from dolmen.errors import LimitError, PredicateError, short_repr
from dolmen.format.schema import Field, Schema
from dolmen.format.types import TYPES
from dolmen.predicate import bind, constants
from dolmen.predicate.ast import (
    FALSE,
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_MEMBERS,
    Constant,
    Predicate,
    check_count,
    columns,
)
from dolmen.predicate.bind import ColumnOperand, Side
from dolmen.predicate.constants import LISTS, Interval, Value, check_characters, from_python
from dolmen.predicate.domains import MAX_DIGITS, NAMES, Domain, Op
from dolmen.predicate.names import Name, find_column, find_key
from dolmen.predicate.sql_parser import parse_shape, syntax_error, tokenize

if TYPE_CHECKING:
    from sqlglot import exp


Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Where: TypeAlias = "str | Mapping[str, Any] | tuple[str, Parameters] | Predicate | pc.Expression | None"
"""A predicate as users write it: SQL text (``"user_id = 42 AND price > 3"``), a mapping of columns to values, a pair of
text and the values of its parameters, an expression of pyarrow or Polars (which ``read_predicate`` reads), or a bound
predicate (docs/predicates.md); None for no predicate."""


def parse(source: Where, schema: Schema, *, now_us: int) -> Predicate:
    """Parses a predicate, and binds it to a table's columns.

    Args:
        source: SQL text such as ``"user_id = 42 AND event_time < now() - INTERVAL 90 DAY"``; or a mapping such as
            ``{"user_id": 42, "country": ["de", "fr"], "email": None}``: equality, IN and IS NULL, joined by AND; or
            ``{"amount": {">=": 3, "<": 9}}`` with operators. A text in a mapping means the same as a quoted literal in
            SQL, and a float means its decimal digits. Or a pair of text and the values of its parameters, as in
            ``("user_id = ?", [42])`` or ``("user_id = :id", {"id": 42})``. A predicate that is already bound to this
            schema is returned as it is.
        schema: the table's columns. Names ignore case, but a quoted name prefers a column with exactly that name.
        now_us: microseconds since the epoch for ``now()``, ``current_timestamp`` and ``current_date`` (UTC).

    Raises:
        PredicateError: the predicate cannot be parsed or does not match the schema; for text, it has the position.
        LimitError: the predicate exceeds the limits (docs/predicates.md).
    """
    if isinstance(source, str):
        return _parse_text(source, schema, now_us, ())
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], str):
        return _parse_text(source[0], schema, now_us, source[1])
    if isinstance(source, Mapping):
        return parse_mapping(source, schema)
    if isinstance(source, Predicate):
        return _check_bound(source, schema)
    raise PredicateError(f"a predicate is SQL text or a mapping of columns to values, not {type(source).__name__}")


def _check_bound(p: Predicate, schema: Schema) -> Predicate:
    try:
        foreign = columns(p) - schema.by_id.keys()
    except RecursionError:
        raise PredicateError(f"nested too deeply: a stored predicate has at most {MAX_DEPTH} levels") from None
    if foreign:
        raise PredicateError(f"the predicate was bound to another table: this one has no column with id {min(foreign)}")
    return p


def with_parameters(source: Any, parameters: Parameters | None) -> Any:
    """A predicate with the values of its parameters. Raises PredicateError if the predicate is not text."""
    if parameters is None:
        return source
    if not isinstance(source, str):
        raise PredicateError("parameters go with a predicate's text, as in where='user_id = ?', parameters=[42]")
    return source, parameters


def _parse_text(text: str, schema: Schema, now_us: int, parameters: Parameters) -> Predicate:
    if isinstance(parameters, tuple) and not parameters and (found := parse_shape(check_characters(text))):
        shape, literals = found
        with suppress(PredicateError, LimitError):  # raised again below, with their position
            return TreeReader(schema, now_us, {}, literals).predicate(shape.tree)
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ParseError, TokenError
    from sqlglot.tokens import TokenType

    try:
        tokens = tokenize(text)
        trees = Dialect.get_or_raise("duckdb").parser().parse_into(exp.Condition, tokens, text)
        if not trees or trees[0] is None:
            raise PredicateError("an empty predicate names no rows; to mean every row, write TRUE")
        if len([tree for tree in trees if tree is not None]) > 1:
            behind = next(token.start for token in tokens if token.token_type is TokenType.SEMICOLON)
            raise PredicateError("there is text after the semicolon: join conditions by AND or OR", position=behind)
        return TreeReader(schema, now_us, _values_of(trees[0], parameters)).predicate(trees[0])
    except ParseError as error:
        raise syntax_error(text, error.errors) from None
    except TokenError:
        raise PredicateError(
            f"can't read {short_repr(text)}: a quote or a comment is left open; in a text write a quote twice: 'it''s'"
        ) from None
    except RecursionError:
        raise PredicateError("nested too deeply: write it with fewer NOT, minus signs or parentheses") from None


def _values_of(tree: exp.Expression, parameters: Parameters) -> dict[int, Any]:
    """The value of each placeholder, by the identity of its node. Raises PredicateError."""
    if not isinstance(parameters, (list, tuple, Mapping)):
        raise PredicateError(f"parameters are a list, or a mapping of names to values, not {type(parameters).__name__}")
    placeholders = [node for node in tree.walk(bfs=False) if node.key == "placeholder"]
    names = [str(node.args.get("this") or "") for node in placeholders]
    if isinstance(parameters, Mapping):
        if "" in names:
            raise PredicateError("? takes its value from a list; for a mapping, write a name, as in user_id = :user_id")
        values: dict[str, Any] = {str(name): value for name, value in parameters.items()}
    else:
        counted = iter(range(1, len(placeholders) + 1))
        names = [name or str(next(counted)) for name in names]
        values = {str(number): value for number, value in enumerate(parameters, 1)}
    if missing := [name for name in names if name not in values]:
        raise PredicateError(
            f"no value for parameter {short_repr(missing[0])}: the text needs {len(set(names))}, and "
            f"{len(values)} were given"
        )
    if unused := values.keys() - set(names):
        raise PredicateError(f"parameter {short_repr(min(unused))} is not in the text")
    return {id(node): values[name] for node, name in zip(placeholders, names, strict=True)}


_SIZE = re.compile("[0-9]{1,9}")
_COMPARISONS: dict[str, Op] = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "intdiv": "//", "mod": "%"}
_FUNCTIONS = {**{name: name for name in NAMES}, "dayofmonth": "day"}  # functions of columns, by sqlglot's names
_NOW = {
    "now": Domain.ZONED, "get_current_timestamp": Domain.ZONED, "transaction_timestamp": Domain.ZONED,
    "currenttimestamp": Domain.ZONED, "currentdate": Domain.DATE, "localtimestamp": Domain.NAIVE,
    "current_localtimestamp": Domain.NAIVE,
}  # fmt: skip
_CASTS = {token: each.stored for each in TYPES for token in each.sql_tokens}


class TreeReader:
    """Turns sqlglot's tree into a bound predicate. A node's ``key`` is its kind.

    Args:
        parameters: values of placeholders, by the identity of their nodes.
        literals: other texts for the tree's literals, by the identity of their nodes.
    """

    def __init__(
        self,
        schema: Schema,
        now_us: int,
        parameters: Mapping[int, Any],
        literals: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.schema, self.now_us, self.parameters, self.literals = schema, now_us, parameters, literals
        self.conditions = 0

    def predicate(self, node: exp.Expression) -> Predicate:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise LimitError(f"more than {MAX_CONDITIONS:,} conditions in a predicate: write IN (...) instead of OR")
        with add_position(node):
            if read := _CONDITIONS.get(node.key):
                return read(self, node)
            if node.key in _COMPARISONS:
                return self._compare(node, _COMPARISONS[node.key])
            if (
                node.key in ("column", "dot", "literal", "null", "boolean", "coalesce", "arraycontains")
                or node.key in _ARITHMETIC
            ):
                side = self.side(node)
                if not isinstance(side, Value):
                    return bind.truth(side)
                if side.kind in (None, Domain.BOOLEAN):
                    return Constant(side.value)  # type: ignore[arg-type]
                raise PredicateError(
                    f"{side.name} is not a condition: repeat the column, as in n = 1 OR n = 2, or write n IN (1, 2)"
                )
            raise refusal(node)

    def _paren(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return self.predicate(node.this)

    def _and(self, node: exp.Expression) -> Predicate:
        return bind.conjunction([self.predicate(arg) for arg in _chain(node)])

    def _or(self, node: exp.Expression) -> Predicate:
        return bind.disjunction([self.predicate(arg) for arg in _chain(node)])

    def _not(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return bind.negation(self.predicate(node.this))

    def _compare(self, node: exp.Expression, op: Op) -> Predicate:
        _allow_only(node, "this", "expression")
        if node.this.key == "tuple" and op == "=":
            return self._tuples(node.this, [node.expression])
        if "null" in (node.this.key, node.expression.key):
            instead = "IS NOT NULL" if op == "<>" else "IS NULL"
            raise PredicateError(f"{op} NULL is TRUE for no row: write {instead}")
        return bind.compare(op, self.side(node.this), self.side(node.expression))

    def _tuples(self, left: exp.Expression, rows: Sequence[exp.Expression]) -> Predicate:
        fields = []
        for name in left.expressions:
            field = self.side(name)
            if not isinstance(field, Field):
                raise PredicateError("tuples compare columns with constants, as in (a, b) = (1, 2)", is_mistake=False)
            fields.append(field)
        members = []
        for row in rows:
            if row.key != "tuple" or len(row.expressions) != len(fields):
                raise PredicateError("tuples that are compared have the same length, as in (a, b) = (1, 2)")
            members.append([self.constant(member) for member in row.expressions])
            if constants.NULL in members[-1]:
                raise PredicateError("tuples are compared with constants that are not NULL")
        return bind.one_of_tuples(fields, members)

    def _in(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expressions", "field")
        if node.this.key == "tuple":
            _allow_only(node, "this", "expressions")
            return self._tuples(node.this, node.expressions)
        side = self.side(node.this)
        members = self._list_parameter(node.args["field"]) if node.args.get("field") else []
        members += [self.constant(member) for member in node.expressions]
        if not isinstance(side, Value):
            return bind.one_of(side, members)
        equal = bind.disjunction([bind.compare("=", side, member) for member in members])
        return equal if members else FALSE

    def _list_parameter(self, node: exp.Expression) -> list[Value]:
        value = self.parameters.get(id(node))
        if not isinstance(value, LISTS):
            raise PredicateError("IN takes a list in parentheses, IN (1, 2), or a parameter that is a list, IN ?")
        check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
        return [constants.NULL if member is None else from_python(member) for member in value]

    def _between(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "low", "high")
        return bind.between(self.side(node.this), self.side(node.args["low"]), self.side(node.args["high"]))

    def _is(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        side, tested = self.side(node.this), node.expression
        if tested.key == "null":
            return Constant(side.kind is None) if isinstance(side, Value) else bind.is_null(side)
        if _is_nan(tested) and not isinstance(side, Value):
            return bind.is_nan(side)
        if tested.key == "boolean":
            if isinstance(side, Value):
                raise PredicateError("IS TRUE and IS FALSE need a boolean column")
            holds = bind.truth(side) if tested.this else bind.negation(bind.truth(side))
            return bind.conjunction([holds, bind.negation(bind.is_null(side))])
        raise PredicateError("IS is followed by NULL, TRUE, FALSE, NAN or DISTINCT FROM")

    def _nullsafeneq(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        return bind.distinct_from(self.side(node.this), self.side(node.expression))

    def _nullsafeeq(self, node: exp.Expression) -> Predicate:
        return bind.negation(self._nullsafeneq(node))

    def _like(self, node: exp.Expression, escape: str | None = None) -> Predicate:
        _allow_only(node, "this", "expression", "negate")
        side = self.side(node.this)
        if isinstance(side, Value):
            raise PredicateError("LIKE needs a column on its left", is_mistake=False)
        p = bind.like(side, self.constant(node.expression), escape or None, node.key == "ilike")
        return bind.negation(p) if node.args.get("negate") else p

    def _isnan(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this")
        return bind.is_nan(self._column(node.this, "isnan"))

    def _contains(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        before, after = _AROUND[node.key]
        return bind.contains(self._column(node.this, node.key), self.constant(node.expression), before, after)

    def _list_contains(self, node: exp.Expression) -> Side:
        _allow_only(node, "this", "expression")
        names = _names_in(node.this)
        if not names:
            raise PredicateError("list_contains is for columns that are lists", is_mistake=False)
        return bind.list_contains(find_column(names, self.schema, is_list=True), self.constant(node.expression))

    def _column(self, node: exp.Expression | None, function: str) -> ColumnOperand:
        if node is None:  # sqlglot reads @ by itself as abs()
            raise PredicateError(f"{function} takes a column", is_mistake=False)
        side = self.side(node)
        if isinstance(side, Value):
            raise PredicateError(
                f"{function} is for columns: instead of a call with a constant, write its result", is_mistake=False
            )
        return side

    def _escape(self, node: exp.Expression) -> Predicate:
        _allow_only(node, "this", "expression")
        negated = node.this.key == "not"
        inner, escape = node.this.this if negated else node.this, self.constant(node.expression)
        if inner.key not in ("like", "ilike") or escape.kind is not Domain.TEXT:
            raise PredicateError("ESCAPE belongs to LIKE, with one character in single quotes")
        p = self._like(inner, str(escape.value))
        return bind.negation(p) if negated else p

    def side(self, node: exp.Expression) -> Side:
        while node.key == "paren":
            _allow_only(node, "this")
            node = node.this
        with add_position(node):
            names = _names_in(node)
            return find_column(names, self.schema) if names else self._call(node)

    def _call(self, node: exp.Expression) -> Side:
        if node.key in _ARITHMETIC:
            _allow_only(node, "this", "expression", "safe", "typed")
            operator = _ARITHMETIC[node.key]
            a, b = self.side(node.this), self.side(node.expression)
            if operator == "+" and isinstance(a, Value) and isinstance(a.value, Interval):
                a, b = b, a
            if operator in "+-" and isinstance(b, Value) and isinstance(b.value, Interval) and not isinstance(a, Value):
                return bind.add_interval(a, b.value if operator == "+" else b.value.times(-1))
            if isinstance(a, Value) and isinstance(b, Value):
                return constants.arithmetic(operator, a, b)
            if operator == "//":
                raise PredicateError("// is for constants only: engines do not agree on its result", is_mistake=False)
            return bind.compute(operator, (a, b))  # type: ignore[arg-type]
        if node.key == "neg":
            _allow_only(node, "this")
            a = self.side(node.this)
            return constants.negate(a) if isinstance(a, Value) else bind.compute("negate", (a,))
        if node.key == "coalesce":
            _allow_only(node, "this", "expressions")
            return bind.coalesce([self.side(arg) for arg in (node.this, *node.expressions)])
        if node.key == "arraycontains":
            return self._list_contains(node)
        if node.key in ("cast", "trycast"):
            _allow_only(node, "this", "to", "safe")
            a, target = self.side(node.this), _cast_target(node)
            if not isinstance(a, Value):
                return bind.compute("cast", (a,), target)
            if node.key == "trycast":
                raise refusal(node)
            return constants.cast(a, target)
        if node.key == "extract":
            _allow_only(node, "this", "expression")
            return self._function(node.this.name.lower(), node.expression, node)
        if node.key in _FUNCTIONS:
            _allow_only(node, "this")
            return self._function(_FUNCTIONS[node.key], node.this, node)
        return self._constant(node)

    def _function(self, name: str, arg: exp.Expression, node: exp.Expression) -> Side:
        if name not in NAMES:
            raise refusal(node)
        return bind.compute(name, (self._column(arg, name),))  # type: ignore[arg-type]

    def constant(self, node: exp.Expression) -> Value:
        side = self.side(node)
        if not isinstance(side, Value):
            with add_position(node):
                raise refusal(node)
        return side

    def _constant(self, node: exp.Expression) -> Value:
        with add_position(node):
            match node.key:
                case "null":
                    return constants.NULL
                case "placeholder":
                    value = self.parameters[id(node)]
                    if isinstance(value, LISTS):
                        raise PredicateError("a parameter that is a list goes with IN, as in id IN ?")
                    return constants.NULL if value is None else from_python(value)
                case "boolean":
                    return Value(Domain.BOOLEAN, bool(node.this))
                case "literal":
                    text = self.literals.get(id(node), node.name)
                    return Value(Domain.TEXT, text) if node.is_string else constants.number(text)
                case "interval":
                    return self._interval(node)
                case "timestamptrunc" | "datetrunc":
                    return self._date_trunc(node)
            name = node.name.lower() if node.key == "anonymous" else node.key
            domain = _NOW.get(name)
            if domain is None or any(node.args.get(arg) for arg in ("expressions", "expression")):
                raise refusal(node)
            return Value(domain, self.now_us // DAY_US if domain is Domain.DATE else self.now_us)

    def _interval(self, node: exp.Expression) -> Value:
        _allow_only(node, "this", "unit")
        if node.this is None:
            raise refusal(node)
        amount, unit = self.constant(node.this), node.args.get("unit")
        if unit is None:
            return Value(Interval, constants.parse_interval(str(amount.value)))
        if unit.key != "var" or not isinstance(amount.value, (int, str)):
            raise PredicateError("an interval is a whole number of one unit, such as INTERVAL 90 DAY")
        return Value(Interval, constants.parse_interval(f"{amount.value} {unit.name}"))

    def _date_trunc(self, node: exp.Expression) -> Value:
        _allow_only(node, "this", "unit")
        value = self.constant(node.this)
        if value.kind not in (Domain.NAIVE, Domain.ZONED):
            raise PredicateError("date_trunc is for constant timestamps only, such as now()", is_mistake=False)
        return Value(value.kind, constants.truncate(value.value, node.args["unit"].name))  # type: ignore[arg-type]


def _chain(node: exp.Expression) -> list[exp.Expression]:
    """The operands of a chain of one connective, without recursion, because chains can be long."""
    operands, pending = [], [node]
    while pending:
        top = pending.pop()
        if top.key == node.key:
            _allow_only(top, "this", "expression")
            pending += (top.expression, top.this)
        else:
            operands.append(top)
    return operands


def _names_in(node: exp.Expression) -> list[Name]:
    """The parts of a column's name; none for another node."""
    parts = []
    while node.key == "dot":
        parts.append(node.expression)
        node = node.this
    if node.key == "column":
        parts += [part for name in ("this", "table", "db", "catalog") if (part := node.args.get(name)) is not None]
    elif parts:
        parts.append(node)
    if any(part.key != "identifier" for part in parts):
        raise refusal(node)
    return [Name(part.name, bool(part.args.get("quoted"))) for part in reversed(parts)]


def _is_nan(node: exp.Expression) -> bool:
    return node.key == "column" and node.name.upper() == "NAN" and not node.this.args.get("quoted")


def _cast_target(node: exp.Expression) -> pa.DataType:
    target = node.args["to"]
    name = target.this.name if hasattr(target.this, "name") else str(target.this)
    if name == "DECIMAL":
        sizes = [int(param.name) if _SIZE.fullmatch(param.name) else -1 for param in target.expressions] or [18, 3]
        precision, scale = (*sizes, 0)[:2]
        if len(sizes) > 2 or not 0 <= scale <= precision <= MAX_DIGITS or precision == 0:
            raise PredicateError(
                f"DECIMAL takes a precision of 1 to {MAX_DIGITS} digits, and a scale of at most the precision"
            )
        return pa.decimal128(precision, scale)
    if name not in _CASTS or target.expressions:
        raise PredicateError(
            f"cannot cast to {target.sql('duckdb')}; there are: {', '.join(_CASTS)}, DECIMAL(p, s)", is_mistake=False
        )
    return _CASTS[name]


def _allow_only(node: exp.Expression, *allowed: str) -> None:
    """Refuses a node with other arguments."""
    if any(value and name not in allowed for name, value in node.args.items()):
        raise refusal(node)


_AROUND = {"startswith": ("", "%"), "endswith": ("%", ""), "contains": ("%", "%")}
"""The patterns before and after the text that a function looks for."""
_CONDITIONS: dict[str, Callable[[TreeReader, Any], Predicate]] = {
    "paren": TreeReader._paren, "and": TreeReader._and, "or": TreeReader._or, "not": TreeReader._not,
    "in": TreeReader._in, "between": TreeReader._between, "is": TreeReader._is, "like": TreeReader._like,
    "ilike": TreeReader._like, "escape": TreeReader._escape, "nullsafeneq": TreeReader._nullsafeneq,
    "nullsafeeq": TreeReader._nullsafeeq, "isnan": TreeReader._isnan, **dict.fromkeys(_AROUND, TreeReader._contains),
}  # fmt: skip


def refusal(node: exp.Expression) -> PredicateError:
    text = node.sql("duckdb")
    if len(text) > 80:
        text = text[:77] + "..."
    parts = {part.key for part in node.walk()}
    if parts & {"select", "subquery", "exists"}:
        advice = "subqueries are not supported: read the values first, and pass them as a parameter, 'id IN ?'"
    elif parts & {"regexplike", "regexpilike", "similarto", "glob"}:
        advice = "regular expressions are not supported: write LIKE 'a%'"
    elif parts & {"arrayoverlaps", "bitwiseand", "bitwiseor", "dpipe", "concat", "xor"}:
        advice = "join conditions by AND and OR, and members of a list by commas; texts cannot be concatenated"
    elif parts & {"sum", "count", "max", "min", "avg"}:
        advice = "a predicate is about one row: aggregate with db.sql"
    elif node.key in _COMPARISONS:
        advice = "comparisons cannot be chained: write 1 < n AND n < 5, or BETWEEN"
    elif "column" in parts:
        named = ("coalesce", "isnan", "starts_with", "ends_with", "contains", "list_contains", *NAMES)
        advice = f"with columns you can use + - * / %, CAST, INTERVAL, {', '.join(named)}"
    else:
        advice = "constants consist of literals, CAST, + - * / // %, now(), current_date, date_trunc and INTERVAL"
    reason = f"{text} is not supported in a predicate; {advice}"
    is_chained = node.key in _COMPARISONS and getattr(node.parent, "key", "") != "paren"
    return PredicateError(reason, position=position_of(node), is_mistake=is_chained)


def position_of(node: exp.Expression) -> int | None:
    """The least position of the node and all nodes in it."""
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)


@contextmanager
def add_position(node: exp.Expression) -> Iterator[None]:
    """Adds the node's position to errors that have none."""
    try:
        yield
    except PredicateError as error:
        if error.position is not None:
            raise
        raise PredicateError(error.reason, position=position_of(node), is_mistake=error.is_mistake) from None


_SIGNS: dict[str, Op] = {
    "=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="
}  # fmt: skip
OPERATORS = (
    *_SIGNS, "in", "not in", "between", "not between", "like", "not like", "ilike", "not ilike", "is", "is not"
)  # fmt: skip


def parse_mapping(source: Mapping[str, Any], schema: Schema) -> Predicate:
    if not source:
        raise PredicateError("an empty mapping names no rows; to mean every row, write the text TRUE")
    conditions = []
    for name, value in source.items():
        if not isinstance(name, str):
            raise PredicateError(f"a mapping's keys are column names, not {short_repr(name)}")
        field = find_key(name, schema)
        try:
            conditions.append(_read_pairs(field, value) if isinstance(value, Mapping) else _equal(field, value))
        except PredicateError as error:
            raise PredicateError(f"column {field.name!r}: {error.reason}") from None
    return bind.conjunction(conditions)


def _equal(field: Field, value: Any) -> Predicate:
    if value is None:
        return bind.is_null(field)
    if (listed := _list_values(value)) is not None:
        return bind.one_of(field, _members(listed))
    return bind.compare("=", field, from_python(value))


def _read_pairs(field: Field, conditions: Mapping[Any, Any]) -> Predicate:
    if not conditions:
        raise PredicateError('an empty mapping says nothing; write {"column": {">=": 3}}')
    predicates = []
    for word, value in conditions.items():
        operator = " ".join(word.lower().split()) if isinstance(word, str) else None
        if operator not in OPERATORS:
            raise PredicateError(f"{short_repr(word)} is no operator; there are {', '.join(OPERATORS)}")
        positive = operator.removeprefix("not ")
        p = _operator(field, positive, value)
        predicates.append(p if positive == operator else bind.negation(p))
    return bind.conjunction(predicates)


def _operator(field: Field, operator: str, value: Any) -> Predicate:
    if operator in ("is", "is not"):
        if value is not None:
            raise PredicateError(f"{operator!r} takes None alone; use '=' or '<>'")
        return bind.is_null(field) if operator == "is" else bind.negation(bind.is_null(field))
    if value is None:
        raise PredicateError(f'nothing is {operator} NULL; write {{"is": None}} or {{"is not": None}}')
    if operator == "in":
        if (listed := _list_values(value)) is None:
            raise PredicateError("'in' takes a list of values")
        return bind.one_of(field, _members(listed))
    if operator == "between":
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise PredicateError("'between' takes a list of two values: the least and the greatest")
        return bind.between(field, *map(from_python, value))
    if _list_values(value) is not None:
        raise PredicateError(f"{operator!r} takes one value; 'in' takes a list")
    if operator in ("like", "ilike"):
        return bind.like(field, from_python(value), None, operator == "ilike")
    return bind.compare(_SIGNS[operator], field, from_python(value))


def _list_values(value: Any) -> Collection[Any] | None:
    """The values of a list, a Series, or an Arrow or NumPy array; None if it is one value."""
    if isinstance(value, LISTS):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        check_count(len(value), MAX_MEMBERS, "members of a list", "split it")
        try:
            return list(value.to_pylist())
        except (OverflowError, ValueError):
            raise PredicateError("a date or time outside of Python's years 1 to 9999: write it as text") from None
    for library in ("pandas", "polars"):
        module = sys.modules.get(library)
        if module and isinstance(value, (module.Series, getattr(module, "Index", module.Series))):
            missing = value.isna() if library == "pandas" else [False] * len(value)
            return [None if null else each for each, null in zip(value.to_list(), missing, strict=True)]
    return None


def _members(values: Any) -> list[Value]:
    check_count(len(values), MAX_MEMBERS, "members of a list", "split it")
    if any(value is None for value in values):
        raise PredicateError("NULL in a list equals nothing: for NULL too, write text with OR ... IS NULL")
    return [from_python(value) for value in values]
